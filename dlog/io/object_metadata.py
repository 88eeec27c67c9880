"""The metadata of streams in objects, as one process sees it, and the way to its controller.

Invariants:
- The image is one that the controller recorded, perhaps an older one; it never goes back.
- An operation is sent again until it is answered or the deadline is over. That is safe, since the controller answers a
  repeat of what was done as done.
- Nothing is read, and nothing is asked, before the first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Protocol

from dlog.errors import (
    ConnectionLostError,
    DamagedError,
    DLogError,
    OverCapacityError,
    OwnedElsewhereError,
    Remedy,
    RequestTimeoutError,
    UnavailableError,
    UnsupportedVersionError,
    to_raise,
)
from dlog.io.metadata import Membership, VersionedStore
from dlog.io.metadata_stream import THREAD_BYTES, FindRoot, MetadataReplay, MetadataStreamReader, ReplayPoint
from dlog.objects.errors import ControllerLostError
from dlog.objects.image import Image
from dlog.objects.operation_codec import decode_answer, encode_operation
from dlog.objects.operations import CloseStreams, CommitCompaction, CommitUpload, Operation, Result
from dlog.options import check_positive, option
from dlog.stores.contract import SegmentStore, StoreUnavailableError
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Objects
from dlog.wire.proxy import ObjectsAsk, Question

HOPS_MAX = 3  # redirects followed in one attempt
FIRST_WAIT_S = 0.05  # for records at the tail, before the image is known
_SILENT = (ConnectionLostError, RequestTimeoutError, OwnedElsewhereError)  # they do not say why nothing is decided
_LARGE = (CloseStreams, CommitUpload, CommitCompaction)  # encoded in a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMetadataOptions:
    """Time limits of a process that uses the metadata of streams in objects."""

    ask_deadline_s: float = option(30.0, "how long an operation on metadata is tried")
    attempt_s: float = option(10.0, "how long a proxy may take to answer one attempt")
    retry_first_s: float = option(0.05, "pause after the second failure in a row; doubles up to retry_max_s")
    retry_max_s: float = option(1.0, "longest pause between two attempts")
    poll_s: float = option(5.0, "how long one wait for new records of metadata takes")
    recheck_s: float = option(30.0, "time after which the list of the metadata stream's segments is read again")

    def __post_init__(self) -> None:
        check_positive(self, "ask_deadline_s", "attempt_s", "retry_first_s", "retry_max_s", "poll_s", "recheck_s")


class OperationSender(Protocol):
    """Brings operations to the controller."""

    @property
    def has_controller(self) -> bool:
        """Whether the controller is in this process."""
        ...

    def offer_image(self, point: Callable[[], ReplayPoint | None]) -> None:
        """A controller that begins in this process may go on from what this process knows. point: shows how far that
        is."""
        ...

    async def send(self, operation: bytes) -> bytes:
        """Send an encoded operation and return the encoded answer; one attempt. Raises errors, whose outcome_unknown
        shows whether it may have been carried out. The next attempt takes another way."""
        ...


class Link(Protocol):
    """A connection to a proxy."""

    def ask(self, question: Callable[[int], Question]) -> Awaitable[Any]:
        """The map of Done. Raises the proxy's error, or ConnectionLostError."""
        ...

    def close(self) -> None: ...


class _Way:
    """The connection to one proxy. failure: why it could not be opened the last time."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.opening = asyncio.Lock()
        self.failure: UnavailableError | None = None


class ProxySender:
    """Sends operations to the proxy that owns the metadata stream, which it finds by asking any write proxy.

    While the owner changes, questions to several proxies are on their way at the same time, each on a connection to its
    proxy. Once the owner answered one, the connections to the others are closed: their questions are sent again.

    open_link: connects to the proxy that is registered under an address. Raises UnavailableError.
    """

    has_controller = False

    def __init__(
        self,
        members: Membership,
        open_link: Callable[[str], Awaitable[Link]],
        rng: Random,
        *,
        attempt_s: float = ObjectMetadataOptions().attempt_s,
    ) -> None:
        self.suspect: str | None = None  # address that failed lately
        self._members = members
        self._open_link = open_link
        self._rng = rng
        self._attempt_s = attempt_s
        self._owner: str | None = None  # address that answered, or to which a proxy redirected
        self._ways: dict[str, _Way] = {}  # by address

    def offer_image(self, point: Callable[[], ReplayPoint | None]) -> None:
        """Does nothing: no controller begins here."""

    @property
    def knows_owner(self) -> bool:
        """Whether a proxy answered as the owner, or was named as such, and has not failed since."""
        return self._owner is not None

    def forget_owner(self) -> None:
        """Ask any proxy the next time."""
        self._owner = None

    async def send(self, operation: bytes) -> bytes:
        return await self.send_to(self._owner or await self._any(), operation)

    async def send_to(self, address: str, operation: bytes) -> bytes:
        """As `send`, by this proxy first."""
        for _ in range(HOPS_MAX):
            try:
                return await self._send(address, operation)
            except OwnedElsewhereError as error:
                self._owner = error.location
                if error.location in (None, address):
                    raise
                address = error.location
        raise OwnedElsewhereError("the owner of the metadata stream is changing, try again", location=address)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        self._keep(None)

    def controller_answered(self, address: str | None) -> None:
        """The proxy at this address has the controller; None: this process. What others were asked they may never
        answer, such as an owner that is frozen: that is sent again."""
        self.suspect = None
        if len(self._ways) > (address in self._ways):
            self._keep(address)

    async def _send(self, address: str, operation: bytes) -> bytes:
        suspect = self.suspect if self.suspect != address else None
        link: Link | None = None
        try:
            async with asyncio.timeout(self._attempt_s):
                link = await self._connected(address)
                reply = await link.ask(lambda number: ObjectsAsk(number, suspect, operation))
        except TimeoutError:
            self._fail(address, link)
            raise RequestTimeoutError(f"the proxy does not answer: address={address}") from None
        except ConnectionLostError:
            self._fail(address, link)
            raise
        self._owner = address
        self.controller_answered(address)
        parts = reply.get("answer") if isinstance(reply, dict) else None
        if not isinstance(parts, list) or not all(isinstance(part, bytes) for part in parts):
            raise UnavailableError(f"the proxy's answer is not one to an operation: address={address}")
        return b"".join(parts)

    async def _connected(self, address: str) -> Link:
        """The connection to a proxy. Calls that wait for the same one to be opened share the outcome."""
        way = self._ways.get(address)
        if way is None:
            way = self._ways[address] = _Way()
        failure = way.failure
        async with way.opening:
            if way.link is not None:
                return way.link
            if way.failure is failure:
                try:
                    way.link = await self._open_link(address)
                except UnavailableError as error:
                    way.failure = error
                else:
                    return way.link
            self._doubt(address)
            assert way.failure is not None
            raise UnavailableError(way.failure.message, outcome_unknown=False)

    async def _any(self) -> str:
        members = self._members.known_members().write_proxies or (await self._members.members()).write_proxies
        addresses = sorted(info.address for info in members.values())
        others = [address for address in addresses if address != self.suspect] or addresses
        if not others:
            raise UnavailableError("no write proxy is registered: start one, or try again", outcome_unknown=False)
        return self._rng.choice(others)

    def _fail(self, address: str, link: Link | None) -> None:
        """A proxy does not answer. link: that the question was sent on; None: it was not opened in time."""
        way = self._ways.get(address)
        if link is not None and (way is None or way.link is not link):
            return  # another question on it failed before, and there may be a newer connection by now
        self._doubt(address)
        if way is not None and link is not None:
            way.link = None
            link.close()

    def _doubt(self, address: str) -> None:
        self.suspect = address
        if self._owner == address:
            self._owner = None

    def _keep(self, address: str | None) -> None:
        """Close the connections to all other proxies, but for those that are being opened."""
        ways, self._ways = self._ways, {}
        for other, way in ways.items():
            if other == address or way.opening.locked():
                self._ways[other] = way
            elif way.link is not None:
                link, way.link = way.link, None
                link.close()


class ObjectMetadataClient:
    """Implements ObjectMetadata of dlog/stores/s3/ports.py: `async with ObjectMetadataClient(...) as metadata`.

    stores: those that may have segments of the metadata stream. find_root: below it are the objects. sender: the way to
    the controller.
    """

    def __init__(
        self,
        metadata: VersionedStore,
        stores: Mapping[str, SegmentStore],
        objects: Objects,
        find_root: FindRoot,
        sender: OperationSender,
        rng: Random,
        options: ObjectMetadataOptions | None = None,
    ) -> None:
        self._metadata = metadata
        self._stores = stores
        self._objects = objects
        self._find_root = find_root
        self._sender = sender
        self._rng = rng
        self._options = options or ObjectMetadataOptions()
        self._image: Image | None = None
        self._replay: MetadataReplay | None = None  # that has this image, and goes on
        self._incarnation = ""
        self._defect: DLogError | None = None
        self._obstacle: DLogError | None = None
        self._told = (
            ""  # why the controller decides nothing, as was answered last; empty: it decides, or nobody said why
        )
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()  # replaced each time it is set
        self._tasks: asyncio.TaskGroup | None = None
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ObjectMetadataClient:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._following = self._tasks.create_task(self._follow(), name="follow the metadata of streams in objects")
        self._sender.offer_image(self._point)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None and self._following is not None
        self._following.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    # ---- the image --------------------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """All metadata as of image.version. Raises StoreUnavailableError until it was read once; DamagedError,
        UnsupportedVersionError if it cannot be read."""
        self._wanted.set()
        if self._defect is not None:
            raise to_raise(self._defect)
        if self._image is None:
            why = f": {self._obstacle.message}" if self._obstacle is not None else ""
            raise StoreUnavailableError(f"the metadata of streams in objects was not read yet, try again{why}")
        return self._image

    @property
    def folder(self) -> str:
        """The first part of the keys of objects (dlog/objects/keys.py): it names the metadata stream's incarnation.
        Raises as `image` does, also while there is no metadata stream: the first operation creates it."""
        _ = self.image
        if not self._incarnation:
            raise StoreUnavailableError("the metadata stream was not read yet, try again")
        return self._incarnation

    async def wait_version(self, version: int, timeout_s: float) -> bool:
        """Wait until the image has applied so many records; whether it has. 0: until it was read once."""
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._defect is None and (self._image is None or self._image.version < version):
                    await self._news.wait()
        return self._defect is None and self._image is not None and self._image.version >= version

    async def find_folder(self) -> Location:
        """Where the objects of this incarnation of the metadata stream are; waits until the stream was read. Raises
        StoreUnavailableError, also while there is no metadata stream: the first operation creates it."""
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.attempt_s):
                while not self._incarnation and self._defect is None:
                    await self._news.wait()
        return (await self._find_root()).below(self.folder)

    async def _follow(self) -> None:
        await self._wanted.wait()
        options = self._options
        reader = MetadataStreamReader(self._metadata, self._stores, recheck_s=options.recheck_s)
        replay = MetadataReplay(reader, self._objects, self._find_root)
        failures = 0
        try:
            while True:
                try:
                    await replay.step(options.poll_s if replay.image is not None else FIRST_WAIT_S)
                except (DamagedError, UnsupportedVersionError) as error:
                    self._defect = error
                    self._notify()
                    await asyncio.sleep(options.recheck_s)
                    await reader.close()
                    replay = MetadataReplay(reader, self._objects, self._find_root)
                    reader.go_to(None)
                except DLogError as error:
                    self._obstacle = error
                    await asyncio.sleep(self._pause_s(failures))
                    failures += 1
                else:
                    failures = 0
                    self._publish(replay)
        finally:
            await reader.close()

    def _point(self) -> ReplayPoint | None:
        return self._replay.point() if self._replay is not None and self._defect is None else None

    def _publish(self, replay: MetadataReplay) -> None:
        image = replay.image
        if image is None or (self._image is not None and self._image.version > image.version):
            return
        self._image, self._replay, self._incarnation = image, replay, replay.incarnation
        self._defect = self._obstacle = None
        self._notify()

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # ---- operations -------------------------------------------------------------------------------------------------

    async def ask(self, operation: Operation) -> Result:
        """Have the controller decide an operation; once it returns Done(version), `wait_version` waits for its effect.

        Raises the controller's refusals (dlog/objects/errors.py); OperationTooLargeError; StoreUnavailableError after
        the deadline, whose outcome_unknown shows whether it may have been recorded. Cancelling stops the wait only.
        """
        self._wanted.set()
        if isinstance(operation, _LARGE):
            data = await asyncio.to_thread(encode_operation, operation)
        else:
            data = encode_operation(operation)
        options = self._options
        last: DLogError | None = None
        unknown, is_out, failures = False, False, 0
        try:
            async with asyncio.timeout(options.ask_deadline_s):
                while True:
                    try:
                        is_out = True
                        answer = await self._decoded(await self._sender.send(data))
                        is_out = False
                        if not isinstance(answer, ControllerLostError | OverCapacityError):
                            self._told = ""
                            if not isinstance(answer, DLogError):
                                return answer
                            raise answer
                        last = answer
                    except DLogError as error:
                        if not is_out or error.remedy not in (Remedy.RETRY, Remedy.FOLLOW, Remedy.REOPEN):
                            raise
                        last = error
                    if not isinstance(last, _SILENT):
                        self._told = last.message
                    is_out, unknown = False, unknown or last.outcome_unknown
                    await asyncio.sleep(self._pause_s(failures))
                    failures += 1
        except TimeoutError:
            why = self._told or (last.message if last is not None else "no answer")
            raise StoreUnavailableError(
                f"no controller of streams in objects decided within {options.ask_deadline_s:g} s: {why}",
                outcome_unknown=unknown or is_out,
            ) from None

    async def _decoded(self, answer: bytes) -> Result | DLogError:
        if len(answer) > THREAD_BYTES:
            return await asyncio.to_thread(decode_answer, answer)
        return decode_answer(answer)

    def _pause_s(self, failures: int) -> float:
        """0 after the first failure, since most owners are replaced at once."""
        if not failures:
            return 0.0
        whole = min(self._options.retry_max_s, self._options.retry_first_s * 2.0 ** min(failures - 1, 30))
        return whole * (0.5 + 0.5 * self._rng.random())
