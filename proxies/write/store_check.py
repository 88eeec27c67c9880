"""Checks from time to time that the store in which a write proxy creates segments by default can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dlog.errors import DLogError
from dlog.events import ControllerOutOfReach, Event, NodeNotServing, ObjectsOutOfReach, TopicsOutOfReach
from dlog.stores.contract import SegmentStore
from dlog.stores.kafka.store import KafkaStore
from dlog.stores.s3.store import S3Store
from dlog.stores.s3_direct.store import S3DirectStore

EVERY_S = 5.0
CONTROLLER_EVERY_S = 60.0  # each check appends an entry to the metadata stream
TIMEOUT_S = 30.0  # longer than a call to a store takes, which ends with a reason


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """How a part of a store is checked. check: raises a DLogError with the reason. trouble: what `/ready` then shows.
    event: the event that reports a reason.

    is_needed: without it no append is acknowledged, so that long trouble makes the proxy unready. is_awaited: the proxy
    is not ready before the first check that finds no trouble.
    """

    check: Callable[[], Awaitable[None]]
    trouble: str
    event: Callable[[str], Event]
    is_needed: bool = True
    is_awaited: bool = False
    every_s: float = EVERY_S


def checks_of(store: SegmentStore) -> tuple[StoreCheck, ...]:
    """How a store is checked; none: it needs no check."""
    match store:
        case KafkaStore():
            return (StoreCheck(store.check_topics, "topics out of reach", TopicsOutOfReach),)
        case S3DirectStore():
            return (StoreCheck(store.check_root, "objects out of reach", ObjectsOutOfReach),)
        case S3Store():
            # the node acknowledges also while the controller or the objects are out of reach
            return (
                StoreCheck(store.check_node, "streams in objects are not served", NodeNotServing, is_awaited=True),
                StoreCheck(
                    store.check_objects,
                    "objects out of reach",
                    ObjectsOutOfReach,
                    is_needed=store.has_log_in_objects,
                ),
                StoreCheck(
                    store.check_controller,
                    "controller of streams in objects out of reach",
                    ControllerOutOfReach,
                    is_needed=False,
                    every_s=CONTROLLER_EVERY_S,
                ),
            )
    return ()


async def check_store(
    of: StoreCheck, note: Callable[[bool], None], on_event: Callable[[Event], None], *, every_s: float | None = None
) -> None:
    """Check for ever. note: called after each check with whether there is trouble. on_event: called when trouble
    begins, and whenever its reason changes. every_s: overrides the interval of the check."""
    reported = ""
    while True:
        reason = await _look(of)
        note(bool(reason))
        if reason and reason != reported:
            on_event(of.event(reason))
        reported = reason
        await asyncio.sleep(of.every_s if every_s is None else every_s)


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
