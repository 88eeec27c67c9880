"""Fills a log of a system with records (CRC, numbered from 0) by the system's fastest generator."""

from __future__ import annotations

import time
from pathlib import Path

from loadtest.generators import Generator
from loadtest.systems.base import CannotRunError, System

RECORD_BYTES = 200
_PATIENCE_S = 900.0


async def fill(system: System, log: str, records: int, room: Path, *, one_by_one: bool = False) -> None:
    """Append `records` records of RECORD_BYTES to an existing log. one_by_one: await each before the next.

    Raises CannotRunError.
    """
    history = room / f"{log}.history"
    job = {
        "kind": "produce",
        "address": system.address(),
        "options": {},
        "logs": [log],
        "record_bytes": RECORD_BYTES,
        "history": str(history),
        "seconds": _PATIENCE_S,
        "warmup_s": 0.0,
        "patience_s": 60.0,
        "seed": 1,
        "producer": 0,
        "mode": "window",
        "window": 1 if one_by_one else 65536,
        "rate": 0,
        "batch_records": 1,
        "records": records,
        "tasks": 1,
        "zipf": 0.0,
    }
    generator = Generator(f"fill {log}")
    command, more = system.generator(job, "fast")
    try:
        await generator.start(command, {**job, **more}, room / f"{log}.stderr")
        generator.go(time.monotonic_ns())
        result = await generator.result(_PATIENCE_S)
    finally:
        await generator.end()
        history.unlink(missing_ok=True)
    if result["failed"] or result["acked"] != result["sent"] or result["acked"] != records:
        raise CannotRunError(
            f"not all records were acknowledged: {result['acked']} of {records}, {result['errors'][:1]}"
        )
