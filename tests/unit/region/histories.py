"""Random histories of a region: several owners, void fences, late and repeated batches, marks, ends and drops."""

from __future__ import annotations

import random

from dlog.region.counting import Batch, Entry, Item, RegionFence, TableDropped, TableEnd
from dlog.region.items import records_of
from dlog.region.state import RegionState
from tests.unit.region.topic_lists import REGION, TopicList, checkpoint, encoded

TABLES = range(1, 9)


class History:
    """A data topic, and the state behind it, after `steps` random steps. busy: the tables that are written mostly."""

    def __init__(self, rng: random.Random, steps: int, *, map_every: int = 3, busy: tuple[int, ...] = ()) -> None:
        self.data = TopicList()
        self.state = RegionState(map_every=map_every)
        self._rng = rng
        self._busy = busy or tuple(TABLES)
        self._batches: list[Batch] = []
        self._epochs: dict[bytes, int] = {}  # by the nonce of each fence
        self._deposed: list[Batch] = []  # the next one of each deposed owner
        self._owns()
        for _ in range(steps):
            self._step()

    def append(self, item: Item) -> None:
        if isinstance(item, RegionFence):
            self._epochs[item.nonce] = item.epoch
        nonce = item.nonce if isinstance(item, Batch) else self.state.rule.nonce
        records = records_of(REGION, self._epochs[nonce], nonce, item) if nonce else encoded(item)
        self.state.apply((self.data.append(records), item))

    def _step(self) -> None:
        rng = self._rng
        match rng.choices(range(8), (60, 2, 6, 6, 1, 0.5, 0.5, 3))[0]:
            case 0:
                batch = self._next_batch()
                self._batches.append(batch)
                self.append(batch)
            case 1:
                self._owns()
            case 2 if self._batches:
                self.append(rng.choice(self._batches[-20:]))
            case 3 if self._deposed:
                self.append(rng.choice(self._deposed))
            case 4:
                self.append(RegionFence(rng.randbytes(16), rng.randint(0, self.state.rule.epoch)))  # void
            case 5:
                self.append(TableEnd(rng.choice(TABLES)))
            case 6:
                self.append(TableDropped(rng.choice(TABLES)))
            case 7:
                self._mark()

    def _owns(self) -> None:
        if self.state.rule.nonce:
            self._deposed.append(self._next_batch())
        self.append(RegionFence(self._rng.randbytes(16), self.state.rule.epoch + self._rng.randint(1, 3)))

    def _next_batch(self) -> Batch:
        """The next batch of the owner, which may not know yet that a table has ended."""
        rng, rule = self._rng, self.state.rule
        following: dict[int, int] = {}
        entries = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            table = rng.choice(self._busy if rng.random() < 0.95 else TABLES)
            known = self.state.meta.tables.get(table)
            if known is None and table not in following and rng.random() < 0.3:
                entries.append(Entry(table, 0, b"about it"))  # begins the table
                following[table] = 1
                continue
            sequence = following.setdefault(table, 1 if known is None else known.next_seq_num)
            entries.append(Entry(table, sequence, b"%d/%d" % (table, sequence) + bytes(rng.choice((0, 0, 40)))))
            following[table] += 1
        return Batch(rule.nonce, rule.number, tuple(entries))

    def _mark(self) -> None:
        rng = self._rng
        known = [meta for number, meta in self.state.meta.tables.items()]
        if not known:
            return
        meta = rng.choice(known)
        meta.mark_deleted(rng.randint(meta.latest_marked_deleted, meta.next_seq_num))
        if rng.random() < 0.5:
            self.append(checkpoint(self.state))
