"""Puts one bookie in the place of another: copies what the old one holds to the new one, then takes the old one out.

A mark cannot carry a wanted target: Java's workers read marks, and choose by themselves. So this command repairs the
ledgers itself, with the machine of the workers (dlog/ledger/repair.py), each under its lock of the under-replication
tree, so that no worker copies the same ledger at the same time.

Invariants:
- A ledger is repaired only under its lock, and each change of its metadata is a compare-and-set after the copies are
  confirmed. So the command may be interrupted anywhere, and the next run goes on with the ledgers that are left.
- The old bookie may run meanwhile; then the ledgers that are being written keep it. Only once it is not registered, and
  `open_grace_s` later, is an open ledger recovered, which fences its writer; and only if another bookie can take the
  place.
- The old bookie is forgotten as by decommission: only after a pass over all ledgers behind which none names it, and
  if it was not registered from before that pass on.
- While the new bookie is not writable nothing is begun, since all copies would go elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from dlog.errors import DLogError, InvalidRequestError, LedgerNotFoundError, MetadataUnavailableError
from dlog.io.decommission import StillRegisteredError, forget_stopped, ledgers_naming
from dlog.io.ledgers import Ledgers
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.repair import Repaired, Replaced
from dlog.machine import Missing
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerMetadata

AT_ONCE = 4  # ledgers that are copied at the same time
LOOK_S = 1.0  # between two looks at the registrations
OPEN_GRACE_S = 30.0
_PASS_WAIT_MAX_S = 30.0  # until all ledgers are read again
_PASS_SHARE = 4  # that wait, as a multiple of the time that reading and repairing them took

_DISABLED = "repair is switched off for the cluster"
_LOCKED = "another process is copying them"
_GRACE = "they are open: their writers have {:g} s to replace the stopped bookie themselves"
_OPEN = "they are open, and their writers use the bookie: stop it, then they go on with others"
_NO_REPLACEMENT = "they are open, and no bookie can take its place: start more where their placement policy allows them"
_UNREAD = "their metadata cannot be read (dlog ledger ls names them)"
_STOP = "no ledger needs it any more: stop the bookie, then its registration and its cookie go"


class NotWritableError(InvalidRequestError):
    """The bookie that shall take another one's place is not registered as writable."""


@dataclass(frozen=True, slots=True)
class ReplacementProgress:
    """What is still to do. ledgers: that named the old bookie when last read. total: with those that are done.
    reason: what it waits for; empty: it is copying."""

    ledgers: int
    total: int
    reason: str


@dataclass(frozen=True, slots=True)
class Replacement:
    """The result. ledgers: that named the old bookie. moved: of their ensembles, those in which the new one took its
    place here. elsewhere: in which another bookie took it. was_known: whether the cluster had the old bookie at all."""

    ledgers: int
    moved: int
    elsewhere: int
    was_known: bool = True


async def replace_bookie(
    metadata: ZooKeeperMetadata,
    ledgers: Ledgers,
    old: BookieId,
    new: BookieId,
    progress: Callable[[ReplacementProgress], None],
    elsewhere: Callable[[LedgerId, Replaced], None],
    *,
    open_grace_s: float = OPEN_GRACE_S,
    look_s: float = LOOK_S,
) -> Replacement:
    """Name `new` in the place of `old` in all ledgers, wait until no ledger names `old` and it is stopped, and delete
    its cookie.

    progress: called with each change. elsewhere: called for each ensemble in which the placement policy, or the
    ensemble itself, does not allow `new`, or `new` did not take the copies, and another bookie took the place.
    Repeatable; cancelling leaves every ledger
    correct. Raises InvalidRequestError if both are one bookie, NotWritableError and
    MetadataUnavailableError at the beginning; later it waits.
    """
    return await _Replacing(metadata, ledgers, old, new, progress, elsewhere, open_grace_s, look_s).run()


class _Replacing:
    def __init__(
        self,
        metadata: ZooKeeperMetadata,
        ledgers: Ledgers,
        old: BookieId,
        new: BookieId,
        progress: Callable[[ReplacementProgress], None],
        elsewhere: Callable[[LedgerId, Replaced], None],
        open_grace_s: float,
        look_s: float,
    ) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._marks = metadata.underreplication("replace")
        self._old = old
        self._new = new
        self._progress = progress
        self._elsewhere = elsewhere
        self._grace_s = open_grace_s
        self._look_s = look_s
        self._stopped_s: float | None = None  # when the old bookie was first found not registered; None: it is
        self._left = 0
        self._done = 0
        self._moved = 0
        self._moved_elsewhere = 0
        self._reported: ReplacementProgress | None = None
        self._first_of: dict[str, str] = {}  # reasons by kind, in this pass

    async def run(self) -> Replacement:
        if self._old == self._new:
            raise InvalidRequestError(f"a bookie cannot replace itself: bookie={self._old}")
        if self._new not in (await self._metadata.members()).writable:
            raise NotWritableError(
                f"the bookie that shall take the place is not registered as writable: bookie={self._new}"
            )
        await self._marks.prepare()
        async for _ in ledgers_naming(self._metadata, self._old):
            self._left += 1
        if not self._left and not await self._look_known():
            return Replacement(0, 0, 0, was_known=False)
        while True:
            try:
                if await self._attempt():
                    return Replacement(self._done, self._moved, self._moved_elsewhere)
            except* MetadataUnavailableError as errors:
                self._report(f"metadata is out of reach: {next(_leaves(errors))}")
                await asyncio.sleep(self._look_s)

    async def _attempt(self) -> bool:
        """Repair what can be repaired now, and wait until there may be more. Returns whether all is done."""
        begun_s, cookie = _now_s(), await self._metadata.read_cookie(self._old)
        is_stopped, was_grace_over = await self._look(), self._is_grace_over
        if self._left:
            self._report("")
        waiting = await self._pass()
        self._left = waiting.total()
        if is_stopped and not waiting:
            with suppress(StillRegisteredError):
                if await forget_stopped(self._metadata, self._marks, self._old, cookie):
                    return True
        self._report(_most(waiting) if waiting else _STOP)
        until_s = _now_s() + min(_PASS_WAIT_MAX_S, _PASS_SHARE * (_now_s() - begun_s))
        while True:
            await asyncio.sleep(self._look_s)
            is_changed = await self._look() != is_stopped or self._is_grace_over != was_grace_over
            if is_changed or _now_s() >= until_s:
                return False

    async def _look_known(self) -> bool:
        """Whether the cluster has the old bookie, running or stopped."""
        if self._old in await self._marks.registered():
            return True
        return not isinstance(await self._metadata.read_cookie(self._old), Missing)

    async def _look(self) -> bool:
        """Whether the old bookie is stopped."""
        if self._old in await self._marks.registered():
            self._stopped_s = None
        elif self._stopped_s is None:
            self._stopped_s = _now_s()
        return self._stopped_s is not None

    @property
    def _is_grace_over(self) -> bool:
        return self._stopped_s is not None and _now_s() >= self._stopped_s + self._grace_s

    def _report(self, reason: str) -> None:
        now = ReplacementProgress(self._left, self._left + self._done, reason)
        if now != self._reported:
            self._reported = now
            self._progress(now)

    # ---- all ledgers -------------------------------------------------------------------------------------------------

    async def _pass(self) -> Counter[str]:
        """Try to repair all ledgers that name the old bookie; what those wait for that still do."""
        waiting = Counter[str]()
        self._first_of.clear()
        choosing = asyncio.Lock()
        async with aclosing(ledgers_naming(self._metadata, self._old)) as naming:

            async def work() -> None:
                while True:
                    async with choosing:
                        found = await anext(naming, None)
                    if found is None:
                        return
                    if reason := await self._replace_in(*found):
                        waiting[reason] += 1
                    else:
                        self._done += 1
                        self._left = max(0, self._left - 1)
                        self._report("")

            async with asyncio.TaskGroup() as tasks:
                for number in range(AT_ONCE):
                    tasks.create_task(work(), name=f"replace bookie {number}")
        return waiting

    def _like(self, kind: str, text: str) -> str:
        """The first reason of this kind in the pass, for reasons that name a ledger or an entry."""
        return self._first_of.setdefault(kind, text)

    async def _replace_in(self, ledger: LedgerId, value: LedgerMetadata | None) -> str:
        """Repair one ledger; returns what it waits for, empty if it does not name the old bookie any more."""
        if value is None:
            return _UNREAD
        if await self._marks.is_disabled():
            return _DISABLED
        if self._new not in self._metadata.known_members().writable:
            return f"{self._new} is not writable: start it, or free its disk"
        if not await self._marks.hold(ledger):
            return _LOCKED
        try:
            return await self._repair(ledger)
        except LedgerNotFoundError:
            return ""
        except MetadataUnavailableError:
            raise
        except DLogError as error:
            return self._like(type(error).__name__, error.message)
        finally:
            with suppress(MetadataUnavailableError):  # the lock ends with the session
                await self._marks.release(ledger)

    async def _repair(self, ledger: LedgerId) -> str:
        marked = await self._marks.read([ledger])
        repaired = await self._repair_once(ledger)
        if repaired.waits:
            if reason := await self._why_not_recover(ledger):
                return reason
            await self._ledgers.recover(ledger)
            repaired = await self._repair_once(ledger)
        if repaired.unreadable:
            text = f"no replica can serve some of their entries: {repaired.unreadable[0].reason}"
            return self._like("unreadable", text)
        if repaired.waits:
            return repaired.waits
        for found in marked:
            if found.mark is not None and {*found.mark.bookies} == {self._old}:
                await self._marks.complete(found)
        return ""

    async def _repair_once(self, ledger: LedgerId) -> Repaired:
        repaired = await self._ledgers.repair(ledger, frozenset({self._old}), preferred=self._new)
        for made in repaired.replaced:
            if made.new == self._new:
                self._moved += 1
            else:
                self._moved_elsewhere += 1
                self._elsewhere(ledger, made)
        return repaired

    async def _why_not_recover(self, ledger: LedgerId) -> str:
        """Why an open ledger whose last ensemble names the old bookie is not fenced yet; empty: it may be."""
        if self._stopped_s is None:
            return _OPEN
        if not self._is_grace_over:
            return _GRACE.format(self._grace_s)
        value = await self._ledgers.metadata_of(ledger)
        registered = await self._marks.registered()
        if self._old in registered:
            return _OPEN
        if value.is_closed or await self._ledgers.can_replace(value, {*value.fragments[-1].ensemble} - registered):
            return ""
        return _NO_REPLACEMENT


def _most(waiting: Counter[str]) -> str:
    """What most ledgers wait for, and how many there are that wait for something else."""
    (reason, count), others = waiting.most_common(1)[0], len(waiting) - 1
    return reason if not others else f"{count:,} of them: {reason}; the others for {others:,} other reasons"


def _leaves(group: BaseExceptionGroup[MetadataUnavailableError]) -> Iterator[str]:
    """The messages of all errors in a group."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error.message


def _now_s() -> float:
    return asyncio.get_running_loop().time()
