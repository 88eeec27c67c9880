"""Tests keys of objects: each says who wrote it, and nothing else parses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId
from dlog.objects.keys import ObjectKey, object_key, parse_object_key
from dlog.stores.object_storage.locations import parse_location


@given(st.integers(1, 2**63), st.integers(1, 2**31), st.text(min_size=1, max_size=30).filter(lambda t: t.isprintable()))
def test_a_key_is_parsed_back(object: int, node_epoch: int, node: str) -> None:
    key = object_key("a/b", ObjectId(object), NodeId(node), NodeEpoch(node_epoch))
    assert parse_object_key("a/b", key) == ObjectKey(ObjectId(object), NodeId(node), NodeEpoch(node_epoch))
    assert parse_object_key("a", key) is None
    assert key.count("/") == 3
    assert parse_location(f"s3://bucket/{key}") is not None


def test_a_key_looks_like_this() -> None:
    assert object_key("f", ObjectId(0xABCD), NodeId("host:80"), NodeEpoch(3)) == "f/cd/000000000000abcd-3-host=3A80"


@pytest.mark.parametrize(
    "key",
    [
        "g/cd/000000000000abcd-3-n",
        "f/ce/000000000000abcd-3-n",
        "f/00/0000000000000000-3-n",
        "f/cd/000000000000abcd-03-n",
        "f/cd/000000000000abcd-0-n",
        "f/cd/000000000000abcd-3-n/x",
        "f/cd/000000000000abcd-3-%6e",
        "f/cd/000000000000ABCD-3-n",
        "f/snapshot",
    ],
)
def test_other_keys_say_nothing(key: str) -> None:
    assert parse_object_key("f", key) is None
