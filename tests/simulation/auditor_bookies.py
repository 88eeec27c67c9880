"""The bookies of the room `auditor`, and the connections of other processes to them.

A bookie registers as the shipped one does: its cookie is judged by dlog/bookie/cookie.py at the start and checked in
the transaction of each registration. What it answers is bookie_model.py, summaries and lists of entries with it. What
it stored outlives its process.

Invariants:
- Messages between a process and a bookie keep their order. A request that is not answered in time ends the connection:
  the client gets one PeerLost, and no answer to what it sent before. Such requests may still be performed.
- A process that is killed or frozen answers nothing; a frozen one goes on with what came meanwhile.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from dlog.bookie.cookie import Found, Verdict, judge
from dlog.bookie.listing import list_of
from dlog.bookie.messages import SummarizeStored
from dlog.bookie.summaries import summary_of
from dlog.errors import DLogError, MetadataUnavailableError
from dlog.io.bookie_dirs import check_still_known
from dlog.io.metadata import BookieInfo
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Fact, PeerLost, Persist, Persisted, Received, Send, Versioned
from dlog.model.ids import BookieId
from dlog.model.location import NetworkLocation
from dlog.wire.bookie import Code, EntriesSummarized, SummarizeEntries
from dlog.wire.bookie_info import Cookie, encode_cookie
from dlog.wire.bookie_v3_messages import EntriesListed, ListEntries
from dlog.wire.entry_summary import HEAD_BYTES_MAX, EntryOutline
from tests.simulation.bookie_model import Ailments, BookieModel
from tests.simulation.service.loop import MS, Handle, Process, S
from tests.simulation.service.nodes import NAMESPACE, ZOOKEEPER, Node

if TYPE_CHECKING:
    from tests.simulation.auditor_world import AuditorWorld

PORT = 3181
_DIR = "/data"


class AuditedBookie(Node):
    """A bookie: its store outlives its process. summaries: whether it answers them, as Java's does not."""

    def __init__(self, *args: Any, world: AuditorWorld, summaries: bool, session_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.world = world
        self.bookie = BookieId(f"{self.name}:{PORT}")
        self.summaries = summaries
        self.session_s = session_s
        self.version: str | None = None  # the cookie on its disk
        self.model = BookieModel([], Ailments(random.Random(0)))
        self.losses = 0  # disks
        self._replies: dict[int, Callable[[Any], None]] = {}
        self._asked = 0

    @property
    def entries(self) -> Mapping[tuple[int, int], bytes]:
        return self.model.entries

    def lose_disk(self) -> None:
        """Replace the disk by an empty one; the process must be down."""
        assert self.process is None
        self.losses += 1
        self.version = None
        self.model = BookieModel([], Ailments(random.Random(0)))

    def collect(self, ledger: int) -> None:
        """Delete the entries of a ledger that is not in metadata."""
        for key in [key for key in self.model.entries if key[0] == ledger]:
            del self.model.entries[key]
        self.model.last.pop(ledger, None)

    async def live(self, process: Process) -> None:
        async with await ZooKeeperMetadata.connect(
            ZOOKEEPER, NAMESPACE, session_timeout_s=self.session_s, rng=process.rng("metadata")
        ) as metadata:
            cookie = Cookie(self.bookie, (_DIR,), (_DIR,), await metadata.instance_id())
            await self._check_cookie(metadata, cookie)
            stopping, refused = self.stopping, list[DLogError]()
            assert stopping is not None

            async def known() -> Versioned:
                try:
                    return await check_still_known(cookie, metadata)
                except MetadataUnavailableError:
                    raise
                except DLogError as error:
                    refused.append(error)
                    stopping.set()
                    raise

            info = BookieInfo(self.bookie, self.name, PORT, NetworkLocation(), summaries=self.summaries)
            await metadata.register_bookie(info, known=known)
            self._ready()
            await stopping.wait()
            if refused:
                raise refused[0]
            await metadata.unregister_bookie(self.bookie)

    async def _check_cookie(self, metadata: ZooKeeperMetadata, cookie: Cookie) -> None:
        """As `check_cookies` of dlog/io/bookie_dirs.py, on one directory."""
        seen = await metadata.read_cookie(self.bookie)
        found = Found(_DIR, self.version, has_data=bool(self.entries))
        registered = str(seen.value) if isinstance(seen, Versioned) else None
        if judge(cookie, registered, [found]) is not Verdict.SERVE:
            self.version = encode_cookie(cookie)
            await metadata.write_cookie(
                self.bookie, self.version, seen.version if isinstance(seen, Versioned) else None
            )

    # ---- requests ----------------------------------------------------------------------------------------------------

    def serve(self, message: Any, reply: Callable[[Any], None]) -> None:
        """Handle a request, in this bookie's process."""
        match message:
            case SummarizeEntries():
                reply(self._summarize(message))
            case ListEntries():
                ids = sorted(entry for ledger, entry in self.entries if ledger == message.ledger)
                known = bool(ids) or message.ledger in self.model.fenced
                code = Code.OK if known else Code.NO_LEDGER
                reply(EntriesListed(message.ledger, code, list_of([], ids) or b""))
            case _:
                self._asked += 1
                self._replies[self._asked] = reply
                self._perform(self.model.handle(Received(self._asked, message)))

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                process = self.process
                assert process is not None
                process.post(self._persisted, self.model, effect.token, delay_ns=MS)
                if effect.data[0] == "add":
                    self.world.checks.stored(effect.data[1])
            else:
                assert isinstance(effect, Send)
                self._replies.pop(cast(int, effect.peer))(effect.message)

    def _persisted(self, model: BookieModel, token: int) -> None:
        if model is self.model:
            self._perform(model.handle(Persisted(token)))

    def _dying(self, process: Process) -> None:
        """What is stored is kept; answers that wait for the journal are not given."""
        self.model.waiting.clear()
        self._replies.clear()

    def _summarize(self, m: SummarizeEntries) -> EntriesSummarized:
        held = {entry: packet for (ledger, entry), packet in self.entries.items() if ledger == m.ledger}
        if not held and m.ledger not in self.model.fenced:
            return EntriesSummarized(m.ledger, m.first, m.request, Code.NO_LEDGER)

        def stored(entry: int) -> EntryOutline | None:
            packet = held.get(entry)
            return None if packet is None else EntryOutline(entry, packet[:HEAD_BYTES_MAX], len(packet))

        summary = summary_of(SummarizeStored(1, m, {}), stored)
        assert summary is not None
        return EntriesSummarized(m.ledger, m.first, m.request, Code.OK, *summary)


class SimulatedBookieClient:
    """The connections of one process to all bookies; takes the place of dlog/io/bookie_client.py."""

    is_v3 = False

    def __init__(self, world: AuditorWorld, process: Process, timeout_s: float) -> None:
        self.world = world
        self.process = process
        self.timeout_s = timeout_s
        self.rng = process.rng("bookies")
        self.arrivals: dict[str, int] = {}  # of the last message of each direction, in ns

    async def __aenter__(self) -> SimulatedBookieClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def asker(self) -> Requester:
        return Requester(self)

    listing_asker = asker

    def delay_ns(self) -> int:
        return int(self.rng.choice((0.2, 0.5, 2.0, 2.0, 20.0)) * self.rng.uniform(0.5, 1.0) * MS)


class Requester:
    """The requests of one machine; see BookieRequester of dlog/io/bookie_client.py."""

    def __init__(self, client: SimulatedBookieClient) -> None:
        self._client = client
        self._unanswered: defaultdict[BookieId, dict[int, Handle]] = defaultdict(dict)  # with their time-outs
        self._asked = 0
        self.post: Callable[[Fact], None] = _drop

    def send(self, peer: Any, message: Any) -> None:
        client, process = self._client, self._client.process
        world, loop = client.world, process.loop
        node = world.bookie_of(peer)
        self._asked += 1
        number = self._asked
        is_up = node.process is not None
        why, after_ns = ("request timeout", int(client.timeout_s * S)) if is_up else ("refused", client.delay_ns())
        self._unanswered[peer][number] = process.post(self._lose, peer, why, delay_ns=after_ns)
        if node.process is None or world.is_cut(process.node, node.name):
            return

        def answered(response: Any) -> None:
            if not world.is_cut(process.node, node.name):
                process.post(self._receive, peer, number, response, delay_ns=self._in_order(f"from {peer}"))

        loop.at(loop.now + self._in_order(f"to {peer}"), node.process, node.serve, message, answered)

    def _in_order(self, way: str) -> int:
        """The delay of a message, in ns, which keeps it behind earlier ones."""
        client = self._client
        now = client.process.loop.now
        at_ns = client.arrivals[way] = max(client.arrivals.get(way, 0) + 1, now + client.delay_ns())
        return at_ns - now

    def _receive(self, peer: BookieId, number: int, response: Any) -> None:
        timeout = self._unanswered[peer].pop(number, None)
        if timeout is not None:
            timeout.cancel()
            self.post(Received(peer, response, self._client.process.loop.now_s))

    def _lose(self, peer: BookieId, reason: str) -> None:
        for timeout in self._unanswered.pop(peer).values():
            timeout.cancel()
        self.post(PeerLost(peer, reason))

    def close(self) -> None:
        self.post = _drop


def _drop(_: Fact) -> None:
    """Drop a fact."""
