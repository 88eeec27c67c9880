"""`python -m tests.chaos --minutes M`: apply faults to a real cluster for so long, and check its answers and data."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.disks import MountsNotAllowedError, own_mounts
from tests.chaos.plan import STORES, make_plan, read_plan
from tests.chaos.run import StoppedError, remove, run


def main() -> int:
    """Exit 0: green; 1: a promise was broken or a part did not come back; 2: too little happened, or wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of load and faults (default 2)")
    parser.add_argument("--store", choices=STORES, default="ledger", help="of all streams (default ledger)")
    parser.add_argument(
        "--wal",
        choices=("ledger", "s3-direct"),
        default="ledger",
        help="of streams in s3: store of the write-ahead logs",
    )
    parser.add_argument("--seed", type=int, help="of the plan; default: drawn, and told")
    parser.add_argument(
        "--every", type=float, default=3.0, metavar="S", help="a fault about every S seconds (default 3)"
    )
    parser.add_argument("--rate", type=int, default=16000, help="records a second, all writers together")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="do this plan instead of drawing one")
    parser.add_argument("--write-plan", type=Path, metavar="FILE", help="write the plan there and do nothing")
    parser.add_argument("--dir", type=Path, help="an empty directory to work in, kept; default: one of its own")
    parser.add_argument("--keep", action="store_true", help="keep the directory also when all is green")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.Random().getrandbits(32)
    try:
        drawn = make_plan(seed, given.minutes * 60, given.every, given.store, given.wal)
        plan = read_plan(given.plan) if given.plan else drawn
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if given.write_plan:
        plan.write(given.write_plan)
        return 0
    not_run = []
    try:
        own_mounts()
        mounts = True
    except MountsNotAllowedError as error:
        mounts = False
        not_run.append(f"power cuts and full disks, for want of filesystems of our own: {error}")
    directory = given.dir or Path(tempfile.mkdtemp(prefix="dlog-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    plan.write(directory / "plan.json")
    keep = given.keep or given.dir is not None
    try:
        report = asyncio.run(run(plan, directory, mounts=mounts, rate=given.rate, say=_say))
        report.not_run += not_run
        print(json.dumps(report.as_json()) if given.json else report.text())
        (directory / "report.json").write_text(json.dumps(report.as_json(), indent=1))
        keep = keep or report.exit_code == 1
        return report.exit_code
    except StoppedError as stopped:
        print(f"chaos: ended by {stopped}", file=sys.stderr)
        return 2
    finally:
        if not keep:
            remove(directory)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
