"""What the store `s3` needs of its process: the metadata of streams in objects, and actors that run its machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

from dlog.events import Event
from dlog.machine import Fact, Machine
from dlog.model.object_streams import NodeId
from dlog.objects.image import Image
from dlog.objects.operations import Operation, Result
from dlog.stores.object_storage.locations import Location


class ObjectMetadata(Protocol):
    """The metadata of streams in objects, as this process sees it, and the way to the controller."""

    @property
    def image(self) -> Image:
        """All metadata as of image.version. Raises StoreUnavailableError until it was read once."""
        ...

    async def ask(self, operation: Operation) -> Result:
        """Have the controller decide an operation. A lost answer, no controller, a change of controller: asked again
        until a deadline, then StoreUnavailableError (outcome_unknown as it is). Raises its refusals
        (dlog/objects/errors.py). Once it returns Done(version) the image here may still be older: wait_version."""
        ...

    async def wait_version(self, version: int, timeout_s: float) -> bool:
        """Wait until the image has applied so many records; whether it has."""
        ...


class Processes(Protocol):
    """What a process knows of the others of its cluster."""

    @property
    def has_controller(self) -> bool:
        """Whether the controller is in this process, which then finishes the work of nodes that are gone."""
        ...

    async def live_nodes(self) -> Collection[NodeId]:
        """The nodes of all write proxies that are registered now. Raises DLogError."""
        ...


#: finds the folder of this cluster's objects, for this incarnation of the metadata stream; raises StoreError
FindObjects = Callable[[], Awaitable[Location]]


class MachineActor(Protocol):
    """A machine that runs: dlog/io/driver.py."""

    def post(self, fact: Fact) -> None:
        """Hand it a fact. Dropped after the end."""
        ...

    def submit(self, request: Any, sink: Callable[[Any], None]) -> None:
        """Ask the machine; `sink` gets the result or a DLogError. Raises ClosedError, OverCapacityError."""
        ...

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """`submit` with a future. Cancelling it stops the wait only. Raises what `submit` raises."""
        ...

    def stop(self) -> None:
        """Refuse further requests, and end."""
        ...

    async def wait_ended(self) -> None: ...


class StartMachine(Protocol):
    """Starts actors for machines."""

    def __call__(
        self,
        name: str,
        machine: Machine,
        *,
        send: Callable[[Any, Any], None],
        on_event: Callable[[Event], None],
        on_end: Callable[[], None],
    ) -> MachineActor:
        """Run a machine. send: performs its Send effects. on_end: called once when it has ended, for any reason."""
        ...
