"""Hunt: `python -m tests.simulation [ROOM] --seeds N` runs seeds in every style of a simulation, prints what broke.

ROOM is the name of a simulation (rooms.py).

    python -m tests.simulation --seeds 2000                  # all simulations and styles; exit 1 on a violation or a
                                                             # mark that was never reached
    python -m tests.simulation --minutes 30 --first 1000000 --jobs 2     # as many fresh seeds as the time allows
    python -m tests.simulation ledger --style scope --seed 112 --trace   # replay one history, line by line
    python -m tests.simulation ledger --style scope --seed 112 --shrink  # the fewest faults that still break it
    python -m tests.simulation --plan tests/simulation/plans/ROOM/FILE   # run a stored plan
    python -m tests.simulation --mutants                     # every planted defect: what caught it, where, CPU seconds
    python -m tests.simulation --mutants --record FILE       # the same, kept for the tables of docs/reliability.md

A plan that a hunt breaks is shrunk and stored under --store (tests/simulation/plans), where the regression test runs
it. A seed means the same history on every machine as long as the code and the drawing of plans stay the same; keep the
shrunk plan, not the seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.simulation import hunting, record, rooms
from tests.simulation.hunting import Broken, Tally
from tests.simulation.mutant_table import CPU_S_MAX, table
from tests.simulation.plan import Plan
from tests.simulation.worlds import Outcome, Room

PLANS = Path(__file__).parent / "plans"
SHRUNK_MAX = 5  # of one simulation in one hunt; more of the same add nothing
TOLD_EVERY_S = 60.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.split("\n", 1)[0])
    parser.add_argument("room", nargs="?", choices=rooms.NAMES, help="only this room")
    parser.add_argument("--seeds", type=int, help="how many of each style (300; without end if --minutes is given)")
    parser.add_argument("--minutes", type=float, help="begin nothing more after so long")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run in")
    parser.add_argument("--style", default="", help="only this style")
    parser.add_argument("--seed", type=int, help="replay one seed (of --style)")
    parser.add_argument("--plan", type=Path, help="run a stored plan; its folder names the room")
    parser.add_argument("--trace", action="store_true", help="print the history of a replay")
    parser.add_argument("--shrink", action="store_true", help="of a replay that breaks: the fewest faults")
    parser.add_argument("--store", type=Path, default=PLANS, help="where plans that break something are kept")
    parser.add_argument("--mutants", action="store_true", help="hunt planted defects, each to its first catch")
    parser.add_argument("--hits", action="store_true", help="with --mutants: count the catches over all seeds")
    parser.add_argument("--record", type=Path, help="keep what was done; refused while the tree has changes")
    args = parser.parse_args(argv)
    if args.plan is not None:
        room = rooms.load(args.room or args.plan.resolve().parent.name)
        return replay(room, Plan.from_json(args.plan.read_text()), trace=args.trace, smaller=args.shrink)
    if args.seed is not None:
        room = rooms.load(args.room or rooms.NAMES[0])
        return replay(room, room.draw(args.seed, args.style or room.styles[0]), trace=args.trace, smaller=args.shrink)
    commit = record.refuse_changes(args.record) if args.record is not None else ""
    chosen = [rooms.load(name) for name in ([args.room] if args.room else rooms.NAMES)]
    if args.mutants:
        return hunt_mutants(chosen, count_hits=args.hits, kept=args.record, commit=commit)
    return hunt(chosen, args, commit)


def hunt(chosen: list[Room], args: argparse.Namespace, commit: str) -> int:
    """Run all seeds of all styles; 0 if nothing broke and every mark was reached. commit: for the record."""
    seeds = args.seeds if args.seeds is not None else None if args.minutes else 300
    pairs = [(room.name, s) for room in chosen for s in room.styles if args.style in ("", s)]
    if not pairs:
        print(f"no such style: {args.style}")
        return 2
    begun = told = time.monotonic()
    until = begun + 60 * args.minutes if args.minutes else None
    tallies = {room.name: Tally() for room in chosen}
    for chunk, tally in hunting.run_all(hunting.chunks(pairs, args.first, seeds), jobs=args.jobs, until=until):
        for broken in tally.broken:
            print(f"BROKEN {broken.room} --style {broken.style} --seed {broken.seed}: {broken.text}", flush=True)
            if sum(b.invariant == broken.invariant for b in tallies[chunk.room].broken) < SHRUNK_MAX:
                keep(broken, args.store)
        tallies[chunk.room].add(tally)
        if time.monotonic() - told > TOLD_EVERY_S:
            told = time.monotonic()
            total = sum(t.seeds.total() for t in tallies.values())
            print(f"... {total} seeds, {60 * total / (told - begun):.0f} a minute", flush=True)
    wall_s = time.monotonic() - begun
    failed = False
    for room in chosen:
        tally = tallies[room.name]
        if any(name == room.name for name, _ in pairs):
            print(hunting.report(room, tally), flush=True)
            failed |= bool(tally.broken or tally.missed(room))
    total = sum(t.seeds.total() for t in tallies.values())
    print(f"{total} seeds in {wall_s:.0f} s, {60 * total / max(wall_s, 1e-9):.0f} seeds a minute", flush=True)
    if args.record is not None:
        for room in chosen:
            record.add_hunt(args.record, commit, room, tallies[room.name], args.first)
    return 1 if failed else 0


def keep(broken: Broken, directory: Path) -> None:
    """Shrink the plans that broke and store them."""
    room = rooms.load(broken.room)
    plan = room.draw(broken.seed, broken.style)
    smaller = hunting.shrunk(room, plan, broken.invariant)
    path = hunting.store(directory, broken, smaller)
    print(
        f"  {len(plan.faults)} faults shrank to {len(smaller.faults)}: python -m tests.simulation --plan {path} --trace"
    )
    for fault in smaller.faults:
        print(f"    {fault}", flush=True)


def replay(room: Room, plan: Plan, *, trace: bool, smaller: bool) -> int:
    """Run one plan and print all about it."""
    outcome: Outcome = room.run(plan, trace=trace)
    if smaller and outcome.violation:
        plan = hunting.shrunk(room, plan, outcome.violation)
        outcome = room.run(plan, trace=trace)
    if outcome.lines:
        print("\n".join(outcome.lines))
    print(plan.to_json())
    print(f"events {outcome.events}, trace hash {outcome.trace_hash:08x}, python {sys.version.split()[0]}")
    print(f"BROKEN {outcome.text}\n{outcome.story}" if outcome.violation else "clean")
    return 1 if outcome.violation else 0


def hunt_mutants(chosen: list[Room], *, count_hits: bool, kept: Path | None, commit: str = "") -> int:
    """Print the table; 1 if a mutant was not caught, or not within the time."""
    rows = []
    for row in table(chosen, count_hits=count_hits):
        print(row, flush=True)
        rows.append(row)
    slowest = max(rows, key=lambda row: row.cpu_s)
    caught = sum(row.is_caught for row in rows)
    print(f"{caught} of {len(rows)} caught; the slowest took {slowest.cpu_s:.1f} CPU s: {slowest.name}")
    if kept is not None:
        record.set_mutants(kept, commit, rows)
    return 0 if caught == len(rows) and slowest.cpu_s <= CPU_S_MAX else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
