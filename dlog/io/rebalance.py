"""Moves closed ledgers from fuller bookies to emptier ones, one at a time: `dlog cluster rebalance`.

Which ledger moves where is decided by dlog/ledger/balance.py; the repair machine (dlog/ledger/repair.py) copies, with
the emptier bookie as the only replacement.

Invariants:
- A ledger moves only under its lock of the under-replication tree, and only if it has no mark there: what lacks copies
  is left to the recovery processes.
- Metadata is read again under the lock, and what moves is decided by that value. It is changed by compare-and-set after
  the new bookie has confirmed every entry, and the placement policy is kept as well as before.
- All state is metadata: a run that is interrupted anywhere leaves every ledger correct, and the next one goes on.
- Nothing is deleted here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from dlog.errors import ConnectionLostError, DLogError, LedgerNotFoundError, MetadataUnavailableError, ProtocolError
from dlog.io.bookie_questions import read_space
from dlog.io.ledgers import Ledgers
from dlog.io.metadata import BookieInfo
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.balance import Balance, DiskSize, Move
from dlog.machine import Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata
from dlog.wire.bookie import Code

LOOK_S = 1.0  # between two looks at what it waits for
SPACE_TIMEOUT_S = 5.0

DISABLED = "repair is switched off for the cluster"
LOCKED = "another process is copying them"
MARKED = "they lack copies, which recovery processes make first"
UNREADABLE = "no bookie can serve some of their entries (dlog ledger verify names them)"
EVEN = "the shares are even enough"
NO_MOVE = "no move of a ledger makes the shares more even"
SKIPPED = "the ledgers whose move would make the shares more even could not be moved now"


@dataclass(frozen=True, slots=True)
class RebalanceProgress:
    """What has been done. spread: the share of the fullest bookie less that of the emptiest. reason: what it waits for;
    empty: it is copying."""

    ledgers: int
    moved_bytes: int
    spread: float
    reason: str


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """The result. moved_bytes: of payload. spread_before, spread: at first and now. shares: of each bookie now.
    reason: why it ended. skipped: ledgers that could not be moved, by reason. unknown: bookies that did not report how
    much space they have, and so took no part."""

    ledgers: int
    moved_bytes: int
    spread_before: float
    spread: float
    shares: dict[BookieId, float]
    reason: str
    skipped: dict[str, int] = field(default_factory=dict)
    unknown: tuple[BookieId, ...] = ()


async def rebalance(
    metadata: ZooKeeperMetadata,
    ledgers: Ledgers,
    progress: Callable[[RebalanceProgress], None],
    moving: Callable[[LedgerId, Move], None],
    *,
    until: float,
    rate_bytes_s: int = 0,
    is_dry: bool = False,
    look_s: float = LOOK_S,
) -> Rebalanced:
    """Move ledgers until the spread is at most `until` or no move improves it.

    moving: called for each move before it begins. rate_bytes_s: of payload, on average; 0: no limit; `ledgers` should
    have the same limit for a single repair. is_dry: move nothing, only say what would be moved.
    Repeatable; cancelling leaves every ledger correct, and so does MetadataUnavailableError: run it again.
    """
    return await _Rebalancing(metadata, ledgers, progress, moving, until, rate_bytes_s, is_dry, look_s).run()


class _Rebalancing:
    def __init__(
        self,
        metadata: ZooKeeperMetadata,
        ledgers: Ledgers,
        progress: Callable[[RebalanceProgress], None],
        moving: Callable[[LedgerId, Move], None],
        until: float,
        rate_bytes_s: int,
        is_dry: bool,
        look_s: float,
    ) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._marks = metadata.underreplication("rebalance")
        self._progress = progress
        self._moving = moving
        self._until = until
        self._rate_bytes_s = rate_bytes_s
        self._is_dry = is_dry
        self._look_s = look_s
        self._balance = Balance({}, frozenset())
        self._unknown: tuple[BookieId, ...] = ()
        self._done = 0
        self._moved_bytes = 0

    async def run(self) -> Rebalanced:
        if not self._is_dry:
            await self._marks.prepare()
        await self._measure()
        before = self._balance.spread
        while True:
            skipped = Counter[str]()
            moved = await self._pass(skipped)
            if self._balance.spread <= self._until:
                reason = EVEN
                break
            if not moved or self._is_dry:
                reason = SKIPPED if skipped else NO_MOVE
                break
            await self._measure()  # ledgers were written and deleted meanwhile
        now = self._balance
        shares, unknown = now.shares(), self._unknown
        return Rebalanced(self._done, self._moved_bytes, before, now.spread, shares, reason, dict(skipped), unknown)

    async def _measure(self) -> None:
        """Ask all bookies for their space, and read all metadata."""
        members = await self._metadata.members()
        registered = {**members.readonly, **members.writable}
        async with asyncio.TaskGroup() as tasks:
            asking = {b: tasks.create_task(self._disk(info), name=f"space of {b}") for b, info in registered.items()}
        disks = {bookie: disk for bookie, task in asking.items() if (disk := task.result()) is not None}
        self._unknown = tuple(sorted(registered.keys() - disks.keys()))
        balance = Balance(disks, frozenset(members.writable))
        async with aclosing(self._all()) as found:
            async for _, value in found:
                balance.count(value)
        self._balance = balance

    async def _disk(self, info: BookieInfo) -> DiskSize | None:
        """None: the bookie did not report it."""
        try:
            reply = await read_space(info.host, info.port, SPACE_TIMEOUT_S, self._ledgers.tls)
        except (OSError, ConnectionLostError, ProtocolError):  # a timeout is an OSError too
            return None
        if reply.code is not Code.OK or reply.total_bytes is None or reply.free_bytes is None:
            return None
        return DiskSize(reply.total_bytes, reply.free_bytes)

    async def _all(self) -> AsyncGenerator[tuple[LedgerId, LedgerMetadata]]:
        """All ledgers whose metadata can be read."""
        async for ledger in self._metadata.ledgers():
            value = await self._read(ledger)
            if value is not None:
                yield ledger, value

    async def _read(self, ledger: LedgerId) -> LedgerMetadata | None:
        try:
            outcome = await self._metadata.read(LedgerKey(ledger))
        except MetadataUnavailableError:
            raise
        except DLogError:
            return None
        return outcome.value if isinstance(outcome, Versioned) else None

    # ---- moving ------------------------------------------------------------------------------------------------------

    async def _pass(self, skipped: Counter[str]) -> int:
        """Move what improves the balance, in the order of all ledgers, until it is even enough. Returns how many
        ledgers it moved."""
        moved = 0
        self._report("")
        async with aclosing(self._all()) as found:
            async for ledger, value in found:
                if self._balance.spread <= self._until:
                    break
                if self._balance.choose(value, self._ledgers.can_move) is None:
                    continue
                if reason := await self._try_move(ledger):
                    skipped[reason] += 1
                else:
                    moved += 1
                    self._report("")
        return moved

    async def _try_move(self, ledger: LedgerId) -> str:
        """Move one ledger; returns why it was not moved, empty if it was."""
        if self._is_dry:
            value = await self._read(ledger)
            move = None if value is None else self._balance.choose(value, self._ledgers.can_move)
            if move is not None:
                self._moving(ledger, move)
                self._note(move, move.size_bytes)
            return ""
        while await self._marks.is_disabled():
            self._report(DISABLED)
            await asyncio.sleep(self._look_s)
        if not await self._marks.hold(ledger):
            return LOCKED
        try:
            return await self._move(ledger)
        except LedgerNotFoundError:
            return "they were deleted meanwhile"
        except MetadataUnavailableError:
            raise
        except DLogError as error:
            return error.message
        finally:
            with suppress(MetadataUnavailableError):  # the lock ends with the session
                await self._marks.release(ledger)

    async def _move(self, ledger: LedgerId) -> str:
        if await self._marks.read([ledger]):
            return MARKED
        value = await self._read(ledger)
        move = None if value is None else self._balance.choose(value, self._ledgers.can_move)
        if move is None:
            return "they changed meanwhile"
        self._moving(ledger, move)
        begun_s = _now_s()
        done = await self._ledgers.repair(ledger, frozenset({move.source}), preferred=move.target, only_preferred=True)
        if done.replaced:
            self._note(move, done.copied_bytes)
        if self._rate_bytes_s:  # many small ledgers, one after the other, keep the rate as well
            await asyncio.sleep(done.copied_bytes / self._rate_bytes_s - (_now_s() - begun_s))
        return UNREADABLE if done.unreadable else ""

    def _note(self, move: Move, copied_bytes: int) -> None:
        self._balance.note(move)
        self._done += 1
        self._moved_bytes += copied_bytes

    def _report(self, reason: str) -> None:
        self._progress(RebalanceProgress(self._done, self._moved_bytes, self._balance.spread, reason))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
