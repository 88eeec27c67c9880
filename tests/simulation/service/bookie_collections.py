"""Checks garbage collection on the bookies of a simulated cluster: what they delete, and what they still store.

On in plans with `collecting` (options of the bookies); in other plans nothing here runs. To bury a ledger is to write
down on the bookie's disk that the ledger is gone.

Invariants:
- J12: a bookie buries a ledger only if the ledger's metadata was deleted and no metadata has that ledger id now. A
  buried ledger stays buried, also after a crash, and accepts no add.
- J1, J2, J3 (checked at the end, from the disks): of a ledger that is not buried, no acknowledged entry, no answered
  fence and no master key is lost.
- V5: a ledger that is deleted after the faults is buried on every bookie that held it; in a plan without faults every
  deleted ledger is. Afterwards there is no entry log with too small a share of live entries, and no index that is
  mostly of deleted ledgers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from actors.bookie.connection import Connection
from dlog.errors import DLogError, StreamNotFoundError
from dlog.io.bookie_disk import BookieDisk
from dlog.io.bookie_store import OpenedStorage
from dlog.io.ledger_dir import LedgerDir, Usage
from dlog.model.ids import LedgerId
from dlog.wire.bookie import Code, EntryAdded, EntryRead
from tests.simulation.disk import Mount
from tests.simulation.kernel import S, Violation
from tests.simulation.service import workload
from tests.simulation.service.loop import Process
from tests.simulation.service.nodes import BookieNode
from tests.sorted_runs import runs_of

if TYPE_CHECKING:
    from dlog.client.client import Client
    from tests.simulation.service.world import World

SEEN_S = 1.0  # a ledger that was held for less may have been deleted before the bookie read its metadata: it may stay
BURIED_S = 30.0  # until a ledger that is deleted at rest is buried everywhere
FREED_S = 90  # until its space is freed; compaction is slow in some plans
RESTORED_S = 1.0  # after metadata was restored, a burial that began before may end within this time
STREAM, BACKED_UP = "deleted-last", "backed-up"
STEPS = ("bury", "free", "compact")  # marks for faults: "<bookie>.<step>"
_FENCED = (Code.OK, Code.NO_ENTRY, Code.NO_LEDGER)  # answers that say that the fence is durable


class Collections:
    """Watches the collections of one world's bookies."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._options: dict[str, Any] = world.plan.config.get("collecting", {})
        self._look_s: float = self._options.get("gc_look_s", 0.0)
        self._rng = random.Random(f"{world.plan.seed}/collections")
        self._lawful: dict[str, set[int]] = {}  # by bookie: ledgers whose burial began while J12 allowed it
        self._buried: dict[str, set[int]] = {}  # by bookie: ledgers whose burial is on its disk
        self._fenced: dict[str, set[int]] = {}
        self._held: dict[tuple[str, int], int] = {}  # (bookie, ledger) -> when the first entry was acknowledged
        self._deleted: dict[LedgerId, int] = {}  # when its metadata was deleted, in ns, before or after a restore
        self._restored_ns: int | None = None
        self._directories: dict[tuple[str, str], LedgerDir] = {}  # (bookie, path): of the process that collected last

    @property
    def is_on(self) -> bool:
        return bool(self._options)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Replace methods of production code, while this context is entered, so that every collection is observed."""
        if not self.is_on:
            yield
            return
        bury, collect, compact = LedgerDir.bury, LedgerDir.collect, LedgerDir.compact
        send, loop = Connection.send, self._world.loop
        submits = {name: getattr(BookieDisk, name) for name in ("bury", "free")}

        def burying(directory: LedgerDir, ledgers: Iterable[int]) -> None:
            name, buried = self._bookie_of(directory), tuple(ledgers)
            self._begins(name, buried)
            bury(directory, buried)
            self._world.reached["ledger.buried"] += len(buried)
            self._buried.setdefault(name, set()).update(buried)

        def collecting(directory: LedgerDir) -> Usage:
            self._directories[self._bookie_of(directory), directory._directory] = directory
            return collect(directory)

        def compacting(directory: LedgerDir, *args: Any) -> int | None:
            copied = compact(directory, *args)
            if copied is not None:
                self._step(self._bookie_of(directory), "compact")
            return copied

        def sending(connection: Connection, message: Any) -> None:
            if isinstance(message, EntryRead | EntryAdded):
                self._says(loop.process.node, message)
            send(connection, message)

        def marked(name: str) -> Callable[..., None]:
            def submit(disk: BookieDisk, *args: Any) -> None:
                self._step(loop.process.node, name)
                submits[name](disk, *args)

            return submit

        with contextlib.ExitStack() as patches:
            patches.enter_context(mock.patch.object(LedgerDir, "bury", burying))
            patches.enter_context(mock.patch.object(LedgerDir, "collect", collecting))
            patches.enter_context(mock.patch.object(LedgerDir, "compact", compacting))
            patches.enter_context(mock.patch.object(Connection, "send", sending))
            for name in submits:
                patches.enter_context(mock.patch.object(BookieDisk, name, marked(name)))
            yield

    def deleted(self, ledger: LedgerId) -> None:
        """Note that the ledger's metadata was deleted just now."""
        self._deleted[ledger] = self._world.loop.now

    def restored(self) -> None:
        """Note that ZooKeeper was restored from a backup just now."""
        self._restored_ns = self._world.loop.now

    # ---- before the faults -------------------------------------------------------------------------------------------

    async def live_before_backup(self, _: Process) -> None:
        """Give bookies ledgers that a backup of metadata names, and in some seeds time to write their first marks."""
        async with workload.connect(self._world.work) as client:
            await self._fill(client, BACKED_UP)
            await asyncio.sleep(self._rng.choice((0.0, self._look_s, 4 * self._look_s)))

    async def live_after_backup(self, client: Client) -> None:
        """Let bookies collect after the backup was taken. They may or may not have seen a ledger written since, and a
        stream that the backup names may be deleted."""
        if self._rng.random() < 0.5:
            return
        await asyncio.sleep(1.0 + 4 * self._look_s)
        if self._rng.random() < 0.5:
            await _delete(client, BACKED_UP)
            await asyncio.sleep(self._rng.choice((0.0, 2 * self._look_s)))

    async def _fill(self, client: Client, stream: str) -> None:
        """Create the stream, with three segments."""
        await workload.create(client, stream, self._world.settings)
        for number in range(3):
            await client.append(stream, b"%d" % number * 100)
            await client.hand_over(stream)

    def _step(self, bookie: str, step: str) -> None:
        """Count a step of a collection (STEPS): it was requested; a compaction was done."""
        self._world.reached[f"collection.{step}"] += 1
        self._world.reach(f"{bookie}.{step}")

    # ---- what a bookie does ------------------------------------------------------------------------------------------

    def _bookie_of(self, directory: LedgerDir) -> str:
        mount = directory._disk
        assert isinstance(mount, Mount)
        return next(node.name for node in self._world.bookies if node.disk is mount.disk)

    def _begins(self, name: str, ledgers: Iterable[int]) -> None:
        """Check J12 when a bookie is about to write down that these ledgers are gone."""
        lawful = self._lawful.setdefault(name, set())
        for ledger in map(LedgerId, ledgers):
            if not self._is_deleted(ledger):
                is_named = ledger in self._world.monitor.ledgers
                what = "metadata names it" if is_named else "nobody deleted it, metadata went back behind it"
                self._broken("J12", f"{name} buries ledger {ledger}: {what}")
            lawful.add(ledger)

    def _is_deleted(self, ledger: LedgerId) -> bool:
        if ledger not in self._deleted:
            return False
        if ledger not in self._world.monitor.ledgers:
            return True
        restored_ns = self._restored_ns
        return restored_ns is not None and self._world.loop.now - restored_ns < RESTORED_S * S

    def _says(self, name: str, message: EntryRead | EntryAdded) -> None:
        ledger = message.ledger
        if isinstance(message, EntryRead):
            if message.fence and message.code in _FENCED:
                self._fenced.setdefault(name, set()).add(ledger)
        elif message.code is Code.OK:
            self._held.setdefault((name, ledger), self._world.loop.now)
            if ledger in self._buried.get(name, ()):
                self._broken("J12", f"{name} acknowledges {ledger}:{message.entry}, which it has buried")

    def _broken(self, invariant: str, text: str) -> None:
        if self._world.loop.breach is None:
            self._world.loop.breach = Violation(invariant, text)

    # ---- after healing -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Check V5: create and delete a stream, wait until it is buried and space is freed. Raises Violation."""
        if not self.is_on:
            return
        world = self._world
        world.ask("operator", self._live_and_die, within_s=240.0, what="a stream is made, used and deleted")
        places = {int(place) for (stream, _), (place, _) in world.monitor.places.items() if stream == STREAM}
        holders = [(name, ledger) for name, ledger in self._held if ledger in places]
        if not holders:
            raise Violation("V1", f"no bookie acknowledged an entry of {STREAM}: its ledgers are {places}")
        self._wait_buried(holders)
        if not world.plan.faults and self._restored_ns is None:
            self._wait_buried([(name, ledger) for name, ledger in self._held if self._could_be_seen(name, ledger)])
        for _ in range(FREED_S):
            if not (kept := self._kept()):
                return
            world.loop.run(until_s=world.loop.now_s + 1.0)
        raise Violation("V5", f"not freed after {FREED_S} s: {kept}")

    async def _live_and_die(self, _: Process) -> None:
        """Create a stream of three segments, keep it long enough for its bookies to see it, and delete it."""
        async with workload.connect(self._world.work) as client:
            await self._fill(client, STREAM)
            await asyncio.sleep(1.0 + 4 * self._look_s)
            await _delete(client, STREAM)

    def _could_be_seen(self, name: str, ledger: int) -> bool:
        deleted_ns = self._deleted.get(LedgerId(ledger))
        return deleted_ns is not None and deleted_ns - self._held[name, ledger] >= SEEN_S * S

    def _wait_buried(self, holders: list[tuple[str, int]]) -> None:
        def left() -> list[tuple[str, int]]:
            return [(name, ledger) for name, ledger in holders if ledger not in self._buried.get(name, ())]

        loop = self._world.loop
        if not loop.run(until_s=loop.now_s + BURIED_S, until=lambda: not left()):
            raise Violation("V5", f"deleted ledgers are not buried after {BURIED_S:g} s: {left()[:5]}")

    def _kept(self) -> str:
        """Describe space that collections should have freed on bookies that run now; "" if there is none."""
        for (name, _), directory in self._directories.items():
            options, gone = self._node(name).options, directory.gone
            for log in directory.manifest.logs:
                contents = list(directory._contents(log))
                total = sum(size for _, size in contents)
                live = sum(size for ledger, size in contents if ledger not in gone)
                is_full = log.length >= options.entry_log_bytes
                if not live or (is_full and live < total * options.gc_minor_share):
                    return f"entry log {log.log} of {name}: {live} of {total} bytes are of ledgers that exist"
            dead = [ledger in gone for run in runs_of(directory) for ledger in run.table.columns[0]]
            if any(dead) and sum(dead) * 4 >= len(dead):
                return f"the index of {name}: {sum(dead)} of {len(dead)} chunks are of ledgers that are gone"
        return ""

    def _node(self, name: str) -> BookieNode:
        return next(node for node in self._world.bookies if node.name == name)

    # ---- at the end --------------------------------------------------------------------------------------------------

    def is_excused(self, bookie: str, ledger: int) -> bool:
        """Whether this bookie (by its id) may lack the ledger's entries, because it buried the ledger while J12 allowed
        it."""
        return ledger in self._lawful.get(bookie.partition(":")[0], ())

    def judge(self, bookie: BookieNode, opened: OpenedStorage) -> None:
        """Check what is on the disk of a bookie that has ended. Raises Violation."""
        if not self.is_on:
            return
        name, gone = bookie.name, set(opened.dirs.gone())
        rows = {row.ledger: row for row in opened.rows}
        if forgotten := sorted(self._buried.get(name, set()) - gone):
            raise Violation("J12", f"{name} has forgotten that it buried {forgotten[:5]}")
        if unlawful := sorted(gone - self._lawful.get(name, set())):
            raise Violation("J12", f"{name} buried {unlawful[:5]} unseen")
        for ledger in sorted(self._fenced.get(name, set()) - gone):
            if ledger not in rows or not rows[ledger].fenced:
                raise Violation("J2", f"{name} answered the fence of {ledger} and does not have it")
        for holder, ledger in self._held:
            if holder == name and ledger not in gone and (ledger not in rows or not rows[ledger].master_key):
                raise Violation("J3", f"{name} acknowledged entries of {ledger} and does not have its key")


async def _delete(client: Client, name: str) -> None:
    """Delete the stream; repeat until the deletion is answered or the stream does not exist."""
    while True:
        try:
            await client.delete(name)
        except StreamNotFoundError:
            return
        except DLogError:
            await asyncio.sleep(0.5)
        else:
            return
