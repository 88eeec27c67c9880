"""Actor of a stream's deletion: the state machine of dlog/log/stream_deletion.py with its stores, metadata and
mailbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.store_executor import StoreExecutor
from dlog.io.driver import Driver
from dlog.io.metadata import VersionedStore
from dlog.log.messages import DeleteStream
from dlog.log.options import OwnerOptions
from dlog.log.stream_deletion import StreamDeletion as DeletionMachine
from dlog.model.ids import StreamName
from dlog.model.segment import StreamKey
from dlog.ownership.claim import Claimant
from dlog.stores.contract import SegmentStore


class StreamDeletionActor:
    """One attempt to delete a stream; `delete` is called once."""

    def __init__(
        self,
        stream: StreamName,
        claimant: Claimant,
        *,
        metadata: VersionedStore,
        stores: Mapping[str, SegmentStore],
        options: OwnerOptions,
    ) -> None:
        self.name = f"stream_deletion {stream} {claimant.nonce}"
        self._lived = False
        self._desk = StoreExecutor(stream, stores, self._post)
        self._driver = Driver(
            DeletionMachine(StreamKey(stream), claimant, options),
            name=self.name,
            send=self._desk.send,
            metadata=metadata,
        )

    async def delete(self, request: DeleteStream) -> None:
        """Claim, fence, mark as deleted. Raises the state machine's errors. Cancelling stops the wait only."""
        await self._driver.ask(request)

    def stop(self) -> None:
        self._driver.stop()

    async def run(self) -> None:
        """Run until the end. A second call returns at once: a failed deletion is not restarted."""
        if self._lived:
            return
        self._lived = True
        try:
            self._desk.open(self._driver.start)
            await self._driver.run()
        finally:
            await self._desk.close()
            self._desk.let_go()

    def _post(self, fact: Any) -> None:
        self._driver.post(fact)
