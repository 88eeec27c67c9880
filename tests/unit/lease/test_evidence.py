"""What shows that an owner is gone, as a table."""

from __future__ import annotations

import pytest

from dlog.lease.evidence import Advice, Probe, judge
from dlog.model.ids import Epoch, ProxyId
from dlog.model.segment import Owner

THEIRS = Owner(epoch=Epoch(3), proxy=ProxyId("p2"), address="p2:1", claim="x")
LIVES = {ProxyId("p2"): "p2:1"}
MOVED = {ProxyId("p2"): "p2:9"}


@pytest.mark.parametrize(
    ("owner", "registered", "current", "suspected", "probe", "advice"),
    [
        (Owner(), {}, True, False, Probe.NOT_ASKED, Advice.CLAIM),
        (Owner(epoch=Epoch(3), proxy=ProxyId("p2"), released=True), LIVES, True, False, Probe.NOT_ASKED, Advice.CLAIM),
        (Owner(epoch=Epoch(3), proxy=ProxyId("me")), {}, True, False, Probe.NOT_ASKED, Advice.CLAIM),
        (THEIRS, LIVES, True, False, Probe.NOT_ASKED, Advice.LEAVE),
        (THEIRS, LIVES, True, True, Probe.NOT_ASKED, Advice.ASK),
        (THEIRS, MOVED, True, False, Probe.NOT_ASKED, Advice.ASK),
        (THEIRS, {}, True, False, Probe.NOT_ASKED, Advice.CLAIM),
        (THEIRS, {}, False, False, Probe.NOT_ASKED, Advice.ASK),
        (THEIRS, LIVES, True, True, Probe.OWNS, Advice.LEAVE),
        (THEIRS, {}, True, True, Probe.OWNS, Advice.LEAVE),
        (THEIRS, LIVES, True, True, Probe.DENIES, Advice.CLAIM),
        (THEIRS, LIVES, True, True, Probe.NO_ANSWER, Advice.CLAIM),
        (THEIRS, {}, False, True, Probe.NO_ANSWER, Advice.CLAIM),
    ],
)
def test_the_table(
    owner: Owner, registered: dict[ProxyId, str], current: bool, suspected: bool, probe: Probe, advice: Advice
) -> None:
    judgement = judge(
        owner,
        me=ProxyId("me"),
        registered=registered,
        registry_is_current=current,
        suspected=suspected,
        probe=probe,
    )
    assert judgement.advice is advice, judgement.reason
