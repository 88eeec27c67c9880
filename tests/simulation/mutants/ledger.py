"""Mutants of the ledger machines and of the bookies they talk to, with the invariant that must catch each.

`mute` switches off the checks of a recovery's evidence (L8), where a mutant must also be caught by its effect on the
history.
"""

from __future__ import annotations

from typing import Any

from dlog.bookie.bookie import Bookie
from dlog.ledger.adding import LedgerAdder
from dlog.ledger.arrangement import Arrangement
from dlog.ledger.deferred_window import DeferredWindow
from dlog.ledger.deferring import DeferredLedgerAdder
from dlog.ledger.finding import TailFinder, _TailProbe
from dlog.ledger.reading import EntryReader
from dlog.ledger.recovery import Closing, LedgerRecoverer
from dlog.ledger.recovery_search import EntryProbe, EntrySearch
from dlog.ledger.recovery_writer import RecoveryWriter, ReplacementPool
from dlog.ledger.spread_placement import SpreadPlacement
from dlog.ledger.tailing import LedgerTailer
from dlog.ledger.window import Window
from dlog.metadata_update import MetadataUpdateLoop
from dlog.model.ledger import LedgerKey
from tests.simulation.bookie_model import BookieModel
from tests.simulation.mutants import edited
from tests.simulation.mutants.metadata_update import CONFLICT_IS_OVERWRITTEN, LOST_IS_FAILED, LOST_IS_WRITTEN
from tests.simulation.shipped_bookie import ShippedBookie
from tests.simulation.worlds import Mutant

Edit = tuple[str, str, str]
HISTORY = ("L1", "L7", "L10", "L4")


def adder(*edits: Edit) -> dict[str, Any]:
    return {"adder": edited(LedgerAdder, *edits)}


def window(*edits: Edit) -> dict[str, Any]:
    """A writer whose window is edited."""
    changed = edited(Window, *edits)

    class Adder(LedgerAdder):
        def __init__(self, *args: Any, **kw: Any) -> None:
            super().__init__(*args, **kw)
            made: Any = object.__new__(changed)
            for name in Window.__slots__:
                setattr(made, name, getattr(self._window, name))
            self._window = made

    return {"adder": Adder}


def writers_loop(*edits: Edit) -> dict[str, Any]:
    """A writer whose compare-and-set loop is edited."""
    changed = edited(MetadataUpdateLoop, *edits)

    class Adder(LedgerAdder):
        def __init__(self, *args: Any, **kw: Any) -> None:
            super().__init__(*args, **kw)
            self._update = changed(LedgerKey(self.ledger), version=self._update.version)

    return {"adder": Adder}


def planted(*edits: tuple[type, str, str, str], mute: tuple[str, ...] = ()) -> dict[str, Any]:
    """Parts of a machine, edited: class, method, text to replace, new text."""
    by_class: dict[type, list[Edit]] = {}
    for cls, method, old, new in edits:
        by_class.setdefault(cls, []).append((method, old, new))
    return {"planted": tuple((cls, edited(cls, *e)) for cls, e in by_class.items()), "mute": mute}


def recoverer(*edits: Edit, mute: tuple[str, ...] = ()) -> dict[str, Any]:
    return planted(*((LedgerRecoverer, *edit) for edit in edits), mute=mute)


def finder(*edits: Edit) -> dict[str, Any]:
    return planted(*((TailFinder, *edit) for edit in edits))


def bookie(*edits: Edit, mute: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"bookie": edited(BookieModel, *edits), "mute": mute}


def real_bookie(*edits: Edit) -> dict[str, Any]:
    """The bookie as it ships, edited."""
    changed = edited(Bookie, *edits)

    class Edited(ShippedBookie):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.bookie.__class__ = changed

    return {"bookie": Edited}


NO_CERTAINTY = (EntrySearch, "_read_on", "assert len(probe.negatives)", "len(probe.negatives)")
NO_COVERAGE = ("_search", "assert fence.is_complete()", "fence.is_complete()")
NO_FLOOR = ("_search", "assert fence.lac >=", "fence.lac >=")

READS_DO_NOT_FENCE = (
    (EntrySearch, "_ask", "fence=True", "fence=False"),
    (LedgerRecoverer, "_note_read", "case EntrySearch() as search if answer.fence:", "case EntrySearch() as search:"),
)
FENCE_NOT_DURABLE = (
    "fence",
    'return self.persist(peer, read, ("fence", read.ledger))',
    "return [Send(peer, self.read(read))]",
)
ONE_NEGATIVE = ("is_absent", "quorum.negatives_needed", "1")
ONE_NEGATIVE_ENDS = ((EntryProbe, *ONE_NEGATIVE), NO_CERTAINTY)

WRITER = (
    Mutant(
        name="confirms during an ensemble change",
        invariants=("L10", "L4"),
        style="churn",
        parts=adder(
            (
                "_settle",
                "if not self._update.is_current:",
                "for p in () if self._update.is_current else window.confirm():\n"
                "        self._effects.append(Answer(p.ticket, p.entry))\n"
                "    if not self._update.is_current:",
            ),
        ),
    ),
    Mutant(
        name="acks of a replaced bookie still count",
        invariants=("L10",),
        style="churn",
        parts=window(("adopt", "pending.acks &= keep", "pending.acks &= -1")),
    ),
    Mutant(
        name="ensemble change in local metadata only (#1591)",
        invariants=("L10", "L4"),
        parts=adder(("_replace_failed", "self._update.write(value, self._effects)", "self._take_in(value)")),
    ),
    Mutant(
        name="an unknown outcome is settled by one reading",
        invariants=("L10", "L4", "L1"),
        seeds=1500,
        style="churn",
        parts=adder(("_note_read", "self._update.write(self._next_value(settle=True), self._effects)", "pass")),
    ),
    Mutant(
        name="a lost reply is taken for a failure",
        invariants=("L10", "L4", "L1"),
        seeds=1500,
        style="churn",
        parts=writers_loop(LOST_IS_FAILED),
    ),
    Mutant(
        name="a lost reply is taken for a success",
        invariants=("L10", "L4", "L1"),
        style="churn",
        parts=writers_loop(LOST_IS_WRITTEN),
    ),
    Mutant(
        name="a writer overwrites what it conflicts with",
        invariants=("L2", "L4", "L1"),
        parts=writers_loop(CONFLICT_IS_OVERWRITTEN),
    ),
    Mutant(
        name="confirms before the ack quorum",
        invariants=("L10",),
        parts=window(("confirm", "self.quorum.ack", "self.quorum.ack - 1")),
    ),
    Mutant(
        name="confirms out of order",
        invariants=("L6",),
        parts=window(
            (
                "confirm",
                "while (head := waiting.get(self.lac + 1)) is not None and head.acks",
                "while waiting and (head := max(waiting.values(), key=lambda p: p.acks.bit_count())).acks",
            ),
        ),
    ),
    Mutant(
        name="a second failure during the change is dropped",
        invariants=("liveness",),
        seeds=1500,
        style="churn",
        parts=adder(
            ("handle", "case PeerLost(peer, reason):", "case PeerLost(peer, reason) if self._update.is_current:"),
            ("_note_added", "else:\n", "elif self._update.is_current:\n"),
        ),
    ),
    Mutant(
        name="the head is not looked at again after a change",
        invariants=("liveness",),
        seeds=1500,
        style="churn",
        parts=adder(
            (
                "handle",
                "effects = self._effects\n",
                "effects = self._effects\n"
                "    self._heard = isinstance(fact, Received) and fact.message.entry == self.lac + 1\n",
            ),
            ("_settle", "in window.confirm():", "in window.confirm() if self._heard else ():"),
        ),
    ),
    Mutant(
        name="re-sends entries with other bytes",
        invariants=("L11",),
        style="churn",
        parts=adder(
            (
                "_adopt",
                "        self._effects += self._window.adopt(last.ensemble)\n",
                "        for p in self._window._pending.values():\n"
                "            parts = self._digest.pack(p.entry, self.lac, p.length, p.message.parts[1:])\n"
                "            p.message = AddEntry(self.ledger, p.entry, self._digest.master_key, parts)\n"
                "        self._effects += self._window.adopt(last.ensemble)\n",
            ),
        ),
    ),
    Mutant(
        name="a change appends a fragment where it should replace",
        invariants=("L9",),
        style="churn",
        parts=adder(
            (
                "_replace",
                "return self._metadata.with_ensemble(EntryId(self.lac + 1), ensemble)",
                "from dataclasses import replace\n"
                "    fragments = self._metadata.fragments\n"
                "    new = type(fragments[0])(self.lac + 1, ensemble)\n"
                "    return replace(self._metadata, fragments=(*fragments, new))",
            ),
        ),
    ),
    Mutant(
        name="closes at the last entry sent, not at the last one confirmed",
        invariants=("L4", "L9", "L1", "length"),
        parts=adder(
            (
                "_next_value",
                "self._metadata.closed_at(self.lac, self.length)",
                "self._metadata.closed_at(self._window.pushed, self._window.pushed_length)",
            ),
        ),
    ),
)

RECOVERY = (
    Mutant(name="recovery reads do not fence (#2614)", invariants=("L8",), parts=planted(*READS_DO_NOT_FENCE)),
    Mutant(
        name="recovery reads do not fence (#2614), by its history",
        invariants=HISTORY,
        style="scope",
        seeds=6000,
        parts=planted(*READS_DO_NOT_FENCE, mute=("L8",)),
    ),
    Mutant(
        name="searches before the fence covers",
        invariants=("L8",),
        parts=recoverer(("_settle", "self._stage.is_complete()", "self._stage.answered"), NO_COVERAGE),
    ),
    Mutant(
        name="no LAC floor (#2615)",
        invariants=("L9",),
        parts=recoverer(("_fence", "EntryId(last.first_entry - 1)", "NO_ENTRY"), NO_FLOOR),
    ),
    Mutant(
        name="one negative read ends the recovery",
        invariants=("L8",),
        parts=planted(*ONE_NEGATIVE_ENDS),
    ),
    Mutant(
        name="one negative read ends the recovery, by its history",
        invariants=HISTORY,
        style="scope",
        parts=planted(*ONE_NEGATIVE_ENDS, mute=("L8",)),
    ),
    Mutant(
        name="an answer that is neither yes nor no counts as a negative one",
        invariants=("L8",),
        parts=planted(
            (
                EntrySearch,
                "note_read",
                "elif index not in probe.negatives:\n        probe.doubtful.add(index)",
                "else:\n        probe.negatives.add(index)",
            ),
        ),
    ),
    Mutant(
        name="closes at the LAC without reading forward",
        invariants=HISTORY,
        parts=planted(
            (EntrySearch, "__init__", "self.end: EntryId | None = None", "self.end: EntryId | None = fence.lac"),
            mute=("L8",),
        ),
    ),
    Mutant(
        name="does not write entries again",
        invariants=("L4",),
        parts=planted(
            (
                RecoveryWriter,
                "push",
                "out += self._window.push(message, entry.length)",
                "self._window.push(message, entry.length)\n"
                "    self._window._pending[message.entry].acks = (1 << self._window.quorum.ensemble) - 1",
            ),
        ),
    ),
    Mutant(
        name="entries that a recovery writes again carry a LAC that is not decided",
        invariants=("L5",),
        seeds=4000,
        parts=planted((RecoveryWriter, "push", "pack(entry_id, self._lac,", "pack(entry_id, self._window.lac,")),
    ),
    Mutant(
        name="closes without compare-and-set",
        invariants=("L2",),
        seeds=1500,
        parts=recoverer(
            (
                "_note_value",
                "if value.is_closed:",
                "if value.is_closed and (self._update.wrote or not isinstance(self._stage, Closing)):",
            ),
            ("_note_value", " and self._stage.fits(value)", ""),
        ),
    ),
    Mutant(
        name="a recovery that lost the close to another one returns its own end",
        invariants=("L12",),
        style="scope",
        parts=recoverer(
            (
                "_finish",
                "Recovered(value.last_entry, ",
                "Recovered(self._stage.value.last_entry if isinstance(self._stage, Closing) else value.last_entry, ",
            ),
        ),
    ),
)

LAST_ENTRIES = (
    Mutant(
        name="a recovery returns the last entries that it read, and some between them are missing",
        invariants=("L3",),
        parts=planted(
            (
                Closing,
                "last_payloads",
                "for entry in range(first, last + 1)",
                "for entry in sorted(self.read) if entry <= last",
            ),
        ),
    ),
)

RECOVERY_LIVENESS = (
    Mutant(
        name="entries are not written again to bookies that are back while another one is silent",
        invariants=("liveness",),
        style="frozen",
        parts=planted((RecoveryWriter, "_replace_failed", "if window.failed:", "if False:")),
    ),
    Mutant(
        name="bookies that refused a fence are asked again only after the silent one has answered",
        invariants=("liveness",),
        style="frozen",
        parts=recoverer(
            ("_retry", "poll.ask_again(self._effects)", "poll.ask_again(self._effects if poll.is_stuck() else [])")
        ),
    ),
    Mutant(
        name="bookies that could not serve an entry are asked again only after the silent one has answered",
        invariants=("liveness",),
        style="frozen",
        parts=planted(
            (EntrySearch, "retry", "if probe is not None and", "if is_stuck := probe is not None and"),
            (EntrySearch, "retry", "sorted(probe.doubtful):", "sorted(probe.doubtful) if is_stuck else ():"),
        ),
    ),
)

BOOKIE = (
    Mutant(name="the fence is not durable", invariants=("L8",), parts=bookie(FENCE_NOT_DURABLE)),
    Mutant(
        name="the fence is not durable, by its history",
        invariants=("L7", "L1", "L10"),
        style="scope",
        seeds=6000,
        parts=bookie(FENCE_NOT_DURABLE, mute=("L8",)),
    ),
    Mutant(
        name="a fenced bookie takes adds",
        invariants=HISTORY,
        parts=bookie(("add", "if add.ledger in self.fenced and not add.recovery:", "if False:")),
    ),
    Mutant(
        name="a bookie answers before the sync",
        invariants=("L10",),
        parts=bookie(
            (
                "add",
                'return self.persist(peer, add, ("add", add.ledger, add.entry, packet))',
                'persist = self.persist(peer, None, ("add", add.ledger, add.entry, packet))\n'
                "    self.waiting.pop()\n"
                "    return [*persist, Send(peer, self.after_durable(add))]",
            ),
        ),
    ),
)

READERS = (
    Mutant(
        name="the last entry counts as confirmed",
        invariants=("L5",),
        parts={"tailer": edited(LedgerTailer, ("_note_last", "_raise_to(entry.lac)", "_raise_to(entry.entry_id)"))},
    ),
    Mutant(
        name="the LAC of a tail goes back",
        invariants=("L5",),
        parts={"tailer": edited(LedgerTailer, ("_note_last", "self._raise_to(entry.lac)", "self.lac = entry.lac"))},
    ),
    Mutant(
        name="a reader does not verify",
        invariants=("L3",),
        seeds=1500,
        parts={
            "reader": edited(
                EntryReader,
                (
                    "_note_read",
                    "self._digest.verify(answer.packet, answer.entry)",
                    "Entry(answer.entry, -1, 0, memoryview(answer.packet)[32 + self._digest.size :])",
                ),
                (
                    "_verified",
                    "self._digest.verify(packet, entry_id)",
                    "Entry(entry_id, -1, 0, memoryview(packet)[32 + self._digest.size :])",
                ),
            )
        },
    ),
)

FINDERS = (
    Mutant(
        name="a search for the tail returns the LAC that bookies know",
        invariants=("L5",),
        style="orphan",
        parts=finder(("_judge", "if poll.lac >= self._wanted:", "if True:")),
    ),
    Mutant(
        name="a search for the tail takes silence for a negative answer",
        invariants=("L5",),
        style="orphan",
        seeds=1500,
        parts=finder(("_note_lost", "sought.doubtful.add(index)", "sought.negatives.add(index)")),
    ),
    Mutant(
        name="the highest last entry of one bookie counts for all",
        invariants=("L5",),
        style="orphan",
        parts=finder(("_settle", "poll.is_complete()", "poll.answered")),
    ),
    Mutant(
        name="one negative read ends the search for the tail",
        invariants=("L5",),
        style="orphan",
        parts=planted((_TailProbe, *ONE_NEGATIVE)),
    ),
    Mutant(
        name="a tail that an ack quorum holds is returned without being written again",
        invariants=("L5",),
        style="orphan",
        seeds=6000,
        parts=finder(("_decide", "if self._safe == poll.lac:", "poll.lac = self._safe\n    if True:")),
    ),
    Mutant(
        name="a tail that one bookie holds counts as decided",
        invariants=("L4", "L5"),
        style="orphan",
        parts=finder(("_is_safe", "len(sought.stored) < poll.metadata.quorum.ack", "not sought.stored")),
    ),
)

LONG_POLLS = (
    Mutant(
        name="the LAC beside the packet of a long poll counts",
        invariants=("L5",),
        style="polled",
        parts={
            "tailer": edited(
                LedgerTailer,
                ("_note_long_poll", "has_reported = self", "self._raise_to(answer.lac)\n    has_reported = self"),
            )
        },
    ),
)

# Too rare for a search: run with the plan that found it (test_ledger.py).
WHO_DENIED = Mutant(
    name="who denied an entry counts, whether it is one of its bookies or not",
    invariants=("L5",),
    parts={"reader": edited(EntryReader, ("_note_metadata", "read.failed &= set(value.bookies_of(entry))", "pass"))},
)

OLDER_LEDGERS = (
    Mutant(
        name="metadata names a replacement before it has confirmed that the ledger is new to it",
        invariants=("L3", "L4", "L10"),
        seeds=3000,
        style="restored",
        parts=adder(("_replace", "chosen.items() if b in self._vetted}", "chosen.items()}")),
    ),
    Mutant(
        name="a replacement that holds the ledger already is accepted",
        invariants=("L3", "L4", "L10"),
        seeds=3000,
        style="restored",
        parts=adder(("_note_vetted", "if known is False:", "if known is not None:")),
    ),
    Mutant(
        name="an add of a held entry with another payload is acknowledged",
        invariants=("L3", "L4", "L10"),
        seeds=3000,
        style="restored",
        parts=real_bookie(("_compare", "return Code.UNAUTHORIZED", "return Code.OK")),
    ),
    Mutant(
        name="a recovery ends before its replacements have stored what they were sent",
        invariants=("L3", "L4"),
        seeds=6000,
        style="restored",
        parts=planted(
            (EntrySearch, "is_finished", "and not self.writer.is_owed", ""),
            (RecoveryWriter, "failed_replacements", "in self._owed", "in self._owed and self._window"),
        ),
    ),
    Mutant(
        name="a recovery goes on though a replacement of it failed",
        invariants=("L3", "L4"),
        seeds=6000,
        style="restored",
        parts=planted(
            (EntrySearch, "is_finished", "and not self.writer.is_owed", ""),
            (RecoveryWriter, "failed_replacements", "bookie in self._owed", "False"),
        ),
    ),
)

PLACEMENT = (
    Mutant(
        name="write quorums with too few racks are accepted",
        invariants=("P1",),
        style="racked",
        parts=planted((Arrangement, "_can_keep", ">= self._needs[quorum]", ">= 0")),
    ),
    Mutant(
        name="no event names a replacement that leaves the ensemble in one rack",
        invariants=("P1",),
        style="racked",
        parts=adder(("_replace", "if shortage := self._placement.shortage(quorum, ensemble):", "if shortage := '':")),
    ),
    Mutant(
        name="a recovery replaces under the policy of its process",
        invariants=("P1",),
        style="racked",
        parts=planted((LedgerRecoverer, "_fence", "self._pool.placement.for_ledger(value)", "self._pool.placement")),
    ),
    Mutant(
        name="a lost bookie whose rack is not known is ignored by the placement",
        invariants=("P1",),
        style="racked",
        parts=planted((SpreadPlacement, "_domains", "if bookie in old", "if False")),
    ),
    Mutant(
        name="a recovery gives up a strict policy before it has to",
        invariants=("P1",),
        style="racked",
        parts=planted((RecoveryWriter, "_replace_failed", "and not window.can_progress()", "and window.failed")),
    ),
    Mutant(
        name="any ack quorum confirms an entry, whatever its regions",
        invariants=("P2",),
        style="regions",
        parts=planted((Window, "confirm", "confirms is not None and", "False and")),
    ),
    Mutant(
        name="the regions of the whole write quorum count, not of those who acknowledged",
        invariants=("P2",),
        style="regions",
        parts=planted(
            (Window, "confirm", "confirms(self._bookies_of(head.acks))", "confirms(self.members(head.entry))")
        ),
    ),
    Mutant(
        name="a recovery keeps an entry that one region holds",
        invariants=("P2",),
        style="regions",
        parts=planted((RecoveryWriter, "__init__", "pool.placement.confirms", "None")),
    ),
    Mutant(
        name="a recovery replaces no bookie that was moved to another region",
        invariants=("liveness",),
        seeds=3000,
        style="regions",
        parts=planted((ReplacementPool, "choose", "if found or window.can_progress():", "if True:")),
    ),
    Mutant(
        name="a search for the tail takes an entry that one region holds for safe",
        invariants=("P2",),
        style="regions",
        parts=finder(("_is_safe", "self._confirms is None", "True")),
    ),
)

#: what operators may ask of a writer: L29 delayed ensemble changes, L30 the ack-quorum timeout
WRITERS_OPTIONS = (
    Mutant(
        name="a delayed ensemble change is made at once",
        invariants=("L29",),
        style="delayed",
        parts=adder(("_may_wait", "if not self._options.delayed_change or", "if True or")),
    ),
    Mutant(
        name="a delayed ensemble change is never made",
        invariants=("liveness",),
        style="delayed",
        parts=adder(("_may_wait", "return window.can_progress(without=suspects)", "return True")),
    ),
    Mutant(
        name="a delayed ensemble change is put off for ever",
        invariants=("L29",),
        style="delayed",
        parts=adder(("_may_wait", " >= DELAY_TICKS", " > DELAY_TICKS * 1000")),
    ),
    Mutant(
        name="a delayed ensemble change counts on members that were readmitted and are silent",
        invariants=("L29",),
        style="delayed",
        parts=adder(("_may_wait", "without=suspects", "")),
    ),
    Mutant(
        name="a change that was put off waits for the next retry to be due",
        invariants=("liveness",),
        style="delayed",
        parts=adder(
            ("_replace_failed", " or (was_delayed and not self._delayed)", ""),
            ("_replace_failed", "if window.failed:\n        self._set_timer", "if False:\n        self._set_timer"),
        ),
    ),
    Mutant(
        name="the ack-quorum timeout is not watched",
        invariants=("L30",),
        style="hung",
        parts=adder(("_push", "self._quorum_ticks < 0 and", "False and")),
    ),
    Mutant(
        name="the ack-quorum timeout is not set again after it fired for nothing",
        invariants=("L30",),
        style="hung",
        parts=adder(("_note_quorum_timer", "self._watch_quorum()", "self._quorum_ticks = 9")),
    ),
    Mutant(
        name="the ack-quorum timeout counts the time before the entry",
        invariants=("L30",),
        style="hung",
        parts=adder(("_note_quorum_timer", "ticks < 2", "ticks < 1")),
    ),
)

#: L33: a ledger with deferred sync
DEFERRED_SYNC = (
    Mutant(
        name="an add with deferred sync counts as durable",
        invariants=("L33",),
        style="deferred",
        parts=planted(
            (
                DeferredWindow,
                "acknowledge",
                "if entry <= self.target:",
                "self._pending[entry].acks |= bit\n        if entry <= self.target:",
            )
        ),
    ),
    Mutant(
        name="a force counts for what was written on a connection that was lost, or by a bookie that was replaced",
        invariants=("L33",),
        style="deferred",
        parts=planted((DeferredWindow, "_forget", "in self._written_at.items()", "in ()")),
    ),
    Mutant(
        name="a force counts for what was written after it was sent",
        invariants=("L33",),
        style="deferred",
        parts=planted(
            (
                DeferredWindow,
                "note_forced",
                "in covered:",
                "in [e for e, at in self._written_at.items() if at >> index & 1]:",
            )
        ),
    ),
    Mutant(
        name="one bookie's force is enough",
        invariants=("L33",),
        style="deferred",
        parts=planted((Window, "confirm", "self.quorum.ack", "1")),
    ),
    Mutant(
        name="a force is answered before an ack quorum has answered",
        invariants=("L33",),
        style="deferred",
        parts=planted((DeferredLedgerAdder, "_settle_forces", "self._forces[0][0] <= self.lac", "True")),
    ),
    Mutant(
        name="a close that drains does not force the last entries",
        invariants=("L33",),
        style="deferred",
        parts=planted(
            (DeferredLedgerAdder, "_note_close", "self._window.force(self._window.pushed)", "self._window.abandon()")
        ),
    ),
    Mutant(
        name="entries that are written again after a force was due are not forced",
        invariants=("liveness",),
        style="deferred",
        parts=planted((DeferredWindow, "acknowledge", "self._due |= bit", "pass")),
    ),
)

EXPLICIT_LACS = (
    Mutant(
        name="bookies are sent a LAC that is not confirmed",
        invariants=("L5",),
        style="explicit",
        parts=planted((LedgerAdder, "_send_lac", "lac = self._window.lac", "lac = self._window.pushed")),
    ),
    Mutant(
        name="a LAC that no entry carries is not sent",
        invariants=("liveness",),
        style="explicit",
        parts=planted((LedgerAdder, "_note_timer", "self._send_lac()", "pass")),
    ),
    Mutant(
        name="a LAC that may not have reached a lost bookie is not sent again",
        invariants=("liveness",),
        style="explicit",
        seeds=1500,
        parts=planted((LedgerAdder, "handle", "self._sent_lac = NO_ENTRY", "pass")),
    ),
    Mutant(
        name="a long poll that ended by an explicit LAC is not followed by a read of it",
        invariants=("liveness",),
        style="explicit",
        parts={"tailer": edited(LedgerTailer, ("_note_long_poll", "answer.lac > self.lac", "False"))},
    ),
)

MUTANTS = (
    *(*WRITER, *RECOVERY, *LAST_ENTRIES, *RECOVERY_LIVENESS, *BOOKIE, *READERS, *FINDERS, *OLDER_LEDGERS),
    *PLACEMENT,
    *WRITERS_OPTIONS,
    *DEFERRED_SYNC,
    *LONG_POLLS,
    *EXPLICIT_LACS,
)
