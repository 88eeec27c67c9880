"""One v3 request of a connection, from its arrival to its answer.

The state machine's peer of a v2 request is the connection itself, because a v2 answer names its ledger and entry. A v3
answer must repeat the txnId of its request, so each v3 request is a peer of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlog.io.clock import unix_ms
from dlog.wire.bookie import AddEntry
from dlog.wire.bookie_v3 import V3Request
from dlog.wire.bookie_v3_messages import ReadWithLac
from dlog.wire.bookie_v3_responses import encode_v3_response
from dlog.wire.framing import Buffer

Reply = Callable[["V3Exchange", list[Buffer]], None]


class V3Exchange:
    """A state machine's peer for one request. reply: called once, with the frame of the answer.

    may_poll: whether the answer may wait until a LAC moves. counts_as_read: whether the connection limits how many of
    its kind are unanswered; a long poll waits for a writer, so it must not keep other requests from being taken.
    """

    __slots__ = ("_call", "_reply", "counts_as_read", "may_poll")

    def __init__(self, request: V3Request, reply: Reply) -> None:
        message = request.message
        self._call = request.call
        self._reply = reply
        self.may_poll = isinstance(message, ReadWithLac) and message.timeout_ms > 0 and message.previous_lac is not None
        self.counts_as_read = not (self.may_poll or isinstance(message, AddEntry))

    def send(self, message: Any) -> None:
        self._reply(self, encode_v3_response(self._call, message, unix_ms()))
