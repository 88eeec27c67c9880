"""Checks from time to time that the place in which a write proxy creates segments by default can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dlog.errors import DLogError
from dlog.events import Event, ObjectsOutOfReach, TopicsOutOfReach
from dlog.stores.contract import SegmentStore
from dlog.stores.kafka.store import KafkaStore
from dlog.stores.s3_direct.store import S3DirectStore

EVERY_S = 5.0
TIMEOUT_S = 30.0  # longer than a call to a store takes, which ends with a reason


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """How a store is checked. check: raises a DLogError with the reason. trouble: what `/ready` then says. event: what
    is told for a reason."""

    check: Callable[[], Awaitable[None]]
    trouble: str
    event: Callable[[str], Event]


def check_of(store: SegmentStore) -> StoreCheck | None:
    """None: the store needs no check."""
    match store:
        case KafkaStore():
            return StoreCheck(store.check_topics, "topics out of reach", TopicsOutOfReach)
        case S3DirectStore():
            return StoreCheck(store.check_root, "objects out of reach", ObjectsOutOfReach)
    return None


async def check_store(
    of: StoreCheck, note: Callable[[bool], None], tell: Callable[[Event], None], *, every_s: float = EVERY_S
) -> None:
    """Check for ever. note: called after each check with whether the store cannot be used. tell: once for each reason,
    until it can be used again."""
    told = ""
    while True:
        reason = await _look(of)
        note(bool(reason))
        if reason and reason != told:
            tell(of.event(reason))
        told = reason
        await asyncio.sleep(every_s)


async def _look(of: StoreCheck) -> str:
    """Why the store cannot be used; empty: it can."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await of.check()
    except DLogError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s"
    return ""
