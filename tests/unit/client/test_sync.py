"""Tests the blocking client: the user's code runs in the user's thread, and nothing blocks the client's own thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import dlog
from dlog.client import client as client_module
from dlog.client import sync
from dlog.client.client import Client
from dlog.client.fate import Fate, Outcome
from dlog.client.sync import SyncClient
from dlog.client.thread_feed import HANDED_BYTES_MAX
from dlog.errors import ClosedError, DLogError, InvalidRequestError, RecordTooLargeError, StreamNotFoundError
from dlog.model.dlsn import of
from dlog.model.sink import SinkBatch
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Peer
from tests.unit.client.scripts import ENDS, Holding, failing, source_of

WITHIN_S = 60.0


@contextmanager
def doubled(double: Double) -> Iterator[SyncClient]:
    """A double on a loop in a thread of its own, and a blocking client of it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(WITHIN_S)

    run(double.__aenter__())
    try:
        with dlog.connect_sync(double.target) as client:
            yield client
    finally:
        run(double.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def serving(**options: Any) -> Iterator[tuple[Double, SyncClient]]:
    double = Double(**options)
    with doubled(double) as client:
        yield double, client


def in_thread(work: Callable[[], Any]) -> Any:
    """Run this in a thread whose hang does not hang the test."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    assert found, "it hangs"
    return found[0]


def in_own_thread(client: SyncClient, work: Callable[[], Any]) -> Any:
    """Run this in the client's own thread, as a finalizer may run."""
    running = client._running()
    found: list[Any] = []
    done = threading.Event()

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001
            found.append(error)
        done.set()

    running._loop.call_soon_threadsafe(run)
    assert done.wait(WITHIN_S), "it hangs"
    return found[0]


def test_what_is_read_is_appended_with_one_client() -> None:
    with serving() as (double, client):
        double.log.fill(b"a", b"b", b"c")
        summary = in_thread(lambda: client.append_many("s", (r.payload + b"!" for r in client.read("s"))))
    assert isinstance(summary, dlog.AppendSummary), summary
    assert (summary.count, double.log.payloads) == (3, [b"a", b"b", b"c", b"a!", b"b!", b"c!"])


def test_the_listener_may_append_with_the_same_client() -> None:
    told: list[tuple[int, dlog.DLSN]] = []

    with serving() as (double, client):

        def listen(row: dlog.BatchResult) -> None:
            told.append((row.count, client.append("s", b"told of %d" % row.index)))

        summary = in_thread(lambda: client.append_many("s", [b"a", b"b"], on_written=listen))
    assert isinstance(summary, dlog.AppendSummary), summary
    assert sum(count for count, _ in told) == 2
    assert sorted(p for p in double.log.payloads if len(p) == 1) == [b"a", b"b"]


def test_the_users_code_runs_in_the_users_thread() -> None:
    here = threading.current_thread()
    seen: set[threading.Thread] = set()

    class Noting(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            seen.add(threading.current_thread())
            return super().__iter__()

        def __len__(self) -> int:
            seen.add(threading.current_thread())
            return super().__len__()

        def __bool__(self) -> bool:
            seen.add(threading.current_thread())
            return True

    with serving() as (_, client):
        client.append_many("s", Noting([b"a"]), on_written=lambda row: seen.add(threading.current_thread()))
        client.append_batch("s", Noting([b"a"]))
    assert seen == {here}


def test_a_record_is_on_its_way_before_the_next_one_is_made() -> None:
    with serving() as (double, client):

        def slowly() -> Iterator[bytes]:
            for n in range(3):
                yield b"%d" % n
                done = asyncio.run_coroutine_threadsafe(
                    double.wait(lambda n=n: len(double.log.payloads) > n),  # type: ignore[misc]
                    double._server.get_loop(),  # type: ignore[union-attr]
                )
                done.result(WITHIN_S)

        summary = in_thread(lambda: client.append_many("s", slowly()))
    assert summary.count == 3


def test_what_is_made_faster_than_it_is_written_waits() -> None:
    holding = Holding()
    made = 0
    records = 40
    size = 900_000

    def fast() -> Iterator[bytes]:
        nonlocal made
        for _ in range(records):
            made += 1
            yield bytes(size)

    with serving(script=holding) as (double, client):
        found: list[Any] = []
        maker = threading.Thread(target=lambda: found.append(client.append_many("s", fast())), daemon=True)
        maker.start()
        loop = double._server.get_loop()  # type: ignore[union-attr]
        asyncio.run_coroutine_threadsafe(double.wait(lambda: bool(double.writes)), loop).result(WITHIN_S)
        bound = client._options.buffer_bytes_max + HANDED_BYTES_MAX + 3 * size
        assert made * size <= bound, "what is not taken is not made"
        loop.call_soon_threadsafe(holding.let_go)
        maker.join(WITHIN_S)
    assert found and found[0].count == records
    assert made == records


@pytest.mark.parametrize("where", ["iterable", "listener"])
def test_what_the_users_code_raises_is_raised(where: str) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    def records() -> Iterator[bytes]:
        yield b"a"
        if where == "iterable":
            broken()

    with serving() as (_, client):
        error = in_thread(
            lambda: client.append_many("s", records(), on_written=broken if where == "listener" else None)
        )
        assert isinstance(error, ZeroDivisionError)
        assert client.append("s", b"after it") is not None


def test_a_failure_tells_the_fate_of_each_record() -> None:
    with serving(script=failing(1, 413)) as (double, client):
        error = in_thread(lambda: client.append_many("s", (b"%d" % n for n in range(1000))))
        assert isinstance(error, RecordTooLargeError)
        assert not error.outcome_unknown
        assert error.fates[0].index == 0
        assert client.append("s", b"after it") == of(1, 0, 0)
    assert double.log.payloads == [b"after it"]


@pytest.mark.parametrize("ends", ENDS)
def test_what_ends_append_many_is_raised_when_the_records_before_it_are_written(ends: str) -> None:
    rows: list[dlog.BatchResult] = []
    with serving() as (double, client):
        error = in_thread(lambda: client.append_many("s", source_of(ends), on_written=rows.append))
        assert isinstance(error, ENDS[ends]), error
        assert double.log.payloads == [b"0", b"1", b"2"]
        assert sum(row.count for row in rows) == 3
        client.append("s", b"another's")
    text = "3 reported as written; of the others 0 written, 0 not written, 0 unknown"
    if isinstance(error, DLogError):
        assert (error.outcome_unknown, error.fates) == (False, ())
        assert text in error.message
    else:
        assert text in error.__notes__[0]
    assert double.log.payloads == [b"0", b"1", b"2", b"another's"]


@pytest.mark.parametrize("ends", ENDS)
def test_a_record_that_fails_before_what_ends_append_many_is_its_failure(ends: str) -> None:
    with serving(script=failing(1, 413)) as (double, client):
        error = in_thread(lambda: client.append_many("s", source_of(ends)))
        assert isinstance(error, RecordTooLargeError)
        assert "refused by the script" in error.message
        assert {fate.outcome for fate in error.fates} == {Outcome.NOT_WRITTEN}
        assert error.fates[0].index == 0
    assert not double.log.payloads


@pytest.mark.parametrize("kind", [StreamNotFoundError, concurrent.futures.CancelledError])
def test_what_the_listener_raises_tells_where_the_records_are_that_it_did_not_get(kind: type[Exception]) -> None:
    holding = Holding()
    raised = kind("by the listener")

    def listen(row: dlog.BatchResult) -> None:
        assert row.index == 0, "it is not called again"
        raise raised

    with serving(script=holding) as (double, client):
        loop = double._server.get_loop()  # type: ignore[union-attr]

        def records() -> Iterator[bytes]:
            yield b"a"
            asyncio.run_coroutine_threadsafe(double.wait(lambda: bool(holding.held)), loop).result(WITHIN_S)
            yield b"b"
            loop.call_soon_threadsafe(holding.let_go)

        error = in_thread(lambda: client.append_many("s", records(), on_written=listen))
        assert isinstance(error, kind), error
        assert double.log.payloads == [b"a", b"b"]
    text = "1 reported as written; of the others 1 written, 0 not written, 0 unknown"
    if isinstance(error, DLogError):
        result = dlog.BatchResult(of(1, 1, 0), of(1, 1, 0), 1, 1, index=1)
        assert (error.outcome_unknown, error.fates) == (True, (Fate(1, 1, Outcome.WRITTEN, result),))
        assert text in error.message
    else:
        assert error is raised
        assert text in error.__notes__[0]


@pytest.mark.parametrize("after", ["more records", "no record", "an exception"])
@pytest.mark.parametrize("where", ["iterable", "listener"])
def test_append_many_that_forks_ends_in_the_child_and_goes_on_in_the_parent(where: str, after: str) -> None:
    children: list[int] = []

    def fork(*_: object) -> None:
        if not children:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of a fork of a process with threads
                children.append(os.fork())
            if children == [0]:
                signal.alarm(int(WITHIN_S / 2))  # ends a child that hangs

    def records() -> Iterator[bytes]:
        yield b"a"
        if where == "iterable":
            fork()
        if after == "more records":
            yield from (b"b", b"c")
        if after == "an exception" and children == [0]:
            raise ZeroDivisionError

    with serving() as (double, client):
        try:
            summary = client.append_many("s", records(), on_written=fork if where == "listener" else None)
        except ClosedError as error:
            if children == [0]:
                os._exit(7 if error.outcome_unknown and "in the parent only" in error.message else 8)
            raise
        finally:
            if children == [0]:
                os._exit(9)
        assert os.waitstatus_to_exitcode(in_thread(lambda: os.waitpid(children[0], 0))[1]) == 7
        assert summary.count == len(double.log.payloads) == (3 if after == "more records" else 1)


def test_what_changes_later_is_copied_when_it_is_made() -> None:
    def reused() -> Iterator[Any]:
        buffer = bytearray(1)
        for n in range(100):
            buffer[0] = n
            yield buffer

    with serving() as (double, client):
        client.append_many("s", reused())
    assert double.log.payloads == [bytes((n,)) for n in range(100)]


QUESTIONS: dict[str, tuple[Any, ...]] = {
    "append": ("s", b"x"),
    "append_batch": ("s", [b"x"]),
    "append_many": ("s", [b"x"]),
    "append_once": ("s", [b"x"], SinkBatch("k", 1, "q", 1)),
    "create": ("s",),
    "close": (),
    "delete": ("s",),
    "owner": ("s",),
    "owners": (),
    "read": ("s",),
    "read_batches": ("s",),
    "hand_over": ("s",),
    "seal": ("s",),
    "stat": ("s",),
    "streams": (),
    "import_segments": ("s", []),
    "truncate": ("s", "1:0:0"),
}


def test_no_question_of_the_client_hangs_in_its_own_thread() -> None:
    public = {name for name, _ in inspect.getmembers(SyncClient, inspect.isfunction) if not name.startswith("_")}
    with serving() as (_, client):
        for name in public:
            given = QUESTIONS.get(name, ("s",))
            keywords = (
                {"store": "ledger", "location": "1", "to_store": "cold", "to_location": "x"}
                if name == "move_segment"
                else {}
            )
            arguments = (*given, 1) if name == "move_segment" else given

            def ask(name: str = name, arguments: Any = arguments, keywords: Any = keywords) -> Any:
                answer = getattr(client, name)(*arguments, **keywords)
                return list(answer) if isinstance(answer, Iterator) else answer

            error = in_own_thread(client, ask)
            assert isinstance(error, InvalidRequestError), (name, error)
            assert "use the asyncio client" in error.message
        assert client.append("s", b"it lives") == of(1, 0, 0)


@contextmanager
def unstarted() -> Iterator[SyncClient]:
    """A blocking client of a double, before its first use."""
    with serving() as (double, _):
        client = dlog.connect_sync(double.target)
        try:
            yield client
        finally:
            client.close()


def error_of_call(call: Callable[[], Any], errors: list[BaseException]) -> None:
    """As the user's code does that runs where nobody handles its errors."""
    try:
        call()
    except DLogError as error:
        errors.append(error)


def test_a_log_handler_that_uses_the_client_while_it_starts_gets_an_error() -> None:
    errors: list[BaseException] = []

    class Sending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error_of_call(lambda: client.append("s", b"logged"), errors)

    asyncio_log, handler = logging.getLogger("asyncio"), Sending()
    level = asyncio_log.level
    with unstarted() as client:
        asyncio_log.addHandler(handler)
        asyncio_log.setLevel(logging.DEBUG)  # it logs each loop that is made
        try:
            assert in_thread(lambda: client.append("s", b"a")) == of(1, 0, 0)
        finally:
            asyncio_log.removeHandler(handler)
            asyncio_log.setLevel(level)
    assert errors
    assert {type(error) for error in errors} == {InvalidRequestError}
    assert "in a thread that is starting it" in str(errors[0])


@pytest.mark.parametrize("where", ["starting thread", "client's thread"])
@pytest.mark.parametrize("call", ["append", "close", "append_many", "read"])
def test_code_that_runs_in_a_thread_that_starts_the_client_gets_an_error(
    where: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a finalizer may run anywhere."""
    errors: list[BaseException] = []

    def finalize() -> None:
        error_of_call(lambda: getattr(client, call)(*QUESTIONS[call]), errors)

    class Opened(Client):
        async def __aenter__(self) -> Client:
            if where == "client's thread":
                finalize()
            return await super().__aenter__()

    def connect(target: str | None, *, options: dlog.ClientOptions) -> Client:
        if where == "starting thread":
            finalize()
        found = client_module.connect(target, options=options)
        return Opened(found.addresses, found.options)

    with unstarted() as client:
        monkeypatch.setattr(sync, "connect", connect)
        assert in_thread(lambda: client.append("s", b"a")) == of(1, 0, 0)
    assert [type(error) for error in errors] == [InvalidRequestError]


@pytest.mark.parametrize("other", ["append", "close"])
def test_a_thread_that_starts_the_client_keeps_no_other_thread_waiting(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the other one may hold the lock of a log handler, which the first one waits for."""
    found: list[Any] = []
    threads = set(threading.enumerate())

    def connect(target: str | None, *, options: dlog.ClientOptions) -> Client:
        monkeypatch.setattr(sync, "connect", client_module.connect)
        found.append(in_thread(lambda: getattr(client, other)(*QUESTIONS[other])))
        return client_module.connect(target, options=options)

    with unstarted() as client:
        before = set(threading.enumerate())
        monkeypatch.setattr(sync, "connect", connect)
        found.append(in_thread(lambda: client.append("s", b"a")))
        begun = set(threading.enumerate()) - before
    if other == "append":
        assert found == [of(1, 0, 0), of(1, 1, 0)]
        assert len(begun) == 1, "one client thread"
    else:
        assert found[0] is None
        assert isinstance(found[1], ClosedError)
        assert not begun
    assert set(threading.enumerate()) <= threads


def test_a_read_that_is_collected_in_the_clients_own_thread_ends_there() -> None:
    with serving() as (double, client):
        double.log.fill(b"a", b"b")
        reads = [client.read("s", follow=True)]
        assert next(reads[0]).payload == b"a"
        in_own_thread(client, reads.clear)
        loop = double._server.get_loop()  # type: ignore[union-attr]
        asyncio.run_coroutine_threadsafe(double.wait(lambda: bool(double.of(proxy.Cancel))), loop).result(WITHIN_S)
        assert client.append("s", b"c") is not None


@pytest.mark.parametrize("where", ["in the iterable", "at the end", "in a question"])
def test_a_client_that_another_thread_closes_leaves_nobody_waiting(where: str) -> None:
    holding = Holding()
    reached, closed = threading.Event(), threading.Event()

    def records() -> Iterator[bytes]:
        yield b"a"
        if where == "in the iterable":
            reached.set()
            closed.wait(WITHIN_S)
        yield b"b"

    with serving(script=holding) as (double, client):
        found: list[Any] = []

        def work() -> None:
            try:
                found.append(
                    client.append("s", b"a") if where == "in a question" else client.append_many("s", records())
                )
            except BaseException as error:  # noqa: BLE001
                found.append(error)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        loop = double._server.get_loop()  # type: ignore[union-attr]
        asyncio.run_coroutine_threadsafe(double.wait(lambda: bool(double.writes)), loop).result(WITHIN_S)
        if where == "in the iterable":
            assert reached.wait(WITHIN_S)
        client.close(orderly=False)
        closed.set()
        worker.join(WITHIN_S)
        assert found, "it hangs"
    assert isinstance(found[0], ClosedError)
    assert found[0].outcome_unknown


def test_ctrl_c_in_a_read_that_is_connecting_is_raised_as_such() -> None:
    """The attempt to connect takes several turns of the loop to end."""

    def interrupt(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Hello):
            signal.pthread_kill(main, signal.SIGINT)
        return True

    main = threading.get_ident()
    with serving(script=interrupt) as (_, client), pytest.raises(KeyboardInterrupt):
        next(client.read("s"))


def test_a_closed_client_says_so() -> None:
    with serving() as (_, client):
        pass
    with pytest.raises(ClosedError):
        client.append_many("s", [b"x"])


def test_a_blocking_reader_begins_after_a_record_and_tells_whether_it_has_caught_up() -> None:
    with serving() as (double, client):
        double.log.fill(b"a", b"b", b"c")
        reader = client.read("s")
        assert (reader.lag, reader.caught_up) == (None, False)
        seen = [(record.payload, reader.caught_up) for record in reader]
        assert [payload for payload, _ in seen] == [b"a", b"b", b"c"]
        assert not seen[0][1]
        assert (reader.lag, reader.caught_up) == (dlog.Lag(0, 0), True)
        rest = client.read("s", after=of(1, 0, 0), limit=1)
        assert [record.payload for record in rest] == [b"b"]
        opened = client.read_batches("s", follow=True)
        assert next(opened).payloads == [b"a"]
        opened.close()
        assert list(opened) == []
