"""Tests names of znodes against the vectors that BookKeeper and DistributedLog wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError
from dlog.io.zookeeper_layout import (
    LAYOUT,
    LedgerPaths,
    StreamPaths,
    UnderreplicationPaths,
    lock_member,
    parents_of,
    parse_layout,
)
from dlog.model.ids import LedgerId, ProxyId, StreamName


@pytest.mark.parametrize(
    ("ledger", "path"),
    [
        (1, "/ledgers/00/0000/L0001"),
        (40, "/ledgers/00/0000/L0040"),
        (2**31 - 2, "/ledgers/21/4748/L3646"),
        (2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (6_000_000_000, "/ledgers/000/0000/0060/0000/L0000"),
        (39_7167_2560, "/ledgers/000/0000/0039/7167/L2560"),
        (2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_ledgers_split_into_directories(ledger: int, path: str) -> None:
    assert LedgerPaths().ledger(LedgerId(ledger)) == path
    assert LedgerPaths().ledger_of(path) == ledger


@given(st.integers(0, 2**63 - 1))
def test_a_path_leads_back_to_its_ledger(ledger: int) -> None:
    paths = LedgerPaths("/a/b")
    assert paths.ledger_of(paths.ledger(LedgerId(ledger))) == ledger


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers/LAYOUT",
        "/ledgers/idgen/ID-0000000001",
        "/ledgers/00/0000/0001",
        "/ledgers/00/0000/Lx",
        "/ledgers/0/L1",
    ],
)
def test_other_znodes_are_no_ledgers(path: str) -> None:
    assert LedgerPaths().ledger_of(path) is None


@pytest.mark.parametrize(
    "name", ["LAYOUT", "INSTANCEID", "available", "cookies", "underreplication", "idgen", "idgen-long"]
)
def test_only_digits_begin_a_ledger(name: str) -> None:
    assert not LedgerPaths.is_ledger_directory(name)
    assert LedgerPaths.is_ledger_directory("00")
    assert LedgerPaths.is_ledger_directory("000")


def test_streams_lie_below_the_namespace() -> None:
    paths = StreamPaths("/messaging/dlog")
    assert paths.root(StreamName("orders")) == "/messaging/dlog/orders/<default>"
    assert paths.proxy("write", ProxyId("w1")) == "/messaging/dlog/.proxies/write/w1"
    assert not paths.is_stream(".proxies")
    assert not paths.is_stream("<default>")
    assert paths.is_stream("orders")


@pytest.mark.parametrize("namespace", ["", "/", "dlog", "/dlog/", "/a//b", "/a/../b"])
def test_a_namespace_is_a_znode_path(namespace: str) -> None:
    with pytest.raises(ConfigError):
        StreamPaths(namespace)


def test_lock_members_are_named_as_distributedlog_names_them() -> None:
    assert lock_member("cli_ent/1:x", 72057688474976278) == "member_cli_ent%2F1%3Ax_s72057688474976278_"
    assert lock_member("a b~*", 7) == "member_a+b%7E*_s         7_"


def test_the_layout_is_bookkeepers_default() -> None:
    assert LAYOUT == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    assert parse_layout(LAYOUT) == ("org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory", 1)
    for other in (b"", b"1\nx:1", b"2\nx", b"2\nx:y", b"\xff\n"):
        assert parse_layout(other) == ("", 0)


def test_parents_come_from_the_top() -> None:
    assert parents_of("/a/b/c") == ["/a", "/a/b"]
    assert parents_of("/a") == []


@pytest.mark.parametrize(
    ("ledger", "path", "lock"),
    [
        (0, "/0000/0000/0000/0000/urL0000000000", "urL0000000000"),
        (3, "/0000/0000/0000/0003/urL0000000003", "urL0000000003"),
        (65_535, "/0000/0000/0000/ffff/urL0000065535", "urL0000065535"),
        (39_7167_2560, "/0000/0000/ecba/e9f0/urL3971672560", "urL3971672560"),
        (2**63 - 1, "/7fff/ffff/ffff/ffff/urL9223372036854775807", "urL9223372036854775807"),
    ],
)
def test_a_mark_lies_below_four_groups_of_hexadecimal_digits(ledger: int, path: str, lock: str) -> None:
    paths = LedgerPaths("/a/ledgers").underreplication
    assert paths.mark(LedgerId(ledger)) == f"/a/ledgers/underreplication/ledgers{path}"
    assert paths.lock(LedgerId(ledger)) == f"/a/ledgers/underreplication/locks/{lock}"
    assert paths.ledger_of_lock(lock) == ledger
    assert all(paths.is_group(name) for name in path.split("/")[1:5])


@pytest.mark.parametrize("name", ["urL1", "urL000000000x", "L0000000001", "urL00000000001\n", "urL9223372036854775808"])
def test_other_names_are_no_locks(name: str) -> None:
    assert UnderreplicationPaths().ledger_of_lock(name) is None


@pytest.mark.parametrize("name", ["", "000", "000G", "00000", "00AB", "urL0000000001"])
def test_other_names_are_no_groups(name: str) -> None:
    assert not UnderreplicationPaths().is_group(name)
