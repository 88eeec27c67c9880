"""What a bookie still knows after kill -9, and after an orderly end."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Callable

import pytest

from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import KEY, add_frame, packet

pytestmark = pytest.mark.zookeeper
Make = Callable[..., BookieProcess]
OK, NO_ENTRY, UNAUTHORIZED, FENCED = 0, 2, 102, 104


def body(ledger: int, entry: int) -> bytes:
    rng = random.Random(ledger << 40 | entry)
    return rng.randbytes(rng.choice((0, 20, 100, 3000)))


def load(bookie: BookieProcess, ledger: int, first: int, enough: threading.Event, kill_after: int) -> list[int]:
    """Add from `first` on with a window of 64 until the bookie is gone; returns the acknowledged entries."""
    acked: list[int] = []
    with bookie.connect() as raw:
        try:
            sent = first
            while True:
                while sent < first + len(acked) + 64:
                    raw.send(add_frame(ledger, sent, body(ledger, sent)))
                    sent += 1
                answer = raw.answer()
                assert answer.rc == OK
                acked.append(answer.entry)
                if len(acked) == kill_after:
                    enough.set()
        except (EOFError, ConnectionError):
            return acked


def test_everything_acknowledged_before_kill_is_readable_after_it(make_bookie: Make) -> None:
    """Four rounds of load on four ledgers, each ended by SIGKILL; files are small, so that it hits rolls and
    flushes."""
    bookie = make_bookie()
    acked: dict[int, set[int]] = {ledger: set() for ledger in range(1, 5)}
    for round_ in range(4):
        bookie.start()
        enough = threading.Event()
        results: dict[int, list[int]] = {}

        def run(ledger: int, enough: threading.Event = enough, results: dict[int, list[int]] = results) -> None:
            first = max(acked[ledger], default=-1) + 1000
            results[ledger] = load(bookie, ledger, first, enough, 700)

        threads = [threading.Thread(target=run, args=(ledger,)) for ledger in acked]
        for thread in threads:
            thread.start()
        assert enough.wait(30)
        bookie.kill()
        for thread in threads:
            thread.join()
        for ledger, new in results.items():
            acked[ledger] |= set(new)
        assert all(len(entries) > 50 * (round_ + 1) for entries in acked.values())
    bookie.start()
    with bookie.connect() as raw:
        for ledger, entries in acked.items():
            for entry in sorted(entries):
                assert raw.read(ledger, entry) == (OK, packet(ledger, entry, body(ledger, entry)))
    assert sum(event["adds"] for event in bookie.events("journal.replayed")) > 0


def test_fences_and_keys_survive_kill(make_bookie: Make) -> None:
    bookie = make_bookie().start()
    with bookie.connect() as raw:
        assert raw.add(1, 0, b"x") == OK
        assert raw.fence(1).rc == OK
        assert raw.fence(2).rc == NO_ENTRY, "never written"
        assert raw.add(3, 0) == OK
    bookie.kill()
    bookie.start()
    with bookie.connect() as raw:
        assert raw.add(1, 1) == raw.add(2, 0) == FENCED
        assert raw.ask(add_frame(2, 0, key=b"z" * 20)).rc == UNAUTHORIZED
        assert raw.read(2, 0) == (NO_ENTRY, b"")
        assert raw.ask(add_frame(3, 1, key=b"z" * 20)).rc == UNAUTHORIZED
        assert raw.add(3, 1) == OK
        assert raw.read(1, -1) == (OK, packet(1, 0, b"x"))


def test_a_polite_end_answers_checkpoints_and_leaves_nothing_to_replay(make_bookie: Make) -> None:
    bookie = make_bookie(checkpoint_s=60.0).start()
    first_id = bookie.id
    with bookie.connect() as raw:
        raw.send(b"".join(add_frame(1, entry, body(1, entry)) for entry in range(300)))
        raw.answer()
        assert bookie.terminate() == 0
        answered = 1
        try:
            while True:
                assert raw.answer().rc == OK
                answered += 1
        except (EOFError, ConnectionError):
            pass
    bookie.start()
    assert bookie.id == first_id
    assert bookie.events("journal.replayed")[-1]["adds"] == 0
    with bookie.connect() as raw:
        assert all(raw.read(1, entry)[0] == OK for entry in range(answered))


def test_sequential_and_batch_reads_from_disk(make_bookie: Make) -> None:
    bookie = make_bookie(ledger_dirs="", read_cache_bytes=64 * 1024).start()
    with bookie.connect() as raw:
        for ledger in (1, 2):
            raw.send(b"".join(add_frame(ledger, entry, body(ledger, entry)) for entry in range(1000)))
            assert {a.rc for a in raw.answers(1000)} == {OK}
    bookie.terminate()
    bookie.start()
    with bookie.connect() as raw:
        for ledger in (2, 1):
            entry = 0
            while entry < 1000:
                rc, packets = raw.batch(ledger, entry, count=90)
                assert rc == OK
                for data in packets:
                    assert data == packet(ledger, entry, body(ledger, entry))
                    entry += 1
        rng = random.Random(1)
        for entry in rng.sample(range(1000), 100):
            assert raw.read(1, entry) == (OK, packet(1, entry, body(1, entry)))


def test_several_ledger_and_journal_directories(make_bookie: Make) -> None:
    bookie = make_bookie()
    bookie.options["ledger_dirs"] = ",".join(str(bookie.directory / f"disk{n}") for n in range(3))
    journals = [bookie.directory / f"journal{n}" for n in range(2)]
    for round_, journals_used in enumerate((2, 1)):
        bookie.options["journal_dirs"] = ",".join(map(str, journals[:journals_used]))
        bookie.start()
        with bookie.connect() as raw:
            for ledger in range(12):
                assert raw.add(ledger, round_, body(ledger, round_)) == OK
            assert all(raw.read(ledger, 0) == (OK, packet(ledger, 0, body(ledger, 0))) for ledger in range(12))
        if round_ == 0:
            held = [b"".join(path.read_bytes() for path in journal.glob("journal-*")) for journal in journals]
            for ledger in range(1, 12):
                assert [packet(ledger, 0, body(ledger, 0)) in one for one in held] == [ledger % 2 == 0, ledger % 2 == 1]
            bookie.kill()
    assert bookie.events("journals.removed")[0]["dirs"] == str(journals[1])
    assert not [*journals[1].glob("journal-*"), *journals[1].glob("VERSION")]
    sizes = [sum(f.stat().st_size for f in (bookie.directory / f"disk{n}").glob("entries-*")) for n in range(3)]
    assert min(sizes) > 100


def test_the_key_in_a_fence_is_the_frames(make_bookie: Make) -> None:
    """Adds of another connection see a fence at once, whether or not it is durable."""
    bookie = make_bookie().start()
    with bookie.connect() as writer, bookie.connect() as recoverer:
        assert writer.add(5, 0) == OK
        assert recoverer.fence(5, key=KEY).rc == OK
        assert writer.add(5, 1) == FENCED
        assert struct.unpack_from(">q", recoverer.fence(5).rest, 8) == (0,)


def test_a_bookie_on_a_port_of_the_kernels_choice_keeps_the_id_of_its_directories(make_bookie: Make) -> None:
    bookie = make_bookie().start()
    first = bookie.id
    bookie.terminate()
    bookie.address = ("", 0)
    assert bookie.start().id == first
