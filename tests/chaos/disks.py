"""A filesystem for each bookie, in a file of its own: it can be filled, and unplugged so that unsynced data is lost.

Unplugging is the filesystem's own shutdown without a flush of its log (FS_IOC_SHUTDOWN, NOLOGFLUSH): data for which
fdatasync had not returned is gone, and the log is replayed at the next mount.

Invariants:
- No mount outlives the run: mounts are made in a mount namespace of this process alone, which the kernel removes with
  it, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, u32)
_NOLOGFLUSH = 2
_BALLAST = "ballast"
_UNMOUNT_S = 20.0


class MountsNotAllowedError(Exception):
    """This machine does not allow mounting a filesystem; the message says why."""


def own_mounts() -> None:
    """Give this process and its children mounts of their own. Call it before there is a second thread.

    Raises MountsNotAllowedError.
    """
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            raise MountsNotAllowedError(f"no {tool} on this machine")
    if os.geteuid() != 0:
        raise MountsNotAllowedError("not root")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise MountsNotAllowedError(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    _tool("mount", "--make-rprivate", "/")


class Disk:
    """ext4 in a sparse file, mounted on `directory`."""

    def __init__(self, image: Path, directory: Path, size_bytes: int) -> None:
        self.directory = directory
        self._image = image
        directory.mkdir(parents=True)
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _tool("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", str(image))
        self.mount()

    def mount(self) -> None:
        _tool("mount", "-o", "loop,noatime", str(self._image), str(self.directory))

    def unplug(self) -> None:
        """Fail every write and fsync from now on, and lose what was not synced."""
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NOLOGFLUSH))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Unmount when no process uses it; a process that was killed may take a moment to let go."""
        end_s = time.monotonic() + _UNMOUNT_S
        while True:
            try:
                _tool("umount", str(self.directory))
            except MountsNotAllowedError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.05)
            else:
                return

    def fill(self, leave_bytes: int) -> None:
        """Use up all free space but so much, as another tenant would."""
        with (self.directory / _BALLAST).open("wb") as file:
            free = os.statvfs(self.directory)
            room = free.f_bavail * free.f_frsize - leave_bytes
            if room > 0:
                with contextlib.suppress(OSError):  # another writer was quicker: full is full
                    os.posix_fallocate(file.fileno(), 0, room)

    def make_room(self) -> None:
        """Free the space that `fill` took, for good: a power cut after this does not bring it back."""
        (self.directory / _BALLAST).unlink(missing_ok=True)
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        with contextlib.suppress(MountsNotAllowedError):
            _tool("umount", "-l", str(self.directory))


def _tool(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MountsNotAllowedError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise MountsNotAllowedError(f"{' '.join(command)}: {done.stderr.strip()}")
