"""Create, delete, describe: what is asked of streams as wholes.

The law of this room: metadata decides, by compare-and-set, and is changed first when a stream is made and when it is
deleted. A crash between metadata and stores leaves bytes that nobody names (a check of the cluster finds them), never
a name without its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlog.errors import (
    DLogError,
    InvalidRequestError,
    MetadataUnavailableError,
    OwnedElsewhereError,
    StreamExistsError,
)
from dlog.events import Event, SegmentDeleted, SegmentLeftBehind
from dlog.io.metadata import Metadata
from dlog.log.changes import allocated_place
from dlog.log.messages import StatStream, StreamStat
from dlog.machine import Conflict, Missing, OutcomeUnknown, Versioned
from dlog.model.ids import SegmentNumber, stream_name
from dlog.model.segment import StreamKey, StreamMetadata, StreamSettings
from dlog.stores.contract import SegmentRef, SegmentStore
from dlog.wire.stream_metadata import settings_from_map, settings_to_map
from proxies import catalog
from proxies.streams import read_stream
from proxies.write.holdings import Holdings, Placement
from proxies.write.placing import Theirs

SEGMENT_BYTES_MIN = 64 * 1024
SEGMENT_AGE_S_MIN = 1


class Admin:
    """Answers one process's questions about whole streams."""

    def __init__(
        self,
        metadata: Metadata,
        stores: Mapping[str, SegmentStore],
        holdings: Holdings,
        placement: Placement,
        *,
        tell: Any,
    ) -> None:
        self._metadata = metadata
        self._stores = stores
        self._holdings = holdings
        self._placement = placement
        self._tell = tell

    async def create(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Make a stream.

        Raises InvalidStreamNameError, InvalidRequestError, StreamExistsError, MetadataUnavailableError (may be made).
        """
        stream = stream_name(name)
        made = StreamMetadata(name=stream, settings=self._settings(settings))
        self._check_ensemble(made.settings)
        outcome = await self._metadata.compare_and_set(StreamKey(stream), made, None)
        match outcome:
            case Versioned():
                return {"settings": settings_to_map(made.settings)}
            case Conflict() | Missing():
                raise StreamExistsError(f"a stream of that name exists: stream={stream}")
            case OutcomeUnknown(reason):
                raise MetadataUnavailableError(
                    f"whether the stream was made is unknown: {reason}", outcome_unknown=True
                )

    def _check_ensemble(self, settings: StreamSettings) -> None:
        """A stream that could not have a first segment is a mistake, told now and not by its first write."""
        members = self._metadata.known_members()
        bookies = len(members.writable) + len(members.readonly)
        if settings.store == "ledger" and settings.quorum.ensemble > bookies:
            raise InvalidRequestError(
                "an ensemble needs as many bookies as it has members, start more or ask for a smaller ensemble: "
                f"ensemble={settings.quorum.ensemble} bookies={bookies}"
            )

    async def delete(self, name: str) -> dict[str, Any]:
        """Delete a stream with all its segments. Raises OwnedElsewhereError while another proxy owns it."""
        stream = stream_name(name)
        if self._holdings.find(stream) is None:
            advice = await self._placement.judge(stream)
            if isinstance(advice, Theirs) and advice.is_owner:
                raise OwnedElsewhereError(f"owned elsewhere: stream={stream}", location=advice.address)
        seen = await read_stream(self._metadata, stream)
        await self._holdings.abandon(stream)
        await self._metadata.delete(StreamKey(stream))
        deleted = 0
        for store, ref in _places(seen.value):
            deleted += await self._delete_segment(store, ref)
        return {"segments": deleted}

    async def stat(self, name: str) -> dict[str, Any]:
        """What is known of a stream here. Raises StreamNotFoundError, MetadataUnavailableError."""
        stream = stream_name(name)
        seen = await read_stream(self._metadata, stream)
        told = catalog.describe(seen.value)
        holding = self._holdings.find(stream)
        if holding is None or holding.owner is None or not holding.serving:
            return told
        stat = await holding.owner.ask(StatStream())
        assert isinstance(stat, StreamStat)
        told["state"] = stat.state
        told["producers"] = stat.producers
        return catalog.with_tail(told, stat.segment, stat.lac, stat.last_dlsn)

    async def names(self, after: str, limit: int) -> dict[str, Any]:
        """Names of streams in order. Raises MetadataUnavailableError."""
        return await catalog.list_streams(self._metadata, after, limit)

    def _settings(self, given: Mapping[str, Any]) -> StreamSettings:
        settings = settings_from_map(dict(given))
        written = sorted(name for name, store in self._stores.items() if store.capabilities.is_written)
        if settings.store not in written:
            what = "segments are moved there, not written" if settings.store in self._stores else "no such store"
            raise InvalidRequestError(f"{what}, known are {written}: store={settings.store}")
        if settings.segment_bytes < SEGMENT_BYTES_MIN:
            raise InvalidRequestError(f"a segment has at least {SEGMENT_BYTES_MIN} bytes: {settings.segment_bytes}")
        if settings.segment_age_s < SEGMENT_AGE_S_MIN:
            raise InvalidRequestError(
                f"a segment may grow {SEGMENT_AGE_S_MIN} s old at least: {settings.segment_age_s}"
            )
        return settings

    async def _delete_segment(self, store: str, ref: SegmentRef) -> bool:
        try:
            if store not in self._stores:
                raise InvalidRequestError(f"this proxy has no such store: store={store}")
            await self._stores[store].delete(ref)
        except DLogError as error:
            left: Event = SegmentLeftBehind(ref.stream, ref.number, ref.place, error.message)
            self._tell(left)
            return False
        self._tell(SegmentDeleted(ref.stream, ref.number, ref.place))
        return True


def _places(value: StreamMetadata) -> list[tuple[str, SegmentRef]]:
    """Everything a stream holds in stores."""
    places = [(s.store, SegmentRef(value.name, s.number, s.place)) for s in value.segments]
    if value.allocated:
        store, place = allocated_place(value.allocated)
        places.append((store, SegmentRef(value.name, SegmentNumber(value.max_segment + 1), place)))
    return places
