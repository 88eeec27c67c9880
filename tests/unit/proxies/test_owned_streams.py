"""Tests handing a stream back: in bounded time, whatever its owner is doing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dlog.errors import (
    DLogError,
    OwnedElsewhereError,
    RequestTimeoutError,
    SegmentNotEndedError,
    StreamUnavailableError,
)
from dlog.log.messages import DeleteStream, StreamAcquired
from dlog.model.ids import Epoch, SegmentNumber, StreamName
from dlog.stores.contract import SegmentCorruptError
from proxies.write.owned_streams import OwnedStreams
from proxies.write.ownership_advisor import ClaimHere, GoElsewhere
from proxies.write.takeover_queue import TakeoverQueue
from tests.operations import operations

S = StreamName("s")
INCARNATION = "a1"
DELETE = DeleteStream(INCARNATION, Epoch(1))


class Owner:
    """Taken when `may_take` is set, released when `may_release` is."""

    def __init__(self) -> None:
        self.may_take = asyncio.Event()
        self.may_release = asyncio.Event()
        self.incarnation = INCARNATION
        self.waiting = 0
        self.releases = 0
        self.is_stopped = False
        self.damage: DLogError | None = None

    async def take(self, if_epoch: Epoch | None) -> StreamAcquired:
        await self.may_take.wait()
        return StreamAcquired(Epoch(1), SegmentNumber(1))

    async def hand_over(self) -> None:
        self.releases += 1
        try:
            await self.may_release.wait()
        finally:
            self.stop()

    def submit(self, request: Any, sink: Callable[[Any], None]) -> None:
        self.waiting += 1

    def stop(self) -> None:
        self.is_stopped = True


class Deletion:
    """Ends when `may_end` is set, or fails with the error set there."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.asked: list[DeleteStream] = []
        self.error: DLogError | None = None
        self.is_stopped = False

    async def delete(self, request: DeleteStream) -> None:
        self.asked.append(request)
        await self.may_end.wait()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.is_stopped = True


class Tasks:
    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def start_alone(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._group.create_task(work, name=name)


class Stage:
    """Serves as placement and supervisor too."""

    def __init__(self, group: asyncio.TaskGroup, advice: ClaimHere | GoElsewhere, release_s: float = 30.0) -> None:
        tasks: Any = Tasks(group)
        everybody: Any = self
        self.advice = advice
        self.owner = Owner()
        self.deletion: Any = Deletion()
        self.gone: list[str] = []
        self.owned_streams = OwnedStreams(
            everybody,
            tasks,
            everybody,
            self.build,
            build_deletion=lambda _: self.deletion,
            takes=TakeoverQueue(tasks, at_once=4, waiting_max=10, slow_s=30.0),
            waiting_max=10,
            idle_s=100.0,
            streams_max=10,
            on_gone=self.gone.append,
            is_followed=lambda _: False,
            may_retire=lambda: True,
            release_s=release_s,
        )

    async def judge(self, stream: str, doubted: object = ()) -> ClaimHere | GoElsewhere:
        return self.advice

    def preferred(self, stream: str) -> str | None:
        return None

    def start(self, owner: Owner) -> None:
        """Run it under the supervisor."""

    def build(self, stream: StreamName, on_end: Callable[[Any], None]) -> Any:
        return self.owner


async def test_a_release_that_metadata_does_not_answer_ends_with_an_error_that_says_what_may_be() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)), release_s=0.05)
        stage.owner.may_take.set()
        await stage.owned_streams.ask(S, None)
        with pytest.raises(RequestTimeoutError, match="may or may not be released") as told:
            await stage.owned_streams.hand_over_on_request(S, INCARNATION)
    assert told.value.outcome_unknown
    assert stage.owner.is_stopped
    assert stage.gone == [S]
    assert not stage.owned_streams.all


async def test_a_stream_that_is_being_taken_is_handed_back_once_it_is_taken() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)))
        stage.owner.may_release.set()
        taking = group.create_task(stage.owned_streams.ask(S, None), name="take")
        await asyncio.sleep(0)
        assert stage.owned_streams.find(S) is not None
        handing = group.create_task(stage.owned_streams.hand_over_on_request(S, INCARNATION), name="hand back")
        await asyncio.sleep(0)
        assert not handing.done()
        stage.owner.may_take.set()
        await taking
        await handing
    assert stage.owner.releases == 1


async def test_a_stream_whose_owner_is_gone_is_taken_and_handed_back() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(3), "dead:1"))
        stage.owner.may_take.set()
        stage.owner.may_release.set()
        await stage.owned_streams.hand_over_on_request(S, INCARNATION)
    assert stage.owner.releases == 1


async def test_what_is_anothers_is_answered_with_where_and_of_what_is_nobodys_there_is_nothing_to_do() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for is_owner in (True, False):
            with pytest.raises(OwnedElsewhereError) as told:
                await Stage(group, GoElsewhere("other:1", Epoch(2), is_owner)).owned_streams.hand_over_on_request(
                    S, INCARNATION
                )
            assert told.value.location == "other:1"
        stage = Stage(group, ClaimHere(Epoch(2)))
        await stage.owned_streams.hand_over_on_request(S, INCARNATION)
    assert stage.owner.releases == 0


async def test_streams_with_requests_that_wait_are_given_up_and_the_others_kept() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)))
        stage.owner.may_take.set()
        await stage.owned_streams.ask(S, None)
        stage.owned_streams.give_up_stuck(0.0, lambda _: True)
        assert stage.gone == [], "nobody waits"
        stage.owner.waiting = 1
        stage.owned_streams.give_up_stuck(0.0, lambda _: True)
        assert stage.gone == [S]
        assert stage.owner.is_stopped
        stage.owner.may_take.clear()

        async def ask_in_vain() -> None:
            with pytest.raises(StreamUnavailableError):
                await stage.owned_streams.ask(S, None)

        group.create_task(ask_in_vain(), name="ask")
        await asyncio.sleep(0)
        stage.owned_streams.give_up_stuck(0.0, lambda _: True)
        stage.owner.may_take.set()


async def test_who_waits_for_a_takeover_that_finds_damage_is_told_so_and_not_redirected() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)))

        async def ask_in_vain() -> None:
            with pytest.raises(SegmentCorruptError, match="a chunk is damaged"):
                await stage.owned_streams.ask(S, None)

        group.create_task(ask_in_vain(), name="ask")
        await asyncio.sleep(0)
        owner: Any = stage.owner
        owner.damage = SegmentCorruptError("a chunk is damaged")
        while not stage.gone:
            stage.owned_streams.lost(S, owner)
            await asyncio.sleep(0)
        owner.may_take.set()


async def test_only_streams_without_progress_for_a_while_are_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)))
        now_s = 0.0
        monkeypatch.setattr(stage.owned_streams, "_now_s", lambda: now_s)
        stage.owner.may_take.set()
        await stage.owned_streams.ask(S, None)
        assert not stage.owned_streams.stuck(1.0), "no request is pending"
        assert not stage.owned_streams._asked, "it is looked at again only once something is asked of it"
        stage.owner.waiting = 1
        stage.owned_streams._asked[stage.owned_streams.all[0]] = None
        for _ in range(3):
            assert not stage.owned_streams.stuck(1.0)
            now_s += 0.9
            stage.owned_streams.moved(S)
        assert not stage.owned_streams.stuck(1.0)
        now_s += 0.9
        assert not stage.owned_streams.stuck(1.0)
        stage.owned_streams.give_up_stuck(1.0, lambda _: True)
        assert stage.gone == []
        now_s += 0.1
        assert stage.owned_streams.stuck(1.0) == [stage.owned_streams.all[0]]
        stage.owned_streams.give_up_stuck(1.0, lambda stream: stream is not stage.owned_streams.all[0])
        assert stage.gone == [], "streams that is_hit does not name are kept"
        stage.owned_streams.give_up_stuck(1.0, lambda stream: stream is stage.owned_streams.all[0])
        assert stage.gone == [S]


async def test_what_is_owned_in_another_life_is_not_handed_back() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)))
        stage.owner.may_take.set()
        stage.owner.may_release.set()
        await stage.owned_streams.ask(S, None)
        with pytest.raises(StreamUnavailableError):
            await stage.owned_streams.hand_over_on_request(S, "of the stream before")
        holding = stage.owned_streams.find(S)
        assert holding is not None
        assert holding.serving
        assert (stage.owner.releases, stage.owner.is_stopped, stage.gone) == (0, False, [])


async def test_a_deletion_stops_the_owner_first_and_keeps_everybody_else_out_until_it_is_over() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)))
        stage.owner.may_take.set()
        await stage.owned_streams.ask(S, None)
        deleting = group.create_task(stage.owned_streams.delete(S, DELETE), name="delete")
        await asyncio.sleep(0)
        assert stage.owner.is_stopped
        assert stage.deletion.asked == [DELETE]
        writing = group.create_task(_refused(stage), name="write")
        with pytest.raises(StreamUnavailableError):
            await stage.owned_streams.delete(S, DELETE)
        assert not writing.done()
        stage.deletion.may_end.set()
        await deleting
        await writing
        assert stage.deletion.is_stopped
        assert not stage.owned_streams.all


async def test_a_deletion_that_fails_lets_the_stream_be_taken_again() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)))
        stage.deletion.error = SegmentNotEndedError("bookies are gone")
        stage.deletion.may_end.set()
        with pytest.raises(SegmentNotEndedError):
            await stage.owned_streams.delete(S, DELETE)
        stage.owner.may_take.set()
        holding = await stage.owned_streams.ask(S, None)
        assert holding.serving


async def test_a_deletion_that_metadata_does_not_answer_ends_with_an_error_that_says_what_may_be() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)), release_s=0.05)
        with pytest.raises(RequestTimeoutError, match="the stream may be deleted later") as told:
            await stage.owned_streams.delete(S, DELETE)
    assert told.value.outcome_unknown
    assert stage.deletion.is_stopped
    assert not stage.owned_streams.all


async def _refused(stage: Stage) -> None:
    with pytest.raises(StreamUnavailableError):
        await stage.owned_streams.ask(S, None)


async def test_whether_something_waits_is_told_without_a_look_at_every_stream() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)))
        owned_streams = stage.owned_streams
        assert not owned_streams.has_waiting()
        taken = group.create_task(owned_streams.ask(S, None), name="take")
        await asyncio.sleep(0)
        assert owned_streams.has_waiting(), "it is being taken"
        stage.owner.may_take.set()
        await taken
        assert not owned_streams.has_waiting()
        cost = {0: operations(owned_streams.has_waiting)}
        for number in range(1, 1001):
            await owned_streams.ask(f"quiet-{number}", None)
        assert not owned_streams.has_waiting(), "those that nobody asks are looked at once"
        cost[1000] = operations(owned_streams.has_waiting)
        assert cost[1000] == cost[0]
        owned_streams.submit(S, "a batch", lambda _: None)
        assert owned_streams.has_waiting() and owned_streams.has_waiting()
        stage.owner.waiting = 0
        assert not owned_streams.has_waiting()
        stage.owner.waiting = 1
        owned_streams.submit("quiet-7", "a batch", lambda _: None)
        owner: Any = stage.owner
        owned_streams.lost("quiet-7", owner)
        assert not owned_streams.has_waiting(), "what is not owned any more does not count"


async def test_a_stream_that_is_handed_over_waits() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stage = Stage(group, ClaimHere(Epoch(0)))
        stage.owner.may_take.set()
        await stage.owned_streams.ask(S, None)
        assert not stage.owned_streams.has_waiting()
        group.create_task(stage.owned_streams.hand_over(S), name="release")
        await asyncio.sleep(0)
        assert stage.owned_streams.has_waiting()
        stage.owner.may_release.set()
