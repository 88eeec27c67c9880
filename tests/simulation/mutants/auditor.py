"""Mutants of the auditor, the workers, their znodes and the decommission, with the invariant that must catch each."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from actors.recovery.auditing import Auditing
from actors.recovery.comparing import Comparing
from actors.recovery.workers import RepairWorkers
from dlog.io import decommission
from dlog.io.zookeeper_election import AuditorElection
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_pauses import BookiePauses
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.ledger.auditor import Auditor
from dlog.ledger.comparing import LedgerComparer
from tests.simulation.mutants import edited, planting
from tests.simulation.worlds import Mutant

Plant = Callable[[], AbstractContextManager[object]]


def methods(*edits: tuple[type, str, str, str]) -> dict[str, Plant]:
    """Edit methods of production classes: (class, method, text to replace, new text)."""
    classes = dict.fromkeys(cls for cls, _, _, _ in edits)
    pairs = [(cls, edited(cls, *((name, old, new) for of, name, old, new in edits if of is cls))) for cls in classes]
    return {"plant": lambda: planting(pairs)}


def function(module: Any, name: str, old: str, new: str) -> dict[str, Plant]:
    """Edit a function of a module."""
    made = getattr(module, name)
    source = inspect.getsource(made)
    assert source.count(old) == 1, f"not exactly once in {name}: {old!r}"
    scope = dict(vars(sys.modules[made.__module__]))
    exec(compile(source.replace(old, new), f"<mutant {name}>", "exec"), scope)
    return {"plant": lambda: mock.patch.object(module, name, scope[name])}


WHOLE = (
    Mutant(
        name="bookies lost before the auditor was elected are never noticed",
        invariants=("L19",),
        style="lost",
        parts=methods(
            (
                Auditor,
                "_is_lost",
                "self._absent_s.get(bookie, self._since_s)",
                "self._absent_s.get(bookie, self._now_s)",
            )
        ),
    ),
    Mutant(
        name="a process whose session ended does not vote again",
        invariants=("L19",),
        style="deposed",
        parts=methods((AuditorElection, "is_elected", "if not mine:", "if not mine and self._zk.generation == 1:")),
    ),
    Mutant(
        name="copies that a comparison misses are not marked",
        invariants=("L19",),
        style="emptied",
        parts=methods((Comparing, "_report", "if not compared.lacking:", "if not compared.differing:")),
    ),
)

MARKS = (
    Mutant(
        name="a mark is deleted whatever its version",
        invariants=("L20",),
        style="race",
        parts=methods((ZooKeeperUnderreplication, "complete", "marked.version)", "ANY_VERSION)")),
    ),
    Mutant(
        name="a mark that names the bookie already is left as it is while the ledger is repaired",
        invariants=("L20",),
        style="race",
        parts=methods(
            (ZooKeeperUnderreplication, "mark", "if merged is not old or is_locked:", "if merged is not old:")
        ),
    ),
    Mutant(
        name="the copies of bookies that are back are not verified",
        invariants=("L20",),
        style="emptied",
        parts=methods((RepairWorkers, "_attempt", "if back:", "if False:")),
    ),
    Mutant(
        name="a repair that left out entries which no bookie can serve completes the mark",
        invariants=("L20",),
        style="bad",
        parts=methods((RepairWorkers, "_attempt", "if total.unreadable:", "if False:")),
    ),
    Mutant(
        name="a repair that has to wait completes the mark",
        invariants=("L20",),
        style="lost",
        parts=methods((RepairWorkers, "_attempt", "elif total.waits:", "elif False:")),
    ),
    Mutant(
        name="a bookie is lost as soon as it is absent",
        invariants=("L21",),
        style="race",
        parts=methods(
            (Auditor, "_listed", "now_s - since_s >= self._delay_s", "now_s >= since_s"),
            (Auditor, "_is_lost", ">= self._delay_s", ">= 0"),
        ),
    ),
    Mutant(
        name="a bookie that is back is still lost",
        invariants=("L21",),
        style="race",
        parts=methods((Auditor, "_is_lost", " or bookie in self._registered", "")),
    ),
)

PAUSES = (
    Mutant(
        name="planned restarts are not looked at",
        invariants=("L22",),
        style="paused",
        parts=methods(
            (Auditor, "_is_lost", " or bookie in self._paused", ""),
            (RepairWorkers, "_attempt", "(await self._marks.pauses.current()).keys()", "frozenset()"),
        ),
    ),
    Mutant(
        name="a planned restart is over when half of its time is",
        invariants=("L22",),
        style="paused",
        parts=methods((BookiePauses, "_read", "pause.seconds - elapsed_s", "pause.seconds / 2 - elapsed_s")),
    ),
)

DECOMMISSION = (
    Mutant(
        name="a bookie is forgotten whatever version its cookie has",
        invariants=("L23",),
        style="decommission",
        parts=methods((ZooKeeperMetadata, "forget_bookie", "if stat.version != seen:", "if False:")),
    ),
    Mutant(
        name="the cookie is read after the ledgers",
        invariants=("L23",),
        style="decommission",
        parts=function(
            decommission,
            "decommission",
            "forget_stopped(metadata, marks, bookie, cookie)",
            "forget_stopped(metadata, marks, bookie, await metadata.read_cookie(bookie))",
        ),
    ),
    Mutant(
        name="a bookie is forgotten while ledgers name it",
        invariants=("L23",),
        style="decommission",
        parts=function(decommission, "decommission", "if not scanned.named and not scanned.unread:", "if True:"),
    ),
    Mutant(
        name="a bookie registers without its cookie",
        invariants=("L24",),
        style="decommission",
        parts=methods((ZooKeeperMetadata, "register_bookie", "None if known is None else partial", "None and partial")),
    ),
)

OTHERS = (
    Mutant(
        name="a lock outlives its session",
        invariants=("L25",),
        style="lost",
        parts=methods((ZooKeeperUnderreplication, "_create_lock", "ephemeral=True", "ephemeral=False")),
    ),
    Mutant(
        name="a lock that a lost reply left is not taken over",
        invariants=("L25",),
        style="deposed",
        parts=methods(
            (
                ZooKeeperUnderreplication,
                "_create_lock",
                "return stat is not None and stat.ephemeral_owner == self._zk.session_id",
                "return False",
            )
        ),
    ),
    Mutant(
        name="the mark of a deleted ledger stays",
        invariants=("L26",),
        style="lost",
        parts=methods(
            (
                RepairWorkers,
                "_repair",
                "MetadataUnavailableError):\n            await self._marks.complete(marked)",
                "MetadataUnavailableError):\n            pass",
            )
        ),
    ),
    Mutant(
        name="a ledger that cannot be read hides those of its page",
        invariants=("L27",),
        style="bad",
        parts=methods(
            (
                Auditing,
                "_judge",
                "marks = self._perform(",
                "if any(isinstance(outcome, Refused) for _, outcome in outcomes):\n"
                "        return\n    marks = self._perform(",
            )
        ),
    ),
    Mutant(
        name="a comparison marks bookies that are out of reach",
        invariants=("L28",),
        style="emptied",
        parts=methods(
            (
                Comparing,
                "_report",
                "if not compared.lacking:",
                "out = {bookie for bookie, _ in compared.out_of_reach}\n    if not compared.lacking | out:",
            ),
            (Comparing, "_report", "compared.lacking, unix_ms()", "compared.lacking | out, unix_ms()"),
        ),
    ),
    Mutant(
        name="a bookie out of reach counts as one without entries",
        invariants=("L28",),
        style="swarm",
        parts=methods(
            (
                LedgerComparer,
                "_give_up",
                "question.waiting.discard(bookie)",
                "if bookie in question.waiting: question.summaries[bookie] = (0, 0)\n"
                "        question.waiting.discard(bookie)",
            )
        ),
    ),
)

MUTANTS = (*WHOLE, *MARKS, *PAUSES, *DECOMMISSION, *OTHERS)
