"""Checks of the arguments of client calls, before any record is buffered."""

from __future__ import annotations

import threading
from collections.abc import Sequence

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


def checked_batch(given: Sequence[object]) -> list[bytes]:
    """The records of a batch, at least one, as bytes. Raises as `checked_payload`. Fast for valid input."""
    if not given:
        raise InvalidRequestError("a batch must have at least one record")
    if set(map(type, given)) == _BYTES_ALONE:
        return list(given)  # type: ignore[arg-type]  # the producer checks their total size
    return [checked_payload(payload) for payload in given]


def check_thread(own: threading.Thread) -> None:
    """Raise InvalidRequestError in the client's own thread, where waiting for a result would block for ever."""
    if threading.current_thread() is own:
        raise InvalidRequestError(
            "a blocking client was called in its own event loop thread, where waiting would never end; call it in "
            f"another thread, or use the asyncio client (dlog.connect): thread={own.name}"
        )


def check_txid(txid: int | None) -> None:
    """Raises InvalidRequestError."""
    if txid is not None and not 0 <= txid <= TXID_MAX:
        raise InvalidRequestError(f"a transaction id must be between 0 and {TXID_MAX}: txid={txid}")
