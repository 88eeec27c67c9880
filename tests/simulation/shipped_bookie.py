"""The production state machine of a bookie in the simulator: its index in memory, its journal on the kernel's disk.

Lookups and flushes take time, as they do in threads. The journal is never cut, so a restart rebuilds the index from all
of it. Faults are applied between the machine and the network.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

from dlog.bookie.bookie import Bookie
from dlog.bookie.journal import Kind, Record, ledger_record, parse_ledger_record
from dlog.bookie.journal_replay import Restored
from dlog.bookie.messages import (
    Fetch,
    Fetched,
    Flush,
    Flushed,
    IndexRewritten,
    IndexWithout,
    LedgersNew,
    PollWaits,
)
from dlog.bookie.options import BookieOptions
from dlog.machine import Effect, Fact, Received, Send, SetTimer, TimerFired
from dlog.model.ids import EntryId, LedgerId
from dlog.options import draw
from dlog.wire.bookie import AddEntry, BatchRead, BatchReadDone, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.bookie_v3_messages import LacRead, ReadLac, ReadWithLac, ReadWithLacDone
from dlog.wire.digest import ENTRY_HEAD
from tests.simulation.bookie_model import Ailments


def journal_records(data: Any) -> Iterator[tuple[Any, ...]]:
    """The records of one durable Persist in the form of bookie_model: ("add", ledger, entry, packet) or ("fence",
    ledger)."""
    if isinstance(data[0], str):
        yield data
        return
    for record in data:
        assert isinstance(record, Record)
        if record.kind == Kind.ADD:
            ledger, entry, _, _ = ENTRY_HEAD.unpack_from(record.payload)
            yield ("add", ledger, entry, bytes(record.payload))
        elif record.kind == Kind.LEDGER:
            ledger, _, fenced = parse_ledger_record(record.payload)
            if fenced:
                yield ("fence", ledger)


class ShippedBookie:
    """One incarnation of a production bookie. `records`: the content of its journal."""

    def __init__(self, records: list[tuple[int, Any]], ailments: Ailments) -> None:
        restored = Restored(())
        for _, group in records:
            for record in group:
                restored.apply(record, salvage=False)
        entries, rows = restored.take()
        self.ailments = ailments
        self.index = {ledger: {entry: bytes(s.packet) for entry, s in held.items()} for ledger, held in entries.items()}
        self.bookie = Bookie(draw(BookieOptions, random.Random(ailments.rng.random())), rows)
        self.later: dict[int, Fetched | Flush | IndexWithout] = {}
        self.asked = 0
        self.records = records
        self.on_freed: Callable[[bool], None] = lambda _: None
        self.on_rewritten: Callable[[], None] = lambda: None

    def handle(self, fact: Fact) -> list[Effect]:
        if isinstance(fact, Received):
            if self.ailments.hangs and isinstance(fact.message, AddEntry):
                return []
            refusal = self.refuse(fact.message)
            if refusal is not None:
                return [Send(fact.peer, refusal)]
        if isinstance(fact, TimerFired) and isinstance(fact.key, int):
            return self.performed(self.bookie.handle(self.finish(self.later.pop(fact.key))))
        return self.performed(self.bookie.handle(fact))

    def refuse(self, message: Any) -> Any:
        """The answer of a bookie that has an I/O fault, or None."""
        if isinstance(message, AddEntry):
            if self.ailments.read_only and not message.high_priority:
                return EntryAdded(message.ledger, message.entry, Code.READ_ONLY)
            if self.ailments.is_ill():
                return EntryAdded(message.ledger, message.entry, Code.IO_ERROR)
        elif isinstance(message, ReadEntry) and self.ailments.is_ill():
            return EntryRead(message.ledger, message.entry, Code.IO_ERROR, b"", message.fence)
        elif isinstance(message, ReadWithLac) and self.ailments.is_ill():
            return ReadWithLacDone(message.ledger, message.entry, Code.TOO_MANY_REQUESTS)
        elif isinstance(message, ReadLac) and self.ailments.is_ill():
            return LacRead(message.ledger, Code.IO_ERROR)
        elif isinstance(message, BatchRead) and self.ailments.is_ill():
            return BatchReadDone(message.ledger, message.start, message.request, Code.IO_ERROR)
        return None

    def performed(self, effects: list[Any]) -> list[Effect]:
        """Perform effects: lookups and flushes become timers; packets may be damaged on their way out."""
        done: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Fetch):
                done.append(self.after_a_while(self.look_up(effect)))
            elif isinstance(effect, Flush | IndexWithout):
                done.append(self.after_a_while(effect))
            elif (
                isinstance(effect, Send)
                and isinstance(effect.message, EntryRead | ReadWithLacDone)
                and effect.message.packet
            ):
                packet = self.ailments.perhaps_damaged(bytes(effect.message.packet))
                done.append(Send(effect.peer, dataclasses.replace(effect.message, packet=packet)))
            elif isinstance(effect, Send) and isinstance(effect.message, BatchReadDone):
                packets = tuple(self.ailments.perhaps_damaged(bytes(p)) for p in effect.message.packets)
                done.append(Send(effect.peer, dataclasses.replace(effect.message, packets=packets)))
            elif not isinstance(effect, LedgersNew | PollWaits):  # it has no metadata to ask, and no connections
                done.append(effect)
        return done

    def is_sealed(self, ledger: int) -> bool:
        return self.bookie.is_sealed(ledger)

    def after_a_while(self, thing: Fetched | Flush | IndexWithout) -> SetTimer:
        self.asked += 1
        self.later[self.asked] = thing
        return SetTimer(self.asked, self.ailments.rng.random() * 0.002)

    def look_up(self, fetch: Fetch) -> Fetched:
        held = self.index.get(fetch.ledger, {})
        packets: list[bytes] = []
        while fetch.entry + len(packets) in held and len(packets) < fetch.entries_max:
            packets.append(held[fetch.entry + len(packets)])
        return Fetched(fetch.token, tuple(packets))

    def finish(self, thing: Fetched | Flush | IndexWithout) -> Any:
        if isinstance(thing, Fetched):
            return thing
        if isinstance(thing, IndexWithout):
            self.rewrite(thing)
            self.on_freed(bool(thing.rows))
            return IndexRewritten(tuple(row.ledger for row in thing.rows))
        for ledger, entries in thing.entries.items():
            held = self.index.setdefault(LedgerId(ledger), {})
            held.update({EntryId(entry): bytes(stored.packet) for entry, stored in entries.items()})
        return Flushed()

    def rewrite(self, wanted: IndexWithout) -> None:
        """Take the ledgers' records out of the journal; what is left is their states."""
        for row in wanted.rows:
            self.index.pop(LedgerId(row.ledger), None)
            states = [ledger_record(row.ledger, row.master_key, row.fenced)]
            self.records[:] = [
                (token, kept)
                for token, group in self.records
                if (kept := tuple(record for record in group if record.payload[:8] != states[0].payload[:8]))
            ]
            self.records.append((0, tuple(states)))
        if wanted.rows:
            self.on_rewritten()
