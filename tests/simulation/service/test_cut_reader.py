"""Readers of a read proxy that is cut off from ZooKeeper go on within 3 seconds at another one that reaches it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from unittest import mock

import pytest

from proxies.read.contact import MetadataContact
from tests.history import History
from tests.simulation.plan import Fault, FaultKind, Plan
from tests.simulation.service import drawing, world
from tests.simulation.service.loop import S

CUT_S, AWAY_S = 2.0, 8.0
SILENCE_S_MAX = 3.0  # of a reader at the tail of a stream that is written about ten times a second


def plan(seed: int, cut_off: str) -> Plan:
    """A stream that rolls every second or two, two read proxies, and one of them cut off from ZooKeeper."""
    drawn = drawing.draw(seed, "quiet")
    config = {**drawn.config, "drawn": False, "events_lost": 0.0, "streams": 1, "cancels": 0.0, "truncates": False}
    config |= {"pace_s": 0.1, "session_s": 10.0, "duration_s": CUT_S + AWAY_S + 1.0, "record_bytes": 3000, "readers": 2}
    config["settings"] = {**config["settings"], "segment_bytes": 65_536, "segment_age_s": 3600.0}
    fault = Fault(kind=FaultKind.META_CUT, a=cut_off, at_s=CUT_S, for_s=AWAY_S, both=True)
    return Plan(seed=seed, config=config, faults=(fault,))


def longest_silence_s(seed: int) -> float:
    """The longest silence of any reader that followed all the time, with either of the two proxies cut off."""
    longest_s = 0.0
    for cut_off in ("reader-1", "reader-2"):
        heard: dict[int, list[int]] = {}
        delivered = History.delivered

        def hear(self: History, reader: int, at: int, *given: Any, heard: Any = heard, to: Any = delivered) -> None:
            heard.setdefault(reader, []).append(at)
            to(self, reader, at, *given)

        with mock.patch.object(History, "delivered", hear):
            outcome = world.run(plan(seed, cut_off))
        assert not outcome.violation, outcome.text
        assert outcome.reached["fault.meta_cut"] == 1
        followers = [times for times in heard.values() if times[-1] - times[0] > AWAY_S * S]
        assert followers, "somebody follows from before the cut until after it"
        gaps = (later - earlier for times in followers for earlier, later in itertools.pairwise(times))
        longest_s = max(longest_s, max(gaps) / S)
    return longest_s


def test_readers_of_a_proxy_that_is_cut_off_go_on_at_another_within_three_seconds() -> None:
    assert longest_silence_s(1) < SILENCE_S_MAX


def test_without_looking_they_would_wait_for_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: MetadataContact, *_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(MetadataContact, "run", never)
    assert longest_silence_s(1) > SILENCE_S_MAX
