"""Asking the controller: which proxy is asked, what is sent again, and what a caller learns at the end."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from dlog.errors import (
    ConnectionLostError,
    DLogError,
    InvalidRequestError,
    OverCapacityError,
    OwnedElsewhereError,
    RequestTimeoutError,
    UnavailableError,
)
from dlog.io.metadata import ProxyInfo
from dlog.io.object_metadata import ObjectMetadataClient, ObjectMetadataOptions, ProxySender
from dlog.model.ids import ProxyId
from dlog.objects.errors import ControllerLostError, StreamNotClosedError
from dlog.objects.operation_codec import OperationTooLargeError, encode_answer
from dlog.objects.operations import Done, GetKey, PutKey
from dlog.stores.contract import StoreUnavailableError
from dlog.wire.proxy import ObjectsAsk
from tests.memory_metadata import MemoryMetadata
from tests.memory_objects import MemoryObjects

DONE = encode_answer(Done(5))


class PlayedProxies:
    """Proxies by address; each answers with what the test put there, or never."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        self.answers: dict[str, deque[Any]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.closed: list[str] = []
        self.dead: set[str] = set()
        self.opened = 0

    async def add(self, address: str, *answers: Any) -> None:
        self.answers[address] = deque(answers)
        await self.metadata.register_proxy(ProxyInfo(ProxyId(address), "write", address))

    async def open(self, address: str) -> PlayedLink:
        self.opened += 1
        await asyncio.sleep(0)
        if address in self.dead:
            raise UnavailableError("refused")
        return PlayedLink(self, address)

    def sender(self, **options: Any) -> ProxySender:
        return ProxySender(self.metadata, self.open, random.Random(1), **options)


class PlayedLink:
    def __init__(self, proxies: PlayedProxies, address: str) -> None:
        self._proxies = proxies
        self._address = address
        self._closed = asyncio.Event()

    async def ask(self, question: Callable[[int], Any]) -> Any:
        message = question(7)
        assert isinstance(message, ObjectsAsk)
        self._proxies.asked.append((self._address, message.suspect))
        answers = self._proxies.answers[self._address]
        if not answers:
            await self._closed.wait()
            raise ConnectionLostError("closed by this process")
        answer = answers.popleft()
        if isinstance(answer, DLogError):
            raise answer
        return answer if isinstance(answer, dict) else {"answer": [answer[:3], answer[3:]]}

    def close(self) -> None:
        self._proxies.closed.append(self._address)
        self._closed.set()


def moved(address: str | None) -> OwnedElsewhereError:
    return OwnedElsewhereError("there", location=address)


async def test_a_redirect_is_followed_and_remembered() -> None:
    on = PlayedProxies()
    await on.add("a:1", moved("b:1"))
    on.answers["b:1"] = deque([DONE, DONE])  # it is registered under another address here, or not yet
    sender = on.sender()
    assert await sender.send(b"x") == DONE
    assert await sender.send(b"x") == DONE
    assert [address for address, _ in on.asked] == ["a:1", "b:1", "b:1"]
    await sender.close()
    assert on.closed == ["a:1", "b:1"]


async def test_redirects_in_a_circle_end() -> None:
    on = PlayedProxies()
    await on.add("a:1", *[moved("b:1")] * 9)
    on.answers["b:1"] = deque([moved("a:1")] * 9)
    with pytest.raises(OwnedElsewhereError):
        await on.sender().send(b"x")
    assert len(on.asked) == 3


async def test_a_proxy_that_failed_is_doubted_at_another_one() -> None:
    on = PlayedProxies()
    await on.add("a:1", moved("b:1"), DONE, DONE)
    await on.add("b:1", ConnectionLostError("reset"))
    sender = on.sender()
    with pytest.raises(ConnectionLostError):
        await sender.send_to("a:1", b"x")
    assert await sender.send(b"x") == DONE
    assert await sender.send(b"x") == DONE
    assert on.asked == [("a:1", None), ("b:1", None), ("a:1", "b:1"), ("a:1", None)]


async def test_a_proxy_that_cannot_be_reached_or_does_not_answer_is_doubted() -> None:
    on = PlayedProxies()
    await on.add("a:1", DONE)
    await on.add("b:1")
    on.dead.add("b:1")
    sender = on.sender(attempt_s=0.02)
    with pytest.raises(UnavailableError) as refused:
        await sender.send_to("b:1", b"x")
    assert not refused.value.outcome_unknown
    assert sender.suspect == "b:1"
    on.dead.clear()
    with pytest.raises(RequestTimeoutError) as silent:
        await sender.send_to("b:1", b"x")
    assert silent.value.outcome_unknown
    assert on.closed == ["b:1"]
    assert await sender.send(b"x") == DONE


async def test_a_question_to_another_proxy_does_not_end_one_that_waits() -> None:
    on = PlayedProxies()
    await on.add("a:1")
    await on.add("b:1", moved(None))
    sender = on.sender()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(sender.send_to("a:1", b"x"))
        await asyncio.sleep(0.001)
        with pytest.raises(OwnedElsewhereError):
            await sender.send_to("b:1", b"x")
        assert not on.closed and not waiting.done()
        waiting.cancel()


@pytest.mark.parametrize("is_here", [False, True])
async def test_a_question_to_an_owner_that_was_replaced_is_given_up(is_here: bool) -> None:
    on = PlayedProxies()
    await on.add("a:1")
    await on.add("b:1", DONE)
    sender = on.sender()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_error_of(sender.send_to("a:1", b"x")))
        await asyncio.sleep(0.001)
        if is_here:
            sender.controller_answered(None)
        else:
            assert await sender.send_to("b:1", b"x") == DONE
    lost = waiting.result()
    assert isinstance(lost, ConnectionLostError) and lost.outcome_unknown
    assert on.closed == ["a:1"]
    assert sender.suspect is None, "nothing is known against it"


async def _error_of(sending: Awaitable[bytes]) -> DLogError:
    with pytest.raises(DLogError) as raised:
        await sending
    return raised.value


async def test_those_who_wait_for_a_connection_share_its_failure() -> None:
    on = PlayedProxies()
    await on.add("a:1", DONE)
    on.dead.add("a:1")
    sender = on.sender()
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(_error_of(sender.send_to("a:1", b"x"))) for _ in range(5)]
    assert [one.result().message for one in asking] == ["refused"] * 5
    assert on.opened == 1
    on.dead.clear()
    assert await sender.send(b"x") == DONE


@pytest.mark.parametrize("answer", [{}, {"answer": None}, {"answer": ["text"]}, {"answer": b"x"}])
async def test_an_answer_of_another_kind_is_refused(answer: dict[str, Any]) -> None:
    on = PlayedProxies()
    await on.add("a:1", answer)
    with pytest.raises(UnavailableError):
        await on.sender().send(b"x")


async def test_without_a_proxy() -> None:
    with pytest.raises(UnavailableError, match="no write proxy"):
        await PlayedProxies().sender().send(b"x")


# ---- asking until it is answered ------------------------------------------------------------------------------------


class PlayedSender:
    has_controller = False

    def __init__(self, *answers: Any) -> None:
        self.answers = deque(answers)
        self.sent: list[bytes] = []

    def offer_image(self, point: Callable[[], Any]) -> None:
        self.point = point

    async def send(self, operation: bytes) -> bytes:
        self.sent.append(operation)
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, DLogError) and not isinstance(answer, ControllerLostError | StreamNotClosedError):
            raise answer
        return answer if isinstance(answer, bytes) else encode_answer(answer)


@asynccontextmanager
async def client(sender: PlayedSender, deadline_s: float = 90.0) -> AsyncIterator[ObjectMetadataClient]:
    options = ObjectMetadataOptions(ask_deadline_s=deadline_s, retry_first_s=0.001, retry_max_s=0.002)
    async with ObjectMetadataClient(
        MemoryMetadata(), {}, MemoryObjects(), no_root, sender, random.Random(1), options
    ) as built:
        yield built


async def no_root() -> Any:
    raise AssertionError("no object is read here")


async def test_what_may_succeed_later_is_sent_again_the_same() -> None:
    sender = PlayedSender(
        ControllerLostError("lost"), OverCapacityError("busy"), ConnectionLostError("reset"), moved("b:1"), Done(5)
    )
    async with client(sender) as on:
        assert await on.ask(PutKey("a", b"1")) == Done(5)
    assert len(sender.sent) == 5
    assert len(set(sender.sent)) == 1


async def test_refusals_are_raised_at_once() -> None:
    for error in (StreamNotClosedError("open"), InvalidRequestError("wrong")):
        sender = PlayedSender(error)
        async with client(sender) as on:
            with pytest.raises(type(error)):
                await on.ask(GetKey("a"))
        assert len(sender.sent) == 1


async def test_what_cannot_be_sent_is_refused_here() -> None:
    sender = PlayedSender(Done(5))
    async with client(sender) as on:
        with pytest.raises(OperationTooLargeError):
            await on.ask(PutKey("a", bytes(1 << 20)))
    assert not sender.sent


@pytest.mark.parametrize(
    ("answers", "unknown"),
    [
        ((UnavailableError("no"),), False),
        ((ControllerLostError("lost", outcome_unknown=False),), False),
        ((ControllerLostError("lost"), UnavailableError("no")), True),
        ((None,), True),
    ],
)
async def test_the_deadline_tells_whether_it_may_have_been_recorded(answers: tuple[Any, ...], unknown: bool) -> None:
    async with client(PlayedSender(*answers), 0.1) as on:
        with pytest.raises(StoreUnavailableError) as late:
            await on.ask(PutKey("a", b"1"))
    assert late.value.outcome_unknown is unknown


@pytest.mark.parametrize("silent", [ConnectionLostError("reset"), RequestTimeoutError("late"), moved(None), None])
async def test_the_deadline_tells_why_nothing_is_decided_also_if_another_question_was_told(silent: Any) -> None:
    full = "not written, no segment to write to: no space left on device"
    sender = PlayedSender(UnavailableError(full), silent)
    async with client(sender, 0.1) as on:
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match=full):
                await on.ask(PutKey("a", b"1"))
        for decided in (Done(5), StreamNotClosedError("open")):
            sender.answers = deque([UnavailableError(full), decided])
            with suppress(StreamNotClosedError):
                await on.ask(PutKey("a", b"1"))
            sender.answers = deque([silent])
            with pytest.raises(StoreUnavailableError, match=silent.message if silent else "no answer"):
                await on.ask(PutKey("a", b"1"))
