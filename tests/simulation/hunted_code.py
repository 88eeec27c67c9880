"""How many of the seeds on record ran today's code, by simulation.

    python -m tests.simulation.hunted_code

A hunt counts for a later commit as long as no file has changed that its simulation imports: those of the product, and
the simulation's own. So a change of the command line, say, does not undo a hunt of the ledger.

Invariants:
- files are compared with the working tree, so that changes which are not committed count, too;
- a commit that this clone does not have counts as changed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.simulation import rooms
from tests.simulation.record import RECORD, ROOT, load

_LIST = """
import sys
from tests.simulation import rooms
rooms.load(sys.argv[1])
print(*filter(None, (getattr(module, "__file__", None) for module in list(sys.modules.values()))), sep="\\n")
"""
_NAMED_MAX = 5


def files_of(room: str) -> list[str]:
    """The files of this tree that a simulation imports, relative to the tree."""
    command = [sys.executable, "-c", _LIST, room]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = [Path(name) for name in listed if name.endswith(".py")]
    inside = [path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT)]
    return sorted(str(path) for path in inside if not path.parts[0].startswith("."))


def changed_since(files: Sequence[str], commit: str) -> list[str]:
    """Those of the files that differ from their state in a commit; all of them if the commit is not here."""
    command = ["git", "-C", str(ROOT), "diff", "--name-only", commit, "--", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else list(files)


def standing(hunts: Sequence[dict[str, object]], changed: Callable[[str], list[str]]) -> tuple[int, list[str]]:
    """Of the hunts of one simulation, oldest first: the seeds that ran today's code, and what changed since the newest
    hunt. changed: the changed files since a commit."""
    seeds, newest = 0, list[str]()
    for hunt in hunts:
        newest = changed(str(hunt["commit"]))
        if not newest:
            seeds += int(str(hunt["seeds"]))
    return seeds, newest


def main() -> int:
    total = 0
    for room in rooms.NAMES:
        files = files_of(room)
        hunts = [hunt for hunt in load(RECORD)["hunts"] if hunt["room"] == room]
        seeds, newest = standing(hunts, partial(changed_since, files))
        total += seeds
        more = "" if len(newest) <= _NAMED_MAX else f" and {len(newest) - _NAMED_MAX} more"
        since = f"; changed since the newest hunt: {', '.join(newest[:_NAMED_MAX])}{more}" if newest else ""
        print(f"{room}: {seeds:,} seeds of {len(files)} files{since}")
    print(f"{total:,} seeds in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
