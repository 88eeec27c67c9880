"""Hunt: `python -m tests.simulation [ROOM] --seeds N` runs seed after seed in every style of a room, prints what broke.

    python -m tests.simulation ledger --seeds 2000          # all styles; exit 1 on a violation or a mark never reached
    python -m tests.simulation ledger --style scope --seed 112 --trace       # replay one history, line by line
    python -m tests.simulation ledger --style scope --seed 112 --shrink      # the fewest faults that still break it
    python -m tests.simulation ledger --plan FILE            # run a stored plan
    python -m tests.simulation ledger --mutants              # every planted defect: first seed, hits, CPU

A seed means the same history on every machine as long as the code and the plans' drawing stay the same; store the
shrunk plan, not the seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.plan import Plan, shrink
from tests.simulation.rooms import ROOMS
from tests.simulation.worlds import Mutant, Outcome, Room


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.split("\n", 1)[0])
    parser.add_argument("room", nargs="?", default="ledger", choices=sorted(ROOMS))
    parser.add_argument("--seeds", type=int, default=300, help="how many of each style")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--style", default="", help="only this style")
    parser.add_argument("--seed", type=int, help="replay one seed (of --style)")
    parser.add_argument("--plan", type=Path, help="run a stored plan")
    parser.add_argument("--trace", action="store_true", help="print the history of a replay")
    parser.add_argument("--shrink", action="store_true", help="of a replay that breaks: the fewest faults")
    parser.add_argument("--mutants", action="store_true", help="hunt planted defects")
    args = parser.parse_args(argv)
    room = ROOMS[args.room]()
    styles = (args.style,) if args.style else room.styles
    if args.seed is not None or args.plan is not None:
        plan = Plan.from_json(args.plan.read_text()) if args.plan else room.draw(args.seed, styles[0])
        return replay(room, plan, trace=args.trace, smaller=args.shrink)
    if args.mutants:
        caught = [hunt_mutant(room, mutant) for mutant in room.mutants]
        return 0 if all(caught) else 1
    return hunt(room, styles, range(args.first, args.first + args.seeds))


def hunt(room: Room, styles: tuple[str, ...], seeds: range) -> int:
    """Run all seeds of all styles; 0 if nothing broke and every mark was reached."""
    reached: Counter[str] = Counter()
    broken = 0
    for style in styles:
        begun, events, virtual_s = time.process_time(), 0, 0.0
        for seed in seeds:
            outcome = room.run(room.draw(seed, style))
            reached += outcome.reached
            events += outcome.events
            virtual_s += outcome.virtual_s
            if outcome.violation:
                broken += 1
                print(f"BROKEN {room.name} --style {style} --seed {seed}: {outcome.text}", flush=True)
        cpu_s = time.process_time() - begun
        print(
            f"{style}: {len(seeds)} seeds, {events} events, {virtual_s:.0f} simulated s, {cpu_s:.1f} CPU s", flush=True
        )
    for mark, count in sorted(reached.items()):
        print(f"  {mark} {count}")
    missed = [mark for mark in room.must_reach if not reached[mark]]
    if missed:
        print(f"NEVER REACHED, so the hunt proves nothing about it: {', '.join(missed)}")
    return 1 if broken or missed else 0


def replay(room: Room, plan: Plan, *, trace: bool, smaller: bool) -> int:
    """Run one plan and say all about it."""
    outcome: Outcome = room.run(plan, trace=trace)
    if outcome.lines:
        print("\n".join(outcome.lines))
    if smaller and outcome.violation:
        plan = shrink(plan, lambda candidate: room.run(candidate).violation == outcome.violation)
    print(plan.to_json())
    print(f"events {outcome.events}, trace hash {outcome.trace_hash:08x}, python {sys.version.split()[0]}")
    print(f"BROKEN {outcome.text}\n{outcome.story}" if outcome.violation else "clean")
    return 1 if outcome.violation else 0


def hunt_mutant(room: Room, mutant: Mutant) -> bool:
    """Run a mutant over all its seeds; whether it was caught."""
    begun = time.process_time()
    style = mutant.style or room.styles[0]
    hits: Counter[str] = Counter()
    first = ""
    for seed in range(mutant.seeds):
        outcome = room.run(room.draw(seed, style), mutant.parts)
        if outcome.violation in mutant.invariants:
            first = first or f"{seed} after {time.process_time() - begun:.2f} CPU s"
            hits[outcome.violation] += 1
    found = ", ".join(f"{name} {count}" for name, count in hits.items()) or "NEVER CAUGHT"
    cpu_s = time.process_time() - begun
    print(f"{mutant.name} [{style}]: {found} of {mutant.seeds} in {cpu_s:.1f} CPU s, first seed {first}", flush=True)
    return bool(hits)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
