"""`dlog ledger create`: what is in flight is bounded, and every failure tells the ledger that it leaves. `strays` and
`adopt`: a bookie that is away may hold what is looked for."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dlog.cli import ledgers
from dlog.cli.main import main
from dlog.errors import NotEnoughBookiesError
from dlog.io.metadata import BookieInfo, Members
from dlog.ledger.vetting import Vetted
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum


class Writer:
    """Confirms an entry when the loop runs next, after `on_append` with the entries that are unconfirmed."""

    ledger_id = LedgerId(41)
    metadata = LedgerMetadata(
        quorum=Quorum(), fragments=(Fragment(EntryId(0), ()),), state=LedgerState.CLOSED, last_entry=EntryId(0)
    )

    def __init__(self, on_append: Callable[[list[bytes]], None]) -> None:
        self.unconfirmed: list[bytes] = []
        self.on_append = on_append

    def append(self, parts: tuple[bytes]) -> asyncio.Future[EntryId]:
        self.unconfirmed.append(parts[0])
        self.on_append(self.unconfirmed)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[EntryId] = loop.create_future()
        loop.call_soon(self._confirm, future)
        return future

    def _confirm(self, future: asyncio.Future[EntryId]) -> None:
        del self.unconfirmed[0]
        if not future.done():
            future.set_result(EntryId(0))

    async def close(self) -> None: ...

    async def create(self, *given: Any, **more: Any) -> Writer:
        return self


def create(monkeypatch: pytest.MonkeyPatch, file: Path, on_append: Callable[[list[bytes]], None]) -> int:
    @asynccontextmanager
    async def fake(*given: Any) -> AsyncIterator[Writer]:
        yield Writer(on_append)

    monkeypatch.setattr(ledgers, "ledgers_of", fake)
    return main(["ledger", "create", str(file)])


def test_entries_and_bytes_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    most = {"entries": 0, "bytes": 0}

    def see(unconfirmed: list[bytes]) -> None:
        most["entries"] = max(most["entries"], len(unconfirmed))
        most["bytes"] = max(most["bytes"], sum(map(len, unconfirmed)))

    file = tmp_path / "lines"
    file.write_bytes((b"x" * 1_000_000 + b"\n") * 40 + b"y\n" * 3000)
    assert create(monkeypatch, file, see) == 0
    assert ledgers.PENDING_BYTES_MAX - 1_000_000 < most["bytes"] <= ledgers.PENDING_BYTES_MAX + 1_000_000
    assert most["entries"] <= ledgers.PENDING_MAX + 1


@pytest.mark.parametrize("failure", ["bookies", "line", "SIGINT", "SIGTERM"])
def test_a_failure_after_the_creation_tells_the_ledger(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: str
) -> None:
    def fail(_: list[bytes]) -> None:
        if failure == "bookies":
            raise NotEnoughBookiesError("no ack quorum")
        if failure != "line":
            os.kill(os.getpid(), signal.Signals[failure])

    file = tmp_path / "lines"
    file.write_bytes(b"short\n" + b"x" * (2_000_000 if failure == "line" else 5) + b"\n")
    assert create(monkeypatch, file, fail) != 0
    said = capsys.readouterr().err
    assert "ledger 41 was created" in said and "`dlog ledger recover 41`" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_tells_how_many_entries_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    class Silent(Writer):
        """Confirms the first 1,500 entries only."""

        appended = 0

        def append(self, parts: tuple[bytes]) -> asyncio.Future[EntryId]:
            self.appended += 1
            if self.appended <= 1500:
                return super().append(parts)
            if self.appended == 1501 + ledgers.PENDING_MAX:
                asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
            return asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def fake(*given: Any) -> AsyncIterator[Writer]:
        yield Silent(lambda _: None)

    file = tmp_path / "lines"
    file.write_bytes(b"y\n" * 3000)
    monkeypatch.setattr(ledgers, "ledgers_of", fake)
    assert main(["ledger", "create", str(file)]) == 1
    assert "ledger 41 was created, 1500 entries are acknowledged, and it may be open" in capsys.readouterr().err


class Bookies:
    """Metadata and ledgers of a cluster with three bookies: one holds ledger 7, which metadata does not name."""

    names = tuple(BookieId(f"bookie-{number}:3181") for number in (1, 2, 3))

    def __init__(self, away: Collection[BookieId], silent: Collection[BookieId]) -> None:
        self.away, self.silent = frozenset(away), frozenset(silent)

    async def members(self) -> Members:
        there = [bookie for bookie in self.names if bookie not in self.away]
        return Members({bookie: BookieInfo(bookie, "h", 3181) for bookie in there}, {}, {}, {})

    async def bookies_with_cookie(self) -> frozenset[BookieId]:
        return frozenset(self.names)

    async def list(self) -> AsyncIterator[LedgerId]:
        for ledger in (LedgerId(9),):
            yield ledger

    async def find_holders(self, ledger: LedgerId, bookies: Collection[BookieId]) -> Vetted:
        holders = {self.names[0]} if ledger == 7 else set()
        asked = frozenset(bookies) - self.silent
        return Vetted(asked - holders, asked & holders)

    async def adopt(self, ledger: LedgerId, bookies: Collection[BookieId], digest: object) -> LedgerMetadata:
        return LedgerMetadata(
            quorum=Quorum(ensemble=1, write=1, ack=1), fragments=(Fragment(EntryId(0), tuple(bookies)),)
        )


def of_three_bookies(
    monkeypatch: pytest.MonkeyPatch, *words: str, away: Collection[BookieId] = (), silent: Collection[BookieId] = ()
) -> int:
    bookies = Bookies(away, silent)

    @asynccontextmanager
    async def metadata(*given: Any) -> AsyncIterator[tuple[Bookies, str, str]]:
        yield bookies, "", ""

    @asynccontextmanager
    async def clients(*given: Any) -> AsyncIterator[Bookies]:
        yield bookies

    monkeypatch.setattr(ledgers, "metadata_of", metadata)
    monkeypatch.setattr(ledgers, "ledgers_of", clients)
    return main(["ledger", *words])


@pytest.mark.parametrize("what", ["away", "silent"])
def test_a_search_that_could_not_ask_each_bookie_fails(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = Bookies.names[2]
    assert of_three_bookies(monkeypatch, "strays", "--gap", "10") == 0
    assert of_three_bookies(monkeypatch, "strays", "--gap", "10", **{what: (missing,)}) == 1
    out, err = capsys.readouterr()
    assert out.count("bookie-1:3181") == 2 and f"did not answer for every ledger: {missing}" in err


@pytest.mark.parametrize("what", ["away", "silent"])
def test_a_ledger_is_not_adopted_while_a_bookie_may_hold_more_of_it(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its recovery would end before the first entry that only that bookie holds, for good."""
    missing = {what: (Bookies.names[2],)}
    assert of_three_bookies(monkeypatch, "adopt", "7") == 0
    assert of_three_bookies(monkeypatch, "adopt", "7", **missing) == 1
    out, err = capsys.readouterr()
    assert out.count("has metadata now") == 1 and f"ledger=7 bookies={Bookies.names[2]}" in err
    assert of_three_bookies(monkeypatch, "adopt", "7", "--incomplete", **missing) == 0
