"""`make demo STORE=kafka`: the demo on three brokers of Kafka, which are installed if needed, started and stopped.

    python -m loadtest.kafka_demo [FILE]

Exit 0: every record came back; 1: one did not, or something is missing or failed; 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dlog.io.children import die_with_parent, module_environment, python_module
from loadtest.systems.base import CannotRunError
from loadtest.systems.java import KAFKA
from loadtest.systems.kafka import KafkaSystem

HEAP_MIB = "256"
VICTIM = "broker-1"


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if KAFKA.install():
            print("Kafka is installed in .cache/peers", flush=True)
        return asyncio.run(_demo(given))
    except CannotRunError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1


async def _demo(arguments: Sequence[str]) -> int:
    system = KafkaSystem("kafka")
    with tempfile.TemporaryDirectory(prefix="dlog-kafka-", ignore_cleanup_errors=True) as room:
        try:
            print("starting three brokers of Kafka", flush=True)
            await system.start(Path(room), {"heap_mib": HEAP_MIB})
            victim = next(node.pid for node in system.nodes() if node.name == VICTIM)
            flags = ("--kafka", str(system.address()["bootstrap"]), "--victim", str(victim), *arguments)
            process = await asyncio.create_subprocess_exec(
                *python_module("dlog.cli.demo", *flags), env=module_environment(), preexec_fn=die_with_parent()
            )
            return await process.wait()
        finally:
            await system.kill_all()
            await system.stop()


if __name__ == "__main__":
    sys.exit(main())
