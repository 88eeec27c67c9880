"""Results of requests about whole streams, decoded from a proxy's replies (docs/protocol.md, 1.7 to 1.9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, TypeVar

from dlog.client.batch import BatchResult, result_of
from dlog.errors import ProtocolError
from dlog.model.dlsn import DLSN, DLSN_INVALID, of

T = TypeVar("T")


class SettingsChanges(TypedDict, total=False):
    """Settings by name, as `create` and `alter` take them; see StreamSettings.

    A store refuses the settings of another one: ensemble (bookies of a segment, over which its entries are striped),
    write_quorum (copies of each entry), ack_quorum (copies that must be synced to disk before an append is
    acknowledged) and min_regions (regions that those copies must stand in) are those of the store `ledger`.
    """

    store: str
    ensemble: int
    write_quorum: int
    ack_quorum: int
    min_regions: int
    segment_bytes: int
    segment_age_s: float
    retention_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Settings of a stream.

    Those not given to `create` have defaults: 3 bookies, 3 copies of which 2 acknowledge, segments of 256 MiB and at
    most 2 hours, kept for ever, in the store that the proxy names first (`ledger`; without bookies `kafka` or `file`).
    store_settings: those that only this store has, by name (see SettingsChanges); empty for one in files or on Kafka.
    """

    store: str  # where segments are created
    store_settings: Mapping[str, int] = field(default_factory=dict, hash=False)
    segment_bytes: int  # size at which a segment is completed and the next begins
    segment_age_s: float  # age at which that is done
    retention_s: float  # how long a segment is kept after it was completed; 0: for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A claim on a stream: the write proxy that owns it, or owned it last.

    state: what the proxy says of the stream, such as "serving", "claiming" or "draining"; None: it was not asked.
    proxy: id of the proxy; None: not reported. is_released: it gave the stream up, which nobody owns now.
    """

    stream: str
    location: str  # host:port of the proxy
    epoch: int  # grows by one with every claim
    state: str | None = None
    proxy: str | None = None
    is_released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment of a stream. last_txid, last_dlsn and records are those of a completed segment."""

    number: int
    store: str
    location: str  # in its store: a ledger id, or the path of an object
    is_completed: bool
    first_txid: int
    last_txid: int | None
    first_dlsn: DLSN  # the first position that may be read
    last_dlsn: DLSN | None
    records: int
    completed_unix_ms: int  # by the writer's clock; 0 while it is in progress
    is_cut: bool  # the truncation point lies in it
    lac: int | None  # last confirmed entry of a segment in progress, if its owner reported it


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream as metadata describes it; what its owner adds is None if the owner was not asked.

    segments: the newest 5,000, oldest first.
    """

    name: str
    incarnation: str  # incarnation id: a stream that is created again under the name has another
    is_sealed: bool
    settings: StreamSettings
    owner: Owner | None = None  # the newest claim; None: it was never claimed
    first_dlsn: DLSN | None = None  # the first position kept; None: there is no segment yet
    last_dlsn: DLSN | None = None  # of the last record known; None: none is known
    last_txid: int | None = None  # of completed segments
    records: int = 0  # in completed segments that are kept
    segments: tuple[SegmentInfo, ...] = ()
    segments_left_out: int = 0  # older ones that are not in `segments`
    segments_to_delete: int = 0  # truncated ones whose data are not deleted yet
    producers: int | None = None  # that the owner remembers
    #: where acknowledged records are, "synced" or "page caches"; None: the store always syncs, or it was not reported
    durability: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """Segments that `import_segments` imported."""

    first: int  # number of the first one; 0: none, or imported before
    segments: int
    records: int
    duplicate: bool  # they were imported before


def _decoder(decode: Callable[..., T]) -> Callable[..., T]:
    """Let `decode` raise ProtocolError if a reply lacks a key or has a value of another type."""

    def checked(*given: Any) -> T:
        try:
            return decode(*given)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"a proxy's reply cannot be read: {type(error).__name__} {error}") from error

    return checked


def _settings(fields: Mapping[str, Any]) -> StreamSettings:
    values = dict(fields)
    settings = StreamSettings(**{name: values.pop(name) for name in _SETTINGS_OF_EVERY_STREAM})
    return replace(settings, store_settings={name: value for name, value in values.items() if type(value) is int})


_SETTINGS_OF_EVERY_STREAM = ("store", "segment_bytes", "segment_age_s", "retention_s")


def settings_to_map(settings: StreamSettings) -> dict[str, Any]:
    """All settings by name, as in a proxy's reply."""
    every = {name: getattr(settings, name) for name in _SETTINGS_OF_EVERY_STREAM}
    return {"store": every.pop("store"), **settings.store_settings, **every}


def _owner(stream: str, fields: Mapping[str, Any]) -> Owner:
    return Owner(
        stream=stream,
        location=str(fields["location"]),
        epoch=int(fields["epoch"]),
        state=fields.get("state"),
        proxy=fields.get("proxy"),
        is_released=bool(fields.get("released", False)),
    )


def _segment(fields: Mapping[str, Any]) -> SegmentInfo:
    is_completed = bool(fields["completed"])
    return SegmentInfo(
        number=fields["number"],
        store=fields["store"],
        location=fields["location"],
        is_completed=is_completed,
        first_txid=fields["first_txid"],
        last_txid=fields["last_txid"] if is_completed else None,
        first_dlsn=of(*fields["first_dlsn"]),
        last_dlsn=_dlsn(fields["last_dlsn"]),
        records=fields["records"],
        completed_unix_ms=fields["completed_unix_ms"],
        is_cut=fields["truncation"] == "partial",
        lac=fields.get("lac"),
    )


def _stream(reply: Mapping[str, Any]) -> StreamInfo:
    name, claim = str(reply["stream"]), reply["owner"]
    return StreamInfo(
        name=name,
        incarnation=str(reply["incarnation"]),
        is_sealed=bool(reply["sealed"]),
        settings=_settings(reply["settings"]),
        owner=_owner(name, {**claim, "state": reply.get("state")}) if claim["epoch"] else None,
        first_dlsn=_dlsn(reply["first_dlsn"]),
        last_dlsn=_dlsn(reply["last_dlsn"]),
        last_txid=reply["last_txid"],
        records=reply["records"],
        segments=tuple(map(_segment, reply["segments"])),
        segments_left_out=reply["segments_left_out"],
        segments_to_delete=reply["segments_to_delete"],
        producers=reply.get("producers"),
        durability=reply.get("durability"),
    )


def _new_stream(name: str, incarnation: str, reply: Mapping[str, Any]) -> StreamInfo:
    return StreamInfo(name=name, incarnation=incarnation, is_sealed=False, settings=_settings(reply["settings"]))


def _imported(reply: Mapping[str, Any]) -> ImportResult:
    return ImportResult(
        first=reply["first"], segments=reply["segments"], records=reply["records"], duplicate=reply["duplicate"]
    )


def _appended(reply: Mapping[str, Any]) -> BatchResult:
    dlsn = _dlsn(reply["dlsn"]) or DLSN_INVALID
    return result_of(dlsn, 0, reply["count"], reply["txid"], reply["duplicate"])


def _first_kept(reply: Mapping[str, Any]) -> DLSN:
    return of(*reply["first"])


def _dlsn(position: Any) -> DLSN | None:
    return None if position is None else of(*position)


decode_settings = _decoder(_settings)
decode_owner = _decoder(_owner)
decode_stream = _decoder(_stream)
decode_new_stream = _decoder(_new_stream)
decode_import = _decoder(_imported)
decode_appended = _decoder(_appended)
decode_first_kept = _decoder(_first_kept)
