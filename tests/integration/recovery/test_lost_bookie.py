"""A bookie of `dlog up` is lost for good while streams are written, and its copies are made again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dlog.io.zookeeper import ANY_VERSION
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_protocol import NoNodeError
from dlog.machine import Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata
from tests.integration.cli.up import Up, dlog, up, wait_until
from tests.integration.leftovers import remove_data
from tests.integration.recovery.polling import until

SMALL = ("--bookies", "4", "--write-proxies", "1", "--read-proxies", "1")
CONFIG = "[recovery]\nlost_after_s = 1.0\nopen_grace_s = 1.0\nlook_s = 0.2\n"
RECORDS = b"".join(b"record %d of a stream that loses a bookie\n" % number for number in range(2000))


async def metadata_of(metadata: ZooKeeperMetadata) -> dict[LedgerId, LedgerMetadata]:
    found = {}
    async for ledger in metadata.ledgers():
        outcome = await metadata.read(LedgerKey(ledger))
        if isinstance(outcome, Versioned):
            found[ledger] = outcome.value
    return found


def bookies_of(value: LedgerMetadata) -> set[BookieId]:
    return {bookie for fragment in value.fragments for bookie in fragment.ensemble}


async def repaired(cluster: Up, lost: BookieId) -> list[LedgerId]:
    """Wait until no ledger names the lost bookie and no mark is left; returns the ledgers."""
    running = cluster.running
    async with await ZooKeeperMetadata.connect(running.zookeeper, running.namespace) as metadata:
        with suppress(NoNodeError):  # as ZooKeeper does when the session of the killed bookie ends, after 10 s
            await metadata.zookeeper.delete(f"{LedgerPaths().available}/{lost}", ANY_VERSION)
        marks = metadata.underreplication("test")

        async def is_repaired() -> bool:
            ledgers = (await metadata_of(metadata)).values()
            return not (await marks.summary()).ledgers and all(lost not in bookies_of(value) for value in ledgers)

        await until(is_repaired)
        living, ledgers = {*(await metadata.members()).writable}, await metadata_of(metadata)
        assert all(bookies_of(value) <= living for value in ledgers.values())
        return list(ledgers)


async def switch_repair(cluster: Up, *, on: bool) -> None:
    running = cluster.running
    async with await ZooKeeperMetadata.connect(running.zookeeper, running.namespace) as metadata:
        marks = metadata.underreplication("test")
        await (marks.enable() if on else marks.disable())


@contextmanager
def watched_counts(cluster: Up, file: Path) -> Iterator[Callable[[], list[int]]]:
    """`dlog cluster status --watch` into a file; gives the numbers of under-replicated ledgers that it has shown."""
    words = ("cluster", "status", "--watch", "--every", "100ms", "--json", "--dir", str(cluster.directory))
    with file.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "dlog", *words], stdout=out)

    def counts() -> list[int]:
        lines = file.read_bytes().splitlines(keepends=True)
        return [json.loads(line)["under_replicated"] for line in lines if line.endswith(b"\n")]

    with process:
        try:
            wait_until(lambda: bool(counts()), "no status is shown")
            yield counts
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, said = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, said
    return out


@pytest.mark.zookeeper
def test_the_copies_of_a_lost_bookie_are_made_again(tmp_path: Path) -> None:
    (tmp_path / "dlog.toml").write_text(CONFIG)
    with up(tmp_path / "cluster", *SMALL, "--config", str(tmp_path / "dlog.toml")) as cluster:
        ok(cluster, "append", "sealed", "-", "--create", given=RECORDS)
        ok(cluster, "seal", "sealed")
        ok(cluster, "append", "open", "-", "--create", given=RECORDS)

        async def victim() -> BookieId:
            running = cluster.running
            async with await ZooKeeperMetadata.connect(running.zookeeper, running.namespace) as metadata:
                return sorted(set.intersection(*map(bookies_of, (await metadata_of(metadata)).values())))[0]

        lost = asyncio.run(victim())
        part = cluster.part("bookie", lost)
        number = [p.address for p in cluster.running.parts if p.role == "bookie"].index(lost) + 1
        asyncio.run(switch_repair(cluster, on=False))
        with watched_counts(cluster, tmp_path / "status") as counts:
            shutil.rmtree(cluster.directory / f"bookie-{number}")  # first, or it would be back at once
            os.kill(part.pid, signal.SIGKILL)
            code, out, said = dlog("ledger", "verify", "--all", directory=cluster.directory)
            *findings, sums = out.decode().splitlines()
            assert code == 1 and "dlog ledger verify LEDGER" in said
            assert len(findings) >= 2 and all(line.endswith(f"bad copies on {lost}") for line in findings)
            assert (
                f"{len(findings)} ledgers wrong, 0 could not be verified" in sums and "0 below the ack quorum" in sums
            )
            asyncio.run(switch_repair(cluster, on=True))
            ledgers = asyncio.run(repaired(cluster, lost))
            wait_until(lambda: any(counts()) and not counts()[-1], "the count did not rise and fall to 0")
        assert len(ledgers) >= 2
        sums = json.loads(ok(cluster, "ledger", "verify", "--all", "--json"))
        assert sums["ledgers"] >= len(ledgers) and not sums["below_write_quorum"]
        assert ok(cluster, "read", "sealed") == RECORDS
        ok(cluster, "append", "open", "-", given=b"one more\n")  # its owner was fenced, and goes on
        assert ok(cluster, "read", "open") == RECORDS + b"one more\n"
        assert json.loads(ok(cluster, "cluster", "status", "--json"))["under_replicated"] == 0
    remove_data(tmp_path)
