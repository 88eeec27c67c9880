"""What a caller hands over, judged before anything is taken."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dlog.client.batch import too_large
from dlog.client.options import RECORD_BYTES_MAX
from dlog.errors import InvalidRequestError
from dlog.model.ids import TXID_MAX

_BYTES_ALONE = {bytes}


def checked_payload(given: object) -> bytes:
    """One record's bytes; what may change later is copied. Raises InvalidRequestError, RecordTooLargeError."""
    payload = given
    if not isinstance(payload, bytes):
        if not isinstance(payload, bytearray | memoryview):
            raise InvalidRequestError(f"a record is bytes, encode it first: type={type(payload).__name__}")
        payload = bytes(payload)
    if len(payload) > RECORD_BYTES_MAX:
        raise too_large(len(payload))
    return payload


def checked_batch(given: Sequence[object]) -> list[bytes]:
    """The bytes of each record of a batch, at least one. Raises as `checked_payload`; one comparison if all is well."""
    if not given:
        raise InvalidRequestError("a batch has at least one record")
    if set(map(type, given)) == _BYTES_ALONE:
        return list(given)  # type: ignore[arg-type]  # their size together is judged with the set
    return [checked_payload(payload) for payload in given]


def check_thread(own: threading.Thread) -> None:
    """Raises InvalidRequestError in `own`, the thread that would have to answer: it would wait for ever."""
    if threading.current_thread() is own:
        raise InvalidRequestError(
            "a blocking client was used in its own thread, where it cannot wait for its answer; use it in another "
            f"thread, or use the asyncio client (dlog.connect): thread={own.name}"
        )


def check_txid(txid: int | None) -> None:
    """Raises InvalidRequestError."""
    if txid is not None and not 0 <= txid <= TXID_MAX:
        raise InvalidRequestError(f"a transaction id lies between 0 and {TXID_MAX}: txid={txid}")
