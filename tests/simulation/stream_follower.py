"""A read proxy's subscription to the owner in the simulated world of one stream, over a link that is slow now and then.

The owner's messages go through its proxy's subscriptions (proxies/write/lac_subscriptions.py) and are handled as on the
reading side (actors/owner_feed.py); both are production code. Metadata is read in order, each read a while after its
request.

Invariants:
- T6: a message about one location is never applied to another. At the end the follower has learned of every
  acknowledged entry, also where the number of an empty segment was used again while it listened.
- Entries that are sent along equal those at that location, and are confirmed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from actors.owner_feed import OwnerFeed
from dlog.errors import DLogError
from dlog.model.segment import Location, Segment
from dlog.wire.proxy import Entries, Lac
from proxies.write.lac_subscriptions import LacSubscription, LacSubscriptions
from tests.simulation.stream_stranger import STRANGER

if TYPE_CHECKING:
    from dlog.log.owner import StreamOwnerMachine
    from tests.simulation.stream_parts import Proxy
    from tests.simulation.stream_world import StreamWorld

NODE = "r"
LOOK_S = 0.02


class Follower:
    """One subscriber; `begin` at each start of its process."""

    def __init__(self, world: StreamWorld) -> None:
        self.world = world
        self.rng = random.Random(f"{world.plan.seed}/follower")
        self.metadata_s = self.rng.choice((0.001, 0.03))
        self.flush_s = self.rng.choice((0.001, 0.02))  # delay of an owner's proxy before it reports
        self._link_rng = random.Random(f"{world.plan.seed}/link")
        self._dawdles = self._link_rng.choice((0.0, 0.2))
        self.incarnation = 0
        self.lacs: dict[Location, int] = {}  # LACs as believed
        self._link: Link | None = None
        self._read_s = self._told_s = 0.0  # earliest times at which metadata is read next, and reported

    def begin(self) -> None:
        """Start a new process without any state."""
        self._leave()
        self.incarnation += 1
        self.lacs.clear()
        self._look(self.incarnation)

    @property
    def is_at_tail(self) -> bool:
        """Whether it has learned of every acknowledged entry in the segment that is written now."""
        last = next(iter(self.world.value.in_progress[-1:]), None)
        if last is None or self.world.value.is_sealed:
            return True
        results = (batch.result for batch in self.world.checks.batches if batch.producer != STRANGER)
        acked = max((r.dlsn.entry for r in results if r is not None and r.dlsn.segment == last.number), default=-1)
        return self.lacs.get(last.location, -1) >= acked

    def is_link_writable(self) -> bool:
        return self._link_rng.random() >= self._dawdles

    def later(self, mean_s: float) -> float:
        """Draw a latency."""
        return self.rng.expovariate(1.0) * mean_s * (50 if self.rng.random() < 0.02 else 1)

    def lost(self, link: Link) -> None:
        """Handle the end of the owner's messages."""
        if self._link is link:
            self._leave()

    # ---- messages (a Listener of Heard) ------------------------------------------------------------------------------

    def on_first_lac(self, heard: OwnerFeed, number: int) -> None:
        sim = self.world.sim
        self._read_s = max(self._read_s, sim.now_s + self.later(self.metadata_s))
        sim.call_in(self._read_s - sim.now_s, self._read, heard, number, self.incarnation, node=NODE)

    def _read(self, heard: OwnerFeed, number: int, incarnation: int) -> None:
        sim = self.world.sim
        self._told_s = max(self._told_s, sim.now_s + self.later(self.metadata_s))
        segment = self.world.value.segment(number)
        sim.call_in(self._told_s - sim.now_s, self._told, heard, number, segment, incarnation, node=NODE)

    def _told(self, heard: OwnerFeed, number: int, segment: Segment | None, incarnation: int) -> None:
        if incarnation == self.incarnation:
            heard.locate(number, segment)

    def on_lac(self, segment: Segment, lac: int, ended: bool) -> None:
        world = self.world
        held = world.store.segments.get(segment.location)
        confirmed = held.confirmed if held is not None else -1 if segment.location in world.dropped else lac
        if lac > confirmed:
            world.checks.fail("T6", f"LAC {lac} is believed of {segment.name}, confirmed is {confirmed}")
        if ended and held is not None and held.end is None:
            world.checks.fail("T6", f"{segment.name} is believed to have ended at {lac}, and goes on")
        if ended and held is not None and held.end is not None and lac < held.end:
            world.checks.fail("T6", f"{segment.name} is believed to have ended at {lac}, its end is {held.end}")
        self.lacs[segment.location] = max(lac, self.lacs.get(segment.location, -1))

    def on_entries(self, segment: Segment, first: int, payloads: Sequence[bytes]) -> None:
        world = self.world
        held = world.store.segments.get(segment.location)
        if held is None:
            return  # deleted meanwhile
        world.sim.reach("sent_along")
        last = first + len(payloads) - 1
        if last > held.confirmed or list(payloads) != held.payloads[first : last + 1]:
            world.checks.fail("T6", f"{segment.name}:{first}..{last} was sent along, and is not what lies there")

    def on_closed(self, heard: OwnerFeed) -> None:
        """Handle the end of the link."""

    # ---- subscribing -------------------------------------------------------------------------------------------------

    def _look(self, incarnation: int) -> None:
        """Look now and then whether there is an owner, and whether the subscription to it works."""
        if incarnation != self.incarnation:
            return
        self.world.sim.call_in(LOOK_S, self._look, incarnation, node=NODE)
        if self._link is not None and not (self._link.is_alive and (self._link.is_named or self.rng.random() < 0.5)):
            self._leave()
        proxy = self.world.proxies.get(self.world.value.owner.proxy)
        if self._link is None and proxy is not None and proxy.is_serving and not self._is_cut(proxy):
            self.world.sim.reach("followed")
            self._link = Link(self, proxy)

    def _is_cut(self, proxy: Proxy) -> bool:
        return self.world.is_cut(NODE, proxy.name) or self.world.is_cut(proxy.name, NODE)

    def _leave(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


class Link:
    """One subscription to one owner; messages arrive later, in order."""

    def __init__(self, follower: Follower, proxy: Proxy) -> None:
        assert proxy.owner is not None
        self._follower = follower
        self._proxy = proxy
        self._owner: StreamOwnerMachine = proxy.owner
        self._tails: LacSubscriptions = proxy.tails
        self._heard = OwnerFeed(follower, proxy.name, "")
        self._tail = LacSubscription(self, 1, follower.world.stream)
        self._flush_due = False
        self._arrives_s = 0.0
        self._tails.add(self._tail)

    @property
    def is_alive(self) -> bool:
        """Whether the owner would answer a ping."""
        world, proxy = self._follower.world, self._proxy
        is_cut = world.is_cut(NODE, proxy.name) or world.is_cut(proxy.name, NODE)
        return proxy.owner is self._owner and not self._owner.has_ended and not is_cut

    @property
    def is_named(self) -> bool:
        """Whether metadata names this owner; a deposed one may not know that it does not."""
        return self._owner.nonce == self._follower.world.value.owner.claim

    def close(self) -> None:
        self._tails.remove(self._tail)
        self._heard.end()

    @property
    def keeps_up(self) -> bool:
        return self._follower.is_link_writable()

    def lac_moved(self, tail: LacSubscription) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._follower.world.sim.call_in(
                self._follower.later(self._follower.flush_s), self._flush, node=self._proxy.name
            )

    def tail_ended(self, tail: LacSubscription, error: DLogError) -> None:
        self._flush()
        self._arrive(self._follower.lost, self)

    def _flush(self) -> None:
        self._flush_due = False
        for told in self._tail.take():
            self._arrive(self._hear, told)

    def _arrive(self, callback: object, *args: object) -> None:
        sim = self._follower.world.sim
        self._arrives_s = max(self._arrives_s + 1e-9, sim.now_s + self._follower.later(0.001))
        sim.call_in(self._arrives_s - sim.now_s, callback, *args, node=NODE)  # type: ignore[arg-type]

    def _hear(self, told: Lac | Entries) -> None:
        if self._heard.is_over:
            return
        if isinstance(told, Entries):
            self._heard.entries(told.segment, told.first_entry, list(map(bytes, told.payloads())))
        else:
            self._heard(told.segment, told.lac, told.ended)
