"""`dlog object` and `dlog explain` on a cluster with both stores in objects: what they show, and what the check finds
of what is planted in the directory with the objects."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog.io.s3_direct_store import open_s3_direct_store
from dlog.model.ids import METADATA_STREAM, EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId
from dlog.objects.keys import object_key
from dlog.stores.s3_direct.options import ObjectsOptions
from tests.integration.cli.up import Up, dlog, up_for_many, wait_until

LINES = b"".join(b"line %d\n" % n for n in range(5000))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s3") / "objects"


@pytest.fixture(scope="module")
def on_objects(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Up]:
    """Entries are uploaded after a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLOG_OBJECTS_UPLOAD_S", "1")
        flags = ("--bookies", "0", "--write-proxies", "1", "--read-proxies", "1", "--objects", f"file://{root}")
        with up_for_many(tmp_path_factory, "object", *flags) as running:
            yield running


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, (out[-3000:], err)
    return out


def told(cluster: Up, *arguments: str) -> Any:
    return json.loads(ok(cluster, *arguments, "--json"))


def fsck(cluster: Up, *arguments: str) -> tuple[int, Any]:
    code, out, err = dlog("object", "fsck", *arguments, "--json", directory=cluster.directory)
    assert not err, err
    return code, json.loads(out)


def findings(cluster: Up, *arguments: str) -> list[tuple[str, str]]:
    code, result = fsck(cluster, *arguments)
    assert code == (1 if result["findings"] else 0)
    return [(one["kind"], one["place"]) for one in result["findings"]]


def uploaded(cluster: Up, stream: str) -> dict[str, Any]:
    """The last segment of a stream, once all of it is in objects."""
    found: list[dict[str, Any]] = []

    def is_uploaded() -> bool:
        found[:] = told(cluster, "object", "show", stream)["segments"]
        rest = told(cluster, "explain", stream, f"{found[-1]['segment']}:{max(0, found[-1]['uploaded'])}:0")
        return bool(found[-1]["uploaded"]) and "not confirmed" in rest["entry"]

    wait_until(is_uploaded, "it is not uploaded")
    return found[-1]


@pytest.fixture(scope="module")
def written(on_objects: Up) -> dict[str, Any]:
    """A stream `a` in the store s3, uploaded, and `d` in s3-direct: the segment of a."""
    ok(on_objects, "create", "a", "--store", "s3")
    ok(on_objects, "append", "a", given=LINES)
    ok(on_objects, "create", "d", "--store", "s3-direct")
    ok(on_objects, "append", "d", given=LINES)
    return uploaded(on_objects, "a")


def streams(root: Path) -> Path:
    """The folder of objects of this incarnation of the metadata stream."""
    [folder] = root.glob("dlog-*/streams/*")
    return folder


def test_it_shows_the_objects_of_a_stream_and_a_search_finds_them(
    on_objects: Up, root: Path, written: dict[str, Any]
) -> None:
    [first] = written["objects"]
    listed = {row["object"]: row for row in told(on_objects, "object", "ls")}
    assert listed[first["object"]]["state"] == "committed" and listed[first["object"]]["node"] == written["node"]
    assert (streams(root).parent / listed[first["object"]]["key"]).stat().st_size == listed[first["object"]]["bytes"]
    assert {"stream": "a", "segment": 1, "first_entry": 0}.items() <= listed[first["object"]]["slices"][0].items()
    assert not told(on_objects, "object", "ls", "--after", str(max(listed)))
    for start in ("0", "1:0:0"):
        result = told(on_objects, "object", "search", "a", "--from", start)
        assert [one["object"] for one in result["objects"]] == [first["object"]]
        assert result["covered_to"] == f"1:{written['uploaded']}:0" and "write-ahead log of node" in result["rest"]
    explained = told(on_objects, "explain", "a", "1:0:1")
    assert explained["object"] == f"file://{streams(root).parent / listed[first['object']]['key']}"
    assert "record 1 of a batch" in explained["slot"]
    [chain] = told(on_objects, "object", "show", "d")["segments"]
    assert chain["store"] == "s3-direct" and chain["chunks"] >= 2 and "chunks, in file://" in chain["kept_as"]


def test_an_entry_is_explained_by_the_write_ahead_log_until_it_is_uploaded(
    on_objects: Up, written: dict[str, Any]
) -> None:
    ok(on_objects, "create", "fresh", "--store", "s3")
    ok(on_objects, "append", "fresh", given=b"one\n")
    explained = told(on_objects, "explain", "fresh", "1:0:0")
    assert "log of write-1" in explained.get("log", "") or "object" in explained, "it may be uploaded by now"
    assert "txid" in explained["slot"]


def test_a_stream_without_such_segments_and_positions_that_are_not_there_are_told(
    on_objects: Up, written: dict[str, Any]
) -> None:
    ok(on_objects, "create", "ended", "--store", "s3")
    ok(on_objects, "append", "ended", given=b"one\n")
    ok(on_objects, "seal", "ended")
    for arguments, hint in (
        (("search", "d"), "no segments in the store s3"),
        (("search", "a", "--from", "9:0:0"), "does not have this segment"),
        (("search", "ended", "--from", "1:9:0"), "has fewer entries"),
        (("search", "ended", "--from", "9"), "has fewer entries"),
        (("search", "nobody"), "no such stream"),
        (("show", "nobody"), "no such stream"),
    ):
        code, _, err = dlog("object", *arguments, directory=on_objects.directory)
        assert code == 1 and hint in err and "next: " in err, err
    code, _, err = dlog("object", "search", "a", "--from", "x", directory=on_objects.directory)
    assert code == 2, err


def test_the_bucket_and_the_metadata_stream_tell_the_segments_of_a_stream(
    on_objects: Up, written: dict[str, Any]
) -> None:
    [one] = told(on_objects, "object", "fsck", "--segments", "a")["segments"]
    assert (one["segment"], one["store"], one["location"]) == (1, "s3", written["location"])
    [one] = told(on_objects, "object", "fsck", "--segments", "d")["segments"]
    assert (one["segment"], one["store"]) == (1, "s3-direct")
    assert not told(on_objects, "object", "fsck", "--segments", "nobody")["segments"]


def test_each_defect_that_is_planted_is_found_alone_and_only_orphans_are_removed(
    on_objects: Up, root: Path, written: dict[str, Any]
) -> None:
    assert findings(on_objects) == []
    folder, first = streams(root), ObjectId(written["objects"][0]["object"])
    [mine] = folder.glob(f"*/{first:016x}-*")
    whole = mine.read_bytes()

    mine.write_bytes(bytes([*whole[:50], whole[50] ^ 1, *whole[51:]]))
    assert findings(on_objects) == [("damaged", f"object {first}")]
    assert findings(on_objects, "--no-blocks") == []
    mine.unlink()
    assert findings(on_objects) == [("missing", f"object {first}")]
    mine.write_bytes(whole)
    assert findings(on_objects) == []

    foreign = folder / "notes.txt"
    foreign.write_text("mine")
    assert findings(on_objects) == [("foreign", f"{folder.name}/notes.txt")]
    key = object_key(folder.name, first, NodeId("another"), NodeEpoch(7))
    orphan = folder.parent / key
    orphan.write_bytes(b"of nobody")
    next_id = ObjectId(10**6)
    later = folder.parent / object_key(folder.name, next_id, NodeId("another"), NodeEpoch(7))
    later.parent.mkdir(exist_ok=True)
    later.write_bytes(b"a later image may name it")
    assert sorted(findings(on_objects)) == [("foreign", f"{folder.name}/notes.txt"), ("orphan", key)]

    code, _, err = dlog("object", "fsck", "--repair", directory=on_objects.directory)
    assert code == 2 and "add --yes" in err and orphan.exists(), err
    code, result = fsck(on_objects, "--repair", "--yes")
    assert code == 1 and result["removed"] == 1, "what is foreign stays"
    assert not orphan.exists() and foreign.exists() and later.exists() and mine.read_bytes() == whole
    foreign.unlink()
    later.unlink()
    assert findings(on_objects) == []
    assert ok(on_objects, "read", "a", "--from-start") == LINES


def test_a_segment_of_s3_direct_that_no_stream_lists_is_removed_once_it_is_old_enough(
    on_objects: Up, root: Path, written: dict[str, Any]
) -> None:
    [cluster] = (marker.parent.name for marker in root.glob("*/marker"))
    name = asyncio.run(abandoned(root, cluster))
    assert findings(on_objects) == [], "it may be listed in a moment"
    assert findings(on_objects, "--older-than", "0") == [("orphan", name)]
    code, result = fsck(on_objects, "--older-than", "0", "--repair", "--yes")
    assert (code, result["removed"]) == (0, 1)
    assert findings(on_objects, "--older-than", "0") == []
    assert ok(on_objects, "read", "d", "--from-start") == LINES


def test_after_zookeeper_went_back_no_segment_is_an_orphan_and_a_repair_is_refused(
    on_objects: Up, root: Path, written: dict[str, Any]
) -> None:
    [cluster] = (marker.parent.name for marker in root.glob("*/marker"))
    orphan = asyncio.run(abandoned(root, cluster))
    before = findings(on_objects, "--older-than", "0")
    lost = asyncio.run(abandoned(root, cluster, METADATA_STREAM))
    assert before == [("orphan", orphan)]
    assert sorted(findings(on_objects)) == sorted([("lost", orphan), ("lost", lost)])
    code, _, err = dlog("object", "fsck", "--older-than", "0", "--repair", "--yes", directory=on_objects.directory)
    assert code == 1 and "follow docs/restore.md" in err and f"location={lost}" in err, err
    assert sorted(findings(on_objects)) == sorted([("lost", orphan), ("lost", lost)])
    code, out, err = dlog("object", "fsck", directory=on_objects.directory)
    assert code == 1 and b"no stream lists it since ZooKeeper went back" in out, out
    assert "would remove nothing" in err, err
    listed = told(on_objects, "object", "fsck", "--segments", METADATA_STREAM)["segments"]
    assert lost in [one["location"] for one in listed]

    for folder in root.glob(f"*/*/{lost}"):
        shutil.rmtree(folder)
    code, result = fsck(on_objects, "--older-than", "0", "--repair", "--yes")
    assert (code, result["removed"], result["obstacle"]) == (0, 1, None)


async def abandoned(root: Path, cluster: str, stream: str = "d") -> str:
    """A segment whose writer died before its stream listed it."""

    async def read() -> str:
        return cluster

    async def record(_: str) -> None:
        raise AssertionError("it is recorded")

    options = ObjectsOptions(root=f"file://{root}")
    async with open_s3_direct_store(options, read, record, random.Random(os.urandom(8))) as store:
        writer = await store.create(StreamName(stream), SegmentNumber(9), Epoch(1), ())
        await writer.append(EntryId(0), [b"nobody lists me"])
        await writer.abandon()
        return writer.name
