"""Tests the verification of all ledgers: a bounded number at once, each failure alone, every ledger counted once."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import cast

import pytest

from dlog.cli.verification import Totals, progress, say_found, say_totals, verify_all
from dlog.errors import DamagedError, DLogError, LedgerNotFoundError, MetadataUnavailableError
from dlog.io.ledgers import Ledgers
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.verification import BadRange, Verified

A, B = BookieId("a:1"), BookieId("b:1")
BAD = Verified(40, (BadRange(EntryId(2), EntryId(9), B, "thin", "no_entry"),), 8, 3, 1, ((A, 5),))


class Fake:
    """A ledger client: what each ledger's verification finds. most: verifications at the same time."""

    def __init__(self, found: dict[int, Verified | DLogError], *, breaks: bool = False) -> None:
        self.found = found
        self.breaks = breaks
        self.verifying: list[LedgerId] = []
        self.most = 0

    async def list(self) -> AsyncIterator[LedgerId]:
        for ledger in self.found:
            await asyncio.sleep(0)
            yield LedgerId(ledger)
        if self.breaks:
            raise MetadataUnavailableError("the ensemble is away")

    async def verify(self, ledger: LedgerId) -> Verified:
        self.verifying.append(ledger)
        self.most = max(self.most, len(self.verifying))
        for _ in range(int(ledger) % 7):
            await asyncio.sleep(0)
        self.verifying.remove(ledger)
        found = self.found[ledger]
        if isinstance(found, DLogError):
            raise found
        return found


async def run(fake: Fake, at_once: int = 3) -> tuple[Totals, dict[LedgerId, Verified | DLogError]]:
    told: dict[LedgerId, Verified | DLogError] = {}
    seen: list[int] = []

    def tell(ledger: LedgerId, found: Verified | DLogError) -> None:
        assert ledger not in told
        told[ledger] = found

    totals = await verify_all(
        cast(Ledgers, fake), at_once, tell, lambda totals: seen.append(totals.ledgers + totals.not_verified)
    )
    assert seen == sorted(seen) and seen[-1:] == ([totals.ledgers + totals.not_verified] if seen else [])
    return totals, told


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_every_ledger_is_verified_and_only_so_many_at_once(at_once: int) -> None:
    fake = Fake({number: Verified(number) for number in range(50)})
    totals, told = await run(fake, at_once)
    assert (totals, told) == (Totals(50, sum(range(50))), {}) and totals.is_good
    assert fake.most <= at_once and (at_once > 3 or fake.most == at_once)


async def test_a_ledger_that_fails_or_is_deleted_stops_no_other() -> None:
    damaged = DamagedError("its metadata cannot be decoded: ledger=3")
    found: dict[int, Verified | DLogError] = {number: Verified(10) for number in range(20)}
    fake = Fake(found | {3: damaged, 5: LedgerNotFoundError("no such ledger: ledger=5"), 7: BAD})
    totals, told = await run(fake)
    assert told == {LedgerId(3): damaged, LedgerId(7): BAD}
    assert totals == Totals(18, 17 * 10 + 40, 8, 3, 1, bad_ledgers=1, not_verified=1)
    assert not totals.is_good


async def test_a_ledger_that_could_not_be_verified_is_a_failure_by_itself() -> None:
    totals, _ = await run(Fake({1: MetadataUnavailableError("away")}))
    assert totals == Totals(not_verified=1) and not totals.is_good


async def test_a_list_that_breaks_off_is_an_error() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await run(Fake({number: Verified(1) for number in range(9)}, breaks=True))
    assert raised.group_contains(MetadataUnavailableError)


async def test_no_ledgers_are_fine() -> None:
    assert (await run(Fake({})))[0].is_good


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("quiet", "is_shown"), [(False, True), (True, False)])
def test_progress_is_a_line_on_stderr_of_a_terminal(
    quiet: bool, is_shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with progress(quiet=quiet) as show:
        show(Totals(1_200, 34_000, bad_ledgers=2, not_verified=1))
    shown = terminal.getvalue()
    assert ("1,200 ledgers verified, 34,000 entries, 3 ledgers wrong" in shown) == is_shown
    assert capsys.readouterr().out == ""


def test_a_finding_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say_found(7, BAD, as_json=False)
    say_found(3, DamagedError("unreadable"), as_json=False)
    say_totals(Totals(18, 1_210, 8, 3, 1, 1, 1), as_json=False)
    found, failed, sums = capsys.readouterr().out.splitlines()
    counts = "8 below the write quorum, 3 below the ack quorum, 1 without a copy"
    assert found == f"ledger 7: of 40 entries {counts}; bad copies on b:1"
    assert failed == "ledger 3 could not be verified: unreadable"
    assert sums == (
        f"18 ledgers with 1,210 entries checked on every replica: {counts}; 1 ledgers wrong, 1 could not be verified"
    )


def test_a_finding_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    say_found(7, BAD, as_json=True)
    say_found(3, DamagedError("unreadable"), as_json=True)
    say_totals(Totals(18, 210, 8, 3, 1, 1, 1), as_json=True)
    found, failed, sums = map(json.loads, capsys.readouterr().out.splitlines())
    assert found == {
        "ledger": 7,
        "entries": 40,
        "below_write_quorum": 8,
        "below_ack_quorum": 3,
        "without_copy": 1,
        "wrong": [{"first": 2, "last": 9, "bookie": "b:1", "kind": "thin", "why": "no_entry", "is_wrong": False}],
        "omitted": {"a:1": 5},
    }
    assert failed == {"ledger": 3, "error": "unreadable"}
    assert (sums["ledgers"], sums["bad_ledgers"], sums["not_verified"]) == (18, 1, 1)
