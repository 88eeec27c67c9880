"""The metadata of streams in objects as the store needs it: an image that was read, or one that is certainly new."""

from __future__ import annotations

from dlog.errors import DLogError
from dlog.model.object_streams import NodeId
from dlog.objects.image import Image
from dlog.objects.operations import DeleteKey, Done, Operation, Result
from dlog.stores.contract import StoreUnavailableError
from dlog.stores.s3.errors import store_error
from dlog.stores.s3.places import BARRIER_KEY
from dlog.stores.s3.ports import ObjectMetadata


class MetadataView:
    """Wraps the port. timeout_s: how long an image may take to be read, or to reach a version."""

    def __init__(self, port: ObjectMetadata, timeout_s: float) -> None:
        self.port = port
        self._timeout_s = timeout_s

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
        records nothing. Raises StoreError."""
        done = await self.ask(DeleteKey(BARRIER_KEY))
        assert isinstance(done, Done)
        await self.reach(done.version)
        return self._image()

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
