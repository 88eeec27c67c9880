"""dlog: a replicated, durable, ordered log as a service. These are the public names; everything else may change.

    import dlog

    async with dlog.connect("dlog://127.0.0.1:7400") as client:
        place = await client.append("orders", b"...")
        async for record in client.read("orders", start=place):
            print(record.dlsn, record.txid, record.payload)

Names are loaded when they are first used, so that a server process does not carry the client.
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
    from dlog.client.position import START, TAIL, Position, at_dlsn, at_time, at_txid
    from dlog.client.record import Record, RecordBatch
    from dlog.client.sync import SyncClient, connect_sync
    from dlog.errors import (
        ConnectionLostError,
        DamagedError,
        DLogError,
        EndOfStreamError,
        InvalidRequestError,
        OverCapacityError,
        ProducerUnknownError,
        RecordTooLargeError,
        Remedy,
        RequestTimeoutError,
        StreamExistsError,
        StreamNotFoundError,
        TruncatedError,
        TxidOutOfOrderError,
        UnavailableError,
    )
    from dlog.model.dlsn import DLSN

__all__ = [
    "DLSN",
    "START",
    "TAIL",
    "AppendSummary",
    "BatchResult",
    "Client",
    "ClientOptions",
    "ConnectionLostError",
    "DLogError",
    "DamagedError",
    "EndOfStreamError",
    "Fate",
    "InvalidRequestError",
    "Outcome",
    "OverCapacityError",
    "Position",
    "ProducerUnknownError",
    "Record",
    "RecordBatch",
    "RecordTooLargeError",
    "Remedy",
    "RequestTimeoutError",
    "StreamExistsError",
    "StreamNotFoundError",
    "SyncClient",
    "TruncatedError",
    "TxidOutOfOrderError",
    "UnavailableError",
    "at_dlsn",
    "at_time",
    "at_txid",
    "connect",
    "connect_sync",
]

_HOMES = {
    "dlog.client.client": ("AppendSummary", "Client", "connect"),
    "dlog.client.options": ("ClientOptions",),
    "dlog.client.position": ("START", "TAIL", "Position", "at_dlsn", "at_time", "at_txid"),
    "dlog.client.batch": ("BatchResult",),
    "dlog.client.fate": ("Fate", "Outcome"),
    "dlog.client.record": ("Record", "RecordBatch"),
    "dlog.client.sync": ("SyncClient", "connect_sync"),
    "dlog.model.dlsn": ("DLSN",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME.get(name, "dlog.errors")), name)
    globals()[name] = value
    return value
