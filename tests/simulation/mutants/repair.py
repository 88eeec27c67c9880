"""Mutants of the repair of a ledger, with the invariant that must catch each."""

from __future__ import annotations

from typing import Any

from dlog.bookie.bookie import Bookie
from dlog.bookie.moved_copies import MovedCopies
from dlog.bookie.sealed_ledgers import SealedLedgers
from dlog.ledger.repair import LedgerRepairer, Replacing
from dlog.ledger.repair_copying import Stripe, StripeCopying
from dlog.metadata_update import MetadataUpdateLoop
from dlog.model.ledger import LedgerKey
from tests.simulation.mutants import edited
from tests.simulation.mutants.ledger import Edit, planted
from tests.simulation.mutants.metadata_update import CONFLICT_IS_OVERWRITTEN
from tests.simulation.worlds import Mutant


def repairers_loop(*edits: Edit) -> dict[str, Any]:
    """A repairer whose compare-and-set loop is edited."""
    changed = edited(MetadataUpdateLoop, *edits)

    class Repairer(LedgerRepairer):
        def __init__(self, *args: Any, **kw: Any) -> None:
            super().__init__(*args, **kw)
            self._update = changed(LedgerKey(self.ledger))

    return {"repairer": Repairer}


NOT_VERIFIED = (
    "Entry(answer.entry, EntryId(-1), int.from_bytes(bytes(answer.packet)[24:32], 'big'),\n"
    "                memoryview(answer.packet)[32 + self._digest.size :])"
)

COPIES = (
    Mutant(
        name="metadata names a replacement before its copies are durable",
        invariants=("L15",),
        style="sealed",
        parts=planted(
            (StripeCopying, "is_finished", "not self._copies", "all(c.size >= 0 for c in self._copies.values())")
        ),
    ),
    Mutant(
        name="the entries of the neighbour's stripe are copied",
        invariants=("L15",),
        style="sealed",
        parts=planted(
            (
                Stripe,
                "upcoming",
                "self.index not in self.quorum.write_set(entry)",
                "(self.index + 1) % self.quorum.ensemble not in self.quorum.write_set(entry)",
            ),
        ),
    ),
    Mutant(
        name="a replacement is named for entries that no bookie could serve",
        invariants=("L15",),
        style="scarce",
        parts=planted(
            (
                LedgerRepairer,
                "_note_copied",
                "Replacing(copying.stripe, copying.target, copying.unreadable,",
                "Replacing(copying.stripe, copying.target, (),",
            ),
        ),
    ),
    Mutant(
        name="a replacement that refuses an entry counts as its holder",
        invariants=("L15", "L3"),
        style="restored",
        parts=planted(
            (
                StripeCopying,
                "note_added",
                "if answer.code is Code.OK:",
                "if answer.code in (Code.OK, Code.UNAUTHORIZED):",
            ),
        ),
    ),
    Mutant(
        name="a copy is made from a packet that was not verified",
        invariants=("L16", "L3"),
        style="sealed",
        seeds=1500,
        parts=planted((StripeCopying, "note_read", "self._digest.verify(answer.packet, answer.entry)", NOT_VERIFIED)),
    ),
    Mutant(
        name="entries above the end are copied",
        invariants=("L13",),
        style="swarm",
        seeds=1500,
        parts=planted(
            (
                LedgerRepairer,
                "_next_stripe",
                "last = decided_last(value, number)",
                "last = decided_last(value, number)\n        last = None if last is None else EntryId(last + 2)",
            ),
            (Replacing, "apply", "decided_last(value, number) != stripe.last", "False"),
        ),
    ),
)

METADATA = (
    Mutant(
        name="the bookie is replaced in later ensembles too",
        invariants=("L15", "L13", "L10"),
        style="swarm",
        parts=planted(
            (
                Replacing,
                "apply",
                "*value.fragments[number + 1 :]",
                "*(Fragment(f.first_entry, tuple(self.new if b == stripe.bookie else b for b in f.ensemble))\n"
                "            for f in value.fragments[number + 1 :])",
            ),
        ),
    ),
    Mutant(
        name="a member of the ensemble is its replacement",
        invariants=("L15",),
        style="sealed",
        parts=planted(
            (LedgerRepairer, "_copy_elsewhere", "stripe.ensemble, [stripe.index]", "(), [stripe.index]"),
            (Replacing, "apply", " or self.new in old", ""),
        ),
    ),
    Mutant(
        name="an ensemble is split one entry too early",
        invariants=("L15",),
        style="scarce",
        parts=planted((Replacing, "_pieces", "EntryId(last + 1)", "last")),
    ),
    Mutant(
        name="a repair splits ensembles without a bound",
        invariants=("L15",),
        style="scarce",
        seeds=1500,
        parts=planted(
            (LedgerRepairer, "_splits_max", "room // 2 if room > 3 else 0", "64"),
            (Replacing, "apply", "> self.fragments_max", "> 10**6"),
        ),
    ),
    Mutant(
        name="a repair overwrites what it conflicts with",
        invariants=("L2", "L13", "L15", "L10", "L4", "L1"),
        style="race",
        parts=repairers_loop(CONFLICT_IS_OVERWRITTEN),
    ),
)

ANSWERS = (
    Mutant(
        name="a bookie out of reach counts as one that denies the entry",
        invariants=("L18",),
        style="cut",
        parts=planted(
            (StripeCopying, "_ask", "if b not in self._last_resort | copy.denied | copy.damaged", "if False")
        ),
    ),
)

LIVENESS = (
    Mutant(
        name="copies are written without the recovery flag (#4163)",
        invariants=("L17",),
        style="open",
        parts=planted((StripeCopying, "_write", "recovery=True", "recovery=False")),
    ),
    Mutant(
        name="a repair does not go on after a conflict",
        invariants=("L17",),
        style="race",
        parts=planted((LedgerRepairer, "_note_metadata", "self._update.read(self._effects)", "pass")),
    ),
    Mutant(
        name="an entry whose bookie was lost is not asked for again",
        invariants=("L17",),
        style="sealed",
        parts=planted((StripeCopying, "note_lost", "self._unasked.update(waiting)", "pass")),
    ),
    Mutant(
        name="a replacement that was lost is waited for",
        invariants=("L17",),
        style="sealed",
        parts=planted((StripeCopying, "note_lost", "if self._writing:", "if False:")),
    ),
)

MOVED = (
    Mutant(
        name="a repair names a bookie for what it confirmed before metadata changed",
        invariants=("L31", "L15"),
        style="moved",
        seeds=1500,
        parts=planted((LedgerRepairer, "_note_found", "self._update.version == self._copied_from", "True")),
    ),
    Mutant(
        name="copies are freed without raising the version of metadata",
        invariants=("L31",),
        style="moved",
        seeds=1500,
        parts=planted(
            (
                MovedCopies,
                "handle",
                'return [CompareAndSet(("raise", ledger), LedgerKey(ledger), self._read.value, self._read.version)]',
                'return self.handle(MetadataSeen(("raise", ledger), Versioned(None, 0)))',
            ),
        ),
    ),
    Mutant(
        name="copies are freed though raising the version failed",
        invariants=("L31",),
        style="moved",
        seeds=1500,
        parts=planted((MovedCopies, "handle", "if not isinstance(outcome, Versioned):", "if False:")),
    ),
    Mutant(
        name="copies are freed though those on other bookies are not whole",
        invariants=("L31",),
        style="moved",
        seeds=1500,
        parts=planted(
            (
                MovedCopies,
                "handle",
                "return self._keep(reason) if reason else [SealLedger(ledger)]",
                "return [SealLedger(ledger)]",
            ),
        ),
    ),
    Mutant(
        name="copies are freed though metadata names the bookie",
        invariants=("L31",),
        style="moved",
        parts=planted(
            (
                MovedCopies,
                "_judge",
                "if not is_moved_away(outcome.value, self._bookie):",
                "if not outcome.value.is_closed:",
            ),
        ),
    ),
    Mutant(
        name="a repair's entries are taken while copies are about to be freed",
        invariants=("L31", "L15"),
        style="moved",
        seeds=1500,
        parts=planted(
            (Bookie, "_try_add", "if m.ledger in self._sealed:", "if False:"),
            (Bookie, "_is_in_index", "and number not in self._dirty", ""),
            (Bookie, "_is_in_index", "and not self._cache.entries_of(number)", ""),
        ),
    ),
    Mutant(
        name="a bookie that freed its copies is not fenced",
        invariants=("L34",),
        style="moved",
        parts=planted((SealedLedgers, "free", "old.master_key, True, -1", "old.master_key, old.fenced, -1")),
    ),
)

MUTANTS = (*COPIES, *METADATA, *ANSWERS, *LIVENESS, *MOVED)
