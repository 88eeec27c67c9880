"""Tests the syntax of a ZooKeeper hosts string, and the order in which addresses are tried."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlog.io.zookeeper import ZooKeeper
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


BAD = ["h:port", ":1", "h:70000", "h:0", "a..b:2181", ".a", "a" * 64, "[:::]:1", "[1]", "[h]:1", "h]", "h\0", "h/a//b"]


@pytest.mark.parametrize("text", ["", "/x", *BAD, *(f"127.0.0.1:1,{bad}" for bad in BAD)])
def test_what_nobody_can_connect_to_is_a_config_error_wherever_it_stands_in_the_list(text: str) -> None:
    with pytest.raises(ConfigError):
        split_hosts(text)
    with pytest.raises(ConfigError):
        ZooKeeper(text)


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
