"""Creates, deletes and describes streams.

Invariants:
- metadata decides, by compare-and-set, and is changed before anything else when a stream is created or deleted;
- a request names the stream's incarnation, so that a repeated or late one does not change the next stream of the name;
- an interrupted deletion leaves the stream marked as deleted, with a list of what it holds; the next deletion, the next
  creation of the name, or an upkeep round (proxies/write/upkeep.py) completes it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from actors.runtime import TaskScope
from dlog.errors import (
    DLogError,
    InvalidRequestError,
    MetadataUnavailableError,
    OwnedElsewhereError,
    Remedy,
    StaleRequestError,
    StreamExistsError,
    StreamNotFoundError,
    StreamUnavailableError,
)
from dlog.events import Event, SegmentDeleted, SegmentLeftBehind
from dlog.io.metadata import AbsentStream
from dlog.log.changes import allocated_location
from dlog.log.messages import AlterStream, DeleteStream, StatStream, StreamStat
from dlog.machine import Conflict, Missing, OutcomeUnknown, Versioned
from dlog.model.ids import SegmentNumber, StreamName, stream_name
from dlog.model.segment import StoreSettings, StreamKey, StreamMetadata, StreamSettings
from dlog.stores.contract import SegmentRef, SegmentStore, StoreUnavailableError
from dlog.stores.kinds import not_configured
from dlog.wire.stream_metadata import settings_from_map, settings_to_map
from proxies import catalog
from proxies.streams import ProxyMetadata, current_incarnation, read_incarnation, read_stream
from proxies.write.owned_streams import Advisor, OwnedStreams
from proxies.write.ownership_advisor import ClaimHere, GoElsewhere

SEGMENT_BYTES_MIN = 64 * 1024
SEGMENT_AGE_S_MIN = 1
DELETES_AT_ONCE = 8
REMOVED_MAX = 1000  # a stream with at most so many segments is removed before the reply, a longer one after it
REMOVALS_MAX = 16  # long streams that one process removes at a time; later requests or upkeep rounds do the others


@dataclass(frozen=True, slots=True)
class Removed:
    """Progress of a deletion. segments: number deleted by this call. is_removed: nothing is left. left: segments that
    are deleted in the background."""

    segments: int
    is_removed: bool
    left: int = 0


class _DeleteResult(enum.Enum):
    """Result of deleting one segment."""

    DELETED = 1
    GONE = 2  # or so damaged that a retry cannot help
    LATER = 3


class Admin:
    """Executes requests about whole streams."""

    def __init__(
        self,
        metadata: ProxyMetadata,
        stores: Mapping[str, SegmentStore],
        owned_streams: OwnedStreams,
        placement: Advisor,
        tasks: TaskScope,
        *,
        on_event: Any,
    ) -> None:
        """tasks: for work that goes on after the reply."""
        self._metadata = metadata
        self._stores = stores
        self._written = [name for name, store in stores.items() if store.capabilities.is_written]  # the default first
        self._owned_streams = owned_streams
        self._placement = placement
        self._tasks = tasks
        self._removing: set[tuple[str, bool]] = set()  # incarnation, and whether `force`
        self._listings = catalog.Listings(metadata)
        self._on_event = on_event

    async def incarnation(self, name: str) -> dict[str, Any]:
        """The stream's current incarnation. Raises InvalidStreamNameError, MetadataUnavailableError."""
        return await current_incarnation(self._metadata, stream_name(name))

    async def check_incarnation(self, name: str, incarnation: str) -> None:
        """Raises StreamNotFoundError if this incarnation of the stream is gone, MetadataUnavailableError."""
        await read_incarnation(self._metadata, stream_name(name), incarnation)

    async def create(self, name: str, settings: Mapping[str, Any], incarnation: str, deletions: int) -> dict[str, Any]:
        """Create a stream with this incarnation. Idempotent. deletions: the count of deletions when it was requested.

        Raises InvalidStreamNameError, InvalidRequestError, StreamExistsError, StaleRequestError (streams were deleted
        since: this request can never succeed), MetadataUnavailableError (the stream may exist).
        """
        stream = stream_name(name)
        chosen = self._settings(settings, StreamSettings(store=self._written[0]))
        made = StreamMetadata(name=stream, settings=chosen, incarnation=incarnation)
        done = {"settings": settings_to_map(made.settings)}
        if await self._has_incarnation(stream, incarnation):
            return done
        self._check_capacity(made.settings)
        removed = await self._remove_or_begin(stream, None, force=False)
        if removed.left:
            raise StreamUnavailableError(
                f"a stream of that name was deleted, and its segments are being deleted: try again: stream={stream} "
                f"segments={removed.left}"
            )
        if not removed.is_removed:
            raise StreamUnavailableError(
                "a stream of that name was deleted, and some of its segments cannot be deleted now, as bookies or "
                f"another store do not respond: try again, or if they are lost for good run `dlog delete --force`: "
                f"stream={stream}"
            )
        outcome = await self._metadata.compare_and_set(StreamKey(stream), made, AbsentStream(deletions))
        match outcome:
            case Versioned():
                return done
            case Conflict():
                if await self._has_incarnation(stream, incarnation):
                    return done  # created meanwhile by a retry of the same request
                raise StreamExistsError(f"a stream of that name exists: stream={stream}")
            case Missing():
                raise StaleRequestError(
                    f"streams were deleted since the request was made, make a new one: stream={stream}"
                )
            case OutcomeUnknown(reason):
                raise MetadataUnavailableError(
                    f"it is unknown whether the stream was created: {reason}", outcome_unknown=True
                )

    async def alter(self, name: str, settings: Mapping[str, Any], incarnation: str, version: int) -> dict[str, Any]:
        """Have the owner give these settings of this incarnation of the stream new values. Idempotent. version: of the
        settings that the request was made from.

        Raises StreamNotFoundError, InvalidRequestError, StaleRequestError (the settings were altered since),
        MetadataUnavailableError, and the errors of OwnedStreams.ask.
        """
        stream = stream_name(name)
        base = (await read_incarnation(self._metadata, stream, incarnation)).settings
        wanted = self._settings(settings, base)
        if wanted == base:
            return {"settings": settings_to_map(base)}
        if version != base.version:
            raise StaleRequestError(
                f"the settings were altered since they were read, read them again: stream={name} "
                f"version={version} now={base.version}"
            )
        if (wanted.store, wanted.store_settings) != (base.store, base.store_settings):
            self._check_capacity(wanted)
        await self._owned_streams.ask(stream, AlterStream(replace(wanted, version=version + 1), incarnation))
        return {"settings": settings_to_map(wanted)}

    async def _has_incarnation(self, stream: StreamName, incarnation: str) -> bool:
        found = await self._metadata.read(StreamKey(stream))
        return isinstance(found, Versioned) and found.value.incarnation == incarnation

    def _check_capacity(self, settings: StreamSettings) -> None:
        """Raises InvalidRequestError if the store cannot hold a segment with these settings."""
        self._stores[settings.store].check_capacity(settings.store_settings)

    async def delete(self, name: str, incarnation: str, *, force: bool) -> dict[str, Any]:
        """Delete this incarnation of a stream with all its segments; succeeds if the incarnation is gone.

        The stream is claimed and its segments in progress are fenced and ended before metadata marks it as deleted.
        After that nothing is written to it and the deletion cannot be lost, so a long stream is removed after the
        reply. Raises OwnedElsewhereError while another proxy owns it, and the errors of OwnedStreams.delete.
        """
        stream = stream_name(name)
        found = await self._metadata.read(StreamKey(stream))
        match found:
            case Versioned(value) if value.incarnation == incarnation:
                await self._mark_deleted(stream, incarnation, force=force)
            case OutcomeUnknown(reason):
                raise MetadataUnavailableError(f"metadata cannot be read now: {reason}")
        removed = await self._remove_or_begin(stream, incarnation, force=force)
        return {"segments": removed.segments, "left": removed.left}

    async def _mark_deleted(self, stream: StreamName, incarnation: str, *, force: bool) -> None:
        try:
            advice = await self._placement.judge(stream)
        except StreamNotFoundError:
            return
        if isinstance(advice, GoElsewhere) and advice.is_owner:
            raise OwnedElsewhereError(f"another proxy owns the stream: stream={stream}", location=advice.address)
        if_epoch = advice.if_epoch if isinstance(advice, ClaimHere) else advice.epoch
        await self._owned_streams.delete(stream, DeleteStream(incarnation, if_epoch, force))

    async def finish_deletion(
        self, stream: StreamName, incarnation: str | None = None, *, force: bool = False
    ) -> Removed:
        """Delete the segments of a stream marked as deleted, then the mark. It stays if some cannot be deleted now.

        incarnation: only this incarnation; None: any. force: remove the mark even if a store could not delete
        everything, which may be lost for good. Raises MetadataUnavailableError.
        """
        value = await self._left(stream, incarnation)
        if value is None:
            return Removed(0, True)
        if (value.incarnation, force) in self._removing:
            return Removed(0, False, len(value.listed))
        return await self._remove(value, force=force)

    async def _remove_or_begin(self, stream: StreamName, incarnation: str | None, *, force: bool) -> Removed:
        """As `finish_deletion`; for a long stream start it in the background, unless under way."""
        value = await self._left(stream, incarnation)
        if value is None:
            return Removed(0, True)
        if len(value.listed) <= REMOVED_MAX:
            return await self._remove(value, force=force)
        key = value.incarnation, force
        if key not in self._removing and len(self._removing) < REMOVALS_MAX:
            work = self._remove_behind(value, force=force)
            task = self._tasks.start_alone(work, name=f"remove deleted stream {stream}")
            self._removing.add(key)
            task.add_done_callback(lambda _: self._removing.discard(key))
        return Removed(0, False, len(value.listed))

    async def _remove_behind(self, value: StreamMetadata, *, force: bool) -> None:
        with suppress(DLogError):  # the stream stays marked: the next upkeep round or request removes it
            await self._remove(value, force=force)

    async def _left(self, stream: StreamName, incarnation: str | None) -> StreamMetadata | None:
        """Metadata of a stream that is marked as deleted; None: nothing is left of this incarnation."""
        found = await self._metadata.read(StreamKey(stream))
        if (
            not isinstance(found, Missing)
            or found.left is None
            or incarnation not in (None, found.left.value.incarnation)
        ):
            return None
        value: StreamMetadata = found.left.value
        return value

    async def _remove(self, value: StreamMetadata, *, force: bool) -> Removed:
        located = _located(value)
        fates: list[_DeleteResult] = []
        left = iter(located)

        async def delete_next() -> None:
            for store, ref in left:
                fates.append(await self._delete_segment(store, ref))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(DELETES_AT_ONCE, len(located))):
                group.create_task(delete_next(), name="delete segments")
        is_removed = force or _DeleteResult.LATER not in fates
        if is_removed:
            await self._metadata.remove(value.name, value.incarnation)
        return Removed(fates.count(_DeleteResult.DELETED), is_removed)

    async def stat(self, name: str) -> dict[str, Any]:
        """What this proxy knows of a stream. Raises StreamNotFoundError, MetadataUnavailableError."""
        stream = stream_name(name)
        seen = await read_stream(self._metadata, stream)
        description = catalog.with_durability(
            await catalog.describe(seen.value), self._stores.get(seen.value.settings.store)
        )
        holding = self._owned_streams.find(stream)
        if holding is None or holding.owner is None or not holding.serving:
            return description
        stat = await holding.owner.ask(StatStream())
        assert isinstance(stat, StreamStat)
        if stat.epoch != seen.value.owner.epoch:
            return description  # what a former owner remembers may end before records that the next owner acknowledged
        description["state"] = stat.state
        description["producers"] = stat.producers
        return catalog.with_tail(description, stat.segment, stat.lac, stat.last_dlsn)

    async def names(self, after: str, limit: int, listing: str | None) -> dict[str, Any]:
        """Stream names in order, see catalog.Listings. Raises MetadataUnavailableError."""
        return await self._listings.page(after, limit, listing)

    def _settings(self, given: Mapping[str, Any], base: StreamSettings) -> StreamSettings:
        """`base` with the values given, checked as a whole. Raises InvalidRequestError."""
        settings = settings_from_map(given, base, self._settings_of_store)
        if settings.segment_bytes < SEGMENT_BYTES_MIN:
            raise InvalidRequestError(f"segment_bytes must be at least {SEGMENT_BYTES_MIN}: {settings.segment_bytes}")
        if settings.segment_age_s < SEGMENT_AGE_S_MIN:
            raise InvalidRequestError(f"segment_age_s must be at least {SEGMENT_AGE_S_MIN}: {settings.segment_age_s}")
        return settings

    def _settings_of_store(self, store: str, given: Mapping[str, Any]) -> StoreSettings:
        if store not in self._written:
            what = "segments cannot be written to this store" if store in self._stores else "no such store"
            raise InvalidRequestError(f"{what}, choose one of {sorted(self._written)}: store={store}")
        return self._stores[store].settings.complete(given)

    async def _delete_segment(self, store: str, ref: SegmentRef) -> _DeleteResult:
        try:
            if store not in self._stores:
                raise StoreUnavailableError(not_configured(store))
            await self._stores[store].delete(ref)
        except DLogError as error:
            if error.remedy is Remedy.STOP:
                return _DeleteResult.GONE
            left: Event = SegmentLeftBehind(ref.stream, ref.number, ref.name, error.message)
            self._on_event(left)
            return _DeleteResult.GONE if error.remedy is Remedy.REPORT else _DeleteResult.LATER
        self._on_event(SegmentDeleted(ref.stream, ref.number, ref.name))
        return _DeleteResult.DELETED


def _located(value: StreamMetadata) -> list[tuple[str, SegmentRef]]:
    """All locations of a stream's segments, including former ledgers of moved segments and the allocated segment."""
    located = [(at.store, SegmentRef(value.name, s.number, at.name)) for s in value.listed for at in s.locations]
    if value.allocated:
        at = allocated_location(value.allocated)
        located.append((at.store, SegmentRef(value.name, SegmentNumber(value.max_segment + 1), at.name)))
    return located
