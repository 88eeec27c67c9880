"""Defects planted into the service as it ships, each of a kind that only a whole cluster shows; each must be caught.

Invariants:
- A defect is one change of one production method, made while a trial lasts and undone after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock
from unittest.mock import Mock

from actors.owner_feed import OwnerFeed, OwnerListener
from actors.stream_feed import StreamFeed
from dlog.bookie.bookie import Bookie
from dlog.client.batch import Batch
from dlog.client.connection import Connection
from dlog.client.pipeline import Pipeline
from dlog.client.producer import Producer
from dlog.client.producer_identity import NAME_BYTES
from dlog.errors import DLogError, OwnedElsewhereError, RecordTooLargeError, Remedy, UnavailableError
from dlog.io import stream_rechecks
from dlog.io.journal_files import JournalFiles
from dlog.io.journal_writers import JournalWriter
from dlog.io.ledgers import Ledgers
from dlog.io.zookeeper_hosts import Servers
from dlog.io.zookeeper_ledgers import ZooKeeperLedgers
from dlog.io.zookeeper_members import MemberList, Registrations
from dlog.io.zookeeper_watches import Watches
from dlog.ledger.placement import Placement
from dlog.machine import OutcomeUnknown, Versioned
from dlog.model.ids import Epoch, LedgerId, StreamName
from dlog.model.quorum import Quorum
from dlog.model.segment import StreamMetadata
from dlog.ownership.claim import Claim
from dlog.wire import proxy
from dlog.wire.bookie import Code
from dlog.wire.proxy import Ping
from proxies.detector import Detector
from proxies.proxy_connection import ProxyConnection
from proxies.read.contact import MetadataContact
from proxies.read.owner_connections import OwnerConnections
from proxies.write.admin import Admin
from proxies.write.dependency_check import BOOKIES, DependencyCheck
from proxies.write.session import WriteSession
from tests.simulation.disk import SimulatedFile
from tests.simulation.mutants import edited
from tests.simulation.service.mutants_deletion import COLLECTION, UPKEEP
from tests.simulation.service.planting import both, instead, mutant
from tests.simulation.worlds import Mutant


def _unsynced(write: Any) -> Any:
    """The journal is acknowledged after the write and before the sync."""

    def wrong(self: JournalFiles, records: Sequence[Any]) -> Any:
        with mock.patch.object(SimulatedFile, "datasync", lambda _: None):
            return write(self, records)

    return wrong


def _goes_on(write: Any) -> Any:
    """A failed sync of the journal is ignored: its entries count as durable."""

    def wrong(self: JournalWriter, records: list[Any], upto: int, epoch: int) -> None:
        try:
            write(self, records, upto, epoch)
        except OSError:
            self._on_durable(upto, self._journal.mark)

    return wrong


def _believes(compare_and_set: Any) -> Any:
    """A metadata write whose reply was lost counts as done. One write in ten is lost here before it is sent, beside
    those that the plan loses: that alone does no harm."""

    async def wrong(self: ZooKeeperLedgers, ledger: Any, value: Any, version: Any) -> Any:
        if version is not None and self._rng.random() < 0.1:
            outcome: Any = OutcomeUnknown("lost on its way")
        else:
            outcome = await compare_and_set(self, ledger, value, version)
        if isinstance(outcome, OutcomeUnknown) and version is not None:
            return Versioned(value, version + 1)
        return outcome

    return wrong


def _drops(on_refused: Any) -> Any:
    """A batch that was sent to a proxy which no longer owns the stream is dropped."""

    def wrong(self: Producer, connection: Any, batch: Any, error: Any) -> None:
        on_refused(self, connection, batch, error)
        if isinstance(error, OwnedElsewhereError) and batch in self.queue.ready:
            self.queue.ready.remove(batch)

    return wrong


def _stays(withdraw: Any) -> Any:
    """Records behind a refused one are reported as not written, and sent all the same."""

    def wrong(self: Batch) -> int:
        for listener in self.listeners:
            if listener.is_withdrawn:
                listener.withdrawn()
        return 0

    return wrong


def _for_all(on_failed: Any) -> Any:
    """The error of one record of a pipeline is reported for all behind it at once, although these are still sent."""

    def wrong(self: Pipeline, index: int) -> None:
        self._producer.queue.end_loan()
        for row in self._rows:
            if row.result is None and row.error is None:
                row.error = DLogError("a record before it failed", outcome_unknown=False)
        self._on_answered()

    return wrong


def _forgets_itself(renew: Any) -> Any:
    """A producer that gives up starts again under another name, and does not name the one that it replaces."""

    def wrong(self: Producer) -> None:
        renew(self)
        identity = self._identity
        identity.producer_id = self._router.rng.randbytes(NAME_BYTES) + bytes(4)
        identity.generation = identity.sequence = identity._highest = 0
        identity.replaces = None

    return wrong


def _early(hear: Any) -> Any:
    """A read proxy serves one entry more than the owner has confirmed."""

    def wrong(self: OwnerFeed, number: int, lac: int, ended: bool) -> None:
        hear(self, number, lac if ended else lac + 1, ended)

    return wrong


def _empty(replay: Any) -> Any:
    """A bookie that starts again does not replay its journal."""
    return lambda self, after, on_damage: iter(())


def _once(heard_state: Any) -> Any:
    """A registered process does not register again in the session that follows a lost one."""
    return lambda self, state: None


def _kept(close: Any) -> Any:
    """A connection that was given up is no longer used, and stays open."""

    def wrong(self: ProxyConnection) -> None:
        self._end("closed by this process")

    return wrong


def _same_epoch(write: Any) -> Any:
    """A claim replaces another without raising the epoch."""

    def wrong(self: Claim, value: StreamMetadata, out: list[Any]) -> None:
        made: list[Any] = []
        write(self, value, made)
        (question, *rest) = made
        owner = replace(question.value.owner, epoch=max(value.owner.epoch, Epoch(1)))
        out += [replace(question, value=replace(question.value, owner=owner)), *rest]

    return wrong


def _deaf_but_for_watches(hint: Any) -> Any:
    """The list of members is read again when a watch fires, and at no other time."""

    async def wrong(self: MemberList) -> None:
        await self._stale.wait()

    return wrong


def _restless(hint: Any) -> Any:
    """The list of members is read again without end."""

    async def wrong(self: MemberList) -> None:
        await asyncio.sleep(0)

    return wrong


def _first_answer(chunk_set: Any) -> Any:
    """When the first of many watches has been set again, the session counts as up to date."""

    def wrong(self: Watches, connection: Any) -> Any:
        done = chunk_set(self, connection)

        def first(value: Any, error: Any) -> None:
            done(value, error)
            if error is None:
                self._unanswered = 0

        return first

    return wrong


def _until_rejoined(refused: Any) -> Any:
    """A watch that the server refused is set on the next connection, and not before."""
    return lambda self, connection: False


def _believed(is_unchanged: Any) -> Any:
    """A stream whose watch may have missed a change counts as unchanged."""
    return lambda doubt, found: True


def _one_address(following: Any) -> Any:
    """Only the first of the addresses that the resolver returns for a name is tried."""

    async def wrong(self: Servers) -> tuple[str, int]:
        (host, port), self._turn = self._hosts[self._turn % len(self._hosts)], self._turn + 1
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
        return str(found[0][4][0]), port

    return wrong


def _silent(look: Any) -> Any:
    """A proxy that is cut off does not report it."""

    async def wrong(self: DependencyCheck) -> str:
        return ""

    return wrong


def _keeps_readers(run: Any) -> Any:
    """A read proxy does not look whether it reaches ZooKeeper, and keeps its readers."""

    async def wrong(self: MetadataContact, *_: object) -> None:
        await asyncio.Event().wait()

    return wrong


def _any_will_do(needs: Any) -> Any:
    """A proxy that reaches one bookie counts as one that can write its streams."""
    return lambda self, stuck: [what for what in needs(self, stuck) if not what.startswith(BOOKIES)]


def _keeps(run: Any) -> Any:
    """A proxy that does not reach ZooKeeper keeps the requests that wait for ZooKeeper."""
    gives_up = "if self.is_unfit:"
    return vars(edited(DependencyCheck, ("run", gives_up, "if self.is_unfit and self.lacks != METADATA:")))["run"]


def _refuses_some(take: Any) -> Any:
    """A proxy refuses one repeated batch in three, as one does whose limits were lowered meanwhile: that alone does no
    harm."""

    def wrong(self: WriteSession, m: proxy.Write) -> None:
        if m.retry and random.Random(f"{m.producer!r} {m.sequence}").random() < 0.3:
            raise RecordTooLargeError("a limit was lowered")
        take(self, m)

    return wrong


def _forgets_doubt(on_refused: Any) -> Any:
    """A batch that may be written counts as not written once its repetition is refused. Needs `_refuses_some`."""

    def wrong(self: Producer, connection: Any, batch: Batch, error: DLogError) -> None:
        if error.remedy is Remedy.FIX and not error.outcome_unknown:
            batch.may_be_written = False
        on_refused(self, connection, batch, error)

    return wrong


def _members_only(choose_vetted: Any) -> Any:
    """Of a ledger id only the bookies of the ensemble are asked whether they know it."""
    return vars(edited(Ledgers, ("_choose_vetted", ", *self._locations.registered()", "")))["_choose_vetted"]


@contextlib.contextmanager
def _by_the_clock() -> Iterator[None]:
    """A proxy that does not answer for a fixed time is given up, however long its earlier answers took."""

    async def opens(self: Detector, address: str) -> ProxyConnection:
        return await self._dialler.open(address, self._options.ping_timeout_s, ProxyConnection)

    async def pongs(self: Detector, address: str, link: ProxyConnection) -> bool:
        return await link.ping(self._options.ping_timeout_s)

    async def answers(self: Detector, address: str) -> bool:
        try:
            link = await opens(self, address)
        except UnavailableError:
            return False
        try:
            return await pongs(self, address, link)
        finally:
            link.close()

    with mock.patch.multiple(Detector, _wait_open=opens, _wait_pong=pongs, _answers=answers):
        yield


def _sure(doubt: Any) -> Any:
    """The metadata of a quiet stream is never read again."""
    return lambda self: None


def _unasked(choose_vetted: Any) -> Any:
    """A ledger id is used as ZooKeeper gives it, without asking bookies whether they know it."""

    async def wrong(self: Ledgers, ledger: LedgerId, placement: Placement, quorum: Quorum, least: int) -> Any:
        return await self._choose(placement, quorum, least, ())

    return wrong


def _at_any_time(delete: Any) -> Any:
    """A creation is carried out although a stream of the name was deleted since the request. Here the request comes a
    second time, after the deletion of the stream that it created: that alone does no harm."""

    async def wrong(self: Admin, name: str, incarnation: str, *, force: bool) -> Any:
        told = await delete(self, name, incarnation, force=force)
        with suppress(DLogError):
            await self.create(name, {}, incarnation, (await self.incarnation(name))["deletions"])
        return told

    return wrong


def _of_any_incarnation(write: Any) -> Any:
    """A batch does not say for which incarnation of the stream it is meant. Here a copy of each batch arrives late:
    that alone does no harm."""

    def late(self: Connection, message: proxy.Write) -> None:
        if self.error is None:
            request = self._next_request()
            self._left.add(request)
            self._written[request] = (Mock(), Mock(), message.count)
            self._send(replace(message, request=request))

    def wrong(self: Connection, writer: Any, batch: Any, **named: Any) -> None:
        named["incarnation"] = None
        write(self, writer, batch, **named)
        named["since"] = None if named["since"] is None else (*named["since"], 0)
        loop = asyncio.get_running_loop()
        loop.call_later(random.Random(batch.sequence).random(), late, self, proxy.Write(0, **named))

    return wrong


@contextlib.contextmanager
def _vouched() -> Iterator[None]:
    """A ping over any connection to an owner counts for a stream whose own connection to it is lost, until the present
    owner of the stream is known. Here each ping has a connection of its own, as another stream's would be; connections
    of streams are lost after a second, and an owner is found late: that alone does no harm."""
    listen = OwnerConnections._listen

    async def follow(
        self: OwnerConnections, address: str, stream: StreamName, ear: OwnerListener, on_open: Callable[[], None]
    ) -> None:
        try:
            await self._follow(address, stream, ear, on_open)
        except UnavailableError as lost:
            await asyncio.sleep(_chance(stream).random())
            location = await self._location_of_owner(stream, address)
            if not location:
                raise
            raise OwnedElsewhereError("lost the connection to the owner", location=location) from lost

    async def sync(self: OwnerConnections, ear: OwnerFeed) -> None:
        link = await self._dialler.open(ear.address, self._options.connect_timeout_s, ProxyConnection)
        try:
            await link.ask(Ping)
        finally:
            link.close()

    async def losing(self: OwnerConnections, link: ProxyConnection, stream: StreamName, *args: Any) -> DLogError:
        asyncio.get_running_loop().call_later(_chance(stream).uniform(0.5, 1.5), link.close)
        return await listen(self, link, stream, *args)

    with mock.patch.multiple(OwnerConnections, follow=follow, sync=sync, _listen=losing):
        yield


def _chance(stream: str) -> random.Random:
    return random.Random(f"{stream} {asyncio.get_running_loop().time()}")


def _agreeable(compare: Any) -> Any:
    """A bookie acknowledges an add of an entry that it holds, whatever its payload."""
    return lambda self, m, held, out: Code.OK


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "a ping over another stream's connection vouches for one that is lost",
        ("R2",),
        _vouched,
        style="hand-over",
        seeds=20,
    ),
    mutant(
        "a batch does not name the incarnation that it is meant for",
        ("D1",),
        instead(Connection, "write", _of_any_incarnation),
        style="lives",
        seeds=60,
    ),
    mutant(
        "a creation that comes late makes a second incarnation",
        ("D1",),
        instead(Admin, "delete", _at_any_time),
        style="lives",
        seeds=20,
    ),
    mutant(
        "journal not synced",
        ("J1", "S2", "L4", "V1"),
        instead(JournalFiles, "write", _unsynced),
        style="power",
        seeds=20,
    ),
    mutant(
        "goes on after a failed sync", ("J7", "J1"), instead(JournalWriter, "_write", _goes_on), style="disk", seeds=20
    ),
    mutant(
        "believes a lost reply",
        ("L4", "S2", "V1", "V3", "L2"),
        instead(ZooKeeperLedgers, "compare_and_set", _believes),
        style="metadata",
        seeds=40,
    ),
    mutant(
        "drops a batch at a redirect",
        ("V1", "V3", "S2", "S4"),
        instead(Producer, "on_refused", _drops),
        style="hand-over",
        seeds=30,
    ),
    mutant(
        "a batch of unknown outcome counts as not written once its repetition is refused",
        ("S2", "S1", "S4"),
        lambda: both(instead(WriteSession, "_write", _refuses_some), instead(Producer, "on_refused", _forgets_doubt)),
        style="power",
        seeds=40,
    ),
    mutant(
        "a batch that was reported as withdrawn is sent",
        ("S2", "S1", "S4"),
        instead(Batch, "withdraw", _stays),
        style="scope",
        seeds=60,
    ),
    mutant(
        "the error of one record is reported for all records after it",
        ("S2", "S1", "S4"),
        instead(Pipeline, "_on_failed", _for_all),
        style="scope",
        seeds=60,
    ),
    mutant(
        "a producer's next generation does not name the one that it replaces",
        ("S15",),
        instead(Producer, "_renew", _forgets_itself),
        style="deposed",
        seeds=60,
    ),
    mutant(
        "serves beyond the LAC",
        ("S8", "S9", "V1", "V3"),
        instead(OwnerFeed, "__call__", _early),
        style="swarm",
        seeds=30,
    ),
    mutant(
        "forgets its journal",
        ("J1", "S2", "L4", "V1"),
        instead(JournalFiles, "replay", _empty),
        style="power",
        seeds=20,
    ),
    mutant(
        "a connection that was given up stays open",
        ("V3",),
        instead(ProxyConnection, "close", _kept),
        style="hand-over",
        seeds=20,
    ),
    mutant("claims at the previous epoch", ("T3",), instead(Claim, "_write", _same_epoch), style="hand-over", seeds=10),
    mutant("registers once", ("V1",), instead(Registrations, "_state_changed", _once), style="metadata", seeds=20),
    mutant(
        "members are read on an event only",
        ("V1",),
        instead(MemberList, "_hint", _deaf_but_for_watches),
        style="hints",
        seeds=5,
    ),
    mutant(
        "the first packet of watches that is set again stands for all",
        ("M4",),
        instead(Watches, "_chunk_set", _first_answer),
        style="watches",
        seeds=60,
    ),
    mutant(
        "a refused watch waits for the next connection",
        ("M4",),
        instead(Watches, "_refused", _until_rejoined),
        style="watches",
        seeds=60,
    ),
    mutant(
        "a stream counts as unchanged after a loss of contact",
        ("M4",),
        instead(stream_rechecks, "_is_unchanged", _believed),
        style="watches",
        seeds=60,
    ),
    mutant(
        "only the first address of a name is tried",
        ("M4", "V1"),
        instead(Servers, "next", _one_address),
        style="watches",
        seeds=5,
    ),
    mutant(
        "silence of a peer is judged by the clock",
        ("V4",),
        _by_the_clock,
        style="starved",
        seeds=20,
    ),
    mutant(
        "an heir is suspected by the clock, so that another proxy begins its take-over again",
        ("V4",),
        _by_the_clock,
        style="starved-heir",
        seeds=60,
    ),
    mutant(
        "a proxy that is cut off does not answer that it is",
        ("V4",),
        instead(DependencyCheck, "_look", _silent),
        style="cut-off",
        seeds=20,
    ),
    mutant(
        "a proxy that reaches one bookie counts as one that reaches enough",
        ("V4",),
        instead(DependencyCheck, "_needs", _any_will_do),
        style="cut-off",
        seeds=30,
    ),
    mutant(
        "a read proxy that is cut off from ZooKeeper keeps its readers",
        ("V4",),
        instead(MetadataContact, "run", _keeps_readers),
        style="cut-reader",
        seeds=30,
    ),
    mutant(
        "a take-over waits for ZooKeeper however long",
        ("V4",),
        instead(DependencyCheck, "run", _keeps),
        style="cut-off",
        seeds=40,
    ),
    mutant(
        "the list of members is read again and again without a pause",
        ("V2",),
        instead(MemberList, "_hint", _restless),
        style="quiet",
        seeds=5,
    ),
    mutant(
        "a quiet stream's metadata is not read again",
        ("V1",),
        instead(StreamFeed, "doubt", _sure),
        style="hints",
        seeds=20,
    ),
    mutant(
        "a ledger id is used though bookies know it",
        ("S2", "S3", "S4", "S5", "V1"),
        instead(Ledgers, "_choose_vetted", _unasked),
        style="restored",
        seeds=10,
    ),
    mutant(
        "a ledger id is used though bookies outside of the ensemble know it",
        ("L35",),
        instead(Ledgers, "_choose_vetted", _members_only),
        style="restored",
        seeds=60,
    ),
    mutant(
        "a ledger id is used though bookies know it, and they acknowledge its entries",
        ("S2", "S3", "S4", "S5"),
        lambda: both(instead(Ledgers, "_choose_vetted", _unasked), instead(Bookie, "_compare", _agreeable)),
        style="restored",
        seeds=10,
    ),
    *COLLECTION,
    *UPKEEP,
)
