"""Tests the phases of an owner: the table of transitions, its diagram in ARCHITECTURE.md, and what no table allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.errors import EndOfStreamError
from dlog.events import StreamReleased, StreamSealed
from dlog.log.messages import HINTS, STORE, HandOverStream, SealSegment, SealStream, StatStream, StreamChanged
from dlog.log.options import OwnerOptions
from dlog.log.owner_context import TRANSITIONS, OwnerContext, Phase
from dlog.machine import CompareAndSet, PeerLost, ReadMetadata, Received
from dlog.model.ids import ProxyId
from dlog.ownership.claim import Claimant
from tests.unit.log.stage import KEY, Actor, Stage, batch

PAGE = Path(__file__).resolve().parents[3] / "ARCHITECTURE.md"
BEGIN = "<!-- owner phases: rendered from dlog/log/owner_context.py -->"
END = "<!-- owner phases: end -->"


def diagram() -> str:
    """The table of transitions as a Mermaid diagram, in the order of the phases."""
    lines = [f"{one.value} --> {next_.value}" for one in Phase for next_ in Phase if next_ in TRANSITIONS[one]]
    final = [f"{phase.value} --> [*]" for phase in Phase if not TRANSITIONS[phase]]
    body = "\n".join(f"  {line}" for line in (f"[*] --> {Phase.IDLE.value}", *lines, *final))
    return f"```mermaid\nstateDiagram-v2\n{body}\n```"


def seen(owner: Actor) -> tuple[Phase, str]:
    """The phase, and what users are answered in it."""
    return owner.machine.phase, owner.ask(StatStream()).state


def context() -> OwnerContext:
    claimant = Claimant(proxy=ProxyId("p1"), address="p1:1", nonce="p1-0")
    return OwnerContext(KEY, claimant, OwnerOptions(), {})


def test_the_diagram_of_the_page_is_the_table() -> None:
    page = PAGE.read_text()
    shown = page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip()
    assert shown == diagram(), f"put this between the markers in ARCHITECTURE.md:\n\n{diagram()}"


def test_every_phase_can_be_reached_and_only_an_ended_owner_stays_as_it_is() -> None:
    reached = {Phase.IDLE}
    while more := {after for phase in reached for after in TRANSITIONS[phase]} - reached:
        reached |= more
    assert reached == set(TRANSITIONS) == set(Phase)
    owner = context()
    for phase in Phase:
        owner.phase = phase
        assert owner.has_ended == (not TRANSITIONS[phase])


@pytest.mark.parametrize("phase", Phase)
def test_no_phase_is_entered_that_the_table_does_not_allow(phase: Phase) -> None:
    for after in Phase:
        owner = context()
        owner.phase = phase
        if after in TRANSITIONS[phase]:
            owner.enter(after)
            assert owner.phase is after
        else:
            with pytest.raises(AssertionError, match=f"{phase.name} -> {after.name}"):
                owner.enter(after)
            assert owner.phase is phase


def test_a_hand_over_drains_closes_and_releases_and_users_read_the_words_they_know() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    stage.hold(SealSegment, CompareAndSet)
    owner.ask(HandOverStream())
    assert seen(owner) == (Phase.DRAINING, "draining")
    stage.held.popleft()()  # the segment is sealed
    assert seen(owner) == (Phase.CLOSING, "draining")
    stage.release()
    assert seen(owner) == (Phase.RELEASED, "released")


def test_a_release_that_is_being_written_when_the_store_is_lost_takes_place() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    stage.hold(CompareAndSet)
    owner.ask(HandOverStream())
    assert seen(owner) == (Phase.CLOSING, "draining")
    owner.post(PeerLost(STORE))
    assert seen(owner) == (Phase.RECOVERING, "recovering")
    stage.release()
    assert seen(owner) == (Phase.RELEASED, "released")
    assert [type(e) for e in owner.events].count(StreamReleased) == 1


def test_a_sealed_stream_is_released_once_whatever_metadata_shows_meanwhile() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(SealStream())
    stage.hold(ReadMetadata, CompareAndSet)
    owner.post(Received(HINTS, StreamChanged()))  # the stream is read
    owner.ask(HandOverStream())
    assert seen(owner) == (Phase.RELEASING, "sealed")
    assert isinstance(owner.ask(batch(0)), EndOfStreamError)
    owner.post(PeerLost(STORE))  # a sealed stream has no segment to append to
    assert seen(owner) == (Phase.RELEASING, "sealed")
    stage.release()
    assert seen(owner) == (Phase.RELEASED, "released")
    told = [type(event) for event in owner.events]
    assert (told.count(StreamSealed), told.count(StreamReleased)) == (1, 1)


def test_a_claim_is_lost_while_the_sealed_stream_is_being_released() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(SealStream())
    stage.hold(CompareAndSet)
    owner.ask(HandOverStream())
    stage.holding = ()
    stage.taken("p2")
    assert seen(owner) == (Phase.RELEASING, "sealed")
    stage.release()
    assert seen(owner) == (Phase.LOST, "lost")
    assert owner.lost
