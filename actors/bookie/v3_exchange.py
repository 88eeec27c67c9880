"""One v3 request of a connection, from its arrival to its answer.

The state machine's peer of a v2 request is the connection itself, because a v2 answer names its ledger and entry. A v3
answer must repeat the txnId of its request, so each v3 request is a peer of its own.
"""

from __future__ import annotations

from typing import Any, Protocol

from dlog.io.clock import unix_ms
from dlog.wire.bookie import AddEntry
from dlog.wire.bookie_v3 import V3Request
from dlog.wire.bookie_v3_messages import ReadWithLac
from dlog.wire.bookie_v3_responses import encode_v3_response
from dlog.wire.framing import Buffer


class Owner(Protocol):
    """The connection of a request."""

    def reply_v3(self, exchange: V3Exchange, buffers: list[Buffer]) -> None:
        """Called once, with the frame of the answer."""
        ...

    def wait_v3(self, exchange: V3Exchange) -> None:
        """Called at most once, before the answer: the request waits until a LAC moves."""
        ...


class V3Exchange:
    """A state machine's peer for one request.

    may_poll: whether the answer may wait until a LAC moves. counts_as_read: whether it counts among the unanswered
    reads of its connection. A poll that waits does not: it needs a writer, perhaps one behind it on the connection.
    """

    __slots__ = ("_call", "_owner", "counts_as_read", "may_poll")

    def __init__(self, request: V3Request, owner: Owner) -> None:
        message = request.message
        self._call = request.call
        self._owner = owner
        self.may_poll = isinstance(message, ReadWithLac) and message.timeout_ms > 0 and message.previous_lac is not None
        self.counts_as_read = not isinstance(message, AddEntry)

    def wait(self) -> None:
        self._owner.wait_v3(self)

    def send(self, message: Any) -> None:
        self._owner.reply_v3(self, encode_v3_response(self._call, message, unix_ms()))
