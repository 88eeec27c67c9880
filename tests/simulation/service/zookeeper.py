"""A ZooKeeper server on an event loop, real or virtual, that serves every client and can be made to fail at will.

`tests/integration/zookeeper/test_model_server.py` compares it with the real server.

Invariants:
- It uses no threads, no clock but the loop's (wall time is only stored), and no randomness but the `rng` it is given.
- Its state is in an Ensemble and is durable: `down` and `up`, or another server over the same ensemble, lose nothing
  that was answered.
"""

from __future__ import annotations

import asyncio
import math
import random
import struct
from collections import deque
from typing import cast

from dlog.io import clock
from tests.simulation.service.zookeeper_ensemble import Client, Ensemble, Member, Now

FRAME_BYTES_MAX = 0xFFFFF  # jute.maxbuffer
_SIZE = struct.Struct("!i")


class ZooKeeperServer:
    """One member of an ensemble (of one, unless several are made over the same) behind a listening socket.

    tick_s: the grain of session expiry; sessions last 2 to 20 ticks. rng: decides what a stalled server does first when
    it wakes; without one it reads what came in before it lets sessions expire.
    """

    def __init__(
        self, ensemble: Ensemble | None = None, *, tick_s: float = 0.5, rng: random.Random | None = None
    ) -> None:
        self.ensemble = ensemble or Ensemble(tick_s=tick_s)
        self.member = Member(self.ensemble)
        self.host, self.port = "", 0
        self._rng = rng
        self._server: asyncio.AbstractServer | None = None
        self._peers: dict[_Peer, None] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._held: deque[tuple[_Peer, bytes | None]] = deque()  # came in during a stall; None: connection ended
        self._lag_s = 0.0
        self._to_apply: deque[tuple[float, int]] = deque()  # (when, up to which zxid)
        self._lag: asyncio.TimerHandle | None = None

    @property
    def hosts(self) -> str:
        """The address list that a client connects to."""
        assert self.port, "not started"
        return f"{self.host}:{self.port}"

    @property
    def is_up(self) -> bool:
        return self._server is not None

    @property
    def sessions(self) -> list[int]:
        """Ids of the sessions that are alive, the oldest first."""
        return list(self.ensemble.sessions)

    @property
    def now(self) -> Now:
        return Now(asyncio.get_running_loop().time(), clock.unix_ms())

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen and serve; port 0 picks a free one, which stays the server's."""
        self.host, self.port = host, port
        await self.up()

    async def up(self) -> None:
        """Serve again, on the same port. Sessions have a whole timeout from now on, unless another member is up."""
        assert self._server is None, "already up"
        loop = asyncio.get_running_loop()
        self._server = server = await loop.create_server(lambda: _Peer(self), self.host, self.port)
        self.port = self.port or server.sockets[0].getsockname()[1]
        if self.member not in self.ensemble.members:
            self.member = Member(self.ensemble)
        if len(self.ensemble.members) == 1:
            self.ensemble.touch_all(self.now)
        self.lag(self._lag_s)
        self._arm()

    def down(self) -> None:
        """Stop as in a crash: every connection is reset, nothing is read or expired until `up`. What was answered is
        kept."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for timer in (self._expiry, self._stall, self._lag):
            if timer is not None:
                timer.cancel()
        self.cut_all()
        self.vanish()

    def vanish(self) -> None:
        """Stop like `down`, for a server whose loop or node is gone: no timer and no connection is touched."""
        self._server = self._expiry = self._stall = self._lag = None
        self._held.clear()
        self._to_apply.clear()
        self._peers.clear()
        for client in self.member.clients:
            self.member.drop(client)
        if self.member in self.ensemble.members:
            self.ensemble.members.remove(self.member)

    async def close(self) -> None:
        """`down`, and wait until the port is free."""
        server = self._server
        self.down()
        if server is not None:
            await server.wait_closed()

    # ---- faults ------------------------------------------------------------------------------------------------------

    def expire(self, session_id: int) -> None:
        """End a session as if it had been silent for too long: its ephemerals go, its connection is closed."""
        self.ensemble.end_session(session_id, self.now)

    def drop_replies(self, count: int) -> None:
        """Carry out the next `count` writes, and reset their connections instead of answering."""
        self.member.replies_to_lose = count

    def drop_requests(self, count: int) -> None:
        """Reset the connections of the next `count` writes instead of carrying them out."""
        self.member.writes_to_lose = count

    def drop_handshakes(self, count: int) -> None:
        """Attach or create the sessions of the next `count` connections, and reset them instead of answering."""
        self.member.handshakes_to_lose = count

    def cut(self, session_id: int) -> None:
        """Reset the connection of a session; the session lives on."""
        for peer in list(self._peers):
            if peer.client.session_id == session_id:
                peer.cut()

    def cut_all(self) -> None:
        """Reset every connection; the sessions live on."""
        for peer in list(self._peers):
            peer.cut()

    def stall(self, seconds: float) -> None:
        """Do nothing for a while, as in a long garbage collection: connections stay, frames wait, no session expires.
        Then overdue sessions expire before or after the frames are read, as the rng decides."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        if self._stall is not None:
            until_s = max(until_s, self._stall.when())
            self._stall.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if len(self.ensemble.members) > 1:
            self.member.lag()  # the other members go on
        self._stall = loop.call_at(until_s, self._wake)

    def wake(self) -> None:
        """End a stall early; do nothing if there is none."""
        if self._stall is not None:
            self._stall.cancel()
            self._wake()

    def lag(self, seconds: float) -> None:
        """Serve an old view from now on: each change is applied here, its watch events sent and its writer answered, up
        to `seconds` after it was made (exactly so much without an rng). 0 catches up."""
        self._lag_s = seconds
        if seconds > 0:
            self.member.on_behind = self._follow
            self.member.lag()
        elif self._stall is None:
            self._catch_up()

    # ---- internals ---------------------------------------------------------------------------------------------------

    def _received(self, peer: _Peer, frame: bytes) -> None:
        if self._stall is not None:
            self._held.append((peer, frame))
            return
        self.member.received(peer.client, frame, self.now)
        self._arm()

    def _wake(self) -> None:
        self._stall = None
        self._advance() if self._lag_s else self._catch_up()
        if self._rng is not None and self._rng.random() < 0.5:
            self._expire()
        while self._held and self._stall is None:
            peer, frame = self._held.popleft()
            if frame is None:
                peer.leave()
            else:
                self._received(peer, frame)
        self._expire()

    def _arm(self) -> None:
        """Set a timer at the first deadline, or before it: deadlines mostly move away."""
        next_s = self.ensemble.next_deadline_s if self._expiry is None else math.inf
        if next_s < math.inf and self._server is not None and self._stall is None:
            self._expiry = asyncio.get_running_loop().call_at(next_s, self._expire)

    def _expire(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._stall is None:
            self.ensemble.expire_due(self.now)
            self._arm()

    def _follow(self, zxid: int) -> None:
        """Apply the newest transaction some time from now, and never before earlier ones."""
        at_s = self.now.s + (self._lag_s if self._rng is None else self._rng.uniform(0, self._lag_s))
        if self._to_apply:
            at_s = max(at_s, self._to_apply[-1][0])
        self._to_apply.append((at_s, zxid))
        if self._lag is None and self._stall is None:
            self._lag = asyncio.get_running_loop().call_at(at_s, self._advance)

    def _advance(self) -> None:
        if self._lag is not None:
            self._lag.cancel()
            self._lag = None
        now = self.now
        while self._to_apply and self._to_apply[0][0] <= now.s and self._stall is None:
            self.member.advance(self._to_apply.popleft()[1], now)
        if self._to_apply and self._stall is None:
            self._lag = asyncio.get_running_loop().call_at(self._to_apply[0][0], self._advance)

    def _catch_up(self) -> None:
        if self._lag is not None:
            self._lag.cancel()
            self._lag = None
        self._to_apply.clear()
        if self.member.is_lagging:
            self.member.catch_up(self.now)


class _Peer(asyncio.Protocol):
    """One connection: cuts frames and answers four-letter words."""

    client: Client

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._in = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server._peers[self] = None
        self.client = self._server.member.joined(self)
        if not self._server.is_up:
            self.cut()

    def data_received(self, data: bytes) -> None:
        self._in += data
        while len(self._in) >= _SIZE.size and not self.client.is_gone:
            (size,) = _SIZE.unpack_from(self._in)
            if not 0 <= size <= FRAME_BYTES_MAX:
                self._speak(bytes(self._in[:4]))
                return
            if len(self._in) < _SIZE.size + size:
                return
            frame = bytes(self._in[_SIZE.size : _SIZE.size + size])
            del self._in[: _SIZE.size + size]
            self._server._received(self, frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._server._stall is not None:
            self._server._held.append((self, None))  # frames sent before the end are read first
        else:
            self.leave()

    def send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(_SIZE.pack(len(frame)) + frame)

    def end(self) -> None:
        transport = self.leave()
        if transport is not None:
            transport.close()

    def reset(self) -> None:
        transport = self.leave()
        if transport is not None:
            transport.abort()

    def cut(self) -> None:
        self._server.member.drop(self.client)
        self.reset()

    def leave(self) -> asyncio.Transport | None:
        transport, self._transport = self._transport, None
        if self._server._peers.pop(self, self) is None:
            self._server.member.drop(self.client)
        return transport

    def _speak(self, word: bytes) -> None:
        """Answer a four-letter word that an operator types: it arrives where a length should be."""
        answers = {b"ruok": b"imok", b"srvr": self._srvr().encode()}
        if self.client.session_id == 0 and word in answers and self._transport is not None:
            self._transport.write(answers[word])
        self._server.member.drop(self.client)
        self.end()

    def _srvr(self) -> str:
        server = self._server
        return (
            f"Zookeeper version: model\nConnections: {len(server._peers)}\nZxid: {server.member.applied:#x}\n"
            f"Mode: standalone\nNode count: {len(server.member.tree.nodes) - 1}\n"
        )
