"""Programs that import stages without a number, which nothing but the segment list remembers.

A program writes one stage in any store, and asks for it to be imported until that is answered.
Some requests arrive late and more than once: after the answer, and one after each move of the segment to cold storage
and back. The records of the stage must be in the stream once all the same.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from dlog.errors import DLogError, EndOfStreamError, InvalidRequestError, TxidOutOfOrderError
from dlog.log.messages import ImportStages, SegmentsImported
from dlog.model.ids import EntryId, SegmentNumber
from dlog.model.sink import SinkBatch
from tests.simulation.stream_retention import EPOCH_MS
from tests.simulation.stream_sinks import SINK_NODE, Stager

if TYPE_CHECKING:
    from tests.simulation.stream_world import StreamWorld

_TRIES_MAX = 30
_AGAIN_S = 0.2
_LOOK_S = 0.01
_LATE_S = 4.0
_AHEAD_MS = 10_000_000


class ImportProgram:
    """Imports one stage. Ends without a result if the stage cannot be written or is refused."""

    def __init__(self, world: StreamWorld, number: int) -> None:
        self.is_acked = False
        self._world = world
        self._rng = random.Random(f"{world.plan.seed}/import/{number}")
        self._name = f"import-{number}"
        self._stager = Stager(world, SinkBatch(self._name, 0, self._name, 0), self._rng.choice(sorted(world.stores)))
        count = self._rng.choice((1, 2, 5))
        self.payloads = [f"{self._name}:{i}:".encode() + bytes(self._rng.choice((0, 40))) for i in range(count)]
        self._request: ImportStages
        self._tries = 0
        self._is_over = False

    def begin(self) -> None:
        world = self._world
        txid = world.next_txid(self._rng)
        if txid is None:
            # far ahead of the clocks: all records written later get the same txid, and a second import is possible
            now_ms = max(proxy.unix_ms() for proxy in world.proxies.values())
            txid = self._rng.choice((now_ms, EPOCH_MS + _AHEAD_MS, EPOCH_MS + _AHEAD_MS))
        address = f"{SINK_NODE}/{self._name}"
        world.sim.place(SINK_NODE, address, self._stager)
        world.sim.ask(address, (self.payloads, txid), self._staged)

    def _staged(self, told: tuple[str, EntryId] | DLogError) -> None:
        if isinstance(told, DLogError):
            return
        assert self._stager.location is not None
        self._request = ImportStages(None, (told,), self._stager.location.store)
        self._try()
        for _ in range(self._rng.choice((0, 2, 6))):
            self._send(self._rng.uniform(0.0, _LATE_S))

    def _try(self) -> None:
        if self._is_over or self._tries == _TRIES_MAX:
            return
        self._tries += 1
        self._send(self._rng.expovariate(1.0) * 0.001)
        self._world.sim.call_in(_AGAIN_S, self._try)

    def _send(self, late_s: float) -> None:
        world = self._world
        name = self._rng.choice(sorted(world.proxies))
        if not world.is_cut(SINK_NODE, name) and self._rng.random() >= world.config["client_loss"]:
            proxy, is_forwarded = world.proxies[name], self._rng.random() < 0.3
            world.sim.call_in(late_s, proxy.receive, self._request, is_forwarded, self._heard, node=name)

    def _heard(self, result: Any, _: int) -> None:
        if isinstance(result, SegmentsImported):
            if not self.is_acked and not result.duplicate:
                self._send_after_moves(result.first, self._request.parts[0][0])
            self._is_over = self.is_acked = True
            self._world.sim.reach("import_repeated" if result.duplicate else "imported")
        elif isinstance(result, EndOfStreamError | InvalidRequestError | TxidOutOfOrderError):
            self._is_over = True

    def _send_after_moves(self, number: SegmentNumber, at: str) -> None:
        """Send the request again whenever the segment lies elsewhere. at: the name of its location so far."""
        segment = self._world.value.segment(number)
        if segment is not None:
            if segment.name != at:
                for late_s in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2):  # the former copy is deleted soon
                    self._send(late_s)
            self._world.sim.call_in(_LOOK_S, self._send_after_moves, number, segment.name)

    def check(self, there: Counter[bytes], has_lost: bool) -> None:
        """Check S16. there: how often each payload is in the stream; has_lost: records of its beginning may be gone."""
        counts = [there[payload] for payload in self.payloads]
        if max(counts) > 1:
            self._world.checks.fail("S16", f"{self.payloads[0]!r} is in the stream {max(counts)} times")
        if self.is_acked and not has_lost and min(counts) == 0:
            self._world.checks.fail("S16", f"{self.payloads[0]!r} was imported, and is nowhere")
