"""Tests the bytes of snapshots of metadata: they read back, and every change of a byte is noticed."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import msgpack
import pytest

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.wire.digest import crc32c
from dlog.wire.object_snapshot import (
    COLUMNS,
    MAGIC,
    SnapshotContents,
    SnapshotNode,
    decode_snapshot,
    encode_snapshot,
)


def contents() -> SnapshotContents:
    made = SnapshotContents.empty()
    made.applied, made.next_stream, made.next_object = 2**40, 7, 8
    made.keys = [("k", b"v")]
    made.owners = [("n1", 3)]
    made.nodes = [SnapshotNode("n1", 3, True, 4, 5, [(4, 3, "file", "w4")])]
    made.snapshots = [("s", 5, 6, 7)]
    made.columns["object_ids"] = array("Q", [1, 2**64 - 1])
    made.columns["stream_epochs"] = array("q", [-1])
    made.columns["range_dropped"] = array("B", [0, 1, 1])
    return made


def test_a_snapshot_reads_back() -> None:
    data = encode_snapshot(contents())
    assert decode_snapshot(data) == contents()
    assert decode_snapshot(memoryview(data)) == contents()
    assert decode_snapshot(encode_snapshot(SnapshotContents.empty())) == SnapshotContents.empty()


def test_every_changed_byte_and_every_cut_is_noticed() -> None:
    data = encode_snapshot(contents())
    for at in range(len(data)):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], data + b"\0"):
            with pytest.raises((DamagedError, UnsupportedVersionError)):
                decode_snapshot(changed)


def sealed(head: Any, columns: bytes = b"", version: int = 1) -> bytes:
    packed: bytes = msgpack.packb(head)
    return struct.pack(">8sHII", MAGIC, version, len(packed), crc32c(columns, crc32c(packed))) + packed + columns


NO_ROWS = [0] * len(COLUMNS)


def test_a_newer_version_is_refused() -> None:
    assert decode_snapshot(sealed([0, 1, 1, [], [], [], [], NO_ROWS])) == SnapshotContents.empty()
    with pytest.raises(UnsupportedVersionError, match="version=2"):
        decode_snapshot(sealed([0, 1, 1, [], [], [], [], NO_ROWS], version=2))


@pytest.mark.parametrize(
    "head",
    [
        None,
        [],
        [0, 1, 1, [], [], [], [], []],
        [-1, 1, 1, [], [], [], [], NO_ROWS],
        [0, 1, 1, [["k"]], [], [], [], NO_ROWS],
        [0, 1, 1, [["k", "v"]], [], [], [], NO_ROWS],
        [0, 1, 1, [], [[1, 1]], [], [], NO_ROWS],
        [0, 1, 1, [], [], [["n", 1, 1, 1, 1, []]], [], NO_ROWS],
        [0, 1, 1, [], [], [], [["s", 1, 1]], NO_ROWS],
        [0, 1, 1, [], [], [], [], [1, *NO_ROWS[1:]]],
        [0, 1, 1, [], [], [], [], [-1, *NO_ROWS[1:]]],
        [0, 1, 1, [], [], [], [], [2**63, *NO_ROWS[1:]]],
    ],
    ids=repr,
)
def test_a_head_that_says_nothing_is_damage(head: Any) -> None:
    with pytest.raises(DamagedError):
        decode_snapshot(sealed(head))
