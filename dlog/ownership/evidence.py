"""Judges the evidence that a stream's owner is gone, so that another proxy may claim the stream.

Invariants:
- evidence decides only whether to *try* a claim. A claim on wrong evidence costs a live owner its stream and its
  clients a redirect, but never a record, since the new owner fences. So no proxy waits for a claim to expire;
- a healthy owner is left alone.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from dlog.model.ids import ProxyId
from dlog.model.segment import Owner


class Probe(enum.Enum):
    """Result of asking the owner itself, at the address in its claim."""

    NOT_ASKED = "not asked"
    OWNS = "owns"  # it answered and did not deny owning the stream
    DENIES = "denies"  # it answered that it does not own the stream
    NO_ANSWER = "no answer"  # refused, reset, or silent for longer than a heartbeat


class Advice(enum.Enum):
    LEAVE = "leave"  # the owner lives: send clients there
    ASK = "ask"  # probe the owner, then judge again
    CLAIM = "claim"  # the owner is gone or released the stream: claim it, if the epoch is still the one judged


@dataclass(frozen=True, slots=True)
class Judgement:
    """The advice, and its reason as text for the log."""

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
    """Judge the newest claim on a stream that this process does not own.

    registered: address by proxy, as the registry last showed; an owner missing there may only have lost its ZooKeeper
    session and still serve, so it is probed first. suspected: a client reported, or a broken connection shows, that it
    does not answer.
    """
    if owner.epoch == 0 or not owner.proxy:
        return Judgement(Advice.CLAIM, "it was never owned")
    if owner.released:
        return Judgement(Advice.CLAIM, "its owner released it")
    if owner.proxy == me:
        return Judgement(Advice.CLAIM, "the claim is of an earlier process of this proxy")
    if probe is Probe.OWNS:
        return Judgement(Advice.LEAVE, "the owner answers")
    if probe is Probe.DENIES:
        return Judgement(Advice.CLAIM, "the owner denies owning it")
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
