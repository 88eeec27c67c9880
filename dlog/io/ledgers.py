"""The ledger client: BookKeeper's "fat client" for asyncio. Create, append, read, follow, recover, delete, verify.

The law of this room: every handle is a machine of dlog/ledger with a driver that lives in one visible scope; the
protocol lives there, the sockets in bookie_client.py, ZooKeeper behind the Metadata port. A machine that breaks takes
its handle down and nothing else: the error is told with its story, whoever waits hears of it, and the log above goes
through re-acquire and recover.

    async with BookieClient(resolver(metadata), rng=rng) as bookies, Ledgers(metadata, bookies, rng=rng) as ledgers:
        writer = await ledgers.create(Quorum(ensemble=3, write=3, ack=2))
        entry = await writer.append((b"payload",))
        await writer.close()
        reader = await ledgers.open(writer.ledger_id)
        payloads = await reader.read(EntryId(0), reader.lac, max_bytes=1 << 20)

Interoperable with Apache BookKeeper 4.17 by the v2 wire, its digests, its metadata and its recovery.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType

from dlog.errors import (
    ClosedError,
    DLogError,
    InvalidRequestError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
)
from dlog.events import Event, LedgerHandleFailed, LedgerIdInUse, LedgerOpened
from dlog.io.bookie_client import Asker, BookieClient, Resolve
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.driver import Driver
from dlog.io.ledger_handles import LedgerReader, LedgerWriter
from dlog.io.metadata import Metadata
from dlog.ledger.adding import AddingOptions, LedgerAdder
from dlog.ledger.finding import FindTail, TailFinder
from dlog.ledger.placement import Placement, RandomPlacement
from dlog.ledger.recovery import LedgerRecoverer, Recover, Recovered, RecoveryOptions
from dlog.ledger.tailing import LacSeen, LedgerTailer, ReadLac
from dlog.ledger.verifying import LedgerVerifier, Verified, Verify
from dlog.ledger.vetting import LedgerVetter, Vet, Vetted
from dlog.machine import Conflict, Machine, Missing, OutcomeUnknown, Versioned
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.options import option
from dlog.wire.digest import Digest

CREATE_ATTEMPTS = 64  # ids tried; all that bookies know lie behind a generator that went back
AHEAD_MAX = 2048  # ids drawn at once past those that are in use
_ASK_AGAIN_S = 0.2  # bookies that could not say whether they know a ledger, where no others are left


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersOptions:
    """What every ledger of this client has in common."""

    digest: DigestType = DigestType.CRC32C
    password: bytes = b""
    pending_entries_max: int = option(10_000, sim=(4, 100))  # appends without an answer, per ledger
    vet_s: float = option(1.0, sim=(0.1, 2.0))  # a bookie may take to say that it does not know a new ledger
    vet_all_s: float = option(5.0, sim=(1.0, 10.0))  # the same, where the ledger cannot be made without it
    adding: AddingOptions = field(default_factory=AddingOptions)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)


def resolver(metadata: Metadata) -> Resolve:
    """Where a bookie listens, as its registration says; for BookieClient."""

    def resolve(bookie: BookieId) -> tuple[str, int] | None:
        members = metadata.known_members()
        info = members.writable.get(bookie) or members.readonly.get(bookie)
        return (info.host, info.port) if info is not None else None

    return resolve


class Ledgers:
    """Ledgers of one cluster: `async with Ledgers(...) as ledgers`. Leaving the scope abandons every open handle.

    metadata, bookies: opened by the caller and closed after. rng: places ensembles; seeded by the caller.
    """

    def __init__(
        self,
        metadata: Metadata,
        bookies: BookieClient,
        *,
        rng: random.Random,
        options: LedgersOptions | None = None,
        placement: Placement | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.options = options or LedgersOptions()
        self._metadata = metadata
        self._bookies = bookies
        self._rng = rng
        self._placement = placement or RandomPlacement(self._candidates, rng)
        self._on_event = on_event
        self._clock = clock
        self._tasks = asyncio.TaskGroup()
        self._open = False
        self._drivers: dict[Driver, tuple[Asker, LedgerId]] = {}
        self._on_end = self._forget  # one for all
        self._watches: dict[_Watch, None] = {}

    async def __aenter__(self) -> Ledgers:
        await self._tasks.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        for watch in list(self._watches):
            watch.stop()
        for driver in list(self._drivers):
            driver.stop()
        try:
            while self._drivers:
                await next(iter(self._drivers)).wait_ended()
        finally:
            await self._tasks.__aexit__(kind, error, trace)

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def create(
        self,
        quorum: Quorum,
        *,
        ensemble_min: int | None = None,
        digest: DigestType | None = None,
        password: bytes | None = None,
        custom: tuple[tuple[str, bytes], ...] = (),
    ) -> LedgerWriter:
        """Create a ledger nobody else knows, no bookie of its ensemble either, and return its writer.

        ensemble_min: with fewer writable bookies than the quorum's ensemble take as many as there are, but not fewer
        than this; None: all or none. custom: kept in its metadata. Raises NotEnoughBookiesError,
        MetadataUnavailableError (a ledger that nobody writes may remain). Cancelling may leave an empty ledger too.
        """
        digest = self.options.digest if digest is None else digest
        password = self.options.password if password is None else password
        least = quorum.ensemble if ensemble_min is None else ensemble_min
        ahead = 1
        for _ in range(CREATE_ATTEMPTS):
            ledger = await self._metadata.new_ledger_id(ahead)
            ahead = min(2 * ahead, AHEAD_MAX)  # if it is in use, the next ones are as well
            ensemble = await self._choose_vetted(ledger, quorum, least)
            if ensemble is None:
                continue
            value = LedgerMetadata(
                quorum=replace(quorum, ensemble=len(ensemble)),
                fragments=(Fragment(EntryId(0), ensemble),),
                digest=digest,
                password=password,
                ctime_ms=self._clock.unix_ms(),
                custom=custom,
                ctoken=self._rng.getrandbits(63),
            )
            written = await self._write_new(ledger, value)
            if written is not None:
                return self._writer(ledger, written, Digest(ledger, digest, password))
        raise MetadataUnavailableError(
            f"no ledger id is free, ids are given out twice; was ZooKeeper restored from a backup? "
            f"See docs/restore.md: attempts={CREATE_ATTEMPTS}"
        )

    async def _choose_vetted(self, ledger: LedgerId, quorum: Quorum, least: int) -> tuple[BookieId, ...] | None:
        """An ensemble of which every member says that it does not know the ledger; None if one of those asked does.

        Who does not say so in time is left out, as long as there are enough others.
        """
        silent: set[BookieId] = set()
        give_up_s = self._clock.monotonic_s() + self.options.vet_all_s
        async with self._visiting(LedgerVetter(ledger), ledger, "vetter") as vetter:
            while True:
                try:
                    ensemble = await self._choose(quorum, least, silent)
                except NotEnoughBookiesError:
                    if not silent or self._clock.monotonic_s() >= give_up_s:
                        raise
                    silent.clear()
                    await asyncio.sleep(_ASK_AGAIN_S)
                    continue
                vetted: Vetted = await vetter.ask(Vet(ensemble, self.options.vet_s))
                if vetted.known_to:
                    self._on_event(LedgerIdInUse(ledger, tuple(sorted(vetted.known_to))))
                    return None
                if len(vetted.unknown_to) == len(ensemble):
                    return ensemble
                silent |= set(ensemble) - vetted.unknown_to

    async def _choose(self, quorum: Quorum, least: int, exclude: Collection[BookieId]) -> tuple[BookieId, ...]:
        try:
            return self._placement.choose(quorum, exclude)
        except NotEnoughBookiesError:
            if not exclude:
                await self._metadata.members()  # what we heard last may be old
        for size in range(quorum.ensemble, least, -1):
            with suppress(NotEnoughBookiesError):
                return self._placement.choose(replace(quorum, ensemble=size), exclude)
        return self._placement.choose(replace(quorum, ensemble=least), exclude)

    async def _write_new(self, ledger: LedgerId, value: LedgerMetadata) -> Versioned | None:
        """The metadata in place, or None if the id is taken. A lost reply is resolved by the token we wrote."""
        outcome = await self._metadata.compare_and_set(LedgerKey(ledger), value, None)
        if isinstance(outcome, OutcomeUnknown | Conflict):
            found = await self._metadata.read(LedgerKey(ledger))
            if isinstance(found, Versioned) and found.value.ctoken == value.ctoken:
                outcome = found
            elif isinstance(outcome, OutcomeUnknown):
                raise MetadataUnavailableError(
                    f"ledger may or may not be created: ledger={ledger} reason={outcome.reason}", outcome_unknown=True
                )
        return outcome if isinstance(outcome, Versioned) else None

    def _writer(self, ledger: LedgerId, metadata: Versioned, digest: Digest) -> LedgerWriter:
        machine = LedgerAdder(ledger, metadata, digest, self._placement, self.options.adding)
        driver = self._start(machine, ledger, "writer", requests_max=self.options.pending_entries_max)
        self._on_event(LedgerOpened(ledger, metadata.value.fragments[0].ensemble))
        return LedgerWriter(machine, driver, _nothing)

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def open(
        self, ledger: LedgerId, *, password: bytes | None = None, last_entry: EntryId | None = None
    ) -> LedgerReader:
        """Open for reading, without recovery: its writer goes on, and the reader follows.

        last_entry: the end, where the caller knows it. Raises LedgerNotFoundError, MetadataUnavailableError.
        """
        metadata = await self.metadata_of(ledger)
        digest = self._digest(ledger, metadata, password)
        if metadata.is_closed or last_entry is not None:
            return LedgerReader(ledger, metadata, digest, self._start, last_entry, _nothing)
        watch = _Watch(ledger, self._metadata, self._tasks, self._unwatch)
        reader = LedgerReader(ledger, metadata, digest, self._start, None, watch.stop)
        self._watches[watch] = None
        watch.begin(reader)
        return reader

    async def metadata_of(self, ledger: LedgerId) -> LedgerMetadata:
        """Metadata as it stands. Raises LedgerNotFoundError, MetadataUnavailableError."""
        outcome = await self._metadata.read(LedgerKey(ledger))
        if isinstance(outcome, Versioned):
            metadata: LedgerMetadata = outcome.value
            return metadata
        if isinstance(outcome, Missing):
            raise LedgerNotFoundError(f"no such ledger: ledger={ledger}")
        raise MetadataUnavailableError(f"metadata out of reach: ledger={ledger} reason={outcome}")

    async def last_confirmed(self, ledger: LedgerId, *, password: bytes | None = None) -> EntryId:
        """The LAC, asked of metadata and of enough bookies to be certain, without fencing.

        The newest confirmed entries may be above it: their LAC travels with the next entry. Raises UnavailableError,
        LedgerNotFoundError, MetadataUnavailableError.
        """
        metadata = await self.metadata_of(ledger)
        if metadata.is_closed:
            return metadata.last_entry
        machine = LedgerTailer(ledger, metadata, self._digest(ledger, metadata, password))
        async with self._visiting(machine, ledger, "prober") as driver:
            seen: LacSeen = await driver.ask(ReadLac())
            return seen.lac

    async def find_tail(self, ledger: LedgerId, *, password: bytes | None = None) -> EntryId:
        """The tail as of now, for readers that cannot ask the writer: every entry confirmed before is at or below it,
        and whatever recovers the ledger later keeps all up to it. Nobody is fenced; may write metadata
        (dlog/ledger/finding.py). Raises UnavailableError (it cannot be known now), MetadataUnavailableError,
        LedgerNotFoundError, UnauthorizedError. Cancelling leaves nothing undone.
        """
        metadata = await self.metadata_of(ledger)
        if metadata.is_closed:
            return metadata.last_entry
        machine = TailFinder(ledger, self._digest(ledger, metadata, password))
        async with self._visiting(machine, ledger, "finder") as driver:
            seen: LacSeen = await driver.ask(FindTail())
            return seen.lac

    async def verify(self, ledger: LedgerId, *, password: bytes | None = None) -> Verified:
        """Read every entry up to the end (or the LAC) from every replica and check it; mends nothing."""
        metadata = await self.metadata_of(ledger)
        last = metadata.last_entry if metadata.is_closed else await self.last_confirmed(ledger, password=password)
        if last == NO_ENTRY:
            return Verified(0, (), ())
        machine = LedgerVerifier(ledger, metadata, self._digest(ledger, metadata, password))
        async with self._visiting(machine, ledger, "verifier") as driver:
            verified: Verified = await driver.ask(Verify(last))
            return verified

    def asker(self) -> Asker:
        """A door to the bookies, for who reads copy by copy. Close it."""
        return self._bookies.asker()

    # ---- ending -----------------------------------------------------------------------------------------------------

    async def recover(self, ledger: LedgerId, *, password: bytes | None = None) -> Recovered:
        """Fence the writer, find the end, close. Repeatable; concurrent recoveries anywhere agree.

        Raises UnavailableError, EntryUnreadableError, NotEnoughBookiesError (call again), UnauthorizedError,
        LedgerNotFoundError. Cancelling leaves the ledger fenced at most.
        """
        machine = LedgerRecoverer(ledger, self._placement, self.options.recovery, password)
        async with self._visiting(machine, ledger, "recoverer") as driver:
            recovered: Recovered = await driver.ask(Recover())
            return recovered

    async def delete(self, ledger: LedgerId) -> None:
        """Delete its metadata; bookies collect the entries by themselves. Idempotent."""
        await self._metadata.delete(LedgerKey(ledger))

    async def who_knows(self, ledger: LedgerId, bookies: Collection[BookieId]) -> Vetted:
        """Which of these bookies hold anything of the ledger, whether metadata names it or not."""
        async with self._visiting(LedgerVetter(ledger), ledger, "vetter") as vetter:
            vetted: Vetted = await vetter.ask(Vet(tuple(sorted(bookies)), self.options.vet_all_s))
            return vetted

    async def adopt(self, ledger: LedgerId, bookies: Collection[BookieId], digest: DigestType) -> LedgerMetadata:
        """Write metadata for a ledger that bookies hold and metadata does not name, so that it can be recovered and
        read. Any of them may hold any of its entries. Raises InvalidRequestError if metadata names it,
        MetadataUnavailableError."""
        value = LedgerMetadata(
            quorum=Quorum(ensemble=len(bookies), write=len(bookies), ack=1),
            fragments=(Fragment(EntryId(0), tuple(sorted(bookies))),),
            digest=digest,
            password=self.options.password,
            ctime_ms=self._clock.unix_ms(),
            custom=(("dlog.adopted", b"1"),),
            ctoken=self._rng.getrandbits(63),
        )
        if await self._write_new(ledger, value) is None:
            raise InvalidRequestError(f"metadata names the ledger already: ledger={ledger}")
        return value

    def list(self) -> AsyncIterator[LedgerId]:
        """All ledgers of the cluster, by rising id."""
        return self._metadata.ledgers()

    # ---- lives ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _visiting(self, machine: Machine, ledger: LedgerId, kind: str) -> AsyncIterator[Driver]:
        """A machine that lives for one question."""
        driver = self._start(machine, ledger, kind)
        try:
            yield driver
        finally:
            driver.stop()

    def _start(self, machine: Machine, ledger: LedgerId, kind: str, requests_max: int = 10_000) -> Driver:
        if not self._open:
            raise ClosedError(f"the ledger client is closed: ledger={ledger}")
        asker = self._bookies.asker()
        driver = Driver(
            machine,
            name=f"ledger {ledger} {kind}",
            send=asker.send,
            metadata=self._metadata,
            on_event=self._on_event,
            requests_max=requests_max,
            clock=self._clock,
        )
        asker.post = driver.post
        self._drivers[driver] = asker, ledger
        driver.begin(self._on_end)
        return driver

    def _unwatch(self, watch: _Watch) -> None:
        self._watches.pop(watch, None)

    def _forget(self, driver: Driver, error: Exception | None) -> None:
        asker, ledger = self._drivers.pop(driver)
        asker.close()
        if error is not None:  # a broken machine costs its handle, never the process
            story = "\n".join([repr(error), *getattr(error, "__notes__", ())])
            self._on_event(LedgerHandleFailed(ledger, driver.name, story))

    def _digest(self, ledger: LedgerId, metadata: LedgerMetadata, password: bytes | None) -> Digest:
        return Digest(ledger, metadata.digest, metadata.password if password is None else password)

    def _candidates(self, exclude: Collection[BookieId]) -> Sequence[BookieId]:
        return sorted(self._metadata.known_members().writable.keys() - set(exclude))


class _Watch:
    """Reads metadata again for a reader when a watch fires; a hint lost costs only time, the tailer asks too."""

    def __init__(
        self, ledger: LedgerId, metadata: Metadata, tasks: asyncio.TaskGroup, on_end: Callable[[_Watch], None]
    ) -> None:
        self._ledger = ledger
        self._metadata = metadata
        self._tasks = tasks
        self._on_end = on_end
        self._reader: LedgerReader | None = None
        self._unsubscribe: Callable[[], None] = _nothing
        self._reading: asyncio.Task[None] | None = None
        self._again = False

    def begin(self, reader: LedgerReader) -> None:
        self._reader = reader
        self._unsubscribe = self._metadata.watch(LedgerKey(self._ledger), self._fired)

    def stop(self) -> None:
        self._reader = None
        self._on_end(self)
        self._unsubscribe()
        if self._reading is not None:
            self._reading.cancel()

    def _fired(self) -> None:
        if self._reader is None:
            return
        if self._reading is not None:
            self._again = True
            return
        self._reading = self._tasks.create_task(self._read(), name=f"ledger {self._ledger} watch")

    async def _read(self) -> None:
        try:
            self._again = True
            while self._again:
                self._again = False
                outcome = await self._metadata.read(LedgerKey(self._ledger))
                if self._reader is None:
                    return
                if isinstance(outcome, Versioned):
                    self._reader.learn_metadata(outcome.value)
                elif isinstance(outcome, Missing):
                    self._reader.learn_deleted(LedgerNotFoundError(f"the ledger was deleted: ledger={self._ledger}"))
        except DLogError:
            return  # a hint, no more
        finally:
            self._reading = None


def _nothing() -> None:
    """No one needs to know."""
