"""Checks a simulated cluster: liveness after the faults, and safety over the whole trial.

What bookies delete is checked in bookie_collections.py; what write proxies delete of streams without an owner, in
deletions.py.

Invariants:
- V1 (after healing): every process is up, every append is answered, every stream can be written and read to its tail,
  every follower is at the tail, and every ledger that nobody writes is closed.
- V2 (after healing): nothing spins, measured by events of the loop and by requests to ZooKeeper.
- V3 (after the end): no exception was left unretrieved, and no task and no connection is left.
- V4 (plans that set a limit): no written stream goes longer than the limit without an acknowledgement, and no
  follower without a record.
- S1-S9, S11 (whole trial): see tests/history.
- J1, J3 (whole trial): a bookie has what it acknowledged.
- L1, L4 (whole trial): what metadata calls closed is on an ack quorum.
- L35 (until the first fault): no ledger is created under an id that a bookie still knows from before metadata was
  restored, whether the ledger's ensemble includes that bookie or not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dlog.client.client import Client
from dlog.errors import DamagedError
from dlog.io.bookie_dirs import paths_of
from dlog.io.bookie_store import LedgerDirs, open_storage
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Versioned
from dlog.model.ids import LedgerId, StreamName
from dlog.model.segment import StreamKey, StreamMetadata
from tests.history import End, check
from tests.simulation.kernel import S, Violation
from tests.simulation.plan import Fault, FaultKind
from tests.simulation.service import workload
from tests.simulation.service.loop import Process
from tests.simulation.service.nodes import NAMESPACE, ZOOKEEPER

if TYPE_CHECKING:
    from tests.simulation.service.world import World

SETTLE_S = 120.0  # after healing, until the cluster does all that V1 demands
EVENTS_PER_S_MAX = 60_000  # of virtual time, after healing (V2)
REST_S = 5.0  # measured when everything works again and no client has work
REQUESTS_PER_S_MAX = 50  # to ZooKeeper, by one machine at rest (V2)
TRIES = 3


def lives_kept(world: World) -> None:
    """Check D1, from what the administrator of each stream name noted. Raises Violation."""
    for administrator in world.administrators:
        if administrator.breaches:
            raise Violation("D1", administrator.breaches[0])


def settled(world: World) -> None:
    """Check V1 and V2, after healing. Raises Violation."""
    loop, work = world.loop, world.work
    begun, events = loop.now, loop.events
    service = [node for node in world.nodes.values() if node not in world.clients]
    world.until(lambda: all(node.is_ready for node in service), SETTLE_S, "every process of the cluster is up again")
    if any(map(_blinds_readers, world.plan.faults)):
        for notes in world.streams:
            notes.history.cut_off(0, loop.now)
    world.until(lambda: not work.waiting, SETTLE_S, "every append has an answer")

    async def write(_: Process) -> list[str]:
        async with workload.connect(work) as client:
            tried = [await workload.append_last(work, client, notes, TRIES) for notes in world.streams]
        return [notes.name for notes, done in zip(world.streams, tried, strict=True) if not done]

    if left := world.ask("operator", write, within_s=2 * SETTLE_S, what="a last append to every stream"):
        raise Violation("V1", f"not writable after healing: {left}")
    _follow(world, write)

    async def to_the_end(client: Client, notes: workload.StreamNotes) -> End:
        """Read the stream to its tail. A truncation requested during the faults may still take effect; a reader whose
        position it removes starts again behind it."""
        end = End.TRUNCATED
        for _ in range(TRIES):
            if end is End.TRUNCATED:
                end = await workload.read_all(work, client, notes, "the last reader")
        return end

    async def read(_: Process) -> list[str]:
        async with workload.connect(work) as client:
            ends = [await to_the_end(client, notes) for notes in world.streams]
        return [f"{n.name} {end.name}" for n, end in zip(world.streams, ends, strict=True) if end is not End.TAIL]

    if left := world.ask("operator", read, within_s=SETTLE_S, what="every stream is read"):
        raise Violation("V1", f"not readable to its tail after healing: {left}")
    if left := world.ask("operator", lambda _: _open_segments(world), within_s=SETTLE_S, what="segments are looked at"):
        raise Violation("V1", f"not closed after healing: {left}")
    world.deletions.settle()
    spent_s = (loop.now - begun) / S
    if loop.events - events > EVENTS_PER_S_MAX * max(spent_s, 1.0):
        raise Violation("V2", f"{loop.events - events} events in {spent_s:.1f} s after healing")
    if _restless(world) and (restless := _restless(world)):  # one burst is allowed, of reads missed while cut off
        raise Violation("V2", f"at rest: {restless}")


def _restless(world: World) -> str:
    """Name the machines that send ZooKeeper more requests in the next REST_S seconds than an idle one should; "" if
    none."""
    asked = world.monitor.asked.copy()
    world.loop.run(until_s=world.loop.now_s + REST_S)
    counts = {name: world.monitor.asked[name] - asked[name] for name in world.nodes}
    most = REQUESTS_PER_S_MAX * REST_S
    return ", ".join(f"{name} asked ZooKeeper {n} times in {REST_S:g} s" for name, n in counts.items() if n > most)


def not_silent(world: World) -> None:
    """Check V4, if the plan sets limits: how long a written stream may have nothing acknowledged, how long a follower
    may hear nothing of it, how many take-overs there may be, and how long a proxy that answers, however slowly, may be
    suspected. Raises Violation."""
    unheard_max_s = world.plan.config.get("unheard_max_s", math.inf)
    for follower in world.work.followers:
        unheard_s = max(follower.silence_ns, world.loop.now - (follower.heard_ns or world.loop.now)) / S
        if unheard_s > unheard_max_s:
            raise Violation("V4", f"a follower of {follower.notes.name} heard nothing for {unheard_s:.1f} s")
    takeovers, takeovers_max = world.reached["take-over"], world.plan.config.get("takeovers_max", math.inf)
    if takeovers > takeovers_max:
        raise Violation("V4", f"{takeovers} take-overs for one fault, each of which begins anew")
    silence_max_s = world.plan.config.get("silence_max_s")
    if silence_max_s is None:
        return
    for notes in world.streams:
        silence_s = max(notes.silence_ns, world.loop.now - (notes.heard_ns or world.loop.now)) / S
        if silence_s > silence_max_s or not notes.heard_ns:
            raise Violation("V4", f"{notes.name} had nothing acknowledged for {silence_s:.1f} s")
    suspected_max_s = world.plan.config.get("suspected_max_s")
    for (who, peer), since in world.suspected.items():
        suspected_s = (world.loop.now - since) / S
        if suspected_max_s is not None and suspected_s > suspected_max_s:
            raise Violation("V4", f"{who} has suspected {peer} for {suspected_s:.1f} s, which answers")


def _follow(world: World, write: Callable[[Process], Awaitable[list[str]]]) -> None:
    """Wait until every follower is at the tail. A follower that asked for the tail and could not be served until now
    starts at the present tail, so a new record is appended for it."""
    followers = world.work.followers
    for _ in range(20):
        if world.loop.run(until_s=world.loop.now_s + 5.0, until=lambda: all(f.is_at_tail for f in followers)):
            return
        world.ask("operator", write, within_s=2 * SETTLE_S, what="one more append to every stream")
    behind = [f"{f.process!r} {f.notes.name} {f.place} of {f.notes.tail}" for f in followers if not f.is_at_tail]
    raise Violation("V1", f"followers do not come to the tail: {behind}")


def _blinds_readers(fault: Fault) -> bool:
    """Whether this fault may cut a read proxy off from ZooKeeper or from bookies: then an old tail is excused."""
    if fault.kind is FaultKind.META_CUT:
        return fault.a.startswith("reader")
    if fault.kind in (FaultKind.META_REPLY_LOST, FaultKind.ENVIRONMENT):
        return fault.message in ("", "expire", "cut_sessions", "stall")
    ends = {name.partition("-")[0] for name in (fault.a, fault.b) if name}
    return "zookeeper" in ends or ends == {"reader", "bookie"}


async def _open_segments(world: World) -> list[str]:
    """List segments before the last that are not completed, or whose ledgers are not closed. A roll may take some
    time."""
    async with await ZooKeeperMetadata.connect(ZOOKEEPER, NAMESPACE) as metadata:
        for _ in range(30):
            left: list[str] = []
            for notes in world.streams:
                seen = await metadata.read(StreamKey(StreamName(notes.name)))
                assert isinstance(seen, Versioned) and isinstance(seen.value, StreamMetadata)
                for segment in seen.value.segments[:-1]:
                    ledger = world.monitor.ledgers.get(LedgerId(int(segment.name)))
                    if not segment.completed or ledger is None or not ledger.is_closed:
                        left.append(f"{notes.name} {segment} {ledger}")
            if not left:
                return []
            await asyncio.sleep(1.0)
    return left


def nothing_left(world: World) -> None:
    """Check V3, when all processes have ended."""
    left = [str(t) for transports in world.network.transports.values() for t in transports]
    if left:
        raise Violation("V3", f"connections left behind: {left[:5]}")


def judge(world: World) -> None:
    """Check everything that was noted. Raises Violation with the first invariant that does not hold."""
    lives_kept(world)
    world.monitor.note_owners()
    for notes in world.streams:
        verdict = check(notes.history)
        if verdict.found:
            raise Violation(verdict.examples[0].invariant, f"{notes.name}: {verdict.text()}")
        if verdict.unread:
            raise Violation("S2", f"{notes.name}: acknowledged and never read: {verdict.text()}")
        world.reached["records"] += verdict.acknowledged
        world.reached["unknown.found"] += verdict.unknown_found
    _judge_disks(world)


def _judge_disks(world: World) -> None:
    """Check what is on the disks after all processes have ended, read as a bookie reads it at its start."""
    monitor = world.monitor
    found: dict[str, LedgerDirs] = {}
    for bookie in world.bookies:
        if bookie.name in world.faults.rotten:
            continue
        paths = paths_of(bookie.options, bookie.disk)
        name = f"{bookie.name}:{bookie.options.port}"
        opened = open_storage(bookie.disk, bookie.options, paths, name, lambda _: None, lambda bits: 1 << (bits - 1))
        found[name] = opened.dirs
        world.collections.judge(bookie, opened)
        for ledger, entry in monitor.acked.get(bookie.name, ()):
            if not _has(opened.dirs, ledger, entry) and not world.collections.is_excused(name, ledger):
                raise Violation("J1", f"{name} acknowledged {ledger}:{entry} and does not have it")
    for ledger, value in monitor.ledgers.items():
        if value.is_closed:
            for entry in range(value.last_entry + 1):
                members = [bookie for bookie in value.bookies_of(entry) if bookie in found]
                members = [bookie for bookie in members if not world.collections.is_excused(bookie, ledger)]
                rotten = len(value.bookies_of(entry)) - len(members)
                holders = sum(_has(found[bookie], ledger, entry) for bookie in members)
                if holders + rotten < value.quorum.ack:
                    raise Violation("L4", f"ledger {ledger} is closed and {holders} of {members} have entry {entry}")


def _has(dirs: LedgerDirs, ledger: int, entry: int) -> bool:
    try:
        return bool(dirs.lookup(ledger, entry, 1, 1))
    except DamagedError as error:
        raise Violation("J5", f"damaged without cause: {error.message}") from error
