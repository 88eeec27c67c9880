"""The metadata of streams in objects as the store needs it: an image that was read, or one that is certainly new.

Invariants:
- an image that is certainly new has everything that was recorded before the call: calls share a question to the
  controller only if it was sent after all of them.
"""

from __future__ import annotations

import asyncio
from functools import partial

from dlog.errors import DLogError, to_raise
from dlog.model.object_streams import NodeId
from dlog.objects.image import Image
from dlog.objects.operations import DeleteKey, Done, Operation, Result
from dlog.stores.contract import ReaderClosedError, StoreError, StoreUnavailableError
from dlog.stores.s3.errors import store_error
from dlog.stores.s3.places import BARRIER_KEY
from dlog.stores.s3.ports import ObjectMetadata
from dlog.stores.s3.tasks import Tasks

SHARED_S = 1.0  # how long calls wait for the question before theirs; then the next one goes beside it


class MetadataView:
    """Wraps the port. timeout_s: how long an image may take to be read, or to reach a version."""

    def __init__(self, port: ObjectMetadata, timeout_s: float, tasks: Tasks) -> None:
        self.port = port
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._asked: asyncio.Future[int] | None = None  # the version, of the last question that was sent
        self._next: asyncio.Future[int] | None = None  # of the one that is not sent yet

    @property
    def version(self) -> int:
        """Of the image here; -1: it was not read yet."""
        try:
            return self.port.image.version
        except DLogError:
            return -1

    def node_epoch(self, node: NodeId) -> int:
        """The epoch of a node in the image here; 0: it has none."""
        try:
            known = self.port.image.nodes.get(node)
        except DLogError:
            return 0
        return 0 if known is None else known.node_epoch

    async def read(self) -> Image:
        """The image here, which may be older than the controller's. Raises StoreError."""
        try:
            return self.port.image
        except StoreUnavailableError:
            await self.port.wait_version(0, self._timeout_s)
            return self._image()
        except DLogError as error:
            raise store_error(error) from error

    def _image(self) -> Image:
        try:
            return self.port.image
        except DLogError as error:
            raise store_error(error) from error

    async def fresh(self) -> Image:
        """The image, with everything that was recorded before this call. Costs a question to the controller, which
        records nothing; calls that come while one is under way share the next one. Raises StoreError."""
        version = self._next
        if version is None:
            version = asyncio.get_running_loop().create_future()
            asking = self._tasks.start(partial(self._ask_version, version), "asks for the newest version of metadata")
            asking.add_done_callback(partial(_asked_or_closed, version))
            self._next = version
        await asyncio.wait((version,))
        try:
            number = version.result()
        except StoreError as error:
            raise to_raise(error) from error.__cause__
        await self.reach(number)
        return self._image()

    async def _ask_version(self, version: asyncio.Future[int]) -> None:
        """Ask the controller, after the question before, and settle the future."""
        if self._asked is not None:
            await asyncio.wait((self._asked,), timeout=SHARED_S)
        self._asked, self._next = version, None
        try:
            done = await self.ask(DeleteKey(BARRIER_KEY))
        except StoreError as error:
            version.set_exception(error)
            return
        assert isinstance(done, Done)
        version.set_result(done.version)

    async def ask(self, operation: Operation) -> Result:
        """Ask the controller. Raises StoreError."""
        try:
            return await self.port.ask(operation)
        except DLogError as error:
            raise store_error(error) from error

    async def reach(self, version: int) -> None:
        """Wait until the image has so many records. Raises StoreUnavailableError."""
        if not await self.port.wait_version(version, self._timeout_s):
            raise StoreUnavailableError(
                f"this process lags behind the metadata of streams in objects: has={self.version} needs={version}"
            )

    async def wait_newer(self, timeout_s: float) -> None:
        """Wait for the next record, at most so long."""
        await self.port.wait_version(self.version + 1, timeout_s)


def _asked_or_closed(version: asyncio.Future[int], _: asyncio.Task[None]) -> None:
    """The question is over; nobody may be waiting for it any more."""
    if not version.done():
        version.set_exception(ReaderClosedError("the store is closed, open another one"))
    version.exception()
