"""Parses the options of the Spark sink, before anything is opened. The invariants are those of options.py."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import ConfigError, InvalidRequestError
from dlog.io.stores import StoresOptions
from dlog.model.ids import user_stream_name
from dlog.model.sink import sink_name
from dlog.options import MiB, parse_duration_s
from dlog.spark.options import (
    NAMESPACE,
    STORES,
    read_milliseconds,
    read_one_of,
    read_path,
    read_retries,
    read_size,
    read_value,
    stores_of,
    zookeeper_of,
)

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
_APPEND_BYTES_MAX = MiB // 2  # a record set holds a MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Sizes in bytes, times in seconds.

    stream: "" takes each row's own, from column `stream`. batch_id: of a batch write that may be repeated; -1: none.
    append_bytes: batches up to this size are appended, larger ones staged. stage_keep_s: age from which stages of other
    queries of this sink are swept.
    """

    zookeeper: str
    namespace: str = NAMESPACE
    stream: str = ""
    sink_id: str = ""
    sink_epoch: int = 0
    guarantee: str = EXACTLY_ONCE
    batch_id: int = -1
    append_bytes: int = 256 * 1024
    stage_keep_s: float = 24 * 3600.0
    fetch_retries: int = 3
    fetch_timeout_s: float = 30.0
    stores: StoresOptions = field(default_factory=StoresOptions)


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse options as Spark passes them. Raises ConfigError."""
    texts = {str(key).lower(): str(value) for key, value in given.items()}
    known = {name.lower(): name for name in ("zookeeper", *_OPTIONS)}
    for key in texts:
        if key == "path":
            raise ConfigError("save() takes no path: name the stream with option('stream', NAME)")
        if key not in known and key not in _SPARK_S and not key.startswith(STORES):
            near = difflib.get_close_matches(key, known, 1)
            hint = f", did you mean {known[near[0]]}?" if near else f", choose from {', '.join(sorted(known.values()))}"
            raise ConfigError(f"no such option of the sink of format dlog{hint}: option={key[:60]}")
    reads: dict[str, Any] = {}
    for key, (name, read) in _OPTIONS.items():
        if key.lower() in texts:
            reads[name] = read_value(key, texts[key.lower()], read)
    options = SinkOptions(zookeeper=zookeeper_of(texts), stores=stores_of(texts), **reads)
    _check(options, streaming)
    return options


def _check(options: SinkOptions, streaming: bool) -> None:
    if options.guarantee == AT_LEAST_ONCE:
        for name, given in (("sinkId", options.sink_id), ("batchId", options.batch_id >= 0)):
            if given:
                raise ConfigError(f"{name} has no effect with deliveryGuarantee=at-least-once, remove it")
        return
    if streaming and options.batch_id >= 0:
        raise ConfigError("batchId is an option of batch writes only: a streaming query numbers its batches itself")
    if not options.sink_id and (streaming or options.batch_id >= 0):
        raise ConfigError(
            "set sinkId: the stream remembers under this name which batches it has; use another one for each query"
        )
    if options.append_bytes > _APPEND_BYTES_MAX:
        raise ConfigError(f"appendBytes is at most {_APPEND_BYTES_MAX}: value={options.append_bytes}")


def _name(check: Callable[[str], str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        try:
            return check(text)
        except InvalidRequestError as error:
            raise ConfigError(error.message) from None

    return read


#: option -> field and its parser
_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "namespace": ("namespace", read_path),
    "stream": ("stream", _name(user_stream_name)),
    "sinkId": ("sink_id", _name(sink_name)),
    "sinkEpoch": ("sink_epoch", read_retries),
    "deliveryGuarantee": ("guarantee", read_one_of(EXACTLY_ONCE, AT_LEAST_ONCE)),
    "batchId": ("batch_id", read_retries),
    "appendBytes": ("append_bytes", read_size),
    "stageKeep": ("stage_keep_s", parse_duration_s),
    "fetchRetries": ("fetch_retries", read_retries),
    "fetchTimeoutMs": ("fetch_timeout_s", read_milliseconds),
}
_SPARK_S = ("checkpointlocation", "queryname", "outputmode")  # Spark's own options, which streaming writers get, too
