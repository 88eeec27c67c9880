"""Fuzz for a while: `python -m tests.fuzz --minutes 10 [--seed N] [--only decoders|sessions]`.

Decoders get mutated bytes (tests/fuzz/decoders.py); real processes get invalid sessions (tests/fuzz/sessions.py) while
a correct client appends and reads back beside them. Prints what was done, memory of the processes before and after, and
the seed of the first failure; exit 1 if there was one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from tests.fuzz.decoders import TARGETS, one
from tests.fuzz.sessions import bookie_frames, proxy_frames, session
from tests.integration.cluster import start_bookies
from tests.integration.hostile.conftest import Bystander, resident_mib, small_cluster

BATCH = 2000  # rounds of one decoder between two looks at the clock


def decoders(minutes: float, seed: int) -> bool:
    """Run round after round over all decoders. Returns whether all were correct."""
    end_s, rounds = time.monotonic() + minutes * 60, 0
    while time.monotonic() < end_s:
        for target in TARGETS:
            rng = random.Random(f"{seed} {target.name}")
            for number in range(BATCH):
                try:
                    one(target, rng)
                except Exception:  # noqa: BLE001 - whatever a decoder should not have raised
                    traceback.print_exc()
                    print(f"BROKEN {target.name}, round {number} of --seed {seed}")
                    return False
            rounds += BATCH
        seed += 1
    print(f"decoders: {rounds:,} rounds over {len(TARGETS)} decoders, up to seed {seed}")
    return True


def sessions(minutes: float, seed: int) -> bool:
    """Run sessions against a small cluster of their own. Returns whether all processes survived and nothing was
    lost."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        asyncio.run(zookeeper.start())
        bookies = start_bookies(zookeeper, directory / "bookies")
        try:
            for cluster in small_cluster(bookies, directory / "proxies"):
                bystander = Bystander(cluster.target, "bystander")
                asyncio.run(bystander.create())
                parts = (
                    ("write proxy", cluster.writer, proxy_frames),
                    ("read proxy", cluster.reader, proxy_frames),
                    ("bookie", bookies.bookies[0], bookie_frames),
                )
                before = [resident_mib(process.pid) for _, process, _ in parts]
                begun_s, done, frames = time.monotonic(), 0, 0
                while time.monotonic() - begun_s < minutes * 60:
                    rng = random.Random(seed)
                    for _ in range(100):
                        frames += sum(session(process.address, make, rng) for _, process, make in parts)
                        done += len(parts)
                    asyncio.run(bystander.work(1))
                    for title, process, _ in parts:
                        if not process.is_running or "Traceback" in process.log():
                            print(f"BROKEN {title} at --seed {seed}:\n{process.log()[-3000:]}")
                            return False
                    seed += 1
                print(f"sessions: {done:,}, {frames:,} frames, up to seed {seed}")
                for (title, process, _), mib in zip(parts, before, strict=True):
                    print(f"  {title}: {mib:.0f} MiB before, {resident_mib(process.pid):.0f} MiB after")
        finally:
            bookies.close()
            zookeeper.kill()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("decoders", "sessions"))
    given = parser.parse_args()
    kinds = {"decoders": decoders, "sessions": sessions}
    well = [kind(given.minutes, given.seed) for name, kind in kinds.items() if given.only in (None, name)]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
