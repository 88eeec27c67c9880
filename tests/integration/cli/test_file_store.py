"""A cluster without bookies: streams in files of its directory, with real processes that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import pytest

from dlog.io.children import python_module
from dlog.stores.file.format import ENTRIES_OFFSET, HEADER_BYTES, decode_header
from tests.integration.cli.up import Up, dlog, up, up_for_many, wait_until
from tests.integration.spark.parts import need_spark

LINES = b"".join(b"line %d\n" % n for n in range(5000))
#: hardly compressible, so that a few of them fill a segment
WIDE = b"".join(b"%s\n" % random.Random(n).randbytes(60).hex().encode() for n in range(3000))
WITHOUT_BOOKIES = ("--bookies", "0")
SMALL = (*WITHOUT_BOOKIES, "--write-proxies", "1", "--read-proxies", "1")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One cluster for the tests that do not end it. Owners of a stream may die: there are two write proxies."""
    with up_for_many(tmp_path_factory, "files", *WITHOUT_BOOKIES) as running:
        yield running


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, err
    return out


def shown(cluster: Up, stream: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ok(cluster, "show", stream, "--json"))
    return told


def files_of(cluster: Up, stream: str) -> set[Path]:
    """Every file of the stream's segments, also of those that are not listed yet."""
    found: set[Path] = set()
    for path in (cluster.directory / "segments").glob("*/*.entries"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if decode_header(file.read(HEADER_BYTES), str(path)).stream == stream:
                found |= set(path.parent.glob(f"{path.stem}.*"))
    return found


def entries_of(cluster: Up, stream: str, number: int) -> Path:
    [place] = [str(s["location"]) for s in shown(cluster, stream)["segments"] if s["number"] == number]
    return cluster.directory / "segments" / place[:2] / f"{place}.entries"


def fill_segments(cluster: Up, stream: str) -> None:
    """Append until several segments are completed."""
    while len(shown(cluster, stream)["segments"]) < 4:
        ok(cluster, "append", stream, given=WIDE)


def test_three_commands_bring_a_file_back(files: Up, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(LINES)
    ok(files, "create", "f", "--store", "file")
    ok(files, "append", "f", str(lines))
    assert ok(files, "read", "f", "--from-start") == LINES
    assert {part.role for part in files.running.parts} == {"zookeeper", "write", "read"}
    assert b"quorum" not in ok(files, "show", "f"), "there is one copy"


def test_files_are_the_default_here_and_other_stores_are_refused_with_what_there_is(files: Up) -> None:
    ok(files, "create", "g")
    assert shown(files, "g")["settings"]["store"] == "file"
    code, _, err = dlog("create", "h", "--store", "ledger", directory=files.directory)
    assert code == 2
    assert "choose one of ['file', 's3', 's3-direct']" in err and "store=ledger" in err
    code, _, err = dlog("show", "h", directory=files.directory)
    assert code == 1, "nothing was created"


def test_an_owner_that_is_killed_while_it_appends_loses_repeats_and_reorders_nothing(files: Up) -> None:
    ok(files, "create", "killed")
    half = b"".join(b"%d %s\n" % (n, b"x" * 80) for n in range(20_000))
    rest = b"".join(b"%d %s\n" % (n, b"y" * 80) for n in range(20_000, 40_000))
    append = python_module("dlog", "append", "killed", "-", "--dir", str(files.directory))
    with Popen(append, stdin=PIPE, stdout=DEVNULL) as appending:
        assert appending.stdin is not None
        for part in (half, rest):
            appending.stdin.write(part)
            appending.stdin.flush()
            some = b"".join(part.splitlines(keepends=True)[:1])
            if part is half:
                assert ok(files, "read", "killed", "--from-start", "--follow", "--limit", "1") == some
            owner = shown(files, "killed")["owner"]["location"]
            files.kill_part("write", owner)
        appending.stdin.close()
        assert appending.wait(180) == 0
    assert ok(files, "read", "killed", "--from-start") == half + rest
    assert shown(files, "killed")["owner"]["epoch"] >= 2


def test_truncation_retention_and_deletion_remove_the_files(files: Up) -> None:
    ok(files, "create", "cut", "--segment-bytes", "64KiB")
    fill_segments(files, "cut")
    first, kept = (entries_of(files, "cut", number) for number in (1, 3))
    assert first.exists() and kept.exists()
    ok(files, "truncate", "cut", "3:0:0")
    wait_until(lambda: not list(first.parent.glob(f"{first.stem}*")), "a truncated segment's files stay")
    assert kept.exists() and ok(files, "read", "cut", "--from-start", "--limit", "1")

    ok(files, "create", "short", "--segment-bytes", "64KiB", "--retention", "1s")
    ok(files, "append", "short", given=b"x\n")
    oldest = entries_of(files, "short", 1)
    assert oldest.exists(), "it is in progress, and does not expire"
    ok(files, "append", "short", given=WIDE)
    wait_until(lambda: not list(oldest.parent.glob(f"{oldest.stem}*")), "an expired segment's files stay")

    for stream in ("cut", "short"):
        assert files_of(files, stream)
        ok(files, "delete", stream, "--yes")
        assert not files_of(files, stream)
    assert not list((files.directory / "segments").glob("*/*.draft"))


def test_an_audit_reads_every_file_and_tells_what_is_damaged(files: Up) -> None:
    need_spark()
    ok(files, "create", "proved", "--segment-bytes", "64KiB")
    fill_segments(files, "proved")
    ok(files, "append", "proved", given=b"in the segment in progress\n")
    epoch, count = shown(files, "proved")["owner"]["epoch"], len(shown(files, "proved")["segments"])
    audit = ("pipeline", "audit", "--stream", "proved", "--json")
    report = json.loads(ok(files, *audit))
    assert report["findings"] == [] and report["failures"] == []
    assert {item["store"] for item in report["items"]} == {"file"}
    assert report["items"][-1]["state"] == "in progress" and report["items"][-1]["entries"] > 0
    ok(files, "append", "proved", given=b"more\n")
    now = shown(files, "proved")
    assert (now["owner"]["epoch"], len(now["segments"])) == (epoch, count), "an audit fences nobody"
    with entries_of(files, "proved", 2).open("r+b") as file:
        file.seek(ENTRIES_OFFSET + 1000)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    code, out, _ = dlog(*audit, directory=files.directory)
    found = json.loads(out)["findings"]
    assert code == 2 and [(f["stream"], f["segment"], f["entry"]) for f in found] == [("proved", 2, 0)]


def test_kill_9_of_everything_at_once_loses_nothing_and_the_directory_may_be_moved(tmp_path: Path) -> None:
    directory, moved = tmp_path / "c", tmp_path / "moved"
    with up(directory, *SMALL) as first:
        ok(first, "create", "s")
        ok(first, "append", "s", given=LINES)
        for pid in (first.process.pid, *(part.pid for part in first.running.parts)):
            with contextlib.suppress(ProcessLookupError):  # they die with their parent, and may have ended already
                os.kill(pid, signal.SIGKILL)
        first.process.wait()
    directory.rename(moved)
    with up(moved) as second:
        assert {part.role for part in second.running.parts} == {"zookeeper", "write", "read"}, "as it was"
        assert ok(second, "read", "s", "--from-start") == LINES
        ok(second, "append", "s", given=b"more\n")
        assert second.end() == 0
    assert not directory.exists()
    with up(moved, "--bookies", "3") as third:
        ok(third, "append", "s", given=b"and more\n")
        assert ok(third, "read", "s", "--from-start") == LINES + b"more\nand more\n"
        ok(third, "append", "t", "--create", given=LINES)
        ok(third, "create", "u", "--store", "file")
        assert [shown(third, s)["settings"]["store"] for s in "stu"] == ["file", "ledger", "file"]
        assert ok(third, "read", "t", "--from-start") == LINES


def test_a_directory_that_cannot_be_used_is_named_with_what_to_do(tmp_path: Path) -> None:
    config, in_the_way = tmp_path / "dlog.toml", tmp_path / "file"
    in_the_way.write_text("")
    config.write_text(f'[file]\ndirectory = "{in_the_way}/segments"\n')
    code, _, err = dlog("up", *SMALL, "--config", str(config), directory=tmp_path / "c")
    assert code == 2 and "Traceback" not in err
    assert str(in_the_way) in err and "directory of the file store" in err and "check the name" in err
