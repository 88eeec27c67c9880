"""Commands on a cluster of which only ZooKeeper runs: no bookie, proxy or recovery process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.wire.bookie_info import encode_address
from tests.integration.cli.up import dlog

pytestmark = pytest.mark.zookeeper

NAMESPACE = "/dlog"
A, B, C = (BookieId(f"127.0.0.1:{port}") for port in (3181, 3182, 3183))
ON_A = LedgerMetadata(
    quorum=Quorum(ensemble=3, write=3, ack=2), fragments=(Fragment(EntryId(0), (A, B, C)),)
).closed_at(EntryId(9), 90)
NOBODY_COUNTS = "no recovery process runs: lost copies are neither counted nor made; start one: dlog recovery run"

Run = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def metadata(zookeeper_hosts: str) -> AsyncIterator[ZooKeeperMetadata]:
    await cluster_init(zookeeper_hosts, NAMESPACE)
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as made:
        yield made


@pytest.fixture
def run(zookeeper_hosts: str, tmp_path: Path) -> Run:
    """Run a command on the cluster; exit code, stdout, stderr."""

    async def command(*words: str) -> tuple[int, str, str]:
        flags = ("--zookeeper", zookeeper_hosts, "--namespace", NAMESPACE)
        code, out, said = await asyncio.to_thread(dlog, *words, *flags, directory=tmp_path)
        return code, out.decode(), said

    return command


async def status_of(run: Run) -> tuple[str, dict[str, Any]]:
    """What `dlog cluster status` says of repair, and its JSON."""
    _, out, _ = await run("cluster", "status")
    [line] = [line for line in out.splitlines() if line.startswith("repair")]
    return line.removeprefix("repair").strip(), json.loads((await run("cluster", "status", "--json"))[1])


async def test_no_copies_are_called_whole_while_nobody_counts(metadata: ZooKeeperMetadata, run: Run) -> None:
    text, state = await status_of(run)
    assert (text, state["recovery_runs"]) == ("0 ledgers under-replicated", False), "there is no ledger to count"
    assert (await run("bookie", "ls"))[2] == ""

    await metadata.compare_and_set(LedgerKey(LedgerId(1)), ON_A, None)
    for bookie in (B, C):
        await metadata.zookeeper.create(f"{LedgerPaths().available}/{bookie}", encode_address("127.0.0.1", 1))
    assert (await status_of(run))[0] == NOBODY_COUNTS
    assert (await run("bookie", "ls"))[2] == NOBODY_COUNTS + "\n"
    code, out, said = await run("bookie", "ls", "--json")
    assert (code, [row["bookie"] for row in json.loads(out)], said) == (0, [B, C], NOBODY_COUNTS + "\n")

    marks = metadata.underreplication("test")
    await marks.mark(LedgerId(1), {A}, 5)
    text, _ = await status_of(run)
    assert text.startswith("1 ledgers under-replicated, the oldest mark is ") and text.endswith(f"; {NOBODY_COUNTS}")


async def test_ledgers_whose_marks_are_damaged_are_named(metadata: ZooKeeperMetadata, run: Run) -> None:
    assert await metadata.auditor_election("w:1").is_elected()
    for number in (7, 9):
        path = LedgerPaths().underreplication.mark(LedgerId(number))
        await metadata.zookeeper.create(path, b"what is this", parents=True)
    says = (
        "the marks of ledgers 7, 9 cannot be read or decoded, so these are not repaired: delete these marks "
        "(docs/operations.md)"
    )
    text, state = await status_of(run)
    assert (text, state["damaged_marks"]) == (f"2 ledgers under-replicated; {says}", [7, 9])
    assert (await run("bookie", "ls"))[2] == says + "\n"


async def test_copies_are_counted_while_a_recovery_process_runs_unless_repair_is_off(
    metadata: ZooKeeperMetadata, run: Run
) -> None:
    await metadata.compare_and_set(LedgerKey(LedgerId(1)), ON_A, None)
    assert await metadata.auditor_election("w:1").is_elected()
    text, state = await status_of(run)
    assert (text, state["recovery_runs"]) == ("0 ledgers under-replicated", True)
    assert (await run("bookie", "ls"))[2] == ""
    await metadata.underreplication("test").disable()
    off = "repair is switched off: lost copies are neither counted nor made"
    text, state = await status_of(run)
    assert (text, state["repair_disabled"]) == (off, True)
    assert (await run("bookie", "ls"))[2] == off + "\n"


async def test_a_decommission_says_whether_the_cluster_had_the_bookie(metadata: ZooKeeperMetadata, run: Run) -> None:
    await metadata.write_cookie(A, "5\n", None)
    code, out, _ = await run("bookie", "decommission", A)
    assert (code, out) == (0, f"{A} is out of the cluster: no ledger names it, 0 did at first\n")
    code, out, _ = await run("bookie", "decommission", A)
    says = "the cluster has no such bookie, and no ledger names it; perhaps it was decommissioned before"
    assert (code, out) == (0, f"{says}: {A}\n")
    code, out, _ = await run("bookie", "decommission", B, "--json")
    assert (code, json.loads(out)) == (0, {"bookie": B, "ledgers": 0, "was_known": False})


async def test_a_ledger_whose_metadata_cannot_be_read_is_named(metadata: ZooKeeperMetadata, run: Run) -> None:
    await metadata.compare_and_set(LedgerKey(LedgerId(1)), ON_A, None)
    await metadata.zookeeper.create(LedgerPaths().ledger(LedgerId(77)), b"what is this", parents=True)
    code, out, said = await run("ledger", "ls")
    assert code == 1 and len(out.splitlines()) == 2 and said.startswith("metadata of ledger 77 cannot be read: ")
    code, out, _ = await run("ledger", "ls", "--json")
    whole, damaged = json.loads(out)
    assert (code, whole["ledger"], damaged["ledger"]) == (1, 1, 77)
    assert said == f"metadata of ledger 77 cannot be read: {damaged['error']}\n"


@pytest.mark.parametrize("words", [("verify", "1"), ("read", "1"), ("recover", "1", "--yes")])
async def test_of_an_open_ledger_whose_bookies_are_away_it_is_said_to_start_them(
    metadata: ZooKeeperMetadata, run: Run, words: tuple[str, ...]
) -> None:
    value = LedgerMetadata(quorum=ON_A.quorum, fragments=ON_A.fragments)
    await metadata.compare_and_set(LedgerKey(LedgerId(1)), value, None)
    code, _, said = await run("ledger", *words)
    says, step = said.splitlines()
    assert code == 1 and "too few bookies" in says and "ledger=1" in says
    if words[0] != "recover":
        assert says.endswith(f" without_answer={A},{B},{C}")
    assert step == (
        "  next: start the ledger's bookies that are away: `dlog ledger show LEDGER` names its bookies, "
        "`dlog bookie ls` those that run"
    )
