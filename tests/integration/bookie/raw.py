"""A BookKeeper v2 client made of struct and a socket: it sends the given bytes, right or wrong."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self

KEY = b"k" * 20
ADD, READ, AUTH, BATCH = 1, 2, 3, 7
COLLECT, SUMMARIZE = 192, 193
FENCE, RECOVERY, HIGH_PRIORITY = 1, 2, 4


class Answer(NamedTuple):
    """rc, ids and what follows; `word` is the whole header."""

    word: int
    rc: int
    ledger: int
    entry: int
    rest: bytes


def packet(ledger: int, entry: int, body: bytes = b"", lac: int | None = None) -> bytes:
    return struct.pack(">qqqq", ledger, entry, entry - 1 if lac is None else lac, len(body)) + body


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def add_frame(
    ledger: int, entry: int, body: bytes = b"", *, key: bytes = KEY, flags: int = 0, version: int = 2
) -> bytes:
    word = version << 24 | ADD << 16 | flags
    return frame(struct.pack(">I", word) + key + packet(ledger, entry, body))


def read_frame(ledger: int, entry: int, *, key: bytes = b"", flags: int = 0, version: int = 2) -> bytes:
    return frame(struct.pack(">Iqq", version << 24 | READ << 16 | flags, ledger, entry) + key)


def batch_frame(
    ledger: int, start: int, count: int, size: int, *, request: int = 5, flags: int = 0, key: bytes = b""
) -> bytes:
    return frame(struct.pack(">Iqqqiq", 2 << 24 | BATCH << 16 | flags, ledger, start, request, count, size) + key)


def collect_frame(number: int) -> bytes:
    return frame(struct.pack(">Iq", 2 << 24 | COLLECT << 16, number))


def summarize_frame(
    ledger: int, first: int, last: int, *, modulus: int = 1, remainder: int = 0, digest: int = 3, version: int = 2
) -> bytes:
    head = struct.pack(">I", version << 24 | SUMMARIZE << 16)
    return frame(head + struct.pack(">qqqqiiB", ledger, first, last, 5, modulus, remainder, digest))


class Raw:
    """One connection; every wait ends after ten seconds."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=90)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> bytes:
        """The next whole frame. Raises EOFError when the bookie has closed."""
        (length,) = struct.unpack(">I", self._take(4))
        return self._take(length)

    def answer(self) -> Answer:
        data = self.frame()
        word, rc, ledger, entry = struct.unpack_from(">Iiqq", data)
        return Answer(word, rc, ledger, entry, data[24:])

    def answers(self, count: int) -> list[Answer]:
        return [self.answer() for _ in range(count)]

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        return self.answer()

    def add(self, ledger: int, entry: int, body: bytes = b"", **how: int) -> int:
        return self.ask(add_frame(ledger, entry, body, **how)).rc  # type: ignore[arg-type]

    def read(self, ledger: int, entry: int) -> tuple[int, bytes]:
        answer = self.ask(read_frame(ledger, entry))
        return answer.rc, answer.rest

    def fence(self, ledger: int, entry: int = -1, key: bytes = KEY) -> Answer:
        return self.ask(read_frame(ledger, entry, key=key, flags=FENCE))

    def batch(self, ledger: int, start: int, count: int = 0, size: int = 1 << 20) -> tuple[int, list[bytes]]:
        answer = self.ask(batch_frame(ledger, start, count, size))
        assert struct.unpack_from(">q", answer.rest) == (5,)
        return answer.rc, list(_packets(answer.rest[8:]))

    def is_closed(self) -> bool:
        """Whether the bookie closes the connection; it must not answer first."""
        try:
            data = self.socket.recv(1)
        except ConnectionError:
            return True
        assert not data, "an answer where the connection should have been closed"
        return True

    def _take(self, count: int) -> bytes:
        while len(self._in) < count:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._in += data
        taken = bytes(self._in[:count])
        del self._in[:count]
        return taken


def _packets(data: bytes) -> Iterable[bytes]:
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length
