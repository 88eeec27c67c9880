"""`python -m tests.crashpoints [--seeds N] [--samples N] [--flips SHARE]`: the sweeps at any length, counts printed."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from tests.crashpoints.damage import held
from tests.crashpoints.stories import STORIES
from tests.crashpoints.sweeps import audit, sweep_power, sweep_room, sweep_second_life, sweep_syncs
from tests.crashpoints.test_damage import hurt_all


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crashpoints", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="of each story")
    parser.add_argument("--samples", type=int, default=4, help="subsets where there are too many to try all")
    parser.add_argument("--flips", type=float, default=0.3, help="share of the journals' bytes")
    given = parser.parse_args()
    total: Counter[str] = Counter()
    begun_s = time.process_time()
    for seed in range(given.seeds):
        for story in STORIES:
            counts = sweep_power(story, seed, given.samples)
            counts += sweep_second_life(story, seed)
            counts += sweep_syncs(story, seed)
            if not story.may_refuse:
                counts += sweep_room(story, seed)
            counts += audit(story.live(seed).station.disk)
            total += counts
            print(f"{story.name:10} seed {seed}: {_told(counts)}", flush=True)
        counts = hurt_all(held(), seed, given.flips)
        total += counts
        print(f"damage     seed {seed}: {_told(counts)}", flush=True)
    print(f"all clean in {time.process_time() - begun_s:.0f} CPU s: {_told(total)}")


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
