"""After a reconnect, finds in bulk the watched streams that may have changed while their watches missed it.

Most did not change. So instead of having every watcher read its whole stream, this reads the znodes that every change
sets, of many streams in one packet, and notifies only the watchers of streams that changed or may have changed.

Invariants:
- A stream counts as unchanged only if its znodes have the versions that this process saw last before contact was lost,
  and, in the same session, if none of them was changed after the last transaction that its watch had reported.
- The versions compared are those seen before the first loss of contact since the last check: a read by other code
  between the reconnect and the check does not suppress a notification.
- The check is sent after the request that sets the watch, on the same connection, so the watch reports later changes.
  If contact is lost again during a stream's check, its result is not used.
- The result is a hint: compare-and-set and fences decide which process writes.

Streams are checked in the order of their `doubt` calls, a packet at a time with random pauses: all processes
reconnect together, and neither they nor ZooKeeper should be busy with this alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from dlog.errors import DLogError, MetadataUnavailableError
from dlog.io.seen_versions import SeenVersion, SeenVersions
from dlog.io.zookeeper import GET_AT_ONCE_MAX, ZooKeeper
from dlog.io.zookeeper_layout import StreamPaths
from dlog.io.zookeeper_protocol import ReadResult, ZnodeError
from dlog.model.ids import StreamName
from dlog.wire.stream_metadata import decode_incarnation, decode_owner

_CHECKED = ("owner", "ledgers", "maxtxid")  # every change sets one of them
STREAMS_AT_ONCE = GET_AT_ONCE_MAX // len(_CHECKED)  # what fits in one packet
ZNODE_BYTES = 1024  # none of the three is larger, unless a foreign program wrote it
PAUSE_S = 0.002  # between two packets, on average
RETRY_S = 0.5

Watcher = Callable[[], None]


@dataclass(slots=True)
class _Recheck:
    """A stream that may have changed. reported_zxid: the last transaction up to which its watch reported every change;
    0: unknown. mark: the versions seen before contact was lost."""

    reported_zxid: int
    mark: SeenVersion | None
    watchers: dict[Watcher, None] = field(default_factory=dict)


class StreamRechecks:
    """The streams of one process whose watches may have missed a change; `run` checks them."""

    def __init__(self, zk: ZooKeeper, paths: StreamPaths, marks: SeenVersions, rng: random.Random) -> None:
        self._zk = zk
        self._paths = paths
        self._marks = marks
        self._rng = rng
        self._doubts: dict[StreamName, _Recheck] = {}
        self._due = asyncio.Event()

    def __len__(self) -> int:
        return len(self._doubts)

    def doubt(self, stream: StreamName, reported_zxid: int, watcher: Watcher) -> None:
        """Have `watcher` called unless the stream is unchanged: its watch may have missed changes after this zxid."""
        old = self._doubts.pop(stream, None)
        if old is None:
            new = _Recheck(reported_zxid, self._marks.seen(stream))
        else:
            new = _Recheck(min(old.reported_zxid, reported_zxid), old.mark, old.watchers)
        new.watchers[watcher] = None
        self._doubts[stream] = new
        self._due.set()

    def forget(self, stream: StreamName, watcher: Watcher) -> None:
        """Do not call `watcher` any more."""
        doubt = self._doubts.get(stream)
        if doubt is not None:
            doubt.watchers.pop(watcher, None)
            if not doubt.watchers:
                del self._doubts[stream]

    async def run(self) -> None:
        """Check the streams reported by `doubt`; never returns."""
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

    async def _check(self, some: list[tuple[StreamName, _Recheck]]) -> None:
        """Check these; notify watchers. Raises MetadataUnavailableError."""
        roots = [self._paths.root(stream) for stream, _ in some]
        asked = [f"{root}/{name}" for root in roots for name in _CHECKED]
        found: list[ReadResult]
        try:
            found = await self._zk.get_each(asked, like_bytes=ZNODE_BYTES)
        except ZnodeError:  # the server refuses the request: notify all, each is then read on its own
            found = [None] * len(asked)
        loop = asyncio.get_running_loop()
        for number, (stream, doubt) in enumerate(some):
            if self._doubts.get(stream) is not doubt:
                continue  # contact was lost again meanwhile, or no watcher is left
            del self._doubts[stream]
            first = number * len(_CHECKED)
            if not _is_unchanged(doubt, found[first : first + len(_CHECKED)]):
                for watcher in doubt.watchers:
                    loop.call_soon(watcher)


def _is_unchanged(doubt: _Recheck, found: list[ReadResult]) -> bool:
    """Whether the stream certainly has not changed."""
    owner, ledgers, max_txid = found
    if not (isinstance(owner, tuple) and isinstance(ledgers, tuple) and isinstance(max_txid, tuple)):
        return False  # one is missing, or this process may not read it
    if doubt.mark is None and not doubt.reported_zxid:
        return False
    if doubt.reported_zxid:
        newest = max(owner[1].mzxid, ledgers[1].mzxid, ledgers[1].pzxid, max_txid[1].mzxid)
        if newest > doubt.reported_zxid:
            return False
    if doubt.mark is None:
        return True
    try:
        incarnation, claim = decode_incarnation(owner[0]), decode_owner(owner[0])
    except DLogError:
        return False  # reading the stream reports what is wrong
    versions = owner[1].version, ledgers[1].version, max_txid[1].version
    return doubt.mark == SeenVersion(incarnation, *versions, claim.epoch)
