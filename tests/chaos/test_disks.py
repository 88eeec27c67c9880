"""A disk that is unplugged keeps only what was synced; a full one returns errors and can be emptied again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.parts import need

#: in a process of its own, whose mounts end with it
SCRIPT = """
import errno, os, sys
from pathlib import Path
from tests.chaos.disks import Disk, MountsNotAllowedError, own_mounts

place = Path(sys.argv[1])
try:
    own_mounts()
    disk = Disk(place / "image", place / "mounted", 64 << 20)
except MountsNotAllowedError as error:
    print("not allowed:", error)
    sys.exit(0)
kept = disk.directory / "kept"
file = os.open(kept, os.O_CREAT | os.O_WRONLY)
os.write(file, b"synced")
os.fsync(file)
directory = os.open(disk.directory, os.O_RDONLY)
os.fsync(directory)
os.close(directory)
os.write(file, b" and not")
(disk.directory / "lost").write_bytes(b"x" * 5000)
disk.unplug()
try:
    os.write(file, b"more")
    os.fsync(file)
    print("written after the end")
except OSError:
    pass
os.close(file)
disk.unmount()
disk.mount()
print(kept.read_bytes(), (disk.directory / "lost").exists())
disk.fill(0)
try:
    with (disk.directory / "more").open("wb") as file:
        file.write(b"x" * (1 << 20))
        file.flush()
    print("there was room")
except OSError as error:
    print(error.errno == errno.ENOSPC)
directory = os.open(disk.directory, os.O_RDONLY)
os.fsync(directory)
os.close(directory)
disk.make_room()
disk.unplug()
disk.unmount()
disk.mount()
with (disk.directory / "more").open("wb") as file:
    file.write(b"x" * (1 << 20))
disk.close()
print("room")
"""


def test_what_was_not_synced_is_lost_and_what_was_full_is_emptied(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.stdout.startswith("not allowed"):
        need(False, "filesystems of our own (power cuts, full disks)", done.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["b'synced' False", "True", "room"]
    assert not os.path.ismount(tmp_path / "mounted"), "its mounts were its own"
