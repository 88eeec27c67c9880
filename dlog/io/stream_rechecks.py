"""Which watched streams changed while their watches may have missed it, found out in bulk.

After a reconnect a process does not know of any stream that it watches whether it changed meanwhile. Most did not. So
their watchers are not told at once, to read thousands of streams whole; the znodes that every change sets are read
first, of many streams in one packet, and only the watchers of a stream that changed, or may have, are told.

Invariants:
- A stream counts as unchanged only if its znodes have the versions that this process saw last before contact was lost,
  and, in the same session, if none of them was changed after the last transaction that its watch had told of.
- What this process saw is as of the first loss of contact since the last check: a reading that somebody makes between
  the reconnect and the check takes nobody's notice away.
- The check reads behind the request that sets the watch, on the same connection, so what comes later is told by the
  watch. An answer from an older connection than the newest doubt decides nothing.
- It is a hint: who writes is decided by compare-and-set and fences.

Streams wait in the order in which they were doubted. A few are checked at once; of more, chunk by chunk with random
pauses, so that neither this process nor ZooKeeper, to which all processes come back together, does nothing else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from dlog.errors import DLogError, MetadataUnavailableError
from dlog.io.stream_marks import Mark, StreamMarks
from dlog.io.zookeeper import GET_AT_ONCE_MAX, Stat, ZooKeeper
from dlog.io.zookeeper_layout import StreamPaths
from dlog.io.zookeeper_protocol import ZnodeError
from dlog.model.ids import StreamName
from dlog.wire.stream_metadata import decode_life, decode_owner

_CHECKED = ("owner", "ledgers", "maxtxid")  # every change sets one of them
STREAMS_AT_ONCE = GET_AT_ONCE_MAX // len(_CHECKED)  # what fits in one packet
ZNODE_BYTES = 1024  # none of the three is larger, unless somebody else wrote it
PAUSE_S = 0.002  # between two packets, on the average
RETRY_S = 0.5

Watcher = Callable[[], None]
_Found = tuple[bytes, Stat]


@dataclass(slots=True)
class _Doubt:
    """heard_zxid: the last transaction that the watch certainly told of; 0: unknown. mark: what was seen of it."""

    heard_zxid: int
    mark: Mark | None
    watchers: dict[Watcher, None] = field(default_factory=dict)


class StreamRechecks:
    """The streams of one process whose watches may have missed a change. `run` checks them."""

    def __init__(self, zk: ZooKeeper, paths: StreamPaths, marks: StreamMarks, rng: random.Random) -> None:
        self._zk = zk
        self._paths = paths
        self._marks = marks
        self._rng = rng
        self._doubts: dict[StreamName, _Doubt] = {}
        self._due = asyncio.Event()

    def __len__(self) -> int:
        return len(self._doubts)

    def doubt(self, stream: StreamName, heard_zxid: int, watcher: Watcher) -> None:
        """A watch may have missed anything after this transaction: call `watcher` unless the stream is unchanged."""
        old = self._doubts.pop(stream, None)
        if old is None:
            new = _Doubt(heard_zxid, self._marks.seen(stream))
        else:
            new = _Doubt(min(old.heard_zxid, heard_zxid), old.mark, old.watchers)
        new.watchers[watcher] = None
        self._doubts[stream] = new
        self._due.set()

    def forget(self, stream: StreamName, watcher: Watcher) -> None:
        """It does not want to be told any more."""
        doubt = self._doubts.get(stream)
        if doubt is not None:
            doubt.watchers.pop(watcher, None)
            if not doubt.watchers:
                del self._doubts[stream]

    async def run(self) -> None:
        """Check what is doubted; for ever."""
        while True:
            await self._due.wait()
            await self._zk.wait_connected()
            some = list(islice(self._doubts.items(), STREAMS_AT_ONCE))
            if not some:
                self._due.clear()
                continue
            try:
                await self._check(some)
            except MetadataUnavailableError:
                await asyncio.sleep(RETRY_S * self._rng.uniform(0.5, 1.5))
            else:
                if self._doubts:
                    await asyncio.sleep(PAUSE_S * self._rng.uniform(0.0, 2.0))

    async def _check(self, some: list[tuple[StreamName, _Doubt]]) -> None:
        """Raises MetadataUnavailableError."""
        roots = [self._paths.root(stream) for stream, _ in some]
        asked = [f"{root}/{name}" for root in roots for name in _CHECKED]
        found: list[_Found | None]
        try:
            found = await self._zk.get_many(asked, like_bytes=ZNODE_BYTES)
        except ZnodeError:  # this process has no right to one of them: have each read on its own
            found = [None] * len(asked)
        loop = asyncio.get_running_loop()
        for number, (stream, doubt) in enumerate(some):
            if self._doubts.get(stream) is not doubt:
                continue  # doubted again meanwhile, or nobody wants to know
            del self._doubts[stream]
            first = number * len(_CHECKED)
            if not _is_unchanged(doubt, found[first : first + len(_CHECKED)]):
                for watcher in doubt.watchers:
                    loop.call_soon(watcher)


def _is_unchanged(doubt: _Doubt, found: list[_Found | None]) -> bool:
    """Whether the stream certainly is what it was."""
    owner, ledgers, max_txid = found
    if owner is None or ledgers is None or max_txid is None or (doubt.mark is None and not doubt.heard_zxid):
        return False
    if doubt.heard_zxid:
        newest = max(owner[1].mzxid, ledgers[1].mzxid, ledgers[1].pzxid, max_txid[1].mzxid)
        if newest > doubt.heard_zxid:
            return False
    if doubt.mark is None:
        return True
    try:
        life, claim = decode_life(owner[0]), decode_owner(owner[0])
    except DLogError:
        return False  # who reads it is told what is wrong with it
    versions = owner[1].version, ledgers[1].version, max_txid[1].version
    return doubt.mark == Mark(life, *versions, claim.epoch)
