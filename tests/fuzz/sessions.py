"""Sessions of hostile clients against real processes: valid frames, mutated, reordered, truncated, doubled.

What is sent follows from a seed; what comes back is read and dropped. The caller checks that the process survives and
that other clients are served.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable

from dlog.objects.operation_codec import encode_operation
from dlog.objects.operations import GetKey
from dlog.wire import proxy
from tests.fuzz.decoders import mutated
from tests.integration.bookie.raw import FENCE, KEY, RECOVERY, add_frame, batch_frame, read_frame
from tests.integration.hostile.talk import HELLO, said, write

PATIENCE_S = 0.2
OPERATION = encode_operation(GetKey("k"))
INCARNATION = "a1"  # the incarnation of every stream that is created here
Frames = Callable[[random.Random], list[bytes]]


def bookie_frames(rng: random.Random) -> list[bytes]:
    """Frames to a bookie, for ledgers that no other client uses."""
    ledger = 8_000_000 + rng.randrange(50)
    makers = (
        lambda: add_frame(ledger, rng.randrange(20), rng.randbytes(rng.randrange(200))),
        lambda: add_frame(ledger, rng.randrange(20), b"again", flags=RECOVERY),
        lambda: read_frame(ledger, rng.randrange(-1, 25)),
        lambda: read_frame(ledger, -1, key=KEY, flags=FENCE),
        lambda: batch_frame(ledger, 0, rng.randrange(50), rng.randrange(100_000)),
    )
    return [rng.choice(makers)() for _ in range(rng.randrange(1, 12))]


def proxy_frames(rng: random.Random) -> list[bytes]:
    """Frames to a proxy, for streams `fuzz-N` that no other client uses."""
    stream = f"fuzz-{rng.randrange(4)}"
    settings = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
    number = rng.randrange(1, 1000)
    sink = (rng.choice(("", "sink", "-")), rng.randrange(2), rng.choice(("q", "r")), rng.randrange(3), None)
    batch = write(stream, sequence=0, producer=b"p" * 16)
    rest = (batch.count, rng.choice((None, 1, 1 << 60)), batch.crc, batch.body)
    makers = (
        lambda: said(proxy.Create(number, stream, INCARNATION, 0, dict(settings))),
        lambda: said(write(stream, sequence=rng.choice((0, 2, 4, 100)), producer=rng.randbytes(16))),
        lambda: said(write(stream, sequence=rng.choice((0, 2, 4)), producer=b"p" * 16, retry=rng.random() < 0.5)),
        lambda: said(proxy.Read(number, stream, proxy.Start.START, None, rng.randrange(10_000), True, True)),
        lambda: said(proxy.Credit(number, rng.randrange(1 << 40))),
        lambda: said(proxy.Cancel(number)),
        lambda: said(proxy.Tail(number, stream)),
        lambda: said(proxy.Stat(number, stream)),
        lambda: said(proxy.GetOwner(number, stream, rng.choice((None, "127.0.0.1:1", "x")))),
        lambda: said(proxy.Truncate(number, stream, INCARNATION, (rng.randrange(3), rng.randrange(3), 0))),
        lambda: said(proxy.HandOver(number, stream, INCARNATION)),
        lambda: said(
            proxy.Alter(
                number, stream, INCARNATION, rng.randrange(3), {"retention_s": rng.choice((0, 3600.0, "1h", -1))}
            )
        ),
        lambda: said(
            proxy.ImportSegments(
                *(number, stream, INCARNATION, *sink, rng.choice((None, "file", ""))),
                ((str(rng.randrange(9)), rng.randrange(3)),) * rng.randrange(3),
            )
        ),
        lambda: said(proxy.SinkWrite(number, stream, INCARNATION, *sink, *rest)),
        lambda: said(
            proxy.MoveSegment(number, stream, INCARNATION, rng.randrange(3), "ledger", "1", "cold", "file:/nowhere")
        ),
        lambda: said(proxy.ObjectsAsk(number, rng.choice((None, "x")), rng.choice((b"", b"?", OPERATION)))),
        lambda: said(proxy.List(number, "", rng.randrange(10))),
        lambda: said(proxy.Ping(number)),
        lambda: said(proxy.Seal(number, stream, INCARNATION)) if rng.random() < 0.02 else said(proxy.Ping(number)),
    )
    frames = [rng.choice(makers)() for _ in range(rng.randrange(1, 12))]
    return [HELLO, *frames] if rng.random() < 0.9 else frames


def session(address: str, frames: Frames, rng: random.Random) -> int:
    """Run one hostile connection. Returns how many frames were to be sent."""
    said_so = frames(rng)
    match rng.randrange(6):
        case 0:
            rng.shuffle(said_so)
        case 1:
            said_so += said_so[: rng.randrange(len(said_so) + 1)]
        case 2:
            said_so[-1] = said_so[-1][: rng.randrange(len(said_so[-1]))]
        case 3:
            at = rng.randrange(len(said_so))
            said_so[at] = mutated(said_so[at], rng)
        case 4:
            said_so = [mutated(frame, rng) if rng.random() < 0.3 else frame for frame in said_so]
    data = b"".join(said_so)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as stranger, contextlib.suppress(OSError):
        at = 0
        while at < len(data):
            size = rng.choice((1, 7, 1000, len(data)))
            stranger.sendall(data[at : at + size])
            at += size
        if rng.random() < 0.8:
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(PATIENCE_S)
            while stranger.recv(65536):
                pass
    return len(said_so)
