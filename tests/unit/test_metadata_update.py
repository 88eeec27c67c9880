"""Scenarios of the compare-and-set loop, and its properties on any register that loses, delays and refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, repeat
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import InvalidRequestError
from dlog.machine import (
    CancelTimer,
    CompareAndSet,
    Conflict,
    Effect,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    ReadMetadata,
    Refused,
    SetTimer,
    TimerFired,
    Versioned,
)
from dlog.metadata_update import Found, MetadataUpdateLoop, Written
from dlog.ownership.claim import ClaimOptions
from tests.simulation.mutants import edited
from tests.simulation.mutants.metadata_update import LOOP

TIMING = ClaimOptions(answer_timeout_s=5.0, retry_after_s=0.5)
LOST = OutcomeUnknown("connection lost")
TOO_LARGE = Refused(InvalidRequestError("too large"))


class Story:
    """A loop, and its effects as lines of text."""

    def __init__(self, *, timing: ClaimOptions | None = None, version: int | None = None) -> None:
        self.loop = MetadataUpdateLoop("key", "loop", timing, version)
        self.asked: list[Any] = []

    def lines(self, out: list[Effect]) -> list[str]:
        lines = []
        for effect in out:
            match effect:
                case ReadMetadata():
                    self.asked.append(effect.token)
                    lines.append("read")
                case CompareAndSet(token, _, value, version):
                    self.asked.append(token)
                    lines.append(f"write {value} over {version}")
                case SetTimer(_, after_s):
                    lines.append(f"wait {after_s}")
                case CancelTimer():
                    lines.append("wait no longer")
        return lines

    def read(self) -> list[str]:
        out: list[Effect] = []
        self.loop.read(out)
        return self.lines(out)

    def write(self, value: str) -> list[str]:
        out: list[Effect] = []
        self.loop.write(value, out)
        return self.lines(out)

    def stop(self) -> list[str]:
        out: list[Effect] = []
        self.loop.stop(out)
        return self.lines(out)

    def hears(self, outcome: Any, *, request: int = -1) -> Any:
        """The effects of an answer to a request, by default the newest; without a timing the loop does nothing."""
        out: list[Effect] = []
        said = self.loop.handle(MetadataSeen(self.asked[request], outcome), out)
        assert self.loop._timing is not None or not out
        self.done = self.lines(out)
        return said

    def fires(self) -> Any:
        """The loop's timer fires."""
        out: list[Effect] = []
        said = self.loop.handle(TimerFired(self.loop._token, 0.0), out)
        self.lines(out)
        return said


def test_a_value_is_read_and_written_over_the_version_that_was_read() -> None:
    story = Story()
    assert story.read() == ["read"]
    assert story.hears(Versioned("a", 1)) == Found("a")
    assert story.write("b") == ["write b over 1"]
    assert story.hears(Versioned("b", 2)) == Written("b")
    assert story.write("c") == ["write c over 2"], "who wrote last need not read"


def test_a_loop_that_is_given_a_version_need_not_read() -> None:
    assert Story(version=7).write("b") == ["write b over 7"]
    with pytest.raises(AssertionError):
        Story().write("b")


def test_what_conflicts_is_computed_again_from_what_is_read() -> None:
    story = Story(version=1)
    story.write("b")
    assert story.hears(Conflict()) == Conflict()
    with pytest.raises(AssertionError):
        story.write("b")
    story.read()
    assert story.hears(Versioned("x", 2)) == Found("x")
    assert story.write("xb") == ["write xb over 2"]


def test_a_lost_reply_is_a_success_once_the_value_is_read_at_another_version() -> None:
    story = Story(version=1)
    story.write("b")
    assert story.hears(LOST) == LOST
    assert story.loop.wrote and not story.loop.is_current
    story.read()
    assert story.hears(Versioned("b", 2)) == Written("b")


def test_a_lost_reply_and_the_old_version_prove_nothing() -> None:
    """The value written may equal the one that was there; and the write may still take place."""
    story = Story(version=1)
    story.write("a")
    story.hears(LOST)
    story.read()
    assert story.hears(Versioned("a", 1)) == Found("a")
    assert story.write("a") == ["write a over 1"]
    assert story.hears(Conflict()) == Conflict()
    story.read()
    assert story.hears(Versioned("a", 2)) == Written("a"), "the first write, late"


def test_a_read_that_is_lost_is_told_and_not_repeated_before_the_owner_says_so() -> None:
    story = Story()
    story.read()
    assert story.hears(LOST) == LOST
    assert not story.loop.wrote and story.loop.is_idle
    assert story.read() == ["read"]
    assert story.loop.reads == 2


@pytest.mark.parametrize("answer", [Missing(), TOO_LARGE])
def test_what_is_refused_for_good_is_told_and_nothing_is_asked(answer: Missing | Refused) -> None:
    for version in (None, 1):
        story = Story(version=version)
        story.read() if version is None else story.write("b")
        assert story.hears(answer) == answer
        assert story.loop.wrote is (version is not None)


def test_after_a_refused_write_another_value_may_be_written() -> None:
    story = Story(version=1)
    story.write("much too large")
    story.hears(TOO_LARGE)
    assert story.write("b") == ["write b over 1"]
    story.hears(Conflict())
    story.read()
    assert story.hears(Versioned("much too large", 2)) == Found("much too large"), "somebody else's"


def test_only_the_answer_to_the_newest_request_counts() -> None:
    story = Story()
    story.read()
    story.read()
    assert story.hears(Versioned("old", 1), request=0) is None
    assert story.hears(Versioned("new", 2)) == Found("new")
    assert story.hears(Versioned("new", 2)) is None, "it was answered"
    story.write("b")
    story.stop()
    assert story.hears(Versioned("b", 3)) is None, "it was stopped"


def test_with_a_timing_a_request_without_an_answer_counts_as_lost() -> None:
    story = Story(timing=TIMING, version=1)
    assert story.write("b") == ["write b over 1", "wait 5.0"]
    assert isinstance(story.fires(), OutcomeUnknown)
    assert story.loop.wrote and story.loop.is_idle and not story.loop.is_current
    assert story.hears(Versioned("b", 2)) is None, "too late"
    assert story.read() == ["read", "wait 5.0"]
    assert story.hears(Versioned("b", 2)) == Written("b")
    assert story.done == ["wait no longer"]
    assert story.fires() is None


def test_with_a_timing_a_lost_reply_is_followed_by_a_pause() -> None:
    story = Story(timing=TIMING)
    story.read()
    assert story.hears(LOST) == LOST
    assert story.done == ["wait no longer", "wait 0.5"]
    pausing = not story.loop.is_idle
    assert story.fires() is None
    assert pausing and story.loop.is_idle and not story.loop.is_current


def test_stopped_in_a_pause_it_waits_no_longer() -> None:
    story = Story(timing=TIMING)
    story.read()
    story.hears(LOST)
    assert story.stop() == ["wait no longer"]
    assert story.stop() == []


# ---- against a register that loses, delays and refuses ---------------------------------------------------------------

Draw = Callable[[int], int]  # a number below n


@dataclass(frozen=True)
class Kind:
    """A client: what it appends (nothing: it only settles what was written before), and the timing of its loop."""

    appends: tuple[str, ...]
    timing: ClaimOptions | None


KINDS = [Kind(appends, timing) for appends in (("ours",), ()) for timing in (None, TIMING)]


class Broken(Exception):
    """A report or an effect of the loop was wrong."""


def check(holds: bool, text: str) -> None:
    if not holds:
        raise Broken(text)


class World:
    """A register of tuples, other clients that append to it, and one that changes it by a loop."""

    def __init__(self, loop: type[MetadataUpdateLoop], kind: Kind, draw: Draw) -> None:
        self.appends = kind.appends
        self.draw = draw
        self.history: list[tuple[str, ...]] = [()]  # by version
        self.others: list[str] = []
        self.refuses = False
        self.requests: list[ReadMetadata | CompareAndSet] = []  # without an answer yet
        self.late: list[CompareAndSet] = []  # not served yet; reported as outcome unknown
        self.timers: set[Any] = set()
        self.loop = loop("key", "loop", kind.timing)
        self.value: tuple[str, ...] = ()  # as the client saw it last
        self.result: Any = None  # its final answer
        self.written_at = -1  # the version at which its change was there
        self.must_read = True  # after a conflict or a lost answer, until a value is read
        self.is_lost = False  # an outcome of a write is unknown
        self.go_on([])

    # ---- the client --------------------------------------------------------------------------------------------------

    def go_on(self, out: list[Effect]) -> None:
        """Write the value seen last with the change, or read; then perform the effects."""
        if self.result is None and self.loop.is_current:
            self.loop.write(self.value + self.appends, out)
        elif self.result is None and self.loop.is_idle:
            self.loop.read(out)
        for effect in out:
            match effect:
                case ReadMetadata() | CompareAndSet():
                    check(self.result is None, "a request after the end")
                    self.requests.append(effect)
                    self.is_writing = isinstance(effect, CompareAndSet)
                    check(not (self.is_writing and self.must_read), "written before it was read again")
                case SetTimer(key):
                    self.timers.add(key)
                case CancelTimer(key):
                    self.timers.discard(key)

    def hear(self, fact: MetadataSeen | TimerFired) -> None:
        outcome = fact.outcome if isinstance(fact, MetadataSeen) else LOST
        if (fact.token if isinstance(fact, MetadataSeen) else fact.key) == self.loop._token:
            self.must_read |= isinstance(outcome, OutcomeUnknown | Conflict)
            self.is_lost |= isinstance(outcome, OutcomeUnknown) and self.is_writing
        out: list[Effect] = []
        match said := self.loop.handle(fact, out):
            case Found(value) | Written(value):
                check(value == self.history[self.loop.version], "the value differs from the one that has this version")
                check(isinstance(said, Found) or set(self.appends) <= set(value), "reported as written, but is not")
                self.value, self.must_read = value, False
                if isinstance(said, Written) or (self.appends and self.appends[0] in value):
                    self.result, self.written_at = said, self.loop.version
            case Refused():
                self.result = said
        self.go_on(out)

    # ---- the register ------------------------------------------------------------------------------------------------

    def serve(self, effect: ReadMetadata | CompareAndSet) -> Any:
        if isinstance(effect, ReadMetadata):
            return Versioned(self.history[-1], len(self.history) - 1)
        if effect.version != len(self.history) - 1:
            return Conflict()
        if self.refuses:
            return TOO_LARGE
        check(self.written_at < 0, "a write takes effect after it was told as settled")
        self.history.append(effect.value)
        return Versioned(effect.value, len(self.history) - 1)

    def answer(self, outcome: Any) -> None:
        self.hear(MetadataSeen(self.requests.pop(0).token, outcome))

    def step(self) -> None:
        effect = self.requests[0] if self.requests else None
        match self.draw(9):
            case 0 | 1 if effect is not None:
                self.answer(self.serve(effect))
            case 2 if effect is not None:
                self.serve(effect)
                self.answer(LOST)
            case 3 if effect is not None:
                self.answer(LOST)
            case 4 if isinstance(effect, CompareAndSet):
                self.late.append(effect)
                self.answer(LOST)
            case 5 if self.late:
                self.serve(self.late.pop(self.draw(len(self.late))))
            case 6 if self.timers:
                key = sorted(self.timers)[self.draw(len(self.timers))]
                self.timers.discard(key)
                self.hear(TimerFired(key, 0.0))
            case 7 if self.written_at < 0 or self.draw(2):
                self.others.append(f"other {len(self.others)}")
                self.history.append((*self.history[-1], self.others[-1]))
            case 8 if not self.draw(8):
                self.refuses = True

    def heal(self) -> None:
        """Every request is answered, and the client learns what became of its change."""
        for _ in range(20):
            if self.requests:
                self.answer(self.serve(self.requests[0]))
            elif self.result is None:
                check(bool(self.timers), "nothing is in flight, and nothing will be")
                self.hear(TimerFired(self.timers.pop(), 0.0))
        check(self.result is not None and not self.requests, "it has no end")
        for effect in self.late:
            self.serve(effect)
        value = self.history[-1]
        check([e for e in value if e not in self.appends] == self.others, "another client's change is gone")
        check(all(value.count(e) <= 1 for e in self.appends), "applied twice")
        if self.written_at >= 0:
            check(set(self.appends) <= set(value), "told as written, and it is gone")
        else:
            check(self.is_lost or not set(self.appends) & set(value), "told as refused, and it was written")


def run(loop: type[MetadataUpdateLoop], kind: Kind, draw: Draw, steps: int) -> World:
    world = World(loop, kind, draw)
    for _ in range(steps):
        world.step()
    world.heal()
    return world


@given(st.lists(st.integers(0, 1000), max_size=60), st.sampled_from(KINDS))
def test_a_change_is_applied_once_or_its_fate_is_told(numbers: list[int], kind: Kind) -> None:
    drawn = chain(numbers, repeat(0))
    run(MetadataUpdateLoop, kind, lambda n: next(drawn) % n, len(numbers))


@pytest.mark.parametrize("kind", KINDS)
def test_the_property_is_about_every_end(kind: Kind) -> None:
    ends = {type(run(MetadataUpdateLoop, kind, Random(seed).randrange, 40).result) for seed in range(300)}
    assert ends == ({Written, Found, Refused} if kind.appends else {Written, Refused})


@pytest.mark.parametrize("defect", LOOP)
def test_a_planted_defect_breaks_the_property(defect: str) -> None:
    loop = edited(MetadataUpdateLoop, LOOP[defect])
    with pytest.raises(Broken):
        for seed in range(2000):
            run(loop, KINDS[seed % len(KINDS)], Random(seed).randrange, 40)
