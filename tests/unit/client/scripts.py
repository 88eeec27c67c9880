"""Scripts of proxy doubles for writes, sources of records that fail, and a function that catches errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

from dlog.errors import InvalidRequestError, RecordTooLargeError, TruncatedError
from dlog.wire import proxy
from tests.unit.client.proxy_double import Peer, Script


class Holding:
    """A script that holds writes back until it is released."""

    def __init__(self) -> None:
        self.held: list[tuple[Peer, proxy.Write]] = []
        self.on = True

    def __call__(self, peer: Peer, message: proxy.Message) -> bool:
        if self.on and isinstance(message, proxy.Write):
            self.held.append((peer, message))
            return True
        return False

    def let_go(self) -> None:
        self.on = False
        held, self.held = self.held, []
        for peer, message in held:
            peer.double.answer(peer, message)


def failing(times: int, code: int, **extra: object) -> Script:
    """Refuse the first writes with an error."""
    left = [times]

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Write) and left[0]:
            left[0] -= 1
            peer.send(proxy.Failed(message.request, code, "refused by the script", **extra))  # type: ignore[arg-type]
            return True
        return False

    return script


def out_of_order(txid: int, after: Script | None = None) -> Script:
    """Refuse the batch with this txid. after: requested for all others."""

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Write) and message.txid == txid:
            peer.send(proxy.Failed(message.request, 513, "txid out of order"))
            return True
        return after is not None and after(peer, message)

    return script


def source_of(ends: str) -> Iterator[Any]:
    """Three records, then one that is refused, or an exception."""
    yield from (b"0", b"1", b"2")
    match ends:
        case "too large":
            yield b"x" * (2 << 20)
        case "not bytes":
            yield "text"
        case "error of another stream":  # as from a read
            raise TruncatedError("truncated", outcome_unknown=True)
        case _:
            raise ZeroDivisionError
    yield b"3"


ENDS: dict[str, type[Exception]] = {
    "too large": RecordTooLargeError,
    "not bytes": InvalidRequestError,
    "error of another stream": TruncatedError,
    "other exception": ZeroDivisionError,
}


async def error_of(work: Awaitable[object]) -> BaseException | None:
    """The error or the cancellation that `work` ends with; None if there is none."""
    try:
        await work
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the test examines it
        return error
    return None
