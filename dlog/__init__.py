"""dlog: a replicated, durable, ordered log service. The names in this module are the public API.

    import dlog

    async with dlog.connect("dlog://127.0.0.1:7400") as client:
        dlsn = await client.append("orders", b"...")
        async for record in client.read("orders", start=dlsn):
            print(record.dlsn, record.txid, record.payload)

Names are imported when first used, so that a server process does not load the client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dlog.client.batch import BatchResult
    from dlog.client.client import AppendSummary, Client, connect
    from dlog.client.fate import Fate, Outcome
    from dlog.client.options import ClientOptions
    from dlog.client.pipeline import Pipeline
    from dlog.client.position import START, TAIL, Position, at_dlsn, at_time, at_txid
    from dlog.client.reader import Lag, Reader
    from dlog.client.record import Record, RecordBatch
    from dlog.client.regions import Region, Regions, RegionView
    from dlog.client.stream_info import (
        ImportResult,
        Owner,
        SegmentInfo,
        SettingsChanges,
        StreamInfo,
        StreamSettings,
    )
    from dlog.client.sync import SyncClient, SyncReader, connect_sync
    from dlog.errors import (
        ClaimLostError,
        ClosedError,
        ClusterNotFoundError,
        ConfigError,
        ConnectionLostError,
        CookieError,
        DamagedError,
        DLogError,
        EndOfStreamError,
        EntryMissingError,
        EntryUnreadableError,
        FencedError,
        InvalidRequestError,
        InvalidStreamNameError,
        LedgerFencedError,
        LedgerNotFoundError,
        MetadataUnavailableError,
        MetadataWentBackError,
        NotEnoughBookiesError,
        NotReadyError,
        OverCapacityError,
        OwnedElsewhereError,
        PositionBeyondEndError,
        ProducerUnknownError,
        ProtocolError,
        RecordTooLargeError,
        Remedy,
        RequestTimeoutError,
        SegmentNotEndedError,
        SequenceGapError,
        StaleRequestError,
        StreamExistsError,
        StreamNotFoundError,
        StreamRecreatedError,
        StreamUnavailableError,
        TruncatedError,
        TxidOutOfOrderError,
        UnauthorizedError,
        UnavailableError,
        UnsupportedVersionError,
    )
    from dlog.events import Event
    from dlog.io.kafka_settings import KafkaTopicsOptions
    from dlog.model.dlsn import DLSN
    from dlog.model.ids import EntryId, SegmentNumber
    from dlog.model.sink import SinkBatch
    from dlog.region.messages import LostEntries
    from dlog.region.options import RegionOptions
    from dlog.region.owner import RegionFencedError
    from dlog.region.reading import RegionEntry
    from dlog.region.tables import TableMeta
    from dlog.region.topics import (
        OffsetOutOfRangeError,
        Stored,
        TopicExistsError,
        TopicNotFoundError,
        Topics,
        UnsafeTopicError,
    )
    from dlog.region.waiting import TableEndedError
    from dlog.wire.proxy import Start

__all__ = [
    "DLSN",
    "START",
    "TAIL",
    "AppendSummary",
    "BatchResult",
    "ClaimLostError",
    "Client",
    "ClientOptions",
    "ClosedError",
    "ClusterNotFoundError",
    "ConfigError",
    "ConnectionLostError",
    "CookieError",
    "DLogError",
    "DamagedError",
    "EndOfStreamError",
    "EntryId",
    "EntryMissingError",
    "EntryUnreadableError",
    "Event",
    "Fate",
    "FencedError",
    "ImportResult",
    "InvalidRequestError",
    "InvalidStreamNameError",
    "KafkaTopicsOptions",
    "Lag",
    "LedgerFencedError",
    "LedgerNotFoundError",
    "LostEntries",
    "MetadataUnavailableError",
    "MetadataWentBackError",
    "NotEnoughBookiesError",
    "NotReadyError",
    "OffsetOutOfRangeError",
    "Outcome",
    "OverCapacityError",
    "OwnedElsewhereError",
    "Owner",
    "Pipeline",
    "Position",
    "PositionBeyondEndError",
    "ProducerUnknownError",
    "ProtocolError",
    "Reader",
    "Record",
    "RecordBatch",
    "RecordTooLargeError",
    "Region",
    "RegionEntry",
    "RegionFencedError",
    "RegionOptions",
    "RegionView",
    "Regions",
    "Remedy",
    "RequestTimeoutError",
    "SegmentInfo",
    "SegmentNotEndedError",
    "SegmentNumber",
    "SequenceGapError",
    "SettingsChanges",
    "SinkBatch",
    "StaleRequestError",
    "Start",
    "Stored",
    "StreamExistsError",
    "StreamInfo",
    "StreamNotFoundError",
    "StreamRecreatedError",
    "StreamSettings",
    "StreamUnavailableError",
    "SyncClient",
    "SyncReader",
    "TableEndedError",
    "TableMeta",
    "TopicExistsError",
    "TopicNotFoundError",
    "Topics",
    "TruncatedError",
    "TxidOutOfOrderError",
    "UnauthorizedError",
    "UnavailableError",
    "UnsafeTopicError",
    "UnsupportedVersionError",
    "at_dlsn",
    "at_time",
    "at_txid",
    "connect",
    "connect_sync",
]

_HOMES = {
    "dlog.client.batch": ("BatchResult",),
    "dlog.client.client": (
        "AppendSummary",
        "Client",
        "connect",
    ),
    "dlog.client.fate": (
        "Fate",
        "Outcome",
    ),
    "dlog.client.options": ("ClientOptions",),
    "dlog.client.pipeline": ("Pipeline",),
    "dlog.client.position": (
        "START",
        "TAIL",
        "Position",
        "at_dlsn",
        "at_time",
        "at_txid",
    ),
    "dlog.client.reader": (
        "Lag",
        "Reader",
    ),
    "dlog.client.record": (
        "Record",
        "RecordBatch",
    ),
    "dlog.client.stream_info": (
        "ImportResult",
        "Owner",
        "SegmentInfo",
        "SettingsChanges",
        "StreamInfo",
        "StreamSettings",
    ),
    "dlog.client.sync": (
        "SyncClient",
        "SyncReader",
        "connect_sync",
    ),
    "dlog.events": ("Event",),
    "dlog.io.kafka_settings": ("KafkaTopicsOptions",),
    "dlog.model.dlsn": ("DLSN",),
    "dlog.model.ids": (
        "EntryId",
        "SegmentNumber",
    ),
    "dlog.model.sink": ("SinkBatch",),
    "dlog.client.regions": (
        "Region",
        "RegionView",
        "Regions",
    ),
    "dlog.region.messages": ("LostEntries",),
    "dlog.region.options": ("RegionOptions",),
    "dlog.region.owner": ("RegionFencedError",),
    "dlog.region.waiting": ("TableEndedError",),
    "dlog.region.reading": ("RegionEntry",),
    "dlog.region.tables": ("TableMeta",),
    "dlog.region.topics": (
        "OffsetOutOfRangeError",
        "Stored",
        "TopicExistsError",
        "TopicNotFoundError",
        "Topics",
        "UnsafeTopicError",
    ),
    "dlog.wire.proxy": ("Start",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME.get(name, "dlog.errors")), name)
        globals()[name] = value
        return value
