"""Clusters whose streams are objects: here of a directory, with real processes that are killed."""

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
from tests.integration.cli.up import Up, dlog, up, up_for_many, wait_until
from tests.integration.spark.parts import need_spark
from tests.integration.storage import storage

LINES = b"".join(b"line %d\n" % n for n in range(5000))
#: hardly compressible, so that a few of them fill a segment
WIDE = b"".join(b"%s\n" % random.Random(n).randbytes(60).hex().encode() for n in range(3000))
SMALL = ("--bookies", "0", "--write-proxies", "1", "--read-proxies", "1")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s3-direct") / "objects"


@pytest.fixture(scope="module")
def on_objects(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Up]:
    """One cluster for the tests that do not end it. Owners of a stream may die: there are two write proxies."""
    with up_for_many(tmp_path_factory, "objects", "--bookies", "0", "--objects", f"file://{root}") as running:
        yield running


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, (out[-3000:], err)
    return out


def shown(cluster: Up, stream: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ok(cluster, "show", stream, "--json"))
    return told


def stores_of(cluster: Up, stream: str) -> set[str]:
    return {segment["store"] for segment in shown(cluster, stream)["segments"]}


def test_three_commands_bring_a_file_back(on_objects: Up, root: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(LINES)
    ok(on_objects, "create", "s")
    ok(on_objects, "append", "s", str(lines))
    assert ok(on_objects, "read", "s", "--from-start") == LINES
    assert stores_of(on_objects, "s") == {"s3-direct"}, "it is the default without bookies, if a root is given"
    [cluster] = (marker.parent for marker in root.glob("*/marker"))
    assert {path.name for path in cluster.iterdir()} >= {"marker", "segments"}
    told = json.loads(ok(on_objects, "explain", "s", "1:0:1", "--json"))
    assert told["object"] == f"file://{cluster}/segments/{told['location']}/{1:020d}"
    assert "being written" in told["objects"] and "record 1 of a batch" in told["slot"]
    assert "not confirmed" in json.loads(ok(on_objects, "explain", "s", "1:999:0", "--json"))["entry"]


def test_an_owner_that_is_killed_while_it_appends_loses_repeats_and_reorders_nothing(on_objects: Up) -> None:
    ok(on_objects, "create", "killed")
    half = b"".join(b"%d %s\n" % (n, b"x" * 80) for n in range(20_000))
    rest = b"".join(b"%d %s\n" % (n, b"y" * 80) for n in range(20_000, 40_000))
    append = python_module("dlog", "append", "killed", "-", "--dir", str(on_objects.directory))
    with Popen(append, stdin=PIPE, stdout=DEVNULL) as appending:
        assert appending.stdin is not None
        appending.stdin.write(half)
        appending.stdin.flush()
        assert ok(on_objects, "read", "killed", "--from-start", "--follow", "--limit", "1")
        on_objects.kill_part("write", shown(on_objects, "killed")["owner"]["location"])
        appending.stdin.write(rest)
        appending.stdin.close()
        assert appending.wait(180) == 0
    assert ok(on_objects, "read", "killed", "--from-start") == half + rest
    assert shown(on_objects, "killed")["owner"]["epoch"] >= 2


def test_a_stream_moves_from_files_and_back_and_its_segments_are_deleted(on_objects: Up, root: Path) -> None:
    ok(on_objects, "create", "moved", "--store", "file", "--segment-bytes", "64KiB")
    written = b""
    for store in ("file", "s3-direct", "file"):
        ok(on_objects, "alter", "moved", "--store", store)
        count = len(shown(on_objects, "moved")["segments"])
        while len(shown(on_objects, "moved")["segments"]) < count + 3:
            ok(on_objects, "append", "moved", given=WIDE)
            written += WIDE
    assert stores_of(on_objects, "moved") == {"file", "s3-direct"}
    assert ok(on_objects, "read", "moved", "--from-start") == written
    segments = shown(on_objects, "moved")["segments"]
    ok(on_objects, "truncate", "moved", f"{segments[-1]['number']}:0:0")
    wait_until(lambda: not shown(on_objects, "moved")["segments_to_delete"], "truncated segments stay")
    [cluster] = (marker.parent for marker in root.glob("*/marker"))
    for segment in segments[:-1]:
        if segment["store"] == "s3-direct":
            assert not list((cluster / "segments" / segment["location"]).iterdir())


def test_an_audit_reads_every_entry_and_an_offload_moves_segments(on_objects: Up, tmp_path: Path) -> None:
    need_spark()
    ok(on_objects, "create", "proved", "--segment-bytes", "64KiB")
    while len(shown(on_objects, "proved")["segments"]) < 3:
        ok(on_objects, "append", "proved", given=WIDE)
    report = json.loads(ok(on_objects, "pipeline", "audit", "--stream", "proved", "--json"))
    assert report["findings"] == [] and report["failures"] == []
    assert {item["store"] for item in report["items"]} == {"s3-direct"}
    everything, count = ok(on_objects, "read", "proved", "--from-start"), len(shown(on_objects, "proved")["segments"])
    offload = ["pipeline", "offload", "--stream", "proved", "--to", f"file://{tmp_path}", "--older-than", "0s"]
    offload += ["--keep", "0", "--grace", "0s", "--master", "local[1]", "--json"]
    assert json.loads(ok(on_objects, *offload))["counts"]["segments_offloaded"] == count - 1
    assert json.loads(ok(on_objects, *offload))["counts"]["hot_copies_deleted"] == count - 1
    assert stores_of(on_objects, "proved") == {"cold", "s3-direct"}
    assert ok(on_objects, "read", "proved", "--from-start") == everything


def test_kill_9_of_everything_at_once_loses_nothing_and_a_wrong_root_is_told(tmp_path: Path) -> None:
    directory, root, elsewhere = tmp_path / "c", tmp_path / "objects", tmp_path / "elsewhere"
    with up(directory, *SMALL, "--objects", f"file://{root}") as first:
        ok(first, "append", "s", "--create", given=LINES)
        for pid in (first.process.pid, *(part.pid for part in first.running.parts)):
            with contextlib.suppress(ProcessLookupError):  # they die with their parent, and may have ended already
                os.kill(pid, signal.SIGKILL)
        first.process.wait()
    code, _, err = dlog("up", "--objects", f"file://{elsewhere}", directory=directory)
    assert code == 2 and "not at this root" in err, err
    assert not elsewhere.exists(), "nothing is created there"
    with up(directory, "--objects", f"file://{root}") as right:
        assert ok(right, "read", "s", "--from-start") == LINES
        root.rename(elsewhere)  # as if its disk were unmounted
        log = directory / "logs" / "write-1.log"
        append = python_module("dlog", "append", "s", "-", "--dir", str(directory))
        with Popen(append, stdin=PIPE, stdout=DEVNULL) as appending:
            assert appending.stdin is not None
            appending.stdin.write(b"more\n")
            appending.stdin.close()
            wait_until(lambda: '"objects.out_of_reach"' in log.read_text(), "it is not told")
            assert not root.exists(), "nothing is created below the mount point"
            elsewhere.rename(root)
            assert appending.wait(180) == 0
        assert ok(right, "read", "s", "--from-start") == LINES + b"more\n"
        assert right.end() == 0
    with up(directory) as again:
        assert again.running.objects_root == f"file://{root}", "as it was"
        assert ok(again, "read", "s", "--from-start") == LINES + b"more\n"


def test_a_cluster_on_an_s3_server_goes_on_when_its_owner_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with storage("s3", tmp_path / "s3") as s3:
        told = {name.removeprefix("DLOG_COLD_S3_"): text for name, text in s3.environment.items()}
        monkeypatch.setenv("AWS_ENDPOINT_URL", told["ENDPOINT"])
        monkeypatch.setenv("AWS_DEFAULT_REGION", told["REGION"])
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", told["ACCESS_KEY"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", told["SECRET_KEY"])
        root = f"{s3.root}/streams"
        code, _, err = dlog("up", "--objects", "s3://another/x", directory=tmp_path / "c")
        assert code == 2 and "NoSuchBucket" in err and "correct --objects" in err, err
        with up(tmp_path / "c", "--bookies", "0", "--objects", root) as running:
            running.wait_up()
            ok(running, "append", "s", "--create", given=LINES)
            assert stores_of(running, "s") == {"s3-direct"}
            running.kill_part("write", shown(running, "s")["owner"]["location"])
            ok(running, "append", "s", given=LINES)
            assert ok(running, "read", "s", "--from-start") == LINES + LINES
            assert shown(running, "s")["owner"]["epoch"] >= 2
            explained = json.loads(ok(running, "explain", "s", "1:0:1", "--json"))
            assert explained["object"].startswith(f"{root}/dlog-")
            assert running.end() == 0


def test_a_root_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root, hint in (
        ("somewhere", "invalid object location"),
        (f"file://{tmp_path}/file/objects", "a file is in the way"),
        ("webhdfs://host:9870/x", "only where there is none"),
    ):
        code, _, err = dlog("up", "--objects", root, directory=tmp_path / "c")
        assert code == 2 and hint in err, err
