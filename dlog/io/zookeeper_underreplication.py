"""BookKeeper's under-replication tree in ZooKeeper: which ledgers lack copies, and who makes them again.

Java's auditor and replication workers may use the tree at the same time.

Invariants:
- A mark is deleted only under the version that its worker read after it had locked the ledger, and only in the session
  of that lock: a bookie that is marked meanwhile stays marked. If the mark names it already, the znode is written anew
  while the ledger is locked, since the worker may have found the copies there before they were lost again.
- A lock is a hint that saves work: it is an ephemeral znode, so it ends with its session, and two workers that repair
  one ledger do no harm (metadata changes by compare-and-set).
- A lock that a lost reply or a cancelled call left in this session is taken over by this session's next `lock`.
- Lists are read in pages; a mark that cannot be read or decoded does not hide the others.

All calls raise MetadataUnavailableError. A cancelled call may still take effect.
Source: BookKeeper `ZkLedgerUnderreplicationManager`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from dlog.errors import DamagedError, InvalidRequestError, MetadataUnavailableError
from dlog.io.zookeeper import ANY_VERSION, ZooKeeper
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_pauses import BookiePauses
from dlog.io.zookeeper_protocol import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from dlog.model.ids import BookieId, LedgerId, bookie_id
from dlog.wire.underreplication import (
    LAYOUT,
    Mark,
    check_layout,
    decode_delay_s,
    decode_mark,
    encode_holder,
    encode_mark,
)

PAGE = 500  # marks read in one request at most
SUMMARY_MAX = 10_000  # marks read for a summary
DAMAGED_NAMED_MAX = 10  # ledgers with a damaged mark, in a summary
_TRIES = 16  # to merge a mark that other processes change at the same time
_MARK_BYTES = 4096  # of a mark at most, nearly always


@dataclass(frozen=True, slots=True)
class Underreplication:
    """What all marks say together. ledgers: number of marked ledgers, of which at most SUMMARY_MAX are counted.
    oldest_ctime_ms: Unix time of the oldest mark, if one has a time. bookies: number of marked ledgers by bookie.
    damaged: ledgers whose mark cannot be read or decoded, the first DAMAGED_NAMED_MAX."""

    ledgers: int
    oldest_ctime_ms: int | None
    bookies: Mapping[BookieId, int]
    damaged: tuple[LedgerId, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all marks were counted."""
        return self.ledgers < SUMMARY_MAX


@dataclass(frozen=True, slots=True)
class MarkedLedger:
    """A ledger that lacks copies. mark: None if it cannot be decoded, or if this process may not read it. version: of
    its znode; None if this process may not read it."""

    ledger: LedgerId
    mark: Mark | None
    version: int | None


class ZooKeeperUnderreplication:
    """The tree, as auditors, workers and commands use it. name: of this process, in its locks.

    pauses: the planned restarts of bookies.
    """

    def __init__(self, zk: ZooKeeper, ledgers: LedgerPaths, name: str) -> None:
        self._zk = zk
        self._ledgers = ledgers
        self._paths = ledgers.underreplication
        self._name = name
        self.pauses = BookiePauses(zk, ledgers)
        self._held: dict[LedgerId, int] = {}  # ledgers locked by `lock`, with the session's generation

    async def prepare(self) -> None:
        """Create the tree if it is missing. Raises UnsupportedVersionError if it has another layout, DamagedError."""
        try:
            await self._zk.create(self._paths.layout, LAYOUT, parents=True)
        except NodeExistsError:
            check_layout((await self._zk.get(self._paths.layout, fresh=True))[0])
        await self._zk.ensure_path(self._paths.marks)
        await self._zk.ensure_path(self._paths.locks)

    # ---- marks -----------------------------------------------------------------------------------------------------

    async def mark(self, ledger: LedgerId, bookies: Collection[BookieId], now_ms: int) -> bool:
        """Mark the ledger as lacking the copies of these bookies; True if that was not marked yet.

        Raises DamagedError if it has a mark that cannot be decoded.
        """
        path = self._paths.mark(ledger)
        for _ in range(_TRIES):
            try:
                await self._zk.create(path, encode_mark(Mark((), None).merge(bookies, now_ms)), parents=True)
                return True
            except NodeExistsError:
                pass
            try:
                # before the mark is read: a worker that locks the ledger later sees what is marked now
                is_locked = await self._zk.exists(self._paths.lock(ledger), fresh=True) is not None
                data, stat = await self._zk.get(path, fresh=True)
                old = decode_mark(data)
                merged = old.merge(bookies, now_ms)
                if merged is not old or is_locked:
                    await self._zk.set(path, encode_mark(merged), stat.version)
                return merged is not old
            except (NoNodeError, BadVersionError):
                continue
            except DamagedError as error:
                raise DamagedError(f"{self.damage(ledger)}: {error.message}") from None
        raise MetadataUnavailableError(f"other processes keep changing the ledger's mark, try again: ledger={ledger}")

    def damage(self, ledger: LedgerId) -> str:
        """What to say of a ledger whose mark cannot be read or decoded."""
        return (
            f"the ledger's mark in ZooKeeper cannot be read or decoded, delete this znode (docs/operations.md): "
            f"ledger={ledger} path={self._paths.mark(ledger)}"
        )

    async def marked(self, above: LedgerId | None = None) -> AsyncIterator[LedgerId]:
        """All marked ledgers, in order of their ids. A ledger whose mark is just being deleted may be among them.

        above: only ledgers with higher ids.
        """
        async for digits in self._groups(self._paths.marks, 4, "" if above is None else f"{above + 1:016x}"):
            if (number := int(digits, 16)) < 2**63:
                yield LedgerId(number)

    async def read(self, ledgers: Sequence[LedgerId]) -> list[MarkedLedger]:
        """The marks of these ledgers, at most PAGE; those without a mark are left out, not those whose mark this
        process may not read."""
        assert len(ledgers) <= PAGE
        if not ledgers:
            return []
        paths = [self._paths.mark(ledger) for ledger in ledgers]
        found = await self._zk.get_each(paths, fresh=True, like_bytes=_MARK_BYTES)
        return [
            MarkedLedger(ledger, _decoded(item[0]), item[1].version)
            if isinstance(item, tuple)
            else MarkedLedger(ledger, None, None)
            for ledger, item in zip(ledgers, found, strict=True)
            if item is not None
        ]

    async def pages(self) -> AsyncIterator[list[MarkedLedger]]:
        """All marks, in pages of at most PAGE."""
        page: list[LedgerId] = []
        async for ledger in self.marked():
            page.append(ledger)
            if len(page) == PAGE:
                yield await self.read(page)
                page = []
        if page:
            yield await self.read(page)

    async def summary(self, note: Callable[[MarkedLedger], None] = lambda _: None) -> Underreplication:
        """Count the marks. note: called with each mark that is counted."""
        ledgers, oldest_ms, bookies, damaged = 0, None, Counter[BookieId](), list[LedgerId]()
        async for page in self.pages():
            ledgers += len(page)
            for marked in page:
                note(marked)
                if marked.mark is None and len(damaged) < DAMAGED_NAMED_MAX:
                    damaged.append(marked.ledger)
            for mark in filter(None, (marked.mark for marked in page)):
                bookies.update(mark.bookies)
                if mark.ctime_ms is not None:
                    oldest_ms = min(mark.ctime_ms, mark.ctime_ms if oldest_ms is None else oldest_ms)
            if ledgers >= SUMMARY_MAX:
                break
        return Underreplication(ledgers, oldest_ms, bookies, tuple(damaged))

    # ---- repairing -------------------------------------------------------------------------------------------------

    async def locked(self) -> frozenset[LedgerId]:
        """The ledgers that some worker has locked; not those whose lock is left over in this session."""
        names = {*await self._children(self._paths.locks)}
        own = await self._zk.ephemerals(self._paths.locks)
        names -= {path.rpartition("/")[2] for path in own} - {self._name_of_lock(ledger) for ledger in self._held}
        return frozenset(ledger for name in names if (ledger := self._paths.ledger_of_lock(name)) is not None)

    async def lock(self, ledger: LedgerId) -> MarkedLedger | None:
        """Lock a marked ledger and read its mark; `release` it. None: another worker has it, or it has no mark."""
        if ledger in self._held:
            return None
        self._held[ledger] = self._zk.generation
        found: MarkedLedger | None = None
        try:
            found = await self._lock(ledger)
        finally:
            if found is None:
                del self._held[ledger]
        return found

    async def hold(self, ledger: LedgerId) -> bool:
        """Lock a ledger, marked or not; `release` it. False: another worker has it."""
        if ledger in self._held:
            return False
        self._held[ledger] = self._zk.generation
        is_held = False
        try:
            is_held = await self._create_lock(ledger)
        finally:
            if not is_held:
                del self._held[ledger]
        return is_held

    async def complete(self, marked: MarkedLedger) -> bool:
        """Delete the mark of a locked ledger, which has its copies again. False: it was marked anew meanwhile, or the
        lock was lost, or the mark could not be read; the mark stays."""
        if marked.version is None or self._held.get(marked.ledger) != self._zk.generation:
            return False
        try:
            await self._zk.delete(self._paths.mark(marked.ledger), marked.version)
        except BadVersionError:
            return False
        except NoNodeError:
            pass  # an earlier call whose reply was lost
        await self._prune(marked.ledger)
        return True

    async def release(self, ledger: LedgerId) -> None:
        """Unlock a ledger that `lock` returned; another session's lock stays."""
        if self._held.pop(ledger, None) is not None:
            await self._unlock(ledger)

    # ---- switches --------------------------------------------------------------------------------------------------

    async def is_disabled(self) -> bool:
        """Whether an operator has switched repair off, for all processes."""
        return await self._zk.exists(self._paths.disable, fresh=True) is not None

    async def disable(self) -> None:
        """Switch repair off for all processes; what is being repaired now is finished. Idempotent."""
        await self._zk.ensure_path(self._paths.disable)

    async def enable(self) -> None:
        """Switch repair on again. Idempotent."""
        try:
            await self._zk.delete(self._paths.disable, ANY_VERSION)
        except NoNodeError:
            return

    async def has_recovery_process(self) -> bool:
        """Whether any process stands for election as the auditor, and so repairs ledgers."""
        return bool(await self._children(self._paths.election))

    async def lost_bookie_delay_s(self) -> int:
        """Seconds for which a bookie must be away to count as lost, as set for the cluster (`lostbookierecoverydelay`
        of BookKeeper's shell); 0: not set, or not a number."""
        try:
            return decode_delay_s((await self._zk.get(self._paths.lost_bookie_delay))[0])
        except (NoNodeError, DamagedError):
            return 0

    async def prepare_delay(self) -> None:
        """Create that delay with 0 if it is missing, as Java's auditor does with its own setting: commands of
        BookKeeper's shell fail without it (`decommissionbookie`, `triggeraudit`)."""
        try:
            await self._zk.create(self._paths.lost_bookie_delay, b"0", parents=True)
        except NodeExistsError:
            return

    async def registered(self) -> frozenset[BookieId]:
        """Ids of all registered bookies, writable and read-only, also of those whose address cannot be read."""
        names = {*await self._children(self._ledgers.readonly)}  # on both sides, since a bookie may turn either way
        names.update((await self._zk.children(self._ledgers.available, fresh=True))[0])
        names.update(await self._children(self._ledgers.readonly))
        found = set()
        for name in names:
            try:
                found.add(bookie_id(name))
            except InvalidRequestError:
                continue  # `readonly`; no ledger names a bookie that has no id
        return frozenset(found)

    # ---- underneath ------------------------------------------------------------------------------------------------

    async def _lock(self, ledger: LedgerId) -> MarkedLedger | None:
        if not await self._create_lock(ledger):
            return None
        found = await self.read([ledger])
        if found:
            return found[0]
        await self._prune(ledger)
        await self._unlock(ledger)
        return None

    async def _create_lock(self, ledger: LedgerId) -> bool:
        """Whether this session has the lock now."""
        path = self._paths.lock(ledger)
        try:
            await self._zk.create(path, encode_holder(self._name), ephemeral=True, parents=True)
        except NodeExistsError:
            stat = await self._zk.exists(path)
            return stat is not None and stat.ephemeral_owner == self._zk.session_id
        return True

    def _name_of_lock(self, ledger: LedgerId) -> str:
        return self._paths.lock(ledger).rpartition("/")[2]

    async def _unlock(self, ledger: LedgerId) -> None:
        path = self._paths.lock(ledger)
        stat = await self._zk.exists(path)
        if stat is not None and stat.ephemeral_owner == self._zk.session_id:
            try:
                await self._zk.delete(path, ANY_VERSION)
            except NoNodeError:
                return

    async def _prune(self, ledger: LedgerId) -> None:
        """Delete the directories of a mark that is gone, as far as they are empty."""
        parent = self._paths.mark(ledger).rpartition("/")[0]
        while parent != self._paths.marks:
            try:
                await self._zk.delete(parent, ANY_VERSION)
            except NotEmptyError:
                return
            except NoNodeError:
                pass
            parent = parent.rpartition("/")[0]

    async def _groups(self, path: str, levels: int, first: str = "") -> AsyncIterator[str]:
        """The digits of all directories `levels` below `path`, in order, from the digits `first` on."""
        for name in sorted(filter(self._paths.is_group, await self._children(path))):
            if name < first[: len(name)]:
                continue
            if levels == 1:
                yield name
                continue
            deeper_first = first[len(name) :] if first.startswith(name) else ""
            async for deeper in self._groups(f"{path}/{name}", levels - 1, deeper_first):
                yield name + deeper

    async def _children(self, path: str) -> list[str]:
        try:
            return (await self._zk.children(path, fresh=True))[0]
        except NoNodeError:
            return []


def _decoded(data: bytes) -> Mark | None:
    try:
        return decode_mark(data)
    except DamagedError:
        return None
