"""A client of the proxy protocol that sends any bytes and reports the answer in one word."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Self

import msgpack

from dlog.wire import proxy
from dlog.wire.digest import crc32c
from dlog.wire.entry import build_record_set
from dlog.wire.proxy_codec import SCHEMA, FrameDecoder, encode

REQUEST = 77
PATIENCE_S = 90.0


def said(message: proxy.Message) -> bytes:
    return b"".join(bytes(part) for part in encode(message))


HELLO = said(proxy.Hello(1, proxy.PROTOCOL_VERSION, proxy.PROTOCOL_VERSION, "tool", "hostile"))


def framed(header: bytes, body: bytes = b"") -> bytes:
    """A frame around any header, msgpack or not."""
    return struct.pack(">IH", 2 + len(header) + len(body), len(header)) + header + body


def forged(message: proxy.Message, *, body: bytes | None = None, **fields: Any) -> bytes:
    """The frame of a message, with some fields replaced by values that the message type does not allow."""
    whole = said(message)
    (size,) = struct.unpack_from(">H", whole, 4)
    header = msgpack.unpackb(whole[6 : 6 + size])
    names = [name for cls, kinds in SCHEMA.values() if cls is type(message) for name, _ in kinds]
    for name, value in fields.items():
        header[1 + names.index(name)] = value
    return framed(msgpack.packb(header), whole[6 + size :] if body is None else body)


def write(stream: str, body: bytes | None = None, **fields: Any) -> proxy.Write:
    """A valid batch, except for the given fields."""
    body = build_record_set([b"one", b"two"]) if body is None else body
    values: dict[str, Any] = {
        "request": REQUEST,
        "stream": stream,
        "producer": b"hostile producer",
        "sequence": 0,
        "count": 2,
        "txid": None,
        "crc": crc32c(body),
        "retry": False,
        "body": body,
    }
    return proxy.Write(**{**values, **fields})


class Talk:
    """One connection. Every wait ends after PATIENCE_S."""

    def __init__(self, address: str, *, hello: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._decoder = FrameDecoder(64 << 20)
        self._heard: list[proxy.Message] = []
        if hello:
            self.send(HELLO)
            assert isinstance(self.next(), proxy.Welcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def next(self) -> proxy.Message | None:
        """The next message, None at the end."""
        while not self._heard:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError:
                return None
            if not data:
                return None
            self._heard.extend(self._decoder.feed(data))
        return self._heard.pop(0)

    def answer(self) -> str:
        """The answer to REQUEST in one word; after an answer the connection must still work."""
        message = self.next()
        told = _word(message)
        if message is None or (isinstance(message, proxy.Failed) and message.code == 521):
            assert message is None or self.next() is None
            return told
        self.send(said(proxy.Ping(9999)))
        while not (isinstance(message, proxy.Done) and message.request == 9999):
            message = self.next()
            assert message is not None, f"closed after {told}"
        return told


def _word(message: proxy.Message | None) -> str:
    match message:
        case None:
            return "closed"
        case proxy.Failed(code=code):
            return f"error {code}"
        case proxy.ReaderEvent(kind=kind):
            return f"event {kind.name}"
    return type(message).__name__.upper()
