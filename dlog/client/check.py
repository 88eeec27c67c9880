"""Checks of the arguments of client calls, before any record is buffered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from operator import index

from dlog.client.batch import too_large
from dlog.client.options import RECORD_BYTES_MAX
from dlog.errors import InvalidRequestError
from dlog.model.ids import TXID_MAX

_BYTES_ALONE = {bytes}


def checked_payload(given: object) -> bytes:
    """One record as bytes; mutable input is copied. Raises InvalidRequestError, RecordTooLargeError."""
    payload = given
    if not isinstance(payload, bytes):
        if not isinstance(payload, bytearray | memoryview):
            raise InvalidRequestError(f"a record must be bytes, encode it first: type={type(payload).__name__}")
        payload = bytes(payload)
    if len(payload) > RECORD_BYTES_MAX:
        raise too_large(len(payload))
    return payload


def checked_batch(given: Iterable[object]) -> list[bytes]:
    """The records of a batch, at least one, as bytes. Raises as `checked_payload`. Fast for valid input."""
    records = list(given)  # once: `given` may be an iterator
    if not records:
        raise InvalidRequestError("a batch must have at least one record")
    if set(map(type, records)) == _BYTES_ALONE:
        return records  # type: ignore[return-value]  # the producer checks their total size
    return [checked_payload(payload) for payload in records]


def check_thread(own: threading.Thread) -> None:
    """Raise InvalidRequestError in the client's own thread, where waiting for a result would block for ever."""
    if threading.current_thread() is own:
        raise InvalidRequestError(
            "a blocking client was called in its own event loop thread, where waiting would never end; call it in "
            f"another thread, or use the asyncio client (dlog.connect): thread={own.name}"
        )


def check_loop(own: asyncio.AbstractEventLoop | None, *, outcome_unknown: bool = False) -> None:
    """Raise InvalidRequestError outside the event loop `own`: asyncio objects work in one loop, and in its thread."""
    try:
        is_own = asyncio.get_running_loop() is own
    except RuntimeError:  # none runs in this thread
        is_own = False
    if not is_own:
        raise InvalidRequestError(
            "a client belongs to the event loop that it was opened in; open another one with dlog.connect in this "
            "loop, or use the blocking one (dlog.connect_sync), which works in any thread",
            outcome_unknown=outcome_unknown,
        )


def check_txid(txid: int | None) -> None:
    """Raises InvalidRequestError unless it is None or an integer within bounds, also one of numpy's."""
    if txid is None:
        return
    try:
        number = index(txid)
    except TypeError:
        number = None
    if number is None or isinstance(txid, bool):
        raise InvalidRequestError(f"a transaction id must be an integer, convert it with int(): txid={txid!r}")
    if not 0 <= number <= TXID_MAX:
        raise InvalidRequestError(f"a transaction id must be between 0 and {TXID_MAX}: txid={txid}")
