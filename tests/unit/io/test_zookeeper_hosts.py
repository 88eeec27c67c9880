"""Tests the syntax of a ZooKeeper hosts string, and the order in which addresses are tried."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError
from dlog.hostport import join_host_port
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_cluster import binding_of
from dlog.io.zookeeper_hosts import Servers, split_hosts


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("h:1", [("h", 1)], ""),
        ("h", [("h", 2181)], ""),
        ("a:1,b:2/x/y", [("a", 1), ("b", 2)], "/x/y"),
        ("a:1;b/", [("a", 1), ("b", 2181)], ""),
        ("[::1]:7,h:1", [("::1", 7), ("h", 1)], ""),
        ("zk-0.zk.svc.cluster.local.:2181,zoo_1", [("zk-0.zk.svc.cluster.local.", 2181), ("zoo_1", 2181)], ""),
    ],
)
def test_hosts_are_written_as_java_clients_write_them(text: str, hosts: list[tuple[str, int]], chroot: str) -> None:
    assert split_hosts(text) == (hosts, chroot)


BAD = [
    "h:",
    "h:²",
    "[::1]:",
    "user@h:1",
    "h?x",
    "h\\x",
    "*",
    "a%b",
    "h:1:2",
    "h:-1",
    "::1",
    "h:port",
    ":1",
    "h:70000",
    "h:0",
    "a..b:2181",
    ".a",
    "a" * 64,
    "[:::]:1",
    "[1]",
    "[h]:1",
    "h]",
    "h\0",
    "h/a//b",
]


@pytest.mark.parametrize("text", ["", "/x", *BAD, *(f"127.0.0.1:1,{bad}" for bad in BAD)])
def test_what_nobody_can_connect_to_is_a_config_error_wherever_it_stands_in_the_list(text: str) -> None:
    with pytest.raises(ConfigError):
        split_hosts(text)
    with pytest.raises(ConfigError):
        ZooKeeper(text)


SCHEMES = ["tcp://10.0.0.1:2181", "zk://h", "ZK://h:1/x", "zookeeper://a:1,b:2/x", "a:1,tcp://b:2", "tcp://[::1]:2181"]


@pytest.mark.parametrize("text", SCHEMES)
def test_a_scheme_is_not_taken_for_a_host(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        split_hosts(text)
    form = "write host:port[,host:port][/chroot]"
    assert error.value.message == f"a ZooKeeper address has no scheme, {form}: value={text!r}"


IN_CHROOT = [
    *("a:1/x,b:2/x", "a:1/x,b:2", "a:1/x;b:2", "a:1/x b:2", "a:1/x, b:2", "a:1/,b:2", "a/x,b/x", "a:1,b:2/x,c:3"),
    *("a/x:2181", "a/x:2181/", "tcp:1/10.0.0.1:2181", "a/x:2181/y", "tcp//10.0.0.1:2181", "a:1/[::1]:2"),
]


@pytest.mark.parametrize("text", IN_CHROOT)
def test_an_address_is_not_taken_for_a_part_of_the_chroot(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        split_hosts(text)
    form = "write host:port[,host:port][/chroot]"
    chroot = text.partition("/")[2]
    assert error.value.message == (
        f"all ZooKeeper addresses stand before the one chroot, {form}: chroot={chroot!r} value={text!r}"
    )


@pytest.mark.parametrize("chroot", ["//x", "/x//y", "/x//", "/.", "/..", "/x/../y", "/./x", "/\0", "/x\x7f"])
def test_a_chroot_that_is_no_znode_path_is_refused(chroot: str) -> None:
    with pytest.raises(ConfigError, match="not a ZooKeeper chroot, write host:port"):
        split_hosts(f"a:1{chroot}")


PORTS = st.integers(1, 65535)
HOSTS = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}(\.[a-z0-9]{1,9}){0,3}", fullmatch=True) | st.ip_addresses(v=6).map(str)
CHROOTS = st.lists(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9._:-]{0,8}[a-z]", fullmatch=True), max_size=3)


@given(st.lists(st.tuples(HOSTS, PORTS), min_size=1), st.sampled_from([",", ";", " ", ", "]), CHROOTS, st.booleans())
def test_every_address_is_used_or_the_text_is_refused(
    hosts: list[tuple[str, int]], separator: str, chroot: list[str], is_behind_each: bool
) -> None:
    path = "".join(f"/{name}" for name in chroot)
    written = [join_host_port(host, port) for host, port in hosts]
    if is_behind_each and path and len(hosts) > 1:
        with pytest.raises(ConfigError, match="before the one chroot"):
            split_hosts(separator.join(address + path for address in written))
    assert split_hosts(separator.join(written) + path) == (hosts, path)


def test_the_binding_of_a_namespace_names_every_address_and_the_chroot() -> None:
    binding = binding_of(" a:1; b\t[::1]:7/x/y/ ", "/ledgers")
    assert (binding.zookeeper, binding.ledgers_path) == ("a:1,b:2181,[::1]:7", "/x/y/ledgers")
    assert binding_of("a:1", "/ledgers").ledgers_path == "/ledgers"
    with pytest.raises(ConfigError):
        binding_of("a:1/x,b:2/x", "/ledgers")


class Names:
    """A loop's resolver with a table of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: dict[str, list[str] | OSError | UnicodeError]) -> None:
        async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            found = table[host]
            if isinstance(found, Exception):
                raise found
            return [(2, 1, 6, "", (address, port)) for address in found]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_every_address_of_every_name_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, {"a": ["1", "2", "1"], "b": ["3"]})
    servers = Servers([("a", 7), ("b", 8)], random.Random(1))
    for _ in range(2):
        assert sorted([await servers.next() for _ in range(2)]) == [("1", 7), ("2", 7)]
        assert await servers.next() == ("3", 8)
        assert servers.size == 3


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
async def test_a_name_that_cannot_be_resolved_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, error: OSError | UnicodeError
) -> None:
    Names(monkeypatch, {"a": error, "b": ["3"]})
    servers = Servers([("a", 7), ("b", 8)], random.Random(1))
    for _ in range(2):
        with pytest.raises(OSError, match="name"):
            await servers.next()
        assert await servers.next() == ("3", 8)


async def test_a_name_is_resolved_again_at_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, Any] = {"a": ["1", "2"]}
    Names(monkeypatch, table)
    servers = Servers([("a", 7)], random.Random(1))
    assert len({await servers.next(), await servers.next()}) == 2
    table["a"] = ["5"]
    assert await servers.next() == ("5", 7)
    assert servers.size == 1
