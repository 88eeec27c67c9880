"""Hosts the controller of streams in objects while this process owns the metadata stream, and sends operations to it.

Invariants:
- An owner of the metadata stream has at most one controller that began to record; if that is deposed, the owner ends,
  and the next operation claims the stream anew.
- The controller ends before its owner hands the stream over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from actors.object_controller import ObjectControllerActor, ObjectControllerOptions
from actors.stream_owner import StreamOwnerActor
from actors.supervisor import OneTimeEvent, Supervisor
from dlog.errors import DLogError, OwnedElsewhereError, StreamNotFoundError, StreamUnavailableError, UnavailableError
from dlog.events import Event
from dlog.io.metadata_stream import (
    THREAD_BYTES,
    FindRoot,
    MetadataReplay,
    MetadataStreamReader,
    ReplayPoint,
    create_metadata_stream,
)
from dlog.io.object_metadata import ProxySender
from dlog.model.ids import METADATA_STREAM, StreamName
from dlog.objects.errors import ControllerLostError
from dlog.objects.operation_codec import decode_operation, encode_answer
from dlog.objects.operations import NodeIsOpen, Result
from dlog.objects.options import ControllerOptions
from dlog.options import MiB
from dlog.stores.contract import MisconfiguredError, SegmentStore
from dlog.stores.object_storage.port import Objects
from dlog.stores.s3_direct.options import ObjectsOptions
from proxies.proxy_connection import ProxyConnection
from proxies.streams import ProxyMetadata
from proxies.write.owned_streams import OwnedStream, OwnedStreams

RECHECK_S = 30.0
TICK_MIN_S, TICK_MAX_S = 1.0, 10.0  # between two looks at which objects may be deleted


def controller_options(options: ObjectsOptions) -> ObjectControllerOptions:
    """Options of the controller, from the section [objects]."""
    return ObjectControllerOptions(
        tick_s=min(max(options.marked_grace_s, TICK_MIN_S), TICK_MAX_S),
        controller=ControllerOptions(retention_ms=int(options.marked_grace_s * 1000)),
    )


class OperationConnection(ProxyConnection):
    """A connection for operations on metadata: an answer may have many ranges."""

    frame_bytes_max = 64 * MiB


class LocalSender:
    """Sends operations to the controller in this process, or to the proxy that has it. Made before the proxy, which
    attaches itself when it runs.

    Metadata is read to find the owner only while none is known that answers.
    """

    def __init__(self) -> None:
        self._controllers: ObjectControllers | None = None
        self._remote: ProxySender | None = None
        self.point: Callable[[], ReplayPoint | None] = lambda: None  # how far this process follows the metadata

    def attach(self, controllers: ObjectControllers, remote: ProxySender) -> None:
        self._controllers, self._remote = controllers, remote

    def offer_image(self, point: Callable[[], ReplayPoint | None]) -> None:
        """See OperationSender."""
        self.point = point

    @property
    def has_controller(self) -> bool:
        """See OperationSender."""
        return self._controllers is not None and self._controllers.hosts(METADATA_STREAM)

    async def send(self, operation: bytes) -> bytes:
        """See OperationSender (dlog/io/object_metadata.py)."""
        if self._controllers is None or self._remote is None:
            raise UnavailableError("this proxy does not run yet, try again", outcome_unknown=False)
        if self._remote.knows_owner and not self.has_controller:
            try:
                return await self._remote.send(operation)
            except DLogError:
                self._remote.forget_owner()
                raise
        try:
            answer = await self._controllers.ask(operation, self._remote.suspect)
        except StreamUnavailableError:
            raise
        except OwnedElsewhereError as error:
            if error.location is None:
                raise
            return await self._remote.send_to(error.location, operation)
        self._remote.controller_answered(None)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorageAccess:
    """What a write proxy needs to host the controller. find_root: below it are the objects. store: for segments of the
    metadata stream, see `choose_metadata_store`. sender: the proxy attaches itself to it."""

    objects: Objects
    find_root: FindRoot
    store: str
    options: ObjectControllerOptions = field(default_factory=ObjectControllerOptions)
    sender: LocalSender = field(default_factory=LocalSender)


class ObjectControllers:
    """The controllers of this process, one after another. access: None: this process has no object storage."""

    def __init__(
        self,
        owned_streams: OwnedStreams,
        metadata: ProxyMetadata,
        stores: Mapping[str, SegmentStore],
        supervisor: Supervisor,
        access: ObjectStorageAccess | None,
        *,
        on_event: Callable[[Event], None],
    ) -> None:
        self._owned_streams = owned_streams
        self._metadata = metadata
        self._stores = stores
        self._supervisor = supervisor
        self._access = access
        self._on_event = on_event
        self._hosted: tuple[StreamOwnerActor, ObjectControllerActor, OneTimeEvent] | None = None

    def hosts(self, stream: str) -> bool:
        """Whether a controller here needs that this process owns the stream."""
        return stream == METADATA_STREAM and self._hosted is not None and not self._hosted[1].has_ended

    async def ask(self, data: bytes, suspect: str | None = None) -> bytes:
        """Have the controller decide an encoded operation; returns the encoded answer, which may be a refusal.

        Takes the metadata stream over if no other proxy should own it, and creates it if it does not exist. suspect: an
        address that failed the client. Raises OwnedElsewhereError, DamagedError and UnsupportedVersionError (of the
        operation), MisconfiguredError, MetadataUnavailableError, UnavailableError.
        """
        access = self._access
        if access is None:
            raise MisconfiguredError(
                "this proxy has no object storage for the store s3: set `root` in [objects], or ask another proxy"
            )
        if len(data) > THREAD_BYTES:
            operation = await asyncio.to_thread(decode_operation, data)
        else:
            operation = decode_operation(data)
        answer: Result | DLogError
        holding = await self._owned(access, suspect)
        try:
            answer = await self._controller_of(holding, access).ask(operation)
        except DLogError as error:
            answer = error
        if isinstance(answer, NodeIsOpen):
            return await asyncio.to_thread(encode_answer, answer)
        return encode_answer(answer)

    async def release(self, stream: StreamName) -> None:
        """Before the stream is handed over: end the controller once all that it records is confirmed."""
        if self.hosts(stream) and self._hosted is not None:
            _, actor, ended = self._hosted
            actor.stop()
            await ended.wait()

    def gone(self, stream: StreamName) -> None:
        """The stream is not owned here any more."""
        if self.hosts(stream) and self._hosted is not None:
            self._hosted[1].abort()

    async def _owned(self, access: ObjectStorageAccess, suspect: str | None) -> OwnedStream:
        """The metadata stream, owned here."""
        try:
            holding = await self._owned_streams.ask(METADATA_STREAM, None, suspect)
        except StreamNotFoundError:
            await create_metadata_stream(self._metadata, access.store)
            holding = await self._owned_streams.ask(METADATA_STREAM, None, suspect)
        assert isinstance(holding, OwnedStream)
        return holding

    def _controller_of(self, holding: OwnedStream, access: ObjectStorageAccess) -> ObjectControllerActor:
        """The controller of the holding's owner. Raises ControllerLostError if the owner is changing."""
        owner = holding.owner
        if owner is None or not holding.serving or owner.ended:
            raise ControllerLostError("the owner of the metadata stream is changing, ask again", outcome_unknown=False)
        if self._hosted is not None:
            its_owner, actor, _ = self._hosted
            if its_owner is owner and not actor.has_ended:
                return actor
        reader = MetadataStreamReader(self._metadata, self._stores, recheck_s=RECHECK_S)
        actor = ObjectControllerActor(
            owner,
            holding.epoch,
            replay=MetadataReplay(reader, access.objects, access.find_root),
            point=access.sender.point,
            objects=access.objects,
            find_root=access.find_root,
            options=access.options,
            on_event=self._on_event,
            on_end=partial(self._ended, owner),
        )
        self._hosted = owner, actor, self._supervisor.start(actor)
        return actor

    def _ended(self, owner: StreamOwnerActor, actor: ObjectControllerActor, is_deposed: bool) -> None:
        if is_deposed:  # whether its last record is in the log is unknown until a new claim recovers the segment
            self._owned_streams.lost(METADATA_STREAM, owner)
