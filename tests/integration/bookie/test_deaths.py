"""A real bookie process is killed again and again, or its disk fails: it has all that it acknowledged.

DLOG_KILL_ROUNDS: how often it is killed (default 20).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog.cli.main import main
from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import add_frame, packet
from tests.parts import need

pytestmark = pytest.mark.zookeeper
Make = Callable[..., BookieProcess]
OK, FENCED, READ_ONLY = 0, 104, 105
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
        assert main(["bookie", "fsck", str(bookie.directory)]) == 0, "a kill is no damage"
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


def test_a_bookie_that_starts_no_more_serves_everything_once_its_index_was_rebuilt(
    make_bookie: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """The states of a lost index file are gone with it, so the bookie takes no adds; a damaged part costs nothing."""
    bookie = make_bookie().start()
    with bookie.connect() as raw:
        raw.send(b"".join(add_frame(at % 3, at, body(at)) for at in range(600)))
        assert [answer.rc for answer in raw.answers(600)] == [OK] * 600
        assert raw.fence(1).rc in (OK, 2)
    assert main(["bookie", "fsck", str(bookie.directory)]) == 1
    assert "another bookie runs on this directory" in capsys.readouterr().err
    assert bookie.terminate() == 0
    for hurt in (flip_a_chunk, remove_a_run):
        hurt(bookie.directory / "ledgers")
        assert main(["bookie", "fsck", str(bookie.directory)]) == 1
        assert main(["bookie", "fsck", str(bookie.directory), "--repair"]) == 0
        bookie.start()
        with bookie.connect() as raw:
            assert all(raw.read(at % 3, at) == (OK, packet(at % 3, at, body(at))) for at in range(600))
            assert raw.add(0, 10**6) == (OK if hurt is flip_a_chunk else READ_ONLY)
            assert raw.add(1, 10**6) == (FENCED if hurt is flip_a_chunk else READ_ONLY)
        assert bookie.terminate() == 0


def flip_a_chunk(ledgers: Path) -> None:
    path = min(ledgers.glob("index-*"))
    data = bytearray(path.read_bytes())
    data[32 + 16] ^= 1
    path.write_bytes(data)


def remove_a_run(ledgers: Path) -> None:
    min(ledgers.glob("index-*")).unlink()
