"""Relays every connection between the parts, which can be cut, held one way, reset in the middle of a frame, slowed, or
lengthened.

The opener of a connection is found by its socket, so that one switch acts on one pair of parts.

Invariants:
- A held link behaves as a cut cable does: bytes, ends and resets of a connection wait, and arrive late when the link
  heals, as TCP would send them again. No data is lost and no peer is notified.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_WAITING_MAX = 256 * 1024  # bytes of one direction that wait before its source is not read any more
_SLOW_STEP_S = 0.02


@dataclass(slots=True)
class LinkConditions:
    """The link conditions of one pair of parts. bytes_per_s: 0 is unlimited. reset_after: bytes until the next
    reset. delay_s: how long bytes take, in each direction; the distance, not a fault, so it stays when links heal."""

    hold_requests: int = 0  # number of faults that hold it now
    hold_replies: int = 0
    bytes_per_s: int = 0
    reset_after: int | None = None
    delay_s: float = 0.0


class Links:
    """All links of a cluster. pids: the present processes that may open connections, by name. tasks: where connections
    are dialled, for as long as this is used."""

    def __init__(self, pids: Callable[[], dict[str, int]], tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        self._pids = pids
        self._conditions: dict[tuple[str, str], LinkConditions] = {}
        self.pairs: set[_Pair] = set()
        self._servers: list[asyncio.Server] = []
        self.first_reply: Callable[[str, str, bytes], None] | None = None  # (source, target, bytes) of a connection

    async def open(self, target: str, port: int, at: int = 0) -> int:
        """Listen for a part that itself listens on `port`; returns the port that others connect to."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Near(self, target, port), "127.0.0.1", at, backlog=1024)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def conditions(self, source: str, target: str) -> LinkConditions:
        return self._conditions.setdefault((source, target), LinkConditions())

    def changed(self) -> None:
        """Apply changed link conditions: connections that waited go on."""
        for pair in tuple(self.pairs):
            pair.pump()

    def heal(self) -> None:
        """Remove all faults of all links."""
        for conditions in self._conditions.values():
            conditions.hold_requests = conditions.hold_replies = 0
            conditions.bytes_per_s, conditions.reset_after = 0, None
        self.changed()

    def reset(self, source: str, target: str) -> int:
        """End all connections of a pair by RST. Returns how many."""
        pairs = [pair for pair in self.pairs if (pair.source, pair.target) == (source, target)]
        for pair in pairs:
            pair.reset()
        return len(pairs)

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for pair in tuple(self.pairs):
            pair.reset()

    def source_of(self, peer: tuple[str, int], port: int) -> str:
        """The part at the other end of a connection to this process; "" if it is none of the cluster's."""
        inode = _inode(peer[1], port)
        if inode is None:
            return ""
        wanted = f"socket:[{inode}]"
        for name, pid in self._pids().items():
            with contextlib.suppress(OSError):
                for descriptor in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.readlink(f"/proc/{pid}/fd/{descriptor}") == wanted:
                            return name
        return ""


class _Pair:
    """One connection: the near end that came to us and the far end that we opened."""

    def __init__(self, links: Links, source: str, target: str, near: asyncio.Transport) -> None:
        self.links = links
        self.source = source
        self.target = target
        self.conditions = links.conditions(source, target)
        self.requests = _Flow(self, True)
        self.replies = _Flow(self, False)
        self.requests.source = self.replies.sink = near
        self._over = False
        links.pairs.add(self)

    def pump(self) -> None:
        self.requests.pump()
        self.replies.pump()

    def finish(self, sink: asyncio.Transport) -> None:
        """End one direction by FIN; when both have ended, the connection is over."""
        if not sink.is_closing():
            with contextlib.suppress(OSError):  # reset by the other end, and its callback is about to run
                sink.write_eof()
        if self.requests.is_done and self.replies.is_done:
            self._over = True
            self.links.pairs.discard(self)
            for transport in (self.requests.source, self.requests.sink):
                if transport is not None:
                    transport.close()

    def reset(self) -> None:
        """Send RST to both ends."""
        if self._over:
            return
        self._over = True
        self.links.pairs.discard(self)
        for transport in (self.requests.source, self.requests.sink):
            if transport is not None and not transport.is_closing():
                sock: socket.socket | None = transport.get_extra_info("socket")
                if sock is not None:
                    with contextlib.suppress(OSError):
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                transport.abort()


class _Flow:
    """One direction of a connection."""

    def __init__(self, pair: _Pair, is_request: bool) -> None:
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.sink_is_full = False
        self.ended = False  # the source has sent everything
        self.broken = False  # ... by a reset
        self._pair = pair
        self._is_request = is_request
        self._waiting: deque[tuple[float, bytes]] = deque()  # time of arrival, on the clock of the loop
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """Whether its end has been passed on."""
        return self._is_done

    def take(self, data: bytes) -> None:
        self._waiting.append((asyncio.get_running_loop().time() + self._pair.conditions.delay_s, data))
        self._waiting_bytes += len(data)
        self.pump()

    def pump(self) -> None:
        """Send what may be sent now."""
        pair, conditions, sink = self._pair, self._pair.conditions, self.sink
        held = conditions.hold_requests if self._is_request else conditions.hold_replies
        if sink is not None and sink.is_closing():
            self._waiting.clear()  # no receiver is left
            self._waiting_bytes = 0
        while sink is not None and not held and self._waiting and not self.sink_is_full and self._timer is None:
            if sink.is_closing():
                break
            due_s, data = self._waiting[0]
            left_s = due_s - asyncio.get_running_loop().time()
            if left_s > 0:
                self._timer = asyncio.get_running_loop().call_later(left_s, self._go_on)
                break
            self._waiting.popleft()
            if conditions.reset_after is not None and len(data) >= conditions.reset_after:
                sink.write(data[: conditions.reset_after])
                conditions.reset_after = None
                asyncio.get_running_loop().call_soon(pair.reset)
                return
            if conditions.reset_after is not None:
                conditions.reset_after -= len(data)
            if conditions.bytes_per_s:
                step = max(1, int(conditions.bytes_per_s * _SLOW_STEP_S))
                if len(data) > step:
                    self._waiting.appendleft((due_s, data[step:]))
                    data = data[:step]
                self._timer = asyncio.get_running_loop().call_later(_SLOW_STEP_S, self._go_on)
            self._waiting_bytes -= len(data)
            sink.write(data)
        if self.ended and not held and sink is not None and not self._is_done and (self.broken or not self._waiting):
            self._is_done = True
            if self.broken:
                pair.reset()
            else:
                pair.finish(sink)
        self._read_or_not()

    def _go_on(self) -> None:
        self._timer = None
        self.pump()

    def _read_or_not(self) -> None:
        pause = self._waiting_bytes > _WAITING_MAX
        if pause != self._paused and self.source is not None and not self.source.is_closing():
            self._paused = pause
            if pause:
                self.source.pause_reading()
            else:
                self.source.resume_reading()


class _End(asyncio.Protocol):
    """One end: a source of one flow and the target of the other."""

    def __init__(self) -> None:
        self.feeds: _Flow | None = None
        self.fed_by: _Flow | None = None

    def data_received(self, data: bytes) -> None:
        if self.feeds is not None:
            self.feeds.take(data)

    def eof_received(self) -> bool:
        if self.feeds is not None:
            self.feeds.ended = True
            self.feeds.pump()
        return True  # the end waits behind the bytes before it

    def connection_lost(self, error: Exception | None) -> None:
        if self.feeds is not None:
            self.feeds.ended = self.feeds.broken = True
            self.feeds.pump()

    def pause_writing(self) -> None:
        if self.fed_by is not None:
            self.fed_by.sink_is_full = True

    def resume_writing(self) -> None:
        if self.fed_by is not None:
            self.fed_by.sink_is_full = False
            self.fed_by.pump()


class _Near(_End):
    """The accepted end; dials the part behind the link."""

    def __init__(self, links: Links, target: str, port: int) -> None:
        super().__init__()
        self._links = links
        self._target = target
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        source = self._links.source_of(transport.get_extra_info("peername"), transport.get_extra_info("sockname")[1])
        pair = _Pair(self._links, source, self._target, transport)
        self.feeds, self.fed_by = pair.requests, pair.replies
        self._links.tasks.create_task(self._dial(pair), name=f"dial {self._target}")

    async def _dial(self, pair: _Pair) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: _Far(pair), "127.0.0.1", self._port)
        except OSError:
            pair.reset()


class _Far(_End):
    """The connection to the part itself."""

    def __init__(self, pair: _Pair) -> None:
        super().__init__()
        self._pair = pair
        self._is_first = True
        self.feeds, self.fed_by = pair.replies, pair.requests

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._pair.requests.sink = self._pair.replies.source = transport
        if self._pair not in self._pair.links.pairs:
            transport.abort()
            return
        self._pair.pump()

    def data_received(self, data: bytes) -> None:
        if self._is_first:
            self._is_first = False
            if self._pair.links.first_reply is not None:
                self._pair.links.first_reply(self._pair.source, self._pair.target, data)
        super().data_received(data)


_DIAG = struct.Struct("=IHHIIBBBBI")  # netlink header; family, protocol, extensions, padding, states
_ENDS = struct.Struct("!HH4s12x4s12x")  # ports and addresses, the peer's first
_TAIL = struct.Struct("=III")  # interface, no cookie
_INODE = struct.Struct("=I")
_INODE_AT = 16 + 4 + 48 + 4 * 4
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NETLINK_SOCK_DIAG = 20, 1, 4


def _inode(peer_port: int, port: int) -> int | None:
    """The socket at the other end of a connection of 127.0.0.1, as the kernel reports it; None if it is gone. Reading
    all of /proc/net/tcp instead would block the loop for long on a machine with many connections."""
    here = socket.inet_aton("127.0.0.1")
    asked = _ENDS.pack(peer_port, port, here, here) + _TAIL.pack(0, 0xFFFFFFFF, 0xFFFFFFFF)
    head = _DIAG.pack(
        _DIAG.size + len(asked),
        *(_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0),
        *(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF),
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(head + asked)
        answer = kernel.recv(4096)
    if len(answer) < _INODE_AT + _INODE.size:
        return None
    inode: int = _INODE.unpack_from(answer, _INODE_AT)[0]
    return inode or None
