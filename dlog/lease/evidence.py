"""What counts as evidence that a stream's owner is gone, so that another proxy may claim the stream.

The law of this room: evidence decides only whether to *try*. A claim on wrong evidence costs a live owner its stream
and its clients a redirect; it never costs a record, since the claim fences. So evidence is cheap to act on and nobody
waits for a lease to run out, but a healthy owner is left alone.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from dlog.model.ids import ProxyId
from dlog.model.segment import Owner


class Probe(enum.Enum):
    """What came of asking the owner itself, at the address of its claim."""

    NOT_ASKED = "not asked"
    OWNS = "owns"  # it answered, and did not deny that it owns the stream
    DENIES = "denies"  # it answered that it does not
    NO_ANSWER = "no answer"  # refused, reset, or silent for longer than a heartbeat


class Advice(enum.Enum):
    LEAVE = "leave"  # the owner lives: send clients there
    ASK = "ask"  # probe the owner, then judge again
    CLAIM = "claim"  # gone or willing: claim, if the epoch is still the one judged


@dataclass(frozen=True, slots=True)
class Judgement:
    """The advice, and why, in words for the log."""

    advice: Advice
    reason: str


def judge(
    owner: Owner,
    *,
    me: ProxyId,
    registered: Mapping[ProxyId, str],
    suspected: bool,
    probe: Probe = Probe.NOT_ASKED,
) -> Judgement:
    """Judge the newest claim on a stream that I do not hold.

    registered: address by proxy, as the registry last said; an owner missing there may only have lost its session, and
    serves on behind its fence, so it is asked first. suspected: a client or a broken connection says that it does not
    answer.
    """
    if owner.epoch == 0 or not owner.proxy:
        return Judgement(Advice.CLAIM, "nobody has owned it yet")
    if owner.released:
        return Judgement(Advice.CLAIM, "it was handed back")
    if owner.proxy == me:
        return Judgement(Advice.CLAIM, "the claim is of an earlier life of mine")
    if probe is Probe.OWNS:
        return Judgement(Advice.LEAVE, "the owner answers")
    if probe is Probe.DENIES:
        return Judgement(Advice.CLAIM, "the owner says that it is not")
    if probe is Probe.NO_ANSWER:
        return Judgement(Advice.CLAIM, "the owner does not answer")
    address = registered.get(owner.proxy)
    if address is None:
        return Judgement(Advice.ASK, "the owner's registration is gone")
    if address != owner.address:
        return Judgement(Advice.ASK, "the owner has moved since its claim")
    if suspected:
        return Judgement(Advice.ASK, "the owner is suspected")
    return Judgement(Advice.LEAVE, "the owner is registered")
