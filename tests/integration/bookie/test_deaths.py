"""A real bookie process is killed again and again, or its disk fails: it has all that it acknowledged.

DLOG_KILL_ROUNDS: how often it is killed (default 20).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable

import pytest

from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import add_frame, packet
from tests.parts import need

pytestmark = pytest.mark.zookeeper
Make = Callable[..., BookieProcess]
OK, FENCED = 0, 104
ROUNDS = int(os.environ.get("DLOG_KILL_ROUNDS", "20"))


def body(entry: int) -> bytes:
    return random.Random(entry).randbytes(entry % 7 * 400)


def test_killed_again_and_again_it_has_all_that_it_acknowledged(make_bookie: Make) -> None:
    """Each start must serve everything acknowledged before; SIGKILL comes after a drawn number of answers, with adds in
    flight."""
    bookie = make_bookie()
    rng = random.Random(7)
    acked: list[int] = []
    fenced: list[int] = []
    entry = 0
    for number in range(ROUNDS):
        bookie.start()
        with bookie.connect() as raw:
            for at in sorted({*acked[-40:], *rng.sample(acked, min(40, len(acked)))}):
                assert raw.read(at % 3, at) == (0, packet(at % 3, at, body(at)))
            assert all(raw.add(ledger, 10**9) == FENCED for ledger in fenced)
            if number % 4 == 0:
                assert raw.fence(100 + number).rc in (OK, 2)
                fenced.append(100 + number)
            wanted = rng.choice((0, 1, 5, 40, 300))
            raw.send(b"".join(add_frame(at % 3, at, body(at)) for at in range(entry, entry + wanted + 30)))
            for answer in raw.answers(wanted):
                assert answer.rc == OK
                acked.append(answer.entry)
            entry += wanted + 30
            bookie.kill()
    bookie.start()
    with bookie.connect() as raw:
        for at in acked:
            assert raw.read(at % 3, at) == (0, packet(at % 3, at, body(at)))
    assert len(acked) > 10 * ROUNDS


def test_a_sync_that_fails_ends_the_process_and_nothing_is_acknowledged_after_it(make_bookie: Make) -> None:
    """strace fails every fdatasync of a thread from its 60th on; the journal's thread gets there first."""
    need(shutil.which("strace") is not None, "strace", "apt-get install strace")
    bookie = make_bookie(checkpoint_s=60.0)
    inject = "inject=fdatasync:error=EIO:when=60+"
    bookie.under = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=fdatasync", "-e", inject]
    bookie.start()
    acked = 0
    with bookie.connect() as raw:
        try:
            while True:
                assert raw.add(1, acked, body(acked)) == OK
                acked += 1
                assert acked < 200, "no sync failed"
        except (EOFError, ConnectionError):
            pass
    assert bookie.wait() not in (0, None)
    assert 20 < acked < 60
    assert "fdatasync failed" in bookie.log.read_text()
    bookie.under = []
    bookie.start()
    with bookie.connect() as raw:
        assert all(raw.read(1, at) == (OK, packet(1, at, body(at))) for at in range(acked))
