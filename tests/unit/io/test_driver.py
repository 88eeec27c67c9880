"""Tests that the driver keeps its side of the contract in dlog/machine.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dlog.errors import ClosedError, ConnectionLostError, InvalidRequestError, OverCapacityError, UnavailableError
from dlog.io.driver import Driver
from dlog.io.shared_timers import ProcessTimers, SharedTimers
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    CompareAndSet,
    Effect,
    Emit,
    Fact,
    MetadataSeen,
    OutcomeUnknown,
    PeerLost,
    ReadMetadata,
    Received,
    Refused,
    Send,
    SetTimer,
    TimerFired,
    Versioned,
)


class Scripted:
    """A machine that records its facts and answers each with the result of a function."""

    def __init__(self, react: Callable[[Fact], list[Effect]] = lambda _: []) -> None:
        self.facts: list[Fact] = []
        self.react = react

    def handle(self, fact: Fact) -> list[Effect]:
        self.facts.append(fact)
        return self.react(fact)


class OneKey:
    """A metadata store for one key; requests wait for `gate`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        self.cancelled = 0

    async def read(self, key: Any) -> Any:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return Versioned(f"value of {key}", 7)

    async def compare_and_set(self, key: Any, value: Any, version: Any) -> Any:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return Versioned(value, version + 1)


@asynccontextmanager
async def running(machine: Scripted, **ports: Any) -> AsyncIterator[Driver]:
    sent: list[Any] = ports.pop("sent", [])
    ports.setdefault("send", lambda peer, message: sent.append((peer, message)))
    driver = Driver(machine, name="scripted", **ports)
    async with asyncio.TaskGroup() as group:
        group.create_task(driver.run(), name="driver")
        yield driver
        driver.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():  # noqa: ASYNC110  any condition, not one event
            await asyncio.sleep(0)


async def test_effects_are_performed_in_order_after_handle_returned() -> None:
    order: list[str] = []

    def react(fact: Fact) -> list[Effect]:
        order.append("handled")
        assert isinstance(fact, Asked)
        return [Send("a", 1), Emit("event"), Answer(fact.ticket, "done"), Send("a", 2)]

    async with running(
        Scripted(react), send=lambda _, m: order.append(f"sent {m}"), on_event=lambda e: order.append(f"told {e}")
    ) as driver:
        driver.submit("question", lambda result: order.append(f"answered {result}"))
        assert order == []  # nothing happens inside the caller's turn
        await until(lambda: len(order) == 5)
    assert order == ["handled", "sent 1", "told event", "answered done", "sent 2"]


async def test_facts_posted_while_performing_wait_for_their_turn() -> None:
    machine = Scripted()

    def send(peer: Any, message: Any) -> None:
        driver.post(Received(peer, "echo"))
        assert len(machine.facts) == 1

    machine.react = lambda fact: [Send("a", 1)] if isinstance(fact, PeerLost) else []
    async with running(machine, send=send) as driver:
        driver.post(PeerLost("a"))
        await until(lambda: len(machine.facts) == 2)
    assert machine.facts == [PeerLost("a"), Received("a", "echo")]


async def test_a_failed_send_is_a_fact() -> None:
    def refuse(peer: Any, message: Any) -> None:
        raise ConnectionLostError("no route") if message == 1 else OSError("broken pipe")

    machine = Scripted(lambda fact: [Send("a", 1), Send("b", 2)] if isinstance(fact, Received) else [])
    async with running(machine, send=refuse) as driver:
        driver.post(Received("a", "go"))
        await until(lambda: len(machine.facts) == 3)
    assert machine.facts[1:] == [PeerLost("a", "no route"), PeerLost("b", "broken pipe")]


async def test_requests_are_refused_at_the_bound_and_facts_never() -> None:
    machine = Scripted()
    async with running(machine, requests_max=2) as driver:
        first, _second = driver.ask(1), driver.ask(2)
        with pytest.raises(OverCapacityError):
            driver.ask(3)
        for number in range(100):
            driver.post(Received("a", number))
        await until(lambda: len(machine.facts) == 102)
        assert (driver.refused, driver.waiting) == (1, 2)
        machine.react = lambda fact: [Answer(1, "late")] if isinstance(fact, PeerLost) else []
        driver.post(PeerLost("a"))
        assert await first == "late"
        driver.ask(4)  # there is space again
        await until(lambda: len(machine.facts) == 104)


async def test_an_error_is_raised_at_the_asker() -> None:
    machine = Scripted(lambda fact: [Answer(fact.ticket, InvalidRequestError("no"))] if isinstance(fact, Asked) else [])
    async with running(machine) as driver:
        with pytest.raises(InvalidRequestError):
            await driver.ask("x")


async def test_a_cancelled_waiter_is_forgotten_and_its_request_is_not() -> None:
    machine = Scripted(lambda fact: [Answer(1, "first"), Answer(2, "second")] if isinstance(fact, Received) else [])
    async with running(machine) as driver:
        gone, stays = driver.ask("a"), driver.ask("b")
        await until(lambda: len(machine.facts) == 2)
        gone.cancel()
        assert driver.waiting == 2
        driver.post(Received("p", "now"))
        assert await stays == "second"
        assert [f.request for f in machine.facts if isinstance(f, Asked)] == ["a", "b"]


async def test_a_timer_of_the_same_key_replaces_and_cancel_forgets() -> None:
    def react(fact: Fact) -> list[Effect]:
        match fact:
            case Received():
                return [
                    SetTimer("a", 0.0),
                    SetTimer("a", 0.001),
                    SetTimer("b", 0.0),
                    CancelTimer("b"),
                    SetTimer("c", 0),
                ]
        return []

    machine = Scripted(react)
    async with running(machine) as driver:
        driver.post(Received("p", "go"))
        await until(lambda: len(machine.facts) == 3)
        driver.post(PeerLost("fence"))
        await until(lambda: isinstance(machine.facts[-1], PeerLost))
    assert sorted(str(f.key) for f in machine.facts if isinstance(f, TimerFired)) == ["a", "c"]


async def test_metadata_questions_come_back_with_their_token() -> None:
    metadata = OneKey()
    machine = Scripted(
        lambda fact: [ReadMetadata("t1", "k"), CompareAndSet("t2", "k", "new", 1)] if isinstance(fact, Received) else []
    )
    async with running(machine, metadata=metadata) as driver:
        driver.post(Received("p", "go"))
        await until(lambda: len(machine.facts) == 1)
        metadata.gate.set()
        await until(lambda: len(machine.facts) == 3)
    seen = {f.token: f.outcome for f in machine.facts if isinstance(f, MetadataSeen)}
    assert seen == {"t1": Versioned("value of k", 7), "t2": Versioned("new", 2)}


async def test_a_metadata_error_is_an_unknown_outcome_or_a_refusal_and_a_bug_is_neither() -> None:
    metadata = OneKey()
    metadata.gate.set()
    metadata.error = UnavailableError("away")
    machine = Scripted(lambda fact: [ReadMetadata("t", "k")] if isinstance(fact, Received) else [])
    async with running(machine, metadata=metadata) as driver:
        driver.post(Received("p", "go"))
        await until(lambda: len(machine.facts) == 2)
    assert machine.facts[1] == MetadataSeen("t", OutcomeUnknown("away"))

    metadata.error = too_large = InvalidRequestError("more than a server takes")
    machine = Scripted(lambda fact: [CompareAndSet("t", "k", "new", 1)] if isinstance(fact, Received) else [])
    async with running(machine, metadata=metadata) as driver:
        driver.post(Received("p", "go"))
        await until(lambda: len(machine.facts) == 2)
    assert machine.facts[1] == MetadataSeen("t", Refused(too_large))

    metadata.error = ZeroDivisionError("bug")
    driver = Driver(machine, name="m", send=lambda *_: None, metadata=metadata)  # type: ignore[arg-type]
    driver.post(Received("p", "go"))
    with pytest.raises(ZeroDivisionError):
        await driver.run()


async def test_stop_handles_the_mailbox_and_tells_those_who_wait() -> None:
    machine = Scripted()
    metadata = OneKey()
    machine.react = lambda fact: [ReadMetadata("t", "k")] if isinstance(fact, Received) else []
    driver = Driver(machine, name="m", send=lambda *_: None, metadata=metadata)  # type: ignore[arg-type]
    pending = driver.ask("never answered")
    driver.post(Received("p", 1))
    driver.stop()
    with pytest.raises(ClosedError):
        driver.ask("too late")
    await driver.run()
    assert len(machine.facts) == 2
    with pytest.raises(ClosedError) as caught:
        await pending
    assert caught.value.outcome_unknown
    driver.post(Received("p", 2))  # dropped, not an error
    assert driver.ended


async def test_cancellation_is_never_swallowed_and_leaves_no_task() -> None:
    metadata = OneKey()
    machine = Scripted(lambda fact: [ReadMetadata("t", "k")] if isinstance(fact, Received) else [])
    driver = Driver(machine, name="m", send=lambda *_: None, metadata=metadata)  # type: ignore[arg-type]
    before = asyncio.all_tasks()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(driver.run(), name="life")
        driver.post(Received("p", 1))
        pending = driver.ask("x")
        await until(lambda: len(asyncio.all_tasks()) == len(before) + 2)
        running.cancel()
    assert running.cancelled()
    assert metadata.cancelled == 1
    assert asyncio.all_tasks() == before
    with pytest.raises(ClosedError):
        await pending


async def test_who_is_cancelled_by_whom_it_answers_ends_without_a_word() -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    driver = Driver(
        Scripted(lambda fact: [Answer(fact.ticket, 1)] if isinstance(fact, Asked) else []),
        name="m",
        send=lambda *_: None,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(driver.run(), name="life")
        await asyncio.sleep(0)

        def stop_and_cancel(_: Any) -> None:
            driver.stop()
            running.cancel()

        driver.submit("x", stop_and_cancel)
    assert running.cancelled() and driver.ended
    assert not told


async def test_an_exception_leaves_with_the_story_and_without_payloads() -> None:
    def react(fact: Fact) -> list[Effect]:
        if isinstance(fact, Received) and fact.message == "boom":
            raise RuntimeError("broken invariant")
        return [Send("b", b"secret payload")]

    driver = Driver(Scripted(react), name="unlucky", send=lambda *_: None)
    pending = driver.ask(b"another secret")
    driver.post(Received("a", "boom"))
    with pytest.raises(RuntimeError, match="broken invariant") as caught:
        await driver.run()
    [story] = caught.value.__notes__
    assert "event trace of unlucky" in story
    assert "Send(peer='b', message=<14 B>)" in story
    assert "Asked(" in story and "<14 B>" in story
    assert "secret" not in story
    with pytest.raises(UnavailableError) as told:
        await pending
    assert told.value.outcome_unknown


async def test_a_life_without_a_task_ends_by_a_stop_and_is_told_so_after_those_who_waited() -> None:
    metadata, told = OneKey(), list[Any]()
    machine = Scripted(lambda fact: [ReadMetadata("t", "k")] if isinstance(fact, Received) else [])
    driver = Driver(machine, name="m", send=lambda *_: None, metadata=metadata)  # type: ignore[arg-type]  # one key, no more
    async with asyncio.TaskGroup():
        driver.begin(lambda _, error: told.append(error))
        driver.submit("never answered", told.append)
        driver.post(Received("p", 1))
        await until(lambda: len(machine.facts) == 2)
        await asyncio.sleep(0)
        assert not told
        driver.stop()
        await driver.wait_ended()
    assert isinstance(told[0], ClosedError) and told[0].outcome_unknown
    assert told[1:] == [None]
    assert metadata.cancelled == 1


@pytest.mark.parametrize("where", ["machine", "metadata"])
async def test_what_breaks_a_life_without_a_task_is_told_with_the_story(where: str) -> None:
    metadata, told = OneKey(), list[Any]()
    metadata.gate.set()
    metadata.error = ZeroDivisionError("bug")

    def react(fact: Fact) -> list[Effect]:
        if isinstance(fact, Received) and where == "machine":
            raise ZeroDivisionError("bug")
        return [ReadMetadata("t", "k")] if isinstance(fact, Received) else []

    driver = Driver(Scripted(react), name="unlucky", send=lambda *_: None, metadata=metadata)  # type: ignore[arg-type]  # one key, no more
    async with asyncio.TaskGroup():  # the group is not harmed
        driver.begin(lambda _, error: told.append(error))
        driver.submit("never answered", told.append)
        driver.post(Received("p", 1))
        await driver.wait_ended()
        await asyncio.sleep(0)
    farewell, error = told
    assert isinstance(farewell, UnavailableError) and farewell.outcome_unknown
    assert isinstance(error, ZeroDivisionError) and "event trace of unlucky" in error.__notes__[0]
    with pytest.raises(ClosedError):
        driver.ask("too late")


async def test_far_timers_are_fired_and_cancelled_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.io.driver.SHARED_TIMER_MIN_S", 0.001)
    machine = Scripted(
        lambda fact: (
            [SetTimer("a", 3600.0), SetTimer("a", 0.001), SetTimer("b", 0.002), CancelTimer("b"), SetTimer("c", 3600.0)]
            if isinstance(fact, Received)
            else []
        )
    )
    shared = ProcessTimers(SharedTimers(), SharedTimers())
    async with running(machine, shared=shared) as driver:
        driver.post(Received("p", "go"))
        await until(lambda: len(machine.facts) == 2)
        assert isinstance(machine.facts[1], TimerFired) and machine.facts[1].key == "a"
        assert len(shared.far) == 1
    assert len(shared.far) == 0, "an end cancels them"


async def test_what_can_wait_is_fired_by_the_timers_of_the_process() -> None:
    machine = Scripted(
        lambda fact: (
            [*(SetTimer(key, 0.001, can_wait=True) for key in "abc"), CancelTimer("b"), SetTimer("d", 0.001)]
            if isinstance(fact, Received)
            else []
        )
    )
    shared = ProcessTimers(SharedTimers(), SharedTimers())
    async with running(machine, shared=shared) as driver:
        driver.post(Received("p", "go"))
        await until(lambda: len(machine.facts) > 1 or len(shared.deferrable) > 0)
        assert len(shared.far) == 0
        await until(lambda: len(machine.facts) == 4)
        assert {f.key for f in machine.facts[1:] if isinstance(f, TimerFired)} == {"a", "c", "d"}


@pytest.mark.parametrize("in_effect", [False, True])
@pytest.mark.parametrize(("failing", "traced"), [(3, range(4)), (20, range(14, 21))])
async def test_a_turn_traces_its_last_facts_or_all_up_to_an_early_failure(
    failing: int, traced: range, in_effect: bool
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    def react(fact: Fact) -> list[Effect]:
        assert isinstance(fact, Received)
        if fact.message != failing:
            return []
        if not in_effect:
            fail()
        return [Send("b", "fails")]

    driver = Driver(Scripted(react), name="busy", send=fail)
    for number in range(30):
        driver.post(Received("a", number))
    with pytest.raises(ZeroDivisionError) as raised:
        await driver.run()
    (story,) = raised.value.__notes__
    facts = [line.strip() for line in story.splitlines()[1:] if "Received" in line]
    assert facts == [f"Received(peer='a', message={n}, now_s=0.0)" for n in traced]


async def test_other_tasks_run_between_batches() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while not driver.ended:
            turns += 1
            await asyncio.sleep(0)

    def react(fact: Fact) -> list[Effect]:
        if isinstance(fact, Received) and fact.message < 1000:
            driver.post(Received("self", fact.message + 1))
        return []

    driver = Driver(Scripted(react), name="busy", send=lambda *_: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(driver.run(), name="driver")
        group.create_task(other(), name="other")
        driver.post(Received("self", 0))
        await until(lambda: driver.facts == 1001)
        driver.stop()
    assert turns >= 1000
