"""Planned restarts of bookies, in ZooKeeper: while one lasts, no auditor of ours takes the bookie for lost.

BookKeeper knows nothing of the kind: `lostBookieRecoveryDelay` holds for all bookies, and `disable` stops all repair.
Java's auditor does not read these znodes, so it takes a paused bookie for lost after its usual delay.

Invariants:
- A pause is a znode. What any auditor decides of it, also one that is elected meanwhile, depends on ZooKeeper alone.
- A pause ends once the bookie is registered in another session than at its announcement, thus after it was away. It
  does not end if the same process registers as read-only.
- A pause ends by time: that of the server that leads ZooKeeper, which stamped the znode, compared with a znode written
  now. If that clock is set back, or another server leads whose clock is behind, it ends once this process has seen
  it for its whole length.

All calls raise MetadataUnavailableError. A cancelled call may still take effect.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from dlog.errors import DamagedError, InvalidRequestError
from dlog.io.zookeeper import ANY_VERSION, ZooKeeper
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_protocol import BadVersionError, NodeExistsError, NoNodeError, Stat
from dlog.model.ids import BookieId, bookie_id
from dlog.wire.underreplication import PAUSE_S_MAX, Pause, decode_pause, encode_pause


@dataclass(frozen=True, slots=True)
class _Seen:
    """A pause as it is in ZooKeeper. left_s: 0 or less if it is over by time. is_back: its bookie was away."""

    bookie: BookieId
    version: int
    left_s: float
    is_back: bool

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0 or self.is_back


class BookiePauses:
    """The planned restarts of a cluster's bookies."""

    def __init__(self, zk: ZooKeeper, ledgers: LedgerPaths) -> None:
        self._zk = zk
        self._ledgers = ledgers
        self._paths = ledgers.underreplication
        self._first_seen_s: dict[tuple[BookieId, int], float] = {}  # by bookie and mzxid of a pause that is there

    async def begin(self, bookie: BookieId, seconds: int) -> None:
        """Announce a restart that takes at most so long from now; it takes the place of one announced before.

        seconds: 1 to PAUSE_S_MAX. Raises InvalidRequestError for another length.
        """
        if not 1 <= seconds <= PAUSE_S_MAX:
            raise InvalidRequestError(f"a planned restart takes 1 s to 7 days: seconds={seconds}")
        sessions = await self._sessions(bookie)
        data = encode_pause(Pause(seconds, min(sessions, default=0)))
        while True:
            try:
                await self._zk.create(self._paths.pause(bookie), data, parents=True)
                return
            except NodeExistsError:
                with suppress(NoNodeError):  # it ended meanwhile
                    await self._zk.set(self._paths.pause(bookie), data, ANY_VERSION)
                    return

    async def end(self, bookie: BookieId) -> bool:
        """End a pause; False: there is none."""
        try:
            await self._zk.delete(self._paths.pause(bookie), ANY_VERSION)
        except NoNodeError:
            return False
        return True

    async def current(self) -> dict[BookieId, float]:
        """The pauses that are not over, with the seconds that are left of each."""
        return {seen.bookie: seen.left_s for seen in await self._read() if not seen.is_over}

    async def expire(self) -> dict[BookieId, float]:
        """As `current`; deletes the pauses that are over."""
        found = await self._read()
        for seen in found:
            if seen.is_over:
                with suppress(NoNodeError, BadVersionError):  # announced anew meanwhile
                    await self._zk.delete(self._paths.pause(seen.bookie), seen.version)
        return {seen.bookie: seen.left_s for seen in found if not seen.is_over}

    async def _read(self) -> list[_Seen]:
        try:
            names = (await self._zk.children(self._paths.pauses, fresh=True))[0]
        except NoNodeError:
            names = []
        znodes = await self._zk.get_each([f"{self._paths.pauses}/{name}" for name in names]) if names else []
        pauses: list[tuple[BookieId, Pause, Stat]] = []
        for name, znode in zip(names, znodes, strict=True):
            if isinstance(znode, tuple):  # else it ended meanwhile, or this process may not read it
                with suppress(DamagedError, InvalidRequestError):  # not ours
                    pauses.append((bookie_id(name), decode_pause(znode[0]), znode[1]))
        first_seen_s, self._first_seen_s = self._first_seen_s, {}
        if not pauses:
            return []
        now_ms = (await self._zk.set(self._paths.pauses, b"", ANY_VERSION)).mtime_ms
        now_s = asyncio.get_running_loop().time()
        found = []
        for bookie, pause, stat in pauses:
            key = (bookie, stat.mzxid)
            self._first_seen_s[key] = since_s = first_seen_s.get(key, now_s)
            elapsed_s = max((now_ms - stat.mtime_ms) / 1000, now_s - since_s)
            is_back = any(session != pause.session for session in await self._sessions(bookie))
            found.append(_Seen(bookie, stat.version, pause.seconds - elapsed_s, is_back))
        return found

    async def _sessions(self, bookie: BookieId) -> set[int]:
        """The sessions in which the bookie is registered, as far as this process may read its registrations."""
        paths = (f"{self._ledgers.available}/{bookie}", f"{self._ledgers.readonly}/{bookie}")
        found = await self._zk.get_each(paths, fresh=True)
        return {znode[1].ephemeral_owner for znode in found if isinstance(znode, tuple)}
