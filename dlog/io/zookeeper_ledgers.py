"""Ledger metadata in ZooKeeper, in the layout of BookKeeper's HierarchicalLedgerManager.

Invariants:
- The version of a ledger is its znode's. The token in it (cToken) distinguishes our create from another client's.
- An id is never assigned twice, so neither is a version of one; callers that give ids see to it themselves. After a
  restore of ZooKeeper the sequence is too low: a ledger's creator learns from bookies that an id is in use, and draws
  the next.
- Recovery and garbage collection decide by these reads, so reads and lists are fresh.
- Parents are created when missing and removed when empty, in any interleaving.
- A znode made to draw an id is deleted at once; one that a cancelled call left behind by the next call, at the latest
  with the session.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from dlog.errors import MetadataUnavailableError
from dlog.io.metadata import Unsubscribe
from dlog.io.zookeeper import ANY_VERSION, ZooKeeper
from dlog.io.zookeeper_layout import SHORT_ID_MAX, LedgerPaths
from dlog.io.zookeeper_protocol import (
    BadVersionError,
    ConnectionLossError,
    Create,
    Delete,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from dlog.machine import Conflict, Missing, Outcome, OutcomeUnknown, Versioned
from dlog.model.ids import LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.wire import ledger_metadata

_HIGH = "HOB-"  # directories of idgen-long: the upper 32 bits of the ids drawn there
_HIGH_NAME = re.compile(r"HOB-([0-9]{10})\Z", re.ASCII)
_LOW_MAX = 2**31 - 1
_LEFTOVERS_AT_ONCE = 1_000  # deleted in one multi


class ZooKeeperLedgers:
    """The ledgers' part of the metadata port."""

    def __init__(self, zk: ZooKeeper, paths: LedgerPaths, rng: random.Random) -> None:
        self._zk = zk
        self._paths = paths
        self._rng = rng
        self._is_long = False  # short ids are used up, as found by this or another process
        self._id_nodes: set[str] = set()  # made by calls that are still going to delete them
        self._has_leftovers = False  # a call may have left such znodes behind

    async def read(self, ledger: LedgerId) -> Versioned | Missing | OutcomeUnknown:
        """Read metadata. Raises DamagedError or UnsupportedVersionError if we cannot decode it."""
        try:
            data, stat = await self._zk.get(self._paths.ledger(ledger), fresh=True)
        except NoNodeError:
            return Missing()
        except MetadataUnavailableError as error:
            return OutcomeUnknown(error.message)
        return Versioned(ledger_metadata.decode(data), stat.version)

    async def compare_and_set(self, ledger: LedgerId, value: LedgerMetadata, version: object) -> Outcome:
        try:
            if version is None:
                return await self._create(ledger, value)
            assert isinstance(version, int)
            data = ledger_metadata.encode(replace(value, ctoken=0))
            stat = await self._zk.set(self._paths.ledger(ledger), data, version)
        except NoNodeError:
            return Missing()
        except BadVersionError:
            return Conflict()
        except MetadataUnavailableError as error:
            return OutcomeUnknown(error.message)
        return Versioned(value, stat.version)

    async def delete(self, ledger: LedgerId) -> None:
        path = self._paths.ledger(ledger)
        try:
            await self._zk.delete(path, ANY_VERSION)
        except NoNodeError:
            return
        parent = path.rpartition("/")[0]
        while parent != self._paths.root:
            try:
                await self._zk.delete(parent, ANY_VERSION)
            except (NotEmptyError, NoNodeError):
                return
            parent = parent.rpartition("/")[0]

    def watch(self, ledger: LedgerId, callback: Callable[[], None]) -> Unsubscribe:
        return self._zk.watch_data(self._paths.ledger(ledger), callback)

    async def new_id(self, ahead: int = 1) -> LedgerId:
        """Draw `ahead` ids from the sequence and return the last. A lost reply wastes as many ids."""
        if not self._is_long:
            if await self._zk.exists(self._paths.long_ids) is None:
                number = await self._number(f"{self._paths.short_ids}/ID-", ahead)
                if 0 <= number <= SHORT_ID_MAX:
                    return LedgerId(number)
            self._is_long = True
        return await self._new_long_id(ahead)

    async def ids(self) -> AsyncIterator[LedgerId]:
        """All ledgers: short ids in order, then long ids in order."""
        for name in sorted(await self._children(self._paths.root, fresh=True), key=lambda name: (len(name), name)):
            if LedgerPaths.is_ledger_directory(name):
                async for ledger in self._below(f"{self._paths.root}/{name}", 1 if len(name) == 2 else 3):
                    yield ledger

    # ---- underneath ------------------------------------------------------------------------------------------------

    async def _create(self, ledger: LedgerId, value: LedgerMetadata) -> Outcome:
        token = value.ctoken or self._rng.getrandbits(63) or 1
        path = self._paths.ledger(ledger)
        try:
            created = await self._zk.create(path, ledger_metadata.encode(replace(value, ctoken=token)), parents=True)
        except NodeExistsError:
            found = await self.read(ledger)
            if isinstance(found, Versioned) and found.value.ctoken == token:
                return found
            return found if isinstance(found, OutcomeUnknown) else Conflict()
        return Versioned(value, created.stat.version)

    async def _number(self, prefix: str, ahead: int) -> int:
        """Make `ahead` sequential znodes, delete them (or let the session do it), and return the last one's number."""
        if self._has_leftovers:
            await self._delete_leftovers()  # before making more: else calls that are always cancelled pile them up
        paths: list[str] = []
        is_clean = False
        try:
            if ahead > 1:
                await self._zk.ensure_path(prefix.rpartition("/")[0])
                made = await self._zk.multi([Create(prefix, ephemeral=True, sequential=True)] * ahead)
            else:
                made = [await self._zk.create(prefix, ephemeral=True, sequential=True, parents=True)]
            paths = [created.path for created in made]
            self._id_nodes.update(paths)
            with contextlib.suppress(MultiFailedError, ConnectionLossError):
                await self._zk.multi([Delete(path) for path in paths])
                is_clean = True
        finally:
            self._id_nodes.difference_update(paths)
            self._has_leftovers = self._has_leftovers or not is_clean
        return int(paths[-1].removeprefix(prefix))

    async def _delete_leftovers(self) -> None:
        """Delete znodes that cancelled calls of this session made to draw an id.

        Replies come in the order of requests, so a call that made a listed znode has recorded it in `_id_nodes` by now,
        unless it was cancelled.
        """
        self._has_leftovers = False
        is_clean = False
        try:
            made = await self._zk.ephemerals(self._paths.short_ids)  # also of long ids: same path prefix
            left = [path for path in made if path not in self._id_nodes]
            for first in range(0, len(left), _LEFTOVERS_AT_ONCE):
                await self._zk.multi([Delete(path) for path in left[first : first + _LEFTOVERS_AT_ONCE]])
            is_clean = True
        except MultiFailedError:
            pass  # one of them is gone already; the next call lists them again
        finally:
            self._has_leftovers = self._has_leftovers or not is_clean

    async def _new_long_id(self, ahead: int) -> LedgerId:
        await self._zk.ensure_path(self._paths.long_ids)
        while True:
            directories = [_HIGH_NAME.match(name) for name in await self._children(self._paths.long_ids)]
            high = max((int(match[1]) for match in directories if match is not None), default=0)
            if high:
                low = await self._number(f"{self._paths.long_ids}/{_HIGH}{high:010d}/ID-", ahead)
                if 0 <= low < _LOW_MAX:
                    return LedgerId(high << 32 | low)
            await self._zk.ensure_path(f"{self._paths.long_ids}/{_HIGH}{high + 1:010d}")

    async def _children(self, path: str, *, fresh: bool = False) -> list[str]:
        try:
            return (await self._zk.children(path, fresh=fresh))[0]
        except NoNodeError:
            return []

    async def _below(self, path: str, levels: int) -> AsyncIterator[LedgerId]:
        for name in sorted(await self._children(path)):
            child = f"{path}/{name}"
            if levels:
                async for deep in self._below(child, levels - 1):
                    yield deep
            elif (ledger := self._paths.ledger_of(child)) is not None:
                yield ledger
