"""Parses the options of the Spark source, before anything is opened.

Invariants:
- an unknown option is refused, with the nearest known one; an invalid value is refused, with what is valid;
- options that overlap have an order (time before txid before offsets), or are refused together.

Names are case-insensitive, as in Spark.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dlog.errors import ConfigError, InvalidRequestError
from dlog.io.stores import StoresOptions, load_stores
from dlog.model.ids import TXID_MAX, stream_name
from dlog.options import parse_bytes, parse_duration_s, parse_unix_ms
from dlog.spark.offsets import StreamPosition, position_of
from dlog.stores.object_storage.locations import parse_root

NAMESPACE = "/dlog"
_SPARK_UNITS = re.compile(r"(?i)\s*(\d{1,15})\s*(b|k|kb|m|mb|g|gb)?\s*\Z")  # as in Spark's own settings: powers of 1024
_POWER = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3}


class Kind(Enum):
    """Ways to name a bound."""

    EARLIEST = "earliest"
    LATEST = "latest"
    POSITION = "position"
    TXID = "txid"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or (exclusively) to end in one stream. value: a txid, or a time in unix milliseconds."""

    kind: Kind
    value: int = 0
    position: StreamPosition = StreamPosition(0, 0)


EARLIEST, LATEST = Bound(Kind.EARLIEST), Bound(Kind.LATEST)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of all streams that are read."""

    default: Bound
    by_stream: Mapping[str, Bound] = field(default_factory=dict)

    def of(self, stream: str) -> Bound:
        return self.by_stream.get(stream, self.default)

    def all(self) -> list[Bound]:
        return [self.default, *self.by_stream.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Sizes in bytes, times in seconds."""

    zookeeper: str
    namespace: str = NAMESPACE
    streams: tuple[str, ...] = ()  # by name; empty: by the pattern
    pattern: str = ""
    starting: Bounds = field(default_factory=lambda: Bounds(EARLIEST))
    ending: Bounds = field(default_factory=lambda: Bounds(LATEST))
    starting_strategy: str = "error"  # or "latest": what to do when no record is as late as requested
    reader_id: str = ""
    offsets_per_trigger_max: int = 0  # records; 0: no bound
    bytes_per_trigger_max: int = 0
    segments_per_trigger_max: int = 0
    offsets_per_trigger_min: int = 0
    trigger_delay_max_s: float = 15 * 60.0
    partitions_min: int = 0
    records_per_partition_max: int = 0
    split_bytes: int = 128 << 20
    open_cost_bytes: int = 4 << 20
    fail_on_data_loss: bool = True
    pushdown: bool = False  # of filters, for a DataFrame that one query uses
    metadata: str = ""  # or streams, segments, entries, lag
    verify: str = "crc"
    on_corruption: str = "fail"
    left_out_to: str = ""  # directory for the list of records that were left out; empty: none is written
    poll_interval_min_s: float = 0.2
    fetch_retries: int = 3
    fetch_timeout_s: float = 30.0
    stores: StoresOptions = field(default_factory=StoresOptions)

    def __post_init__(self) -> None:
        if self.pattern:
            self.regex()

    def selects(self, stream: str) -> bool:
        """Whether the options select this stream of the namespace."""
        return stream in self.streams if self.streams else self.regex().fullmatch(stream) is not None

    def regex(self) -> re.Pattern[str]:
        """Raises ConfigError."""
        try:
            return re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"streamsPattern is not a regular expression: {error}: value={self.pattern[:60]!r}"
            ) from None


def parse(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse options as Spark passes them. Raises ConfigError."""
    texts = {str(key).lower(): str(value) for key, value in given.items()}
    _refuse_unknown(texts, streaming)
    reads: dict[str, Any] = {}
    for key, (name, read) in _SIMPLE.items():
        if key.lower() in texts:
            reads[name] = read_value(key, texts[key.lower()], read)
    options = SourceOptions(
        zookeeper=zookeeper_of(texts),
        **_selector(texts),
        starting=_starting(texts, streaming),
        ending=_ending(texts),
        stores=stores_of(texts),
        **reads,
    )
    _check(options, texts, streaming)
    return options


# ---- single values --------------------------------------------------------------------------------------------------


def read_value(key: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error.message}") from None


def read_size(text: str) -> int:
    """Parse a size in Spark's spelling (128m) or dlog's (128MiB)."""
    spark = _SPARK_UNITS.match(text)
    if spark is None:
        return _positive(parse_bytes(text), text)
    power = _POWER[(spark[2] or "").lower().rstrip("b") or ""]
    return _positive(int(spark[1]) * 1024**power, text)


def read_count(text: str) -> int:
    if not (text.strip().isdecimal() and text.isascii() and len(text.strip()) <= 15):
        raise ConfigError(f"expected a whole number: value={text[:60]!r}")
    return _positive(int(text), text)


def read_retries(text: str) -> int:
    return 0 if text.strip() == "0" else read_count(text)


def _positive(value: int, text: str) -> int:
    if value < 1:
        raise ConfigError(f"expected at least 1: value={text[:60]!r}")
    return value


def read_milliseconds(text: str) -> float:
    return read_count(text) / 1000


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"expected true or false: value={text[:60]!r}")
    return text.lower() == "true"


def read_one_of(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in values:
            raise ConfigError(f"expected one of {', '.join(values)}: value={text[:60]!r}")
        return text.lower()

    return read


def _pushdown(text: str) -> bool:
    """Spark 4.3 reuses what a source left out for one filter in the next query, too."""
    if text.lower() == "true":
        raise ConfigError(
            "Spark would give wrong rows to the second query on such a DataFrame: use pushdown=once if only one query "
            "uses it, or bound the read with startingTxid, endingTxid, streams"
        )
    if text.lower() not in ("false", "once"):
        raise ConfigError(f"expected false or once: value={text[:60]!r}")
    return text.lower() == "once"


def _identifier(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text):
        raise ConfigError(f"expected 1 to 100 letters, digits, '.', '_' and '-': value={text[:60]!r}")
    return text


def read_path(text: str) -> str:
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", text):
        raise ConfigError(f"expected a path like /dlog: value={text[:60]!r}")
    return text


def _objects_location(text: str) -> str:
    return str(parse_root(text))


#: option -> field and its parser
_SIMPLE: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "namespace": ("namespace", read_path),
    "startingStrategy": ("starting_strategy", read_one_of("error", "latest")),
    "readerId": ("reader_id", _identifier),
    "maxOffsetsPerTrigger": ("offsets_per_trigger_max", read_count),
    "maxBytesPerTrigger": ("bytes_per_trigger_max", read_size),
    "maxSegmentsPerTrigger": ("segments_per_trigger_max", read_count),
    "minOffsetsPerTrigger": ("offsets_per_trigger_min", read_count),
    "maxTriggerDelay": ("trigger_delay_max_s", parse_duration_s),
    "minPartitions": ("partitions_min", read_count),
    "maxRecordsPerPartition": ("records_per_partition_max", read_count),
    "splitBytes": ("split_bytes", read_size),
    "openCostBytes": ("open_cost_bytes", read_size),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "pushdown": ("pushdown", _pushdown),
    "metadata": ("metadata", read_one_of("streams", "segments", "entries", "lag")),
    "verify": ("verify", read_one_of("crc", "full", "none")),
    "onCorruption": ("on_corruption", read_one_of("fail", "skip-entry")),
    "leftOutTo": ("left_out_to", _objects_location),
    "minPollIntervalMs": ("poll_interval_min_s", read_milliseconds),
    "fetchRetries": ("fetch_retries", read_retries),
    "fetchTimeoutMs": ("fetch_timeout_s", read_milliseconds),
}
_SELECTORS = ("stream", "streams", "streamsPattern")
_STARTS = (
    *("startingTimestamp", "startingTimestampByStream", "startingTxid", "startingTxidByStream"),
    "startingOffsets",
)
_ENDS = ("endingTimestamp", "endingTimestampByStream", "endingTxid", "endingTxidByStream", "endingOffsets")
_STREAM_ONLY = (
    *("readerId", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "maxSegmentsPerTrigger", "minOffsetsPerTrigger"),
    *("maxTriggerDelay", "minPollIntervalMs"),
)
_BATCH_ONLY = (*_ENDS, "metadata", "pushdown")
STORES = ("cold.", "file.", "kafka.", "objects.")  # prefixes of options of segment stores, e.g. cold.s3_endpoint
KNOWN = ("zookeeper", *_SELECTORS, *_STARTS, *_ENDS, *_SIMPLE)


def _refuse_unknown(texts: Mapping[str, str], streaming: bool) -> None:
    known = {name.lower(): name for name in KNOWN}
    for key in texts:
        if key == "path":
            raise ConfigError("load() takes no path: name the stream with option('stream', NAME)")
        if key not in known and not key.startswith(STORES):
            near = difflib.get_close_matches(key, known, 1)
            hint = f", did you mean {known[near[0]]}?" if near else f", choose from {', '.join(sorted(KNOWN))}"
            raise ConfigError(f"no such option of format dlog{hint}: option={key[:60]}")
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name.lower() in texts:
            raise ConfigError(f"{name} is an option of {'batch' if streaming else 'streaming'} reads only")


# ---- cluster and streams --------------------------------------------------------------------------------------------


def zookeeper_of(texts: Mapping[str, str]) -> str:
    hosts = texts.get("zookeeper") or os.environ.get("DLOG_ZOOKEEPER", "")
    if not re.fullmatch(r"[^\s,/]+:\d{1,5}(,[^\s,/]+:\d{1,5})*(/[A-Za-z0-9._/-]+)?", hosts):
        raise ConfigError(
            "set option zookeeper to host:port,host:port (or DLOG_ZOOKEEPER on the driver); "
            f"`dlog up --json` prints the value for its cluster: value={hosts[:60]!r}"
        )
    return hosts


def _selector(texts: Mapping[str, str]) -> dict[str, Any]:
    given = [name for name in _SELECTORS if texts.get(name.lower())]
    if len(given) != 1:
        raise ConfigError(f"set exactly one of {', '.join(_SELECTORS)}: given={', '.join(given) or 'none'}")
    text = texts[given[0].lower()]
    if given[0] == "streamsPattern":
        return {"pattern": text}
    names = [text] if given[0] == "stream" else [part.strip() for part in text.split(",")]
    try:
        return {"streams": tuple(dict.fromkeys(stream_name(name) for name in names))}
    except InvalidRequestError as error:
        raise ConfigError(f"{given[0]}: {error.message}") from None


def stores_of(texts: Mapping[str, str]) -> StoresOptions:
    """Options of segment stores: from the driver's environment, unless given. Raises ConfigError."""
    return load_stores(None, texts)


# ---- bounds ---------------------------------------------------------------------------------------------------------


def _starting(texts: Mapping[str, str], streaming: bool) -> Bounds:
    bounds = _bounds(texts, "starting", LATEST if streaming else EARLIEST)
    if not streaming and any(bound.kind is Kind.LATEST for bound in bounds.all()):
        raise ConfigError("startingOffsets: a batch that begins at the latest position is empty; use another position")
    return bounds


def _ending(texts: Mapping[str, str]) -> Bounds:
    bounds = _bounds(texts, "ending", LATEST)
    if any(bound.kind is Kind.EARLIEST for bound in bounds.all()):
        raise ConfigError("endingOffsets: a batch that ends at the earliest position is empty; use another position")
    return bounds


def _bounds(texts: Mapping[str, str], side: str, default: Bound) -> Bounds:
    """The first that is given of time, txid and offsets; a value for one stream overrides the value for all."""
    for what, read in (("Timestamp", _time), ("Txid", _txid)):
        name, by_stream = f"{side}{what}", f"{side}{what}ByStream"
        if name.lower() in texts or by_stream.lower() in texts:
            base = read(name, texts[name.lower()]) if name.lower() in texts else default
            return Bounds(base, _by_stream(by_stream, texts.get(by_stream.lower(), "{}"), read))
    name = f"{side}Offsets"
    text = texts.get(name.lower())
    if text is None:
        return Bounds(default)
    if text.strip().lower() in (Kind.EARLIEST.value, Kind.LATEST.value):
        return Bounds(_word(text.strip().lower()))
    return Bounds(EARLIEST if side == "starting" else LATEST, _by_stream(name, text, _offset))


def _word(text: str) -> Bound:
    return EARLIEST if text == Kind.EARLIEST.value else LATEST


def _by_stream(name: str, text: str, read: Callable[[str, Any], Bound]) -> dict[str, Bound]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        words = ", or earliest or latest" if read is _offset else ""
        raise ConfigError(f'{name}: expected JSON {{"stream": ...}}{words}: value={text[:60]!r}')
    return {str(stream): read(f"{name} of {stream}", value) for stream, value in values.items()}


def _offset(name: str, value: Any) -> Bound:
    if value in (Kind.EARLIEST.value, Kind.LATEST.value):
        return _word(value)
    return Bound(Kind.POSITION, position=position_of(value, name))


def _txid(name: str, value: Any) -> Bound:
    number = int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value.strip()) else value
    if type(number) is not int or not 0 <= number <= TXID_MAX:
        raise ConfigError(f"{name}: a txid is a whole number up to {TXID_MAX}: value={str(value)[:60]!r}")
    return Bound(Kind.TXID, number)


def _time(name: str, value: Any) -> Bound:
    try:
        return Bound(Kind.TIME, parse_unix_ms(str(value)))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}") from None


# ---- combinations ---------------------------------------------------------------------------------------------------


def _check(options: SourceOptions, texts: Mapping[str, str], streaming: bool) -> None:
    for side, bounds in (("starting", options.starting), ("ending", options.ending)):
        for stream in bounds.by_stream:
            if options.streams and stream not in options.streams:
                raise ConfigError(f"{side} bound of a stream that is not read: stream={stream[:60]}")
    limits = [
        name
        for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "maxSegmentsPerTrigger")
        if name.lower() in texts
    ]
    if len(limits) > 1:
        raise ConfigError(f"set at most one limit of a trigger: given={', '.join(limits)}")
    if options.offsets_per_trigger_min and 0 < options.offsets_per_trigger_max < options.offsets_per_trigger_min:
        raise ConfigError("minOffsetsPerTrigger may not exceed maxOffsetsPerTrigger")
    if options.metadata in ("streams", "segments", "lag"):
        for name in (*_STARTS, *_ENDS, "pushdown"):
            if name.lower() in texts:
                raise ConfigError(f"metadata={options.metadata} shows whole streams, remove the bound: option={name}")
    if options.left_out_to and options.on_corruption == "fail" and options.fail_on_data_loss:
        raise ConfigError(
            "leftOutTo: nothing is ever left out; set onCorruption=skip-entry to leave out damaged entries, "
            "or failOnDataLoss=false to continue after truncated records"
        )
    if options.left_out_to and options.metadata:
        raise ConfigError("leftOutTo applies to reads of records, not of metadata; remove it")
    moving = [bound for bound in options.starting.all() if bound.kind in (Kind.LATEST, Kind.TIME)]
    if streaming and moving and not options.reader_id:
        raise ConfigError(
            "set readerId for a streaming read that begins at the latest position or at a time: the position is stored "
            "under that name, so that a restarted query begins there again"
        )
