"""Foreign files in a bookie's directories: they are found at the start and named, and no data of the bookie is changed.
Rows `files.*`.

Flipped bits and torn ends are tested in tests/unit/bookie; here whole files and names are wrong.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.bookie.conftest import cluster
from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import packet
from tests.integration.hostile.table import each

__all__ = ["cluster"]

pytestmark = pytest.mark.zookeeper


def one(directory: Path, pattern: str) -> Path:
    return sorted(directory.glob(pattern))[-1]


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _replace_by_link(path: Path) -> None:
    target = path.parent.parent.parent / f"moved-{path.name}"
    shutil.move(path, target)
    path.symlink_to(target)


#: changes to the directory of a bookie that has served and ended
CASES: dict[str, Callable[[Path], object]] = {
    "stranger-in-journal": lambda d: (d / "journal" / "holiday.jpg").write_bytes(os.urandom(3000)),
    "stranger-in-ledgers": lambda d: (d / "ledgers" / "notes.txt").write_text("mine"),
    "stranger-named-alike": lambda d: (d / "journal" / "journal-backup").write_bytes(b"not a number"),
    "stranger-directory": lambda d: (d / "ledgers" / "lost+found").mkdir(),
    "journal-foreign-bytes": lambda d: (d / "journal" / "journal-00000000ffffffff").write_bytes(os.urandom(70_000)),
    "journal-header-truncated": lambda d: (d / "journal" / "journal-00000000ffffffff").write_bytes(b"DL"),
    "journal-is-a-directory": lambda d: (d / "journal" / "journal-00000000ffffffff").mkdir(),
    "journal-is-a-link": lambda d: _replace_by_link(one(d, "journal/journal-*")),
    "manifest-empty": lambda d: (d / "ledgers" / "MANIFEST").write_bytes(b""),
    "manifest-foreign": lambda d: (d / "ledgers" / "MANIFEST").write_bytes(b"#!/bin/sh\nexit 0\n"),
    "manifest-is-a-directory": lambda d: _replace_by_directory(d / "ledgers" / "MANIFEST"),
    "manifest-is-a-link": lambda d: _replace_by_link(d / "ledgers" / "MANIFEST"),
    "index-foreign": lambda d: one(d, "ledgers/index-*").write_bytes(os.urandom(500)),
    "index-missing": lambda d: one(d, "ledgers/index-*").unlink(),
    "index-is-a-directory": lambda d: _replace_by_directory(one(d, "ledgers/index-*")),
    "cookie-garbage": lambda d: (d / "journal" / "VERSION").write_bytes(b"\xff\xfe\x00"),
    "cookie-hashes": lambda d: (d / "journal" / "VERSION").write_bytes(b"5\n" + b"#" * 60 + b"!"),
    "cookie-version": lambda d: (d / "journal" / "VERSION").write_bytes(b'9\nbookieHost: "x:1"\n'),
    "cookie-is-a-directory": lambda d: _replace_by_directory(d / "ledgers" / "VERSION"),
    "cookie-is-a-link": lambda d: _replace_by_link(d / "ledgers" / "VERSION"),
    "lock-is-a-directory": lambda d: _replace_by_directory(d / "journal" / "LOCK"),
    "lock-is-a-link": lambda d: _replace_by_link(d / "journal" / "LOCK"),
    "ledgers-is-a-file": lambda d: (d / "ledgers").rename(d / "away").with_name("ledgers").write_text("x"),
}


@pytest.fixture(scope="module")
def served(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BookieProcess, Path]]:
    """A bookie that has served and ended, and a copy of its directory."""
    directory = tmp_path_factory.mktemp("served")
    process = BookieProcess(directory / "bookie", cluster).start()
    with process.connect() as client:
        assert [client.add(1, entry, b"kept") for entry in range(5)] == [0] * 5
    assert process.terminate() == 0
    shutil.copytree(process.directory, directory / "copy")
    yield process, directory / "copy"
    process.kill()


@each("files", CASES)
def test_a_directory_that_is_not_as_it_was_left(served: tuple[BookieProcess, Path], case: str, answer: str) -> None:
    process, left = served
    shutil.rmtree(process.directory)
    shutil.copytree(left, process.directory)
    process.log.unlink()
    CASES[case](process.directory)
    launched = process.launch()
    assert launched.stdout is not None
    words = launched.stdout.readline().split()  # ready, or the end
    if words[:1] == [b"ready"]:
        with process.connect() as client:
            assert [client.read(1, entry) for entry in range(5)] == [(0, packet(1, e, b"kept")) for e in range(5)]
        process.kill()
        assert answer == "starts, and all is there"
        return
    assert process.wait() in (1, 2)
    said = process.log.read_text()
    assert "Traceback" not in said
    assert answer.removeprefix("refuses to start: ") in said.splitlines()[-1], said.splitlines()[-1]
