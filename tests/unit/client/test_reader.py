"""Tests what a read delivers: each record once, in order, whatever happens to proxies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dlog
from dlog.client.backoff import Backoff
from dlog.errors import (
    DamagedError,
    InvalidRequestError,
    PositionBeyondEndError,
    RequestTimeoutError,
    StreamNotFoundError,
    StreamRecreatedError,
    TruncatedError,
)
from dlog.model.dlsn import of
from dlog.wire import proxy
from dlog.wire.entry import build_record_set
from dlog.wire.proxy import ReaderEventKind
from dlog.wire.proxy_codec import encode
from tests.unit.client.proxy_double import Double, Log, Peer, Script, entry_of


def log_of(*payloads: bytes) -> Log:
    log = Log()
    log.fill(*payloads)
    return log


def telling(kind: ReaderEventKind, detail: dict[str, object] | None = None) -> Script:
    """Answer a read with one event."""

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read):
            peer.send(proxy.ReaderEvent(message.request, kind, detail or {}))
            return True
        return False

    return script


def dying_after(entries: int) -> Script:
    """Serve that many entries of the first read, then cut the connection."""
    left = [1]

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read) and left[0]:
            left[0] -= 1
            for n, payload in enumerate(peer.double.log.entries[:entries]):
                peer.send(proxy.Entries(message.request, 1, n, (len(payload),), 0, payload))
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, peer.cut)
            return True
        return False

    return script


async def test_records_come_with_their_places_txid_and_time() -> None:
    async with Double(log_of(b"a", b"b"), role="read") as double, dlog.connect(double.target) as client:
        records = [r async for r in client.read("s")]
    assert records == [dlog.Record(of(1, 0, 0), 1, b"a", 1000), dlog.Record(of(1, 1, 0), 1, b"b", 1000)]


async def test_every_way_to_say_where_to_begin() -> None:
    async with Double(log_of(b"a"), role="read") as double, dlog.connect(double.target) as client:
        starts = (None, "tail", "1:0", of(1, 0, 0), dlog.at_txid(5), dlog.at_time(1.7e9 + 2.5), dlog.START, dlog.TAIL)
        for start in starts:
            async for _ in client.read("s", start):
                pass
    kind = proxy.Start
    reads = [m for m in double.heard if isinstance(m, proxy.Read)]
    assert [(m.start, m.value) for m in reads] == [
        (kind.START, None),
        (kind.TAIL, None),
        (kind.DLSN, (1, 0, 0)),
        (kind.DLSN, (1, 0, 0)),
        (kind.TXID, 5),
        (kind.TIME, 1_700_000_002_500),
        (kind.START, None),
        (kind.TAIL, None),
    ]


async def test_a_lost_connection_is_not_seen_by_the_reader() -> None:
    log = log_of(*(b"%d" % n for n in range(10)))
    async with (
        Double(log, role="read", script=dying_after(4)) as first,
        Double(log, role="read") as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
    ):
        payloads = [r.payload async for r in client.read("s")]
    assert payloads == log.payloads
    [again] = second.of(proxy.Read)
    assert again.value == (1, 3, 1), "the place after the last record delivered"  # type: ignore[union-attr]


async def test_a_server_that_repeats_itself_is_not_believed() -> None:
    """A resumed read may be answered from the beginning of the entry: records that were delivered are left out."""
    log = Log()
    log.entries.append(entry_of([(b"p" * 16, build_record_set([b"0", b"1", b"2"]), 0)]))
    partial = [True]

    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Read):
            return False
        payload = log.entries[0]
        peer.send(proxy.Entries(message.request, 1, 0, (len(payload),), 0, payload))
        if partial[0]:
            partial[0] = False
            asyncio.get_running_loop().call_later(0.01, peer.cut)
        else:
            peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.CAUGHT_UP))
        return True

    async with Double(log, role="read", script=script) as double, dlog.connect(double.target) as client:
        assert [r.payload async for r in client.read("s")] == [b"0", b"1", b"2"]
    assert len(double.of(proxy.Read)) == 2


async def test_a_tail_read_that_is_moved_before_its_first_record_begins_where_it_began() -> None:
    log = log_of(b"old")

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read):
            peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.STARTED, {"dlsn": [1, 1, 0]}))
            log.fill(b"new")
            peer.cut()
            return True
        return False

    async with (
        Double(log, role="read", script=script) as first,
        Double(log, role="read") as second,
        dlog.connect(f"dlog://{first.address},{second.address}") as client,
    ):
        assert [r.payload async for r in client.read("s", dlog.TAIL, follow=False)] == [b"new"]


def in_lives(*lives: str) -> Script:
    """Serve the first read in the first of these incarnations and cut it off, the next read in the next; the stream was
    deleted and created again in between. A read that names another incarnation gets an error."""
    opened = iter(lives)

    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Read):
            return False
        incarnation = next(opened)
        if message.incarnation and message.incarnation != incarnation:
            peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.DELETED, {"incarnation": incarnation}))
            return True
        payload = peer.double.log.entries[0]
        peer.send(
            proxy.ReaderEvent(message.request, ReaderEventKind.STARTED, {"dlsn": [1, 0, 0], "incarnation": incarnation})
        )
        peer.send(proxy.Entries(message.request, 1, 0, (len(payload),), 0, payload))
        asyncio.get_running_loop().call_later(0.01, peer.cut)
        return True

    return script


async def test_a_follower_that_was_cut_off_does_not_go_on_in_the_next_stream_of_the_name() -> None:
    seen: list[dlog.Record] = []
    script = in_lives("one", "two")
    async with Double(log_of(b"a"), role="read", script=script) as double, dlog.connect(double.target) as client:
        with pytest.raises(StreamRecreatedError, match="incarnation=one now=two"):
            async for record in client.read("s", follow=True):
                seen.append(record)
    assert [record.payload for record in seen] == [b"a"]
    assert [read.incarnation for read in double.of(proxy.Read)] == [None, "one"]  # type: ignore[union-attr]


async def test_who_waits_for_a_txid_goes_on_waiting_for_it_in_the_same_stream() -> None:
    cut = [True]

    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Read):
            return False
        peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.CAUGHT_UP, {"incarnation": "one"}))
        if cut.pop() if cut else False:
            peer.cut()
        else:
            peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.END_OF_STREAM))
        return True

    async with Double(log_of(), role="read", script=script) as double, dlog.connect(double.target) as client:
        assert [r async for r in client.read("s", dlog.at_txid(9), follow=True)] == []
    reads = [m for m in double.heard if isinstance(m, proxy.Read)]
    assert [(m.start, m.value, m.incarnation) for m in reads] == [
        (proxy.Start.TXID, 9, None),
        (proxy.Start.TXID, 9, "one"),
    ]


async def test_a_records_position_is_read_on_behind_it_and_only_in_its_stream() -> None:
    script = in_lives("one", "one", "two")
    async with Double(log_of(b"a"), role="read", script=script) as double, dlog.connect(double.target) as client:
        record = await anext(client.read("s"))
        saved = str(record.position)
        assert (saved, record.incarnation) == ("one@1:0:1", "one")
        with pytest.raises(StreamRecreatedError):
            async for _ in client.read("s", saved):
                pass
    again = double.of(proxy.Read)[1]
    assert (again.start, again.value, again.incarnation) == (proxy.Start.DLSN, (1, 0, 1), "one")  # type: ignore[union-attr]


async def test_a_position_beyond_the_end_is_an_error_that_says_where_the_end_is() -> None:
    script = telling(ReaderEventKind.BEYOND_END, {"end": [3, 7, 0]})
    async with Double(log_of(), role="read", script=script) as double, dlog.connect(double.target) as client:
        with pytest.raises(PositionBeyondEndError, match="position=99:0:0") as caught:
            async for _ in client.read("s", "99:0:0"):
                pass
    assert caught.value.end == "3:7:0"


@pytest.mark.parametrize("text", ["one@1:2:3", "one@1", "1:2:3", "(1,2,3)"])
def test_a_position_is_read_as_it_is_written(text: str) -> None:
    position = dlog.at_dlsn(text)
    assert dlog.at_dlsn(str(position)) == position
    assert position.incarnation == ("one" if "@" in text else "")


@pytest.mark.parametrize("text", ["@", "o/e@1:2:3", "one@", "one@x", "a@b@1:2:3", "x" * 65 + "@1:2:3"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        dlog.at_dlsn(text)


@pytest.mark.parametrize("how", ["redirect", "event"])
async def test_a_moved_read_goes_where_it_is_sent(how: str) -> None:
    log = log_of(b"a", b"b")
    async with Double(log, role="read") as ours:

        def script(peer: Peer, message: proxy.Message) -> bool:
            if isinstance(message, proxy.Read) and how == "redirect":
                peer.send(proxy.Failed(message.request, 302, "elsewhere", ours.address))
            elif isinstance(message, proxy.Read):
                detail = {"location": ours.address}
                peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.MOVED, detail))
            return isinstance(message, proxy.Read)

        async with Double(log, role="read", script=script) as other, dlog.connect(other.target) as client:
            assert [r.payload async for r in client.read("s")] == [b"a", b"b"]
    [read] = ours.of(proxy.Read)
    assert read.forwarded  # type: ignore[union-attr]


async def test_a_follower_waits_at_the_tail_and_ends_with_the_stream() -> None:
    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Read):
            return False
        for n, payload in enumerate(log.entries):
            peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.CAUGHT_UP))
            peer.send(proxy.Entries(message.request, 1, n, (len(payload),), 0, payload))
        peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.END_OF_STREAM))
        return True

    log = log_of(b"a", b"b")
    async with Double(log, role="read", script=script) as double, dlog.connect(double.target) as client:
        assert [r.payload async for r in client.read("s", follow=True)] == [b"a", b"b"]


async def test_credit_is_given_back_as_records_are_taken() -> None:
    log = log_of(*(b"x" * 1000 for _ in range(20)))
    async with Double(log, role="read") as double, dlog.connect(double.target, read_credit_bytes=4000) as client:
        assert len([r async for r in client.read("s")]) == 20
        await double.wait(lambda: len(double.of(proxy.Credit)) >= 9)
    given = sum(m.bytes for m in double.heard if isinstance(m, proxy.Credit))
    assert 20 * 1000 - 4000 <= given <= sum(map(len, log.entries))


@pytest.mark.parametrize(
    ("kind", "detail", "error", "says"),
    [
        (ReaderEventKind.TRUNCATED, {"first": [7, 0, 0]}, TruncatedError, "7:0:0"),
        (ReaderEventKind.DAMAGED, {"dlsn": [1, 2, 0], "message": "digest"}, DamagedError, "digest.*1:2:0"),
        (ReaderEventKind.DELETED, {}, StreamNotFoundError, "no such stream"),
    ],
)
async def test_what_is_final_is_told(
    kind: ReaderEventKind, detail: dict[str, object], error: type[Exception], says: str
) -> None:
    async with Double(role="read", script=telling(kind, detail)) as double, dlog.connect(double.target) as client:
        with pytest.raises(error, match=says):
            async for _ in client.read("s", follow=True):
                pass


async def test_bytes_that_do_not_match_the_producers_checksum_are_not_delivered() -> None:
    log = log_of(b"payload")
    log.entries[0] = log.entries[0].replace(b"payload", b"pAyload")
    async with Double(log, role="read") as double, dlog.connect(double.target) as client:
        with pytest.raises(DamagedError, match="segment=1 entry=0"):
            async for _ in client.read("s"):
                pass


async def test_a_limit_ends_the_read_at_the_server_too() -> None:
    log = Log()
    log.entries.append(entry_of([(b"p" * 16, build_record_set([b"0", b"1", b"2"]), 0)]))
    async with Double(log, role="read") as double, dlog.connect(double.target) as client:
        assert [r.payload async for r in client.read("s", follow=True, limit=2)] == [b"0", b"1"]
        await double.wait(lambda: len(double.of(proxy.Cancel)) == 1)
        assert [r async for r in client.read("s", limit=0)] == []
        with pytest.raises(dlog.InvalidRequestError):
            assert [r async for r in client.read("s", limit=-1)] == []


async def test_a_read_that_nobody_serves_ends_with_the_reason() -> None:
    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read):
            peer.send(proxy.Failed(message.request, 503, "no metadata"))
            return True
        return False

    async with (
        Double(role="read", script=script) as double,
        dlog.connect(double.target, read_deadline_s=1.0) as client,
    ):
        with pytest.raises(RequestTimeoutError, match="no metadata"):
            async for _ in client.read("s"):
                pass


def read_sync(client: dlog.SyncClient) -> Iterator[bytes]:
    for record in client.read("s"):
        yield record.payload


async def test_the_synchronous_face_reads_and_writes() -> None:
    def work(target: str) -> tuple[dlog.DLSN, list[bytes], list[str]]:
        with dlog.connect_sync(target) as client:
            place = client.append("s", b"a")
            client.append_batch("s", [b"b", b"c"])
            client.append_many("s", [b"d"])
            return place, list(read_sync(client)), list(client.streams())

    async with Double(role="write") as double:
        place, payloads, streams = await asyncio.to_thread(work, double.target)
    assert place == of(1, 0, 0)
    assert payloads == [b"a", b"b", b"c", b"d"]
    assert streams == ["s"]


def silent(reads: int) -> Script:
    """Accept this many reads and do not answer."""
    left = [reads]

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read) and left[0]:
            left[0] -= 1
            return True
        return False

    return script


async def test_a_proxy_that_lives_and_says_nothing_is_left_for_another() -> None:
    log = log_of(b"a", b"b")
    async with Double(log, role="read", script=silent(1)) as double:
        async with dlog.connect(double.target, stall_s=0.02) as client:
            assert [r.payload async for r in client.read("s")] == [b"a", b"b"]
        assert len(double.of(proxy.Read)) >= 2


async def test_a_read_that_never_moves_ends_with_an_error() -> None:
    double = Double(log_of(b"a"), role="read", script=silent(1000))
    async with double, dlog.connect(double.target, stall_s=0.05, read_deadline_s=1.0) as client:
        with pytest.raises(RequestTimeoutError, match="no records from the proxy"):
            [r async for r in client.read("s")]


@pytest.mark.parametrize("lost", [0, 2])
async def test_a_read_whose_deadline_is_shorter_than_a_stall_ends_at_its_deadline(lost: int) -> None:
    left, mute = [lost], silent(1000)

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read) and left[0]:
            left[0] -= 1
            peer.cut()
            return True
        return mute(peer, message)

    async with (
        Double(role="read", script=script) as double,
        dlog.connect(double.target, stall_s=1000.0, read_deadline_s=0.5) as client,
        asyncio.timeout(90),
    ):
        with pytest.raises(RequestTimeoutError, match=r"no proxy served this read for 0\.5 s"):
            [r async for r in client.read("s")]


async def test_a_proxy_that_needs_longer_than_a_stall_to_find_the_tail_is_given_more_time_at_last() -> None:
    """Every proxy takes this long: leaving each for the next after the same time would go on for ever."""
    looking: set[asyncio.Task[None]] = set()
    left = asyncio.Event()  # the first proxy, however slow this machine is

    async def late(peer: Peer, read: proxy.Message) -> None:
        if len(peer.double.of(proxy.Read)) > 1:
            left.set()
        await left.wait()
        await asyncio.sleep(0.3)
        peer.double.answer(peer, read)

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read):
            task = asyncio.get_running_loop().create_task(late(peer, message))
            looking.add(task)
            task.add_done_callback(looking.discard)
            return True
        return False

    async with (
        Double(log_of(b"a"), role="read", script=script) as double,
        dlog.connect(double.target, stall_s=0.02) as client,
    ):
        assert [r.payload async for r in client.read("s")] == [b"a"]
        assert len(double.of(proxy.Read)) > 1
        if looking:
            await asyncio.wait(looking)


async def test_a_read_that_proxies_send_to_and_fro_ends_with_an_error() -> None:
    def moved(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read):
            to = {"location": peer.double.address}
            peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.MOVED, to))
        return isinstance(message, proxy.Read)

    double = Double(role="read", script=moved)
    async with double, dlog.connect(double.target, read_deadline_s=0.5) as client:
        with pytest.raises(RequestTimeoutError, match="redirect the read"):
            [r async for r in client.read("s")]
        assert len(double.of(proxy.Read)) < 500, "not at full speed"


async def pauses_of(script: Script, reads: int, **options: Any) -> list[float]:
    """The pauses of a follower, until it opens its read for the `reads`th time."""
    pauses: list[float] = []
    async with Double(role="read", script=script) as double, dlog.connect(double.target, **options) as client:
        router = client._check(None)
        pause_s = router.pause_s

        def noted(backoff: Backoff) -> float:
            pauses.append(pause_s(backoff))
            return pauses[-1]

        router.pause_s = noted  # type: ignore[method-assign]  # to see them
        async with asyncio.TaskGroup() as group:
            following = group.create_task(anext(client.read("s", follow=True)))
            await double.wait(lambda: len(double.of(proxy.Read)) >= reads)
            following.cancel()
    return pauses


@pytest.mark.parametrize("how", ["lost", "at the tail", "unavailable", "no owner", "redirected"])
async def test_a_read_that_fails_again_and_again_after_it_was_opened_backs_off(how: str) -> None:
    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Read):
            return False
        match how:
            case "unavailable":
                peer.send(proxy.Failed(message.request, 503, "not now"))
            case "no owner":
                peer.send(proxy.Failed(message.request, 515, "no owner"))
            case "redirected":
                peer.send(proxy.Failed(message.request, 302, "elsewhere", peer.double.address))
            case "at the tail":
                peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.CAUGHT_UP))
                asyncio.get_running_loop().call_soon(peer.cut)
            case _:
                peer.cut()
        return True

    free = 3 if how == "redirected" else 0
    pauses = await pauses_of(script, free + 6, backoff_max_s=60.0, backoff_first_s=0.001)
    assert len(pauses) == 5, "before each open but the first, and up to three redirects"
    assert pauses[0] == 0.0
    assert min(pauses[1:]) > 0.0


async def test_a_follower_that_was_served_for_longer_than_the_longest_pause_goes_on_at_once() -> None:
    longest_s = 0.01

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read):
            peer.send(proxy.ReaderEvent(message.request, ReaderEventKind.CAUGHT_UP))
            asyncio.get_running_loop().call_later(2 * longest_s, peer.cut)
            return True
        return False

    assert await pauses_of(script, 6, backoff_max_s=longest_s) == [0.0] * 5


async def test_who_waited_at_the_tail_for_long_is_given_time_to_find_another_proxy() -> None:
    """Nothing was wrong until the connection was lost: the deadline runs from there."""
    read = []
    double = Double(log_of(b"a"), role="read")
    async with double, dlog.connect(double.target, read_deadline_s=0.2) as client:
        async for record in client.read("s", follow=True):
            read.append(record.payload)
            if len(read) == 2:
                break
            await asyncio.sleep(0.5)
            double.log.fill(b"b")
            for peer in tuple(double.peers):
                peer.cut()
    assert read == [b"a", b"b"]


async def test_records_that_are_long_on_their_way_are_waited_for() -> None:
    """A frame arrives piece by piece for much longer than the stall timeout; a ping sent meanwhile is answered behind
    it."""
    log = log_of(bytes(100_000), b"b")
    sending: list[asyncio.Task[None]] = []

    async def drip(peer: Peer, read: proxy.Read) -> None:
        behind.append(read)
        frame = b"".join(encode(proxy.Entries(read.request, 1, 0, (len(log.entries[0]),), 0, log.entries[0])))
        for at in range(0, len(frame), 5000):
            peer.send_bytes(frame[at : at + 5000])
            await asyncio.sleep(0.02)
        _, *asked = behind
        behind.clear()
        for message in asked:
            peer.double.answer(peer, message)

    behind: list[proxy.Message] = []

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read) and not sending:
            sending.append(asyncio.get_running_loop().create_task(drip(peer, message)))
            return True
        if behind:
            behind.append(message)
        return bool(behind)

    async with (
        Double(log, role="read", script=script) as double,
        dlog.connect(double.target, stall_s=0.05, lost_after_s=30.0) as client,
    ):
        async with asyncio.timeout(60):
            async for record in client.read("s"):
                assert record.payload == bytes(100_000)
                break
        assert len(double.of(proxy.Read)) == 1, "nobody else was asked"
        assert double.of(proxy.Ping)


# ---- after a record, and how far behind ------------------------------------------------------------------------------


async def test_a_read_after_a_record_begins_with_the_next_one() -> None:
    log = log_of(*(b"%d" % n for n in range(5)))
    async with Double(log, role="read") as double, dlog.connect(double.target) as client:
        records = [record async for record in client.read("s")]
        for after in (records[2].dlsn, records[2].position, str(records[2].position)):
            assert [r.payload async for r in client.read("s", after=after)] == [b"3", b"4"]
        with pytest.raises(dlog.InvalidRequestError):
            client.read("s", dlog.START, after=records[2].dlsn)


class Feeding:
    """A script: a read is opened, and the test decides what it is sent."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.peer: Peer | None = None
        self.request = 0

    def __call__(self, peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Read):
            self.peer, self.request = peer, message.request
            self.event(ReaderEventKind.STARTED, dlsn=[1, 0, 0])
            return True
        return isinstance(message, proxy.Credit)

    def event(self, kind: ReaderEventKind, **detail: object) -> None:
        assert self.peer is not None
        self.peer.send(proxy.ReaderEvent(self.request, kind, detail))

    def send(self, *entries: int) -> None:
        assert self.peer is not None
        payloads = [self.log.entries[entry] for entry in entries]
        lengths = tuple(map(len, payloads))
        self.peer.send(proxy.Entries(self.request, 1, entries[0], lengths, 0, b"".join(payloads)))


async def until(condition: Callable[[], bool]) -> None:
    """Let the client's tasks run until the condition holds."""
    async with asyncio.timeout(90):
        while not condition():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)


def state(reader: dlog.Reader[dlog.Record]) -> tuple[dlog.Lag | None, bool]:
    return reader.lag, reader.caught_up


async def test_a_reader_tells_how_far_it_is_behind_and_when_it_has_caught_up() -> None:
    log = log_of(*(b"%d" % n for n in range(6)))
    feeding = Feeding(log)
    async with Double(log, role="read", script=feeding) as double, dlog.connect(double.target) as client:
        reader = client.read("s", follow=True)
        assert state(reader) == (None, False)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(anext(reader))
            await double.wait(lambda: feeding.peer is not None)
            feeding.event(ReaderEventKind.BEHIND, segments=2, entries=None)
            feeding.send(0)
        assert first.result().payload == b"0"
        assert state(reader) == (dlog.Lag(2, None), False)
        feeding.event(ReaderEventKind.BEHIND, segments=0, entries=3)
        feeding.send(1, 2)
        assert (await anext(reader)).payload == b"1"
        assert state(reader) == (dlog.Lag(0, 4), False), "one that came, three that did not"
        assert (await anext(reader)).payload == b"2"
        assert state(reader) == (dlog.Lag(0, 3), False)
        feeding.send(3)
        assert (await anext(reader)).payload == b"3"
        assert state(reader) == (dlog.Lag(0, 0), True), "nothing is said of the tail, and it was reached"
        feeding.event(ReaderEventKind.BEHIND, segments=0, entries=1)
        feeding.send(4)
        assert (await anext(reader)).payload == b"4"
        assert state(reader) == (dlog.Lag(0, 1), False)
        async with asyncio.TaskGroup() as tasks:
            waits = tasks.create_task(anext(reader))
            feeding.event(ReaderEventKind.CAUGHT_UP)  # the rest of the log has no record
            await until(lambda: reader.caught_up)
            assert state(reader) == (dlog.Lag(0, 0), True)
            feeding.send(5)
            assert (await waits).payload == b"5"
        assert feeding.peer is not None
        feeding.peer.cut()
        waits = asyncio.get_running_loop().create_task(anext(reader))
        await until(lambda: reader.lag is None)
        assert state(reader) == (None, False), "the next proxy has not told"
        waits.cancel()
        await asyncio.wait([waits])
        await reader.aclose()


async def test_a_reader_has_caught_up_with_the_last_record_of_a_batch_only() -> None:
    log = Log()
    two, one = build_record_set([b"0", b"1"]), build_record_set([b"2"])
    log.entries.append(entry_of([(b"p" * 16, two, 0), (b"q" * 16, one, 0)]))
    async with Double(log, role="read") as double, dlog.connect(double.target) as client:
        reader = client.read("s")
        seen = [(record.payload, reader.caught_up) async for record in reader]
        assert seen == [(b"0", False), (b"1", False), (b"2", True)]
        assert reader.caught_up, "it has ended at the tail"
        batches = client.read_batches("s")
        assert [(len(batch), batches.caught_up) async for batch in batches] == [(2, False), (1, True)]


async def test_an_empty_stream_is_caught_up_with_at_once() -> None:
    async with Double(Log(), role="read") as double, dlog.connect(double.target) as client:
        reader = client.read("s")
        assert [record async for record in reader] == []
        assert reader.caught_up and reader.lag == dlog.Lag(0, 0)
