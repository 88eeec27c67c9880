"""Foreign data in ZooKeeper, as dlog's processes read it. Rows `metadata.*`.

The first part tests the decoders; the second puts the data under a running cluster.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from dlog.errors import DLogError
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_layout import parse_layout
from dlog.io.zookeeper_members import _bookies, _proxies
from dlog.stores.kinds import stored_settings
from dlog.wire import bookie_info, ledger_metadata, proxy
from dlog.wire.stream_metadata import decode_binding, decode_number, decode_owner, decode_segment, decode_settings
from tests.integration.hostile.conftest import SETTINGS, Bystander, SmallCluster
from tests.integration.hostile.table import each
from tests.integration.hostile.talk import REQUEST, Talk, said, write

pytestmark = pytest.mark.zookeeper
HEAD = b"BookieMetadataFormatVersion\t"
LAYOUT_TWO = "2\nx:²".encode()
ADDRESS = bookie_info.encode_address("h", 1)
IN_PROGRESS = "inprogress_000000000000000001"


def members(data: bytes) -> str:
    """How many proxies a registration with this data gives."""
    return f"{len(_proxies('write', [('a', data)]))} members"


CASES: dict[str, Callable[[], object]] = {
    "owner-garbage": lambda: decode_owner(b"\xff\xfe"),
    "owner-json-truncated": lambda: decode_owner(b'{"epoch": 3, "pro'),
    "owner-json-nested": lambda: decode_owner(b"[" * 100_000),
    "owner-is-a-list": lambda: decode_owner(b"[1]"),
    "owner-epoch-text": lambda: decode_owner(b'{"epoch": "3"}'),
    "owner-epoch-negative": lambda: decode_owner(b'{"epoch": -3}'),
    "owner-epoch-beyond-64-bits": lambda: decode_owner(b'{"epoch": %d}' % 2**70),
    "owner-text-half-a-pair": lambda: decode_owner(b'{"address": "\\ud800"}'),
    "settings-nan": lambda: decode_settings(b'{"retention_s": NaN}', stored_settings),
    "settings-type": lambda: decode_settings(b'{"ensemble": "3"}', stored_settings),
    "settings-quorums": lambda: decode_settings(b'{"ensemble": 1, "write_quorum": 3}', stored_settings),
    "settings-store-half-a-pair": lambda: decode_settings(b'{"store": "\\udfff"}', stored_settings),
    "number-garbage": lambda: decode_number(b"1e5", "maxtxid"),
    "number-of-5000-digits": lambda: decode_number(b"1" * 5000, "maxtxid"),
    "segment-empty": lambda: decode_segment(IN_PROGRESS, b""),
    "segment-of-version-6": lambda: decode_segment(IN_PROGRESS, b"6;7;1;1;0;0;0"),
    "segment-fields-few": lambda: decode_segment(IN_PROGRESS, b"5;7;1"),
    "segment-of-another-number": lambda: decode_segment(IN_PROGRESS, b"5;7;1;2;0;0;0"),
    "segment-no-number": lambda: decode_segment(IN_PROGRESS, b"5;seven;1;1;0;0;0"),
    "binding-of-another-kind": lambda: decode_binding(b"2\nOTHER\n{}"),
    "binding-half": lambda: decode_binding(b'1\nBKDL\n{"1":{"str":"h"}}'),
    "ledger-garbage": lambda: ledger_metadata.decode(b"\0" * 50),
    "ledger-of-version-4": lambda: ledger_metadata.decode(HEAD + b"4\n\0"),
    "ledger-truncated": lambda: ledger_metadata.decode(HEAD + b"3\n\x20\x08\x02"),
    "ledger-of-4000-digits": lambda: ledger_metadata.decode(HEAD + b"1\n1\n1\n" + b"9" * 4000 + b"\n0\ta:1\n"),
    "ledger-digest-unknown": lambda: ledger_metadata.decode(
        HEAD + b'2\nquorumSize: 1 ensembleSize: 1 length: 0 state: OPEN digestType: 9 segment { ensembleMember: "a:1" '
        b"firstEntryId: 0 }"
    ),
    "cookie-of-hashes": lambda: bookie_info.decode_cookie(b"5\n" + b"#" * 60 + b"!"),
    "layout-superscript": lambda: f"layout {parse_layout(LAYOUT_TWO)[1]}",
    "bookie-named-so-that-no-ledger-may": lambda: f"{len(_bookies([('a b', ADDRESS)]))} members",
    "bookie-of-garbage": lambda: f"{len(_bookies([('a:1', bytes(9))]))} members",
    "proxy-nested": lambda: members(b"[" * 100_000),
    "proxy-address-is-a-map": lambda: members(b'{"address": {"a": 1}}'),
    "proxy-address-half-a-pair": lambda: members(b'{"address": "x\\ud800:1"}'),
    "proxy-address-without-port": lambda: members(b'{"address": "nowhere"}'),
}

#: znodes below R of a stream that has two records, and a request about it
ZNODES: dict[str, tuple[str, bytes]] = {
    "live-owner-garbage": ("owner", b"\xff not JSON"),
    "live-owner-of-nowhere": ("owner", b'{"epoch": 900, "proxy": "nobody", "address": "127.0.0.1:1", "claim": "x"}'),
    "live-maxtxid-garbage": ("maxtxid", b"many"),
    "live-allocation-garbage": ("allocation", b"\xff\xfe"),
    "live-settings-garbage": ("settings", b"{"),
    "live-segment-garbage": ("ledgers/inprogress_000000000000000077", b"\x00"),
    "live-segment-without-ledger": ("ledgers/inprogress_000000000000000077", b"5;987654321;1;77;0;0;0"),
    "live-stranger-among-segments": ("ledgers/readme", b"hello"),
}


def outcome(make: Callable[[], object]) -> str:
    try:
        return str(make())
    except DLogError as error:
        assert len(error.message) < 500
        return f"error {error.code}"


@each("metadata", CASES)
def test_bytes_are_judged_where_they_are_read(case: str, answer: str) -> None:
    assert outcome(CASES[case]) == answer


LEDGER_CASES = {"ledger-znode-garbage": b"what is this", "ledger-znode-empty": b""}


@each("metadata", LEDGER_CASES)
def test_ledgers_beside_a_damaged_one_are_listed(
    cluster: SmallCluster, bystander: Bystander, case: str, answer: str
) -> None:
    where = "/ledgers/00/4000/L0001"

    async def plant() -> None:
        async with await ZooKeeper.connect(cluster.bookies.hosts) as zk:
            await zk.ensure_path(where.rsplit("/", 1)[0])
            await zk.create(where, LEDGER_CASES[case])

    async def pull() -> None:
        async with await ZooKeeper.connect(cluster.bookies.hosts) as zk:
            await zk.delete(where, -1)

    asyncio.run(bystander.work(1))
    asyncio.run(plant())
    command = [sys.executable, "-m", "dlog.cli.main", "ledger", "ls", "--zookeeper", cluster.bookies.hosts, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    asyncio.run(pull())
    *whole, damaged = json.loads(done.stdout)
    assert whole and all("state" in row for row in whole), "those that are whole are listed"
    assert damaged.keys() == {"ledger", "error"} and damaged["ledger"] == 40_000_001
    named = done.stderr.count("metadata of ledger 40000001 cannot be read: ")
    assert f"exit {done.returncode}, named {named}" == answer


@each("metadata", ZNODES)
def test_a_running_cluster_goes_on(cluster: SmallCluster, bystander: Bystander, case: str, answer: str) -> None:
    """Other streams are served; for this one the error names the metadata, and the processes survive."""
    name, data = ZNODES[case]
    root = f"{cluster.namespace}/{case}/<default>"

    async def plant() -> None:
        async with await ZooKeeper.connect(cluster.bookies.hosts) as zk:
            if await zk.exists(f"{root}/{name}") is None:
                await zk.create(f"{root}/{name}", data)
            else:
                await zk.set(f"{root}/{name}", data, -1)

    with Talk(cluster.writer.address) as talk, Talk(cluster.reader.address) as reader:
        talk.send(said(proxy.Create(REQUEST, case, "a1", 0, dict(SETTINGS))))
        assert talk.answer() == "DONE"
        asyncio.run(plant())
        reader.send(said(proxy.Stat(REQUEST, case)))
        told = f"stat {reader.answer()}"
        talk.send(said(write(case)))
        assert f"{told}, write {talk.answer()}" == answer
    asyncio.run(bystander.work(1))
