"""One end of a simulated TCP connection, as a process sees it: an asyncio transport.

Invariants: those of network.py.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.service.loop import Process, S

if TYPE_CHECKING:
    from tests.simulation.service.network import Link, Network

_EOF = b""
_RESET = None


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. The other is `peer`; data on its way to this end is in `_flying`."""

    __slots__ = (
        "_arrives",
        "_broken",
        "_buffered",
        "_closing",
        "_eof_heard",
        "_eof_sent",
        "_flying",
        "_high",
        "_inbox",
        "_local",
        "_loop",
        "_lost",
        "_low",
        "_network",
        "_number",
        "_opened",
        "_out",
        "_out_bytes",
        "_paused",
        "_protocol",
        "_pump_due",
        "_reading",
        "_remote",
        "_unacked",
        "_window",
        "peer",
        "process",
        "vanished",
    )

    peer: SimulatedTransport

    def __init__(
        self, network: Network, process: Process, local: tuple[str, int], remote: tuple[str, int], number: int
    ) -> None:
        super().__init__()
        self.process = process
        self.vanished = False  # its host lost power
        self._network = network
        self._loop = network.loop
        self._local = local
        self._remote = remote
        self._number = number
        self._protocol: Any = None
        self._buffered = False
        self._opened = False
        self._closing = False
        self._lost = False  # connection_lost was called, or will be at the end of this turn
        self._broken = False  # whatever is still on its way here is dropped
        self._reading = True
        self._inbox: deque[bytes | None] = deque()  # arrived, not read yet
        self._flying: deque[bytes | None] = deque()  # sent by the peer, in order
        self._arrives = 0  # when the last thing we sent arrives
        self._out: deque[bytes] = deque()  # beyond the window: what asyncio would keep in its own buffer
        self._out_bytes = 0
        self._unacked = 0
        self._window = network.link(local[0], remote[0]).rng.choice(network.windows_bytes)
        self._high, self._low = 64 * 1024, 16 * 1024
        self._paused = False
        self._pump_due = False
        self._eof_sent = False
        self._eof_heard = False

    def __repr__(self) -> str:
        return f"<{self._local[0]}:{self._local[1]} to {self._remote[0]}:{self._remote[1]}>"

    def pair(self, peer: SimulatedTransport) -> None:
        self.peer = peer
        peer.peer = self

    # ---- opening and losing ------------------------------------------------------------------------------------------

    def open(self, protocol: Any) -> None:
        """Attach the protocol; from now on it receives what has arrived."""
        self.set_protocol(protocol)
        self._opened = True
        protocol.connection_made(self)
        if self._lost:
            self._loop.call_soon(self._tell_lost, ConnectionResetError(104, "Connection reset by peer"))
        elif self._inbox:
            self._loop.call_soon(self._take_inbox)

    def _lose(self, error: Exception | None) -> None:
        """End this side of the connection. Called in the turn of its process."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._out.clear()
        self._out_bytes = 0
        self._inbox.clear()
        self._network.forget(self)
        if self._opened:
            self._loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        protocol.connection_lost(error)

    # ---- asyncio's side ----------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._remote, "sockname": self._local}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_held(self) -> bool:
        """Whether its process still holds it open. A closed one that only delivers its last bytes is the host's."""
        return self._opened and not self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            if self._inbox:
                self._loop.call_soon(self._take_inbox)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else (64 * 1024 if low is None else 4 * low)
        self._low = low if low is not None else self._high // 4
        self._look_at_buffer()

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return  # as in asyncio: data written to a closing transport is dropped
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._eof_sent or self._closing:
            return
        self._eof_sent = True
        if not self._out:
            self._transmit(_EOF)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._out:
            self._finish()

    def abort(self) -> None:
        if self._lost:
            return
        self._closing = True
        was_eof = self._eof_sent and not self._out
        self._out.clear()
        self._out_bytes = 0
        if not was_eof:
            self._transmit(_EOF if self._link().rng.random() < 0.5 else _RESET)
        self._lose(None)

    def _finish(self) -> None:
        """Everything written has left: send the end of the stream."""
        if not self._eof_sent:
            self._transmit(_EOF)
        self._eof_sent = True
        self._lose(None)

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _link(self) -> Link:
        return self._network.link(self._local[0], self._remote[0])

    def _send(self, data: bytes) -> None:
        room = self._window - self._unacked
        if not self._out and len(data) <= room:
            self._cut_up(data)
            return
        if not self._out and room > 0:
            self._cut_up(data[:room])
            data = data[room:]
        self._out.append(data)
        self._out_bytes += len(data)
        self._look_at_buffer()

    def _cut_up(self, data: bytes) -> None:
        """Send as one chunk, or now and then as two."""
        self._unacked += len(data)
        self._network.bytes += len(data)
        if len(data) > 1:
            rng = self._link().rng
            if rng.random() < 0.1:
                at = rng.randint(1, len(data) - 1)
                self._transmit(data[:at])
                data = data[at:]
        self._transmit(data)

    def _transmit(self, chunk: bytes | None) -> None:
        link, peer = self._link(), self.peer
        extra_ns = 0
        if chunk:
            link.sent += 1
            if link.hold or link.lose:
                extra_ns = link.hold.pop(link.sent, 0)
                if link.sent in link.lose:
                    link.lose.discard(link.sent)
                    self._network.reset(self._local[0], self._remote[0])
                    return
        peer._flying.append(chunk)
        self._arrives = link.carry(peer.process, peer._arrive, extra_ns=extra_ns, not_before=self._arrives)
        if peer.vanished:
            if peer._local[0] not in self._network.is_down:
                self.peer_is_unknown()
        elif peer.process.is_dead and chunk:
            peer._link().carry(self.process, self.break_off)

    def _acked(self, size: int) -> None:
        """The peer's process has read this many bytes."""
        self._unacked -= size
        if self._out and not self._pump_due and not self._lost:
            self._pump_due = True
            self.peer._link().carry(self.process, self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        while self._out and not self._lost:
            room = self._window - self._unacked
            if room <= 0:
                return
            data = self._out.popleft()
            self._out_bytes -= len(data)
            if len(data) > room:
                self._out.appendleft(data[room:])
                self._out_bytes += len(data) - room
                data = data[:room]
            self._cut_up(data)
        if self._lost:
            return
        self._look_at_buffer()
        if not self._out:
            if self._closing:
                self._finish()
            elif self._eof_sent:
                self._transmit(_EOF)

    def _look_at_buffer(self) -> None:
        if not self._paused and self._out_bytes > self._high:
            self._paused = True
            self._protocol.pause_writing()
        elif self._paused and self._out_bytes <= self._low:
            self._paused = False
            self._protocol.resume_writing()

    # ---- receiving ---------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Deliver the next chunk on its way to this end. Called in the turn of our process."""
        if self._broken or not self._flying:
            return
        chunk = self._flying.popleft()
        if self._lost:
            if chunk:
                self._link().carry(self.peer.process, self.peer.break_off)  # no process has this end: TCP resets
            return
        self._inbox.append(chunk)
        self._take_inbox()

    def _take_inbox(self) -> None:
        inbox = self._inbox
        while inbox and self._opened and not self._lost and (self._reading or inbox[0] is _RESET):
            chunk = inbox.popleft()
            if chunk is _RESET:
                self._lose(ConnectionResetError(104, "Connection reset by peer"))
            elif self._closing:
                self.peer._acked(len(chunk))
            elif chunk == _EOF:
                self._hear_eof()
            else:
                while inbox and inbox[0] and len(chunk) < 64 * 1024:
                    chunk += cast(bytes, inbox.popleft())
                self.peer._acked(len(chunk))
                self._loop.mix(zlib.crc32(chunk) ^ self._number << 32)
                if self._loop.on_line is not None:
                    self._loop.note(f"hears {len(chunk)} bytes on connection {self._number} from {self._remote[0]}")
                self._hear(chunk)

    def _hear(self, data: bytes) -> None:
        if not self._buffered:
            self._protocol.data_received(data)
            return
        while data and not self._closing:
            buffer = self._protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self._protocol.buffer_updated(size)

    def _hear_eof(self) -> None:
        self._eof_heard = True
        if not self._protocol.eof_received():
            self.close()

    # ---- faults ------------------------------------------------------------------------------------------------------

    def break_off(self) -> None:
        """Reset the connection at this end, whatever was on its way here."""
        if self._lost or self._broken:
            return
        self._broken = True
        self._flying.clear()
        self._inbox.clear()
        self._loop.hand(self.process, self._lose, ConnectionResetError(104, "Connection reset by peer"))

    def host_closes(self) -> None:
        """Close from the host's side, because our process was killed."""
        if not self._lost and not self.peer._lost:
            self._transmit(_EOF if self._link().rng.random() < 0.5 else _RESET)
        self._lost = self._closing = True
        self._out.clear()

    def host_vanishes(self) -> None:
        """Lose the host's power: what it had not sent is gone, and nothing is answered."""
        self.vanished = True
        self._lost = self._closing = self._broken = True
        self._out.clear()
        peer = self.peer
        if not peer._lost and not peer.process.is_dead:
            keepalive_ns = int(self._link().rng.uniform(10, 30) * S)
            self._loop.at(self._loop.now + keepalive_ns, peer.process, peer._give_up)

    def _give_up(self) -> None:
        """End the connection, because keepalive got no answer."""
        if not self._lost:
            self._broken = True
            self._flying.clear()
            self._lose(TimeoutError(110, "Connection timed out"))

    def peer_is_unknown(self) -> None:
        """The remote host restarted without its state: what we sent, or send, is answered by a reset."""
        if not self._lost and (self._unacked or self._out):
            delay_ns = int(self._link().rng.uniform(0.05, 0.5) * S)
            self._loop.at(self._loop.now + delay_ns, self.process, self.break_off)
