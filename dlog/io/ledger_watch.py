"""Keeps the metadata of a reader current: reads it again when a watch on the ledger fires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dlog.errors import DLogError, LedgerNotFoundError
from dlog.io.ledger_handles import LedgerReader
from dlog.io.metadata import VersionedStore
from dlog.machine import Missing, Versioned
from dlog.model.ids import LedgerId
from dlog.model.ledger import LedgerKey


class MetadataRefresher:
    """Reads metadata again for a reader when a watch fires. A lost watch only costs time: the tailer polls, too."""

    def __init__(
        self,
        ledger: LedgerId,
        metadata: VersionedStore,
        tasks: asyncio.TaskGroup,
        on_end: Callable[[MetadataRefresher], None],
    ) -> None:
        self._ledger = ledger
        self._metadata = metadata
        self._tasks = tasks
        self._on_end = on_end
        self._reader: LedgerReader | None = None
        self._unsubscribe: Callable[[], None] = nothing
        self._reading: asyncio.Task[None] | None = None
        self._again = False

    def begin(self, reader: LedgerReader) -> None:
        self._reader = reader
        self._unsubscribe = self._metadata.watch(LedgerKey(self._ledger), self._fired)

    def stop(self) -> None:
        self._reader = None
        self._on_end(self)
        self._unsubscribe()
        self._unsubscribe = nothing  # it refers to a method of this object: a cycle
        if self._reading is not None:
            self._reading.cancel()

    def _fired(self) -> None:
        if self._reader is None:
            return
        if self._reading is not None:
            self._again = True
            return
        self._reading = self._tasks.create_task(self._read(), name=f"ledger {self._ledger} watch")

    async def _read(self) -> None:
        try:
            self._again = True
            while self._again:
                self._again = False
                outcome = await self._metadata.read(LedgerKey(self._ledger))
                if self._reader is None:
                    return
                if isinstance(outcome, Versioned):
                    self._reader.learn_metadata(outcome.value)
                elif isinstance(outcome, Missing):
                    self._reader.learn_deleted(LedgerNotFoundError(f"the ledger was deleted: ledger={self._ledger}"))
        except DLogError:
            return  # the watch is a hint only
        finally:
            self._reading = None


def nothing() -> None:
    """Do nothing."""
