"""Decodes what arrives on a bookie's port: BookKeeper's v3 (protobuf) and v2 protocols, recognised by the first frames.

Source: BookKeeper, BookieProtoEncoding.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlog.wire.bookie import REQUEST_LENGTH_MAX, Request, decode_request
from dlog.wire.bookie_v3 import V3Request, decode_v3
from dlog.wire.framing import Decoder

PortRequest = Request | V3Request


class RequestDecoder(Decoder[list[PortRequest]]):
    """Decodes a client's bytes into requests. One per connection.

    While frames parse as v3 they are v3 requests; the first that does not makes the connection v2 for good. Buffers in
    messages are views of the received data and stay valid for ever; keeping one keeps its chunk. Close the connection
    at a ProtocolError: earlier requests of the same chunk are dropped, as if the connection had ended before them.
    """

    __slots__ = ("_speaks_v2",)

    def __init__(self, length_max: int = REQUEST_LENGTH_MAX) -> None:
        super().__init__(length_max)
        self._speaks_v2 = False

    def _decoded(self, frames: Iterable[memoryview]) -> list[PortRequest]:
        if self._speaks_v2:
            return [decode_request(frame) for frame in frames]
        return [self._decode(frame) for frame in frames]

    def _decode(self, frame: memoryview) -> PortRequest:
        if not self._speaks_v2:
            request = decode_v3(frame)
            if request is not None:
                return request
            self._speaks_v2 = True
        return decode_request(frame)
