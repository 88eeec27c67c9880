"""Checks from time to time that the topics in which a write proxy creates segments by default can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dlog.errors import DLogError
from dlog.events import Event, TopicsOutOfReach
from dlog.stores.kafka.store import KafkaStore

EVERY_S = 5.0
TIMEOUT_S = 30.0  # longer than a call to topics takes, which ends with a reason
TROUBLE = "topics out of reach"


async def check_topics(
    store: KafkaStore, note: Callable[[bool], None], tell: Callable[[Event], None], *, every_s: float = EVERY_S
) -> None:
    """Check for ever. note: called after each check with whether they cannot be used. tell: once for each reason, until
    they can be used again."""
    told = ""
    while True:
        reason = await _look(store)
        note(bool(reason))
        if reason and reason != told:
            tell(TopicsOutOfReach(reason))
        told = reason
        await asyncio.sleep(every_s)


async def _look(store: KafkaStore) -> str:
    """Why the topics cannot be used; empty: they can."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await store.check_topics()
    except DLogError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s"
    return ""
