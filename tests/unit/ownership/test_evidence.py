"""Tests, as a table, what counts as evidence that an owner has failed."""

from __future__ import annotations

import pytest

from dlog.model.ids import Epoch, ProxyId
from dlog.model.segment import Owner
from dlog.ownership.evidence import Advice, Probe, judge

THEIRS = Owner(epoch=Epoch(3), proxy=ProxyId("p2"), address="p2:1", claim="x")
LIVES = {ProxyId("p2"): "p2:1"}
MOVED = {ProxyId("p2"): "p2:9"}


@pytest.mark.parametrize(
    ("owner", "registered", "suspected", "probe", "advice"),
    [
        (Owner(), {}, False, Probe.NOT_ASKED, Advice.CLAIM),
        (Owner(epoch=Epoch(3), proxy=ProxyId("p2"), released=True), LIVES, False, Probe.NOT_ASKED, Advice.CLAIM),
        (Owner(epoch=Epoch(3), proxy=ProxyId("me")), {}, False, Probe.NOT_ASKED, Advice.CLAIM),
        (THEIRS, LIVES, False, Probe.NOT_ASKED, Advice.LEAVE),
        (THEIRS, LIVES, True, Probe.NOT_ASKED, Advice.ASK),
        (THEIRS, MOVED, False, Probe.NOT_ASKED, Advice.ASK),
        (THEIRS, {}, False, Probe.NOT_ASKED, Advice.ASK),
        (THEIRS, LIVES, True, Probe.OWNS, Advice.LEAVE),
        (THEIRS, {}, True, Probe.OWNS, Advice.LEAVE),
        (THEIRS, LIVES, True, Probe.DENIES, Advice.CLAIM),
        (THEIRS, LIVES, True, Probe.NO_ANSWER, Advice.CLAIM),
        (THEIRS, {}, True, Probe.NO_ANSWER, Advice.CLAIM),
    ],
)
def test_the_table(owner: Owner, registered: dict[ProxyId, str], suspected: bool, probe: Probe, advice: Advice) -> None:
    judgement = judge(
        owner,
        me=ProxyId("me"),
        registered=registered,
        suspected=suspected,
        probe=probe,
    )
    assert judgement.advice is advice, judgement.reason
