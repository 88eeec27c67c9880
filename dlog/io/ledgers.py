"""The ledger client for asyncio, as BookKeeper's client: create, append, read, follow, recover, repair, delete, verify,
compare.

Each handle runs a state machine of dlog/ledger, which holds the protocol, on a driver. Sockets are in bookie_client.py;
ZooKeeper is behind the metadata ports.

Invariants:
- Every driver ends before the scope of `Ledgers` is left.
- A failed machine ends its handle only: an event with its trace is reported, pending requests get an error, and the
  stream owner reopens the log and recovers.

    async with BookieClient(resolver(metadata), rng=rng) as bookies, Ledgers(metadata, bookies, rng=rng) as ledgers:
        writer = await ledgers.create(Quorum(ensemble=3, write=3, ack=2))
        entry = await writer.append((b"payload",))
        await writer.close()
        reader = await ledgers.open(writer.ledger_id)
        payloads = await reader.read(EntryId(0), reader.lac, max_bytes=1 << 20)

Interoperable with Apache BookKeeper 4.17 and 4.18: v2 and v3 wire protocol, digests, metadata and recovery.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol

from dlog.errors import (
    ClosedError,
    ConfigError,
    InvalidRequestError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
)
from dlog.events import BookieLost, Event, LedgerHandleFailed, LedgerIdInUse, LedgerOpened, PlacementNotKept
from dlog.io.bookie_client import BookieClient, BookieRequester, Resolve
from dlog.io.bookie_locations import BookieLocations
from dlog.io.bookie_spaces import BookieSpaces
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.driver import Driver
from dlog.io.ledger_handles import LedgerReader, LedgerWriter
from dlog.io.ledger_watch import MetadataRefresher, nothing
from dlog.io.metadata import LedgerMetadataStore, Membership
from dlog.ledger.adding import AddingOptions, LedgerAdder
from dlog.ledger.comparing import Compare, Compared, LedgerComparer
from dlog.ledger.deferring import DeferredLedgerAdder
from dlog.ledger.disk_weights import DiskWeights
from dlog.ledger.finding import FindTail, TailFinder
from dlog.ledger.ledger_options import LedgerOptions
from dlog.ledger.placement import Placement, refusal
from dlog.ledger.placement_policy import (
    RANDOM,
    PlacementOptions,
    PlacementPolicy,
    Shortage,
    policy_metadata,
    policy_of,
)
from dlog.ledger.preferred_placement import PreferredPlacement
from dlog.ledger.quarantine import Quarantine
from dlog.ledger.reading import ReadingOptions
from dlog.ledger.recovery import LedgerRecoverer, Recover, Recovered, RecoveryOptions
from dlog.ledger.repair import LedgerRepairer, Repair, Repaired, RepairOptions
from dlog.ledger.replica_health import Distance, ReplicaHealth
from dlog.ledger.spread_placement import SpreadPlacement
from dlog.ledger.tailing import LedgerLac, LedgerTailer, ReadLac, TailingOptions
from dlog.ledger.verifying import LedgerVerifier, Verify
from dlog.ledger.vetting import LedgerVetter, Vet, Vetted
from dlog.machine import Conflict, Machine, Missing, OutcomeUnknown, Versioned
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.verification import BadRange, Verified
from dlog.options import option
from dlog.wire.digest import Digest

CREATE_ATTEMPTS = 64  # ids tried per ledger; ids are in use if the generator was restored from a backup
AHEAD_MAX = 2048  # ids drawn at once to get past those in use
GIVEN_IDS = 2**62  # no generator of ids gets so far: it begins a directory of ids for each 2**31
_LATE_COPIES_S = 1.0  # for copies beyond the ack quorum that a writer has not sent yet, or that are not yet stored
_VET_RETRY_S = 0.2  # until bookies that did not confirm an unused id are asked again, if there are no others


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersOptions:
    """Settings of all ledgers of one client."""

    digest: DigestType = DigestType.CRC32C
    password: bytes = b""
    pending_entries_max: int = option(10_000, sim=(4, 100))  # unconfirmed appends, per ledger
    vet_s: float = option(1.0, sim=(0.1, 2.0))  # for a bookie to confirm that it holds nothing under a new ledger's id
    vet_all_s: float = option(5.0, sim=(1.0, 10.0))  # the same in all, if too few other bookies are left
    adding: AddingOptions = field(default_factory=AddingOptions)
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    tailing: TailingOptions = field(default_factory=lambda: TailingOptions(long_poll_s=1.0))
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    repair: RepairOptions = field(default_factory=RepairOptions)
    quarantine_failures: int = 3  # see LedgerOptions, also for the next three
    quarantine_s: float = 600.0
    disk_weight_max: float = 0.0  # a client that lives for one command does not ask for the space of disks
    disk_ask_s: float = 300.0

    def configured(self, section: LedgerOptions) -> LedgersOptions:
        """These settings with those of section [ledger]."""
        adding = replace(
            self.adding,
            ensemble_changes_max=section.ensemble_changes_max,
            delayed_change=section.ensemble_change_delayed,
            ack_quorum_timeout_s=section.ack_quorum_timeout_s,
            explicit_lac_s=section.explicit_lac_s,
        )
        reading = replace(self.reading, speculate_s=section.speculate_s, speculate_min_s=section.speculate_min_s)
        return replace(
            self,
            adding=adding,
            reading=reading,
            placement=section,
            quarantine_failures=section.quarantine_failures,
            quarantine_s=section.quarantine_s,
            disk_weight_max=section.disk_weight_max,
            disk_ask_s=section.disk_ask_s,
        )


class LedgersMetadata(LedgerMetadataStore, Membership, Protocol):
    """The metadata that a client of ledgers needs: ledgers, and which bookies are registered."""


def resolver(members: Membership) -> Resolve:
    """Look up bookies' addresses in their registrations; for BookieClient."""

    def resolve(bookie: BookieId) -> tuple[str, int] | None:
        known = members.known_members()
        info = known.writable.get(bookie) or known.readonly.get(bookie)
        return (info.host, info.port) if info is not None else None

    return resolve


class Ledgers:
    """Client for the ledgers of one cluster: `async with Ledgers(...) as ledgers`. Leaving it abandons open handles.

    metadata, bookies: opened by the caller, and closed after this. rng: chooses ensembles; seeded by the caller.
    """

    def __init__(
        self,
        metadata: LedgersMetadata,
        bookies: BookieClient,
        *,
        rng: random.Random,
        options: LedgersOptions | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.options = options or LedgersOptions()
        adding, most = self.options.adding, self.options.pending_entries_max
        early_max = max(1, min(adding.early_entries_max, most // 2))  # else no request is left for the missing entry
        self._adding = replace(adding, early_entries_max=early_max)
        reading = self.options.reading
        self._reading = replace(reading, batch=False) if bookies.is_v3 else reading  # v3 has no batch read
        tailing = self.options.tailing
        if bookies.is_v3:
            self._tailing = replace(tailing, explicit_lac=True)
        else:  # v2 has no long poll, and no explicit LAC
            self._tailing = replace(tailing, long_poll_s=0.0, explicit_lac=False)
            if adding.explicit_lac_s:
                raise ConfigError("explicit_lac_s needs bookie_protocol v3: v2 has no request for an explicit LAC")
        self._metadata = metadata
        self._bookies = bookies
        self._rng = rng
        self._locations = locations = BookieLocations(metadata)
        self._quarantine = Quarantine(self.options.quarantine_failures, self.options.quarantine_s)
        weights = DiskWeights(self.options.disk_weight_max) if self.options.disk_weight_max else None
        self.disk_weights = weights  # None: bookies are chosen whatever their disks
        self._spaces = (
            BookieSpaces(metadata, weights, self.options.disk_ask_s, rng, bookies.tls) if weights is not None else None
        )
        weight = None if weights is None else weights.weight
        self._spread = SpreadPlacement(RANDOM, locations.writable, locations.locate, rng, weight, self._is_quarantined)
        self._placements: dict[PlacementPolicy, Placement] = {}  # one for all ledgers of a policy
        here = self.options.placement.location
        self._distance: Distance | None = None if here is None else lambda b: here.distance(locations.locate(b))
        self._health = ReplicaHealth(self.options.reading.speculate_s, self.options.reading.speculate_min_s)
        self._on_event = on_event
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None
        self._tasks = asyncio.TaskGroup()
        self._open = False
        self._drivers: dict[Driver, tuple[BookieRequester, LedgerId]] = {}
        self._on_end = self._forget  # one bound method for all drivers
        self._watches: dict[MetadataRefresher, None] = {}

    async def __aenter__(self) -> Ledgers:
        await self._tasks.__aenter__()
        self._open = True
        if self._spaces is not None:
            self._asking = self._tasks.create_task(self._spaces.run(), name="space of bookies")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._locations.close()
        if self._asking is not None:
            self._asking.cancel()
        for watch in list(self._watches):
            watch.stop()
        for driver in list(self._drivers):
            driver.stop()
        try:
            while self._drivers:
                await next(iter(self._drivers)).wait_ended()
        finally:
            await self._tasks.__aexit__(kind, error, trace)

    def known_bookies(self) -> int:
        """The number of bookies that are registered, writable or read-only, as far as this client knows."""
        members = self._metadata.known_members()
        return len(members.writable) + len(members.readonly)

    def available_bookies(self) -> frozenset[tuple[BookieId, bool]]:
        """The registered bookies, each with whether it is writable, as far as this client knows."""
        members = self._metadata.known_members()
        return frozenset(
            (b, found is members.writable) for found in (members.writable, members.readonly) for b in found
        )

    def placement_refusal(self, quorum: Quorum, min_regions: int = 1) -> str:
        """Why the registered bookies cannot keep the placement policy, if it is strict; empty: they can, or need not.
        As far as this client knows."""
        policy, locations = self._policy(min_regions), self._locations
        if not policy.strict:
            return ""
        placement = SpreadPlacement(policy, lambda _: list(locations.registered()), locations.locate, self._rng)
        return refusal(placement, replace(quorum, ensemble=quorum.write))  # `create` accepts as few

    def placement_of(self, metadata: LedgerMetadata) -> tuple[PlacementPolicy, list[Shortage | None]]:
        """A ledger's placement policy, and for each fragment what its ensemble lacks of it; None: nothing."""
        policy, locate = policy_of(metadata), self._locations.locate
        return policy, [policy.shortage(metadata.quorum, f.ensemble, locate) for f in metadata.fragments]

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def create(
        self,
        quorum: Quorum,
        *,
        ensemble_min: int | None = None,
        digest: DigestType | None = None,
        password: bytes | None = None,
        custom: tuple[tuple[str, bytes], ...] = (),
        min_regions: int = 1,
        ledger: LedgerId | None = None,
        deferred_sync: bool = False,
    ) -> LedgerWriter:
        """Create a ledger under an id that metadata and every bookie that answers do not know; return its writer.

        ensemble_min: smallest ensemble to accept when too few bookies are writable; None: the quorum's ensemble.
        custom: stored in the ledger's metadata. min_regions: regions that must hold an entry before it is confirmed,
        also by a recovery of the ledger. ledger: the id, if the caller gives it, 0 to 2**63 - 1. Ids from GIVEN_IDS on
        are never assigned to other ledgers. One that a ledger had before, also a deleted one, must not be given again.
        deferred_sync: an append is acknowledged once an ack quorum has written it, and may be lost until
        `LedgerWriter.force`; needs v3. Raises NotEnoughBookiesError or MetadataUnavailableError (an empty ledger may
        remain), InvalidRequestError (the given id is in use, or no v3). Cancelling may leave an empty ledger too.
        """
        digest = self.options.digest if digest is None else digest
        password = self.options.password if password is None else password
        least = quorum.ensemble if ensemble_min is None else ensemble_min
        policy = self._policy(min_regions)
        placement = self._placement(policy)
        given, ahead = ledger, 1
        if given is not None and not 0 <= given < 2**63:
            raise InvalidRequestError(f"a ledger id is between 0 and 2**63 - 1: ledger={given}")
        if deferred_sync and not self._bookies.is_v3:
            raise InvalidRequestError("deferred sync needs v3, set bookie_protocol of section [ledger] to v3")
        for _ in range(CREATE_ATTEMPTS if given is None else 1):
            ledger = await self._metadata.new_ledger_id(ahead) if given is None else given
            ahead = min(2 * ahead, AHEAD_MAX)  # if this id is in use, so are probably the next ones
            ensemble = await self._choose_vetted(ledger, placement, quorum, least)
            if ensemble is None:
                continue
            value = LedgerMetadata(
                quorum=replace(quorum, ensemble=len(ensemble)),
                fragments=(Fragment(EntryId(0), ensemble),),
                digest=digest,
                password=password,
                ctime_ms=self._clock.unix_ms(),
                custom=(*custom, *policy_metadata(policy)),
                ctoken=self._rng.getrandbits(63),
            )
            written = await self._write_new(ledger, value)
            if written is not None:
                make = DeferredLedgerAdder if deferred_sync else LedgerAdder
                return self._writer(make, ledger, written, Digest(ledger, digest, password), placement)
        if given is not None:
            raise InvalidRequestError(
                f"a ledger with this id exists, or bookies hold entries of one, choose another id: ledger={given}"
            )
        raise MetadataUnavailableError(
            f"no unused ledger id found, all ids tried are in use: was ZooKeeper restored from a "
            f"backup? See docs/restore.md: attempts={CREATE_ATTEMPTS}"
        )

    async def _choose_vetted(
        self, ledger: LedgerId, placement: Placement, quorum: Quorum, least: int
    ) -> tuple[BookieId, ...] | None:
        """Choose an ensemble whose members all confirm that they hold none of the ledger; None: a bookie holds some.

        All registered bookies are asked, but those in quarantine only if they are members of the ensemble. A member
        that does not confirm in time is replaced while there are enough others. Others need not reply.
        """
        silent: set[BookieId] = set()
        give_up_s = self._clock.monotonic_s() + self.options.vet_all_s
        async with self._visiting(LedgerVetter(ledger), ledger, "vetter") as vetter:
            while True:
                try:
                    ensemble = await self._choose(placement, quorum, least, silent)
                except NotEnoughBookiesError:
                    if not silent or self._clock.monotonic_s() >= give_up_s:
                        raise
                    silent.clear()
                    await asyncio.sleep(_VET_RETRY_S)
                    continue
                asked = {*ensemble, *self._locations.registered()}
                asked -= {bookie for bookie in asked if bookie not in ensemble and self._is_quarantined(bookie)}
                vetted: Vetted = await vetter.ask(Vet(tuple(sorted(asked)), self.options.vet_s))
                if vetted.known_to:
                    self._on_event(LedgerIdInUse(ledger, tuple(sorted(vetted.known_to))))
                    return None
                for bookie in sorted(asked - vetted.unknown_to):
                    self._note_failure(bookie)
                if vetted.unknown_to.issuperset(ensemble):
                    return ensemble
                silent |= set(ensemble) - vetted.unknown_to

    async def _choose(
        self, placement: Placement, quorum: Quorum, least: int, exclude: Collection[BookieId]
    ) -> tuple[BookieId, ...]:
        try:
            return placement.choose(quorum, exclude)
        except NotEnoughBookiesError:
            if not exclude:
                await self._metadata.members()  # the cached list may be old: read it again
        for size in range(quorum.ensemble, least, -1):
            with suppress(NotEnoughBookiesError):
                return placement.choose(replace(quorum, ensemble=size), exclude)
        return placement.choose(replace(quorum, ensemble=least), exclude)

    async def _write_new(self, ledger: LedgerId, value: LedgerMetadata) -> Versioned | None:
        """Write a new ledger's metadata; None: the id is taken. After a lost reply the written token decides."""
        outcome = await self._metadata.compare_and_set(LedgerKey(ledger), value, None)
        if isinstance(outcome, OutcomeUnknown | Conflict):
            found = await self._metadata.read(LedgerKey(ledger))
            if isinstance(found, Versioned) and found.value.ctoken == value.ctoken:
                outcome = found
            elif isinstance(outcome, OutcomeUnknown):
                raise MetadataUnavailableError(
                    f"the ledger may or may not have been created, try again: ledger={ledger} reason={outcome.reason}",
                    outcome_unknown=True,
                )
        return outcome if isinstance(outcome, Versioned) else None

    def _writer(
        self, make: type[LedgerAdder], ledger: LedgerId, metadata: Versioned, digest: Digest, placement: Placement
    ) -> LedgerWriter:
        machine = make(ledger, metadata, digest, placement, self._adding)
        driver = self._start(machine, ledger, "writer", requests_max=self.options.pending_entries_max)
        ensemble = metadata.value.fragments[0].ensemble
        self._on_event(LedgerOpened(ledger, ensemble))
        if shortage := placement.shortage(metadata.value.quorum, ensemble):
            self._on_event(PlacementNotKept(ledger, 0, ensemble, shortage))
        return LedgerWriter(machine, driver, nothing)

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def open(
        self, ledger: LedgerId, *, password: bytes | None = None, last_entry: EntryId | None = None
    ) -> LedgerReader:
        """Open for reading without recovery: the writer is not disturbed, and the reader follows its LAC.

        last_entry: the end, if the caller knows it. Raises LedgerNotFoundError, MetadataUnavailableError.
        """
        metadata = await self.metadata_of(ledger)
        digest = self._digest(ledger, metadata, password)
        if metadata.is_closed or last_entry is not None:
            return self._reader(ledger, metadata, digest, last_entry, nothing)
        watch = MetadataRefresher(ledger, self._metadata, self._tasks, self._unwatch)
        reader = self._reader(ledger, metadata, digest, None, watch.stop)
        self._watches[watch] = None
        watch.begin(reader)
        return reader

    def _reader(
        self,
        ledger: LedgerId,
        metadata: LedgerMetadata,
        digest: Digest,
        last_entry: EntryId | None,
        on_close: Callable[[], None],
    ) -> LedgerReader:
        reading, tailing, start = self._reading, self._tailing, self._start
        return LedgerReader(
            ledger, metadata, digest, start, last_entry, on_close, self._distance, reading, self._health, tailing
        )

    async def metadata_of(self, ledger: LedgerId) -> LedgerMetadata:
        """Read the ledger's metadata. Raises LedgerNotFoundError, MetadataUnavailableError."""
        outcome = await self._metadata.read(LedgerKey(ledger))
        if isinstance(outcome, Versioned):
            metadata: LedgerMetadata = outcome.value
            return metadata
        if isinstance(outcome, Missing):
            raise LedgerNotFoundError(f"no such ledger: ledger={ledger}")
        raise MetadataUnavailableError(f"the ledger's metadata cannot be read now: ledger={ledger} reason={outcome}")

    async def last_confirmed(self, ledger: LedgerId, *, password: bytes | None = None) -> EntryId:
        """Read the LAC from metadata and from bookies of every possible ack quorum, without fencing.

        The newest confirmed entries may be above it: the next entry carries their LAC. Raises UnavailableError,
        LedgerNotFoundError, MetadataUnavailableError.
        """
        metadata = await self.metadata_of(ledger)
        if metadata.is_closed:
            return metadata.last_entry
        machine = LedgerTailer(ledger, metadata, self._digest(ledger, metadata, password), self._tailing)
        async with self._visiting(machine, ledger, "prober") as driver:
            seen: LedgerLac = await driver.ask(ReadLac())
            return seen.lac

    async def find_tail(self, ledger: LedgerId, *, password: bytes | None = None) -> EntryId:
        """Find the tail without the writer: every entry confirmed before this call is at or below it, and every later
        recovery keeps all entries up to it. Fences nothing; may write metadata (dlog/ledger/finding.py). Raises
        UnavailableError (cannot be known now), MetadataUnavailableError, LedgerNotFoundError, UnauthorizedError.
        Cancelling is safe.
        """
        metadata = await self.metadata_of(ledger)
        if metadata.is_closed:
            return metadata.last_entry
        confirms = self._spread.for_ledger(metadata).confirms
        machine = TailFinder(ledger, self._digest(ledger, metadata, password), confirms=confirms)
        async with self._visiting(machine, ledger, "finder") as driver:
            seen: LedgerLac = await driver.ask(FindTail())
            return seen.lac

    async def verify(self, ledger: LedgerId, *, password: bytes | None = None) -> Verified:
        """Read every entry up to the end from every replica and check it; repairs nothing.

        An open ledger is checked up to its LAC. One with bad copies is checked once more if it was open, since its
        writer may still have been sending them, or if it was repaired meanwhile. Raises LedgerNotFoundError (also if it
        was deleted meanwhile), MetadataUnavailableError, UnavailableError (the LAC cannot be known now). Cancelling is
        safe.
        """
        metadata = await self.metadata_of(ledger)
        last = metadata.last_entry if metadata.is_closed else await self.last_confirmed(ledger, password=password)
        verified = await self._verify(ledger, metadata, last, password)
        if verified.below_write_quorum:
            if not metadata.is_closed:
                await asyncio.sleep(_LATE_COPIES_S)
            now = await self.metadata_of(ledger)
            if not metadata.is_closed or now != metadata:
                verified = await self._verify(ledger, now, last, password)
                await self.metadata_of(ledger)
        return verified

    async def _verify(
        self, ledger: LedgerId, metadata: LedgerMetadata, last: EntryId, password: bytes | None
    ) -> Verified:
        if last == NO_ENTRY:
            return Verified(0)
        machine = LedgerVerifier(ledger, metadata, self._digest(ledger, metadata, password))
        async with self._visiting(machine, ledger, "verifier") as driver:
            verified: Verified = await driver.ask(Verify(last))
            return verified

    async def compare(self, ledger: LedgerId, *, password: bytes | None = None) -> Compared:
        """Compare the copies of a closed ledger on its bookies, without reading entries; repairs nothing.

        Bookies that are not registered, as far as this client knows, are not asked. A client on v3 learns which entries
        each bookie has, and no summaries of their contents. Raises MetadataUnavailableError; what of the ledger was not
        compared is in the reply. Cancelling is safe.
        """
        members = self._metadata.known_members()
        known = {**members.readonly, **members.writable}
        summaries = frozenset(bookie for bookie, info in known.items() if info.summaries and not self._bookies.is_v3)
        machine = LedgerComparer(ledger, password)
        async with self._visiting(machine, ledger, "comparer", self._bookies.listing_asker()) as driver:
            compared: Compared = await driver.ask(Compare(summaries, frozenset(known) - summaries))
            return compared

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For further connections to bookies; None: they are plain."""
        return self._bookies.tls

    def asker(self) -> BookieRequester:
        """A sender of requests to single bookies, for reading replicas one by one. Close it."""
        return self._bookies.asker()

    # ---- recovering and deleting ------------------------------------------------------------------------------------

    async def recover(self, ledger: LedgerId, *, password: bytes | None = None) -> Recovered:
        """Fence the writer, find the last entry and close the ledger. Repeatable; concurrent recoveries agree.

        Raises UnavailableError, EntryUnreadableError, NotEnoughBookiesError (call again), UnauthorizedError,
        LedgerNotFoundError. Cancelling may leave the ledger fenced.
        """
        machine = LedgerRecoverer(ledger, self._spread, self.options.recovery, password)
        async with self._visiting(machine, ledger, "recoverer") as driver:
            recovered: Recovered = await driver.ask(Recover())
            return recovered

    async def repair(
        self,
        ledger: LedgerId,
        gone: frozenset[BookieId],
        *,
        bad: tuple[BadRange, ...] = (),
        preferred: BookieId | None = None,
        only_preferred: bool = False,
        password: bytes | None = None,
    ) -> Repaired:
        """Copy what the bookies `gone` hold of the ledger to others, and name those in metadata instead. Repeatable;
        several repairs may run at once.

        bad: copies missing on other bookies, as `verify` found them, to be written again there. preferred: takes the
        place of one that is gone wherever the ledger's placement policy would not be kept less well; with
        `only_preferred` no other bookie does (NotEnoughBookiesError where it cannot: `can_move`). The ensemble that
        is still written is left alone, and the reply says so: `recover` the ledger, then repair it again. Raises
        UnavailableError (some entries wait for bookies out of reach; the other ensembles are repaired),
        NotEnoughBookiesError, MetadataUnavailableError (call again), LedgerNotFoundError. Cancelling, or an error, may
        leave copies that metadata does not name, and ensembles that are repaired already; both do no harm.
        """
        assert preferred is not None or not only_preferred, "the only replacement has a name"
        placement: Placement = self._spread
        if preferred is not None:
            placement = PreferredPlacement(self._spread, preferred, only_preferred)
        machine = LedgerRepairer(ledger, placement, self.options.repair, password)
        async with self._visiting(machine, ledger, "repairer") as driver:
            repaired: Repaired = await driver.ask(Repair(gone, bad))
            return repaired

    def can_move(self, metadata: LedgerMetadata, source: BookieId, target: BookieId) -> bool:
        """Whether `target` could take the place of `source` in all of a ledger's ensembles, with its placement policy
        kept as well as now. As far as this client knows."""
        placement = PreferredPlacement(self._spread, target, is_only=True).for_ledger(metadata)
        return all(
            placement.replace(metadata.quorum, f.ensemble, [f.ensemble.index(source)])
            for f in metadata.fragments
            if source in f.ensemble
        )

    async def can_replace(self, metadata: LedgerMetadata, gone: Collection[BookieId]) -> bool:
        """Whether there are writable bookies that could replace all of `gone` in the ledger's last ensemble under its
        placement policy. Raises MetadataUnavailableError. Cancelling is safe."""
        ensemble, placement = metadata.fragments[-1].ensemble, self._spread.for_ledger(metadata)
        failed = [index for index, bookie in enumerate(ensemble) if bookie in gone]
        for is_fresh in (False, True):
            if is_fresh:
                await self._metadata.members()  # the cached list may be old: read it again
            if len(placement.replace(metadata.quorum, ensemble, failed, gone)) == len(failed):
                return True
        return False

    async def delete(self, ledger: LedgerId) -> None:
        """Delete its metadata; bookies collect the entries later. Idempotent."""
        await self._metadata.delete(LedgerKey(ledger))

    async def find_holders(self, ledger: LedgerId, bookies: Collection[BookieId]) -> Vetted:
        """Ask which of these bookies hold entries of the ledger, in metadata or not."""
        async with self._visiting(LedgerVetter(ledger), ledger, "vetter") as vetter:
            vetted: Vetted = await vetter.ask(Vet(tuple(sorted(bookies)), self.options.vet_all_s))
            return vetted

    async def adopt(self, ledger: LedgerId, bookies: Collection[BookieId], digest: DigestType) -> LedgerMetadata:
        """Write metadata for a ledger that only bookies know, so that it can be recovered and read. Any of them may
        hold any of its entries. Raises InvalidRequestError if metadata has the ledger, MetadataUnavailableError."""
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
            raise InvalidRequestError(f"the ledger has metadata already, recover or read it: ledger={ledger}")
        return value

    def list(self) -> AsyncIterator[LedgerId]:
        """All ledgers of the cluster, in order of their ids."""
        return self._metadata.ledgers()

    # ---- drivers ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _visiting(
        self, machine: Machine, ledger: LedgerId, kind: str, asker: BookieRequester | None = None
    ) -> AsyncIterator[Driver]:
        """Run a machine while the context lasts."""
        driver = self._start(machine, ledger, kind, asker=asker)
        try:
            yield driver
        finally:
            driver.stop()

    def _start(
        self,
        machine: Machine,
        ledger: LedgerId,
        kind: str,
        requests_max: int = 10_000,
        asker: BookieRequester | None = None,
    ) -> Driver:
        if not self._open:
            raise ClosedError(f"the ledger client is closed: ledger={ledger}")
        asker = asker or self._bookies.asker()
        driver = Driver(
            machine,
            name=f"ledger {ledger} {kind}",
            send=asker.send,
            metadata=self._metadata,
            on_event=self._note_event,
            requests_max=requests_max,
            clock=self._clock,
        )
        asker.post = driver.post
        self._drivers[driver] = asker, ledger
        driver.begin(self._on_end)
        return driver

    def _note_event(self, event: Event) -> None:
        """Emit an event of a machine."""
        self._on_event(event)
        if isinstance(event, BookieLost):
            self._note_failure(BookieId(event.peer))

    def _note_failure(self, bookie: BookieId) -> None:
        if event := self._quarantine.note_failure(bookie, self._clock.monotonic_s()):
            self._on_event(event)

    def _is_quarantined(self, bookie: BookieId) -> bool:
        return self._quarantine.holds(bookie, self._clock.monotonic_s())

    def _unwatch(self, watch: MetadataRefresher) -> None:
        self._watches.pop(watch, None)

    def _forget(self, driver: Driver, error: Exception | None) -> None:
        asker, ledger = self._drivers.pop(driver)
        asker.close()
        if error is not None:  # a failed machine ends its handle, not the process
            story = "\n".join([repr(error), *getattr(error, "__notes__", ())])
            self._on_event(LedgerHandleFailed(ledger, driver.name, story))

    def _digest(self, ledger: LedgerId, metadata: LedgerMetadata, password: bytes | None) -> Digest:
        return Digest(ledger, metadata.digest, metadata.password if password is None else password)

    def _policy(self, min_regions: int) -> PlacementPolicy:
        """The policy of a new ledger."""
        return self.options.placement.policy(self._locations.remembered().values()).with_min_regions(min_regions)

    def _placement(self, policy: PlacementPolicy) -> Placement:
        found = self._placements.get(policy)
        if found is None:
            found = self._placements[policy] = self._spread.under(policy)
        return found
