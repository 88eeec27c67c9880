"""Planted defects of regions: each step of opening, fencing, appending and cleaning left out or done otherwise."""

from __future__ import annotations

from typing import Any

from dlog.region.counting import CountingRule, RegionWriter
from dlog.region.follower import RecentEntries, RegionFollower
from dlog.region.items import ItemReader
from dlog.region.loading import RegionLoader
from dlog.region.maintenance import Maintenance
from dlog.region.owner import RegionOwner
from dlog.region.reading import EntryScan, TailScan
from dlog.region.state import RegionState
from dlog.region.tables import RegionMeta, TableMeta
from dlog.region.waiting import WaitingAppends
from tests.simulation.mutants import edited
from tests.simulation.worlds import Mutant

Edit = tuple[str, str, str]


def planted(cls: type, *edits: Edit) -> dict[str, Any]:
    return {"planted": ((cls, edited(cls, *edits)),)}


MUTANTS = (
    Mutant(
        name="a reader of one table skips the record that it wants next",
        invariants=("K4",),
        style="swarm",
        parts=planted(EntryScan, ("_seek", "self._seeks.get((table, wanted)", "self._seeks.get((table, wanted + 1)")),
    ),
    Mutant(
        name="an owner that the topic refuses does not check whether its append is in the topic",
        invariants=("K4",),
        style="late",
        parts=planted(
            RegionOwner,
            ("_refused_read", "is_known = bool(rule.nonce) and rule.nonce not in self._nonces", "is_known = True"),
        ),
    ),
    Mutant(
        name="a region is cleaned before its snapshot is durable",
        invariants=("K2",),
        style="clean",
        parts=planted(
            Maintenance,
            (
                "clean",
                "self._cleaning = _Cleaning([ticket])",
                "self._cleaning = _Cleaning([ticket], state.meta.safe_offset, True)",
            ),
        ),
    ),
    Mutant(
        name="a region is cleaned without a check-point",
        invariants=("K2",),
        style="clean",
        parts=planted(
            Maintenance,
            (
                "_save",
                "            saving.cleaning.has_snapshot = True\n",
                "            saving.cleaning.has_snapshot = saving.cleaning.has_checkpoint = True\n"
                "            self._delete(saving.cleaning)\n",
            ),
        ),
    ),
    Mutant(
        name="everything up to the end may be deleted, not only what no table needs",
        invariants=("K2",),
        style="clean",
        parts=planted(Maintenance, ("_save", "cleaning.safe = state.meta.safe_offset", "cleaning.safe = state.offset")),
    ),
    Mutant(
        name="the floor of a mark is the mapped record behind it",
        invariants=("K2", "K1"),
        style="clean",
        parts=planted(
            TableMeta,
            ("mark_deleted", "bisect_right(sequences, below) - 1", "bisect_right(sequences, below)"),
        ),
    ),
    Mutant(
        name="a mark is one more than was requested",
        invariants=("K1", "K2"),
        style="clean",
        parts=planted(
            TableMeta,
            (
                "mark_deleted",
                "self.latest_marked_deleted = below",
                "self.latest_marked_deleted = below = min(below + 1, self.next_seq_num)",
            ),
        ),
    ),
    Mutant(
        name="batches count under any nonce",
        invariants=("K5", "K3", "K1", "K4"),
        style="takeover",
        parts=planted(CountingRule, ("after", "nonce == self.nonce and ", "")),
    ),
    Mutant(
        name="a second copy of a batch counts",
        invariants=("K3",),
        style="late",
        parts=planted(CountingRule, ("after", " and number == self.number", "")),
    ),
    Mutant(
        name="an owner that was deposed acknowledges what it appended",
        invariants=("K5",),
        style="takeover",
        parts=planted(
            RegionWriter, ("appended", "tuple(own)", "tuple(enumerate(getattr(item, 'entries', ()), offset))")
        ),
    ),
    Mutant(
        name="an owner does not read the records before its append",
        invariants=("K5", "K1"),
        style="takeover",
        parts=planted(
            RegionOwner,
            ("_appended", "elif reply.offset == self.state.offset:", "elif reply.offset >= self.state.offset:"),
        ),
    ),
    Mutant(
        name="after an unknown outcome an owner goes on writing with its old nonce",
        invariants=("K3", "K4", "K5", "K1"),
        style="late",
        parts=planted(
            RegionOwner,
            ("_doubt", "    self._fence()\n", "    self._serve()\n"),
        ),
    ),
    Mutant(
        name="an append that is found behind a new fence is sent again",
        invariants=("K4",),
        style="late",
        parts=planted(RegionOwner, ("_serve", "if self._is_found:", "if False:")),
    ),
    Mutant(
        name="an append of unknown outcome is given up as not written",
        invariants=("K4",),
        style="late",
        parts=planted(
            RegionOwner,
            ("_append_failed", "if error.remedy is Remedy.FIX and not error.outcome_unknown:", "if True:"),
        ),
    ),
    Mutant(
        name="a deposed owner calls an append that was found not written",
        invariants=("K4",),
        style="late",
        seeds=1000,
        parts=planted(
            RegionOwner, ("_depose", "if append is not None and self._is_found:", "if False and append is not None:")
        ),
    ),
    Mutant(
        name="an owner does not read the topic up to its own fence",
        invariants=("K1", "K3", "K5"),
        style="takeover",
        parts=planted(RegionOwner, ("_fence", "reply.offset + 1", "self.state.offset")),
    ),
    Mutant(
        name="the scan begins one record behind the snapshot",
        invariants=("K1",),
        style="swarm",
        parts=planted(
            RegionLoader,
            (
                "_begin_scan",
                "self.state.offset if self.state is not None",
                "self.state.offset + 1 if self.state is not None",
            ),
        ),
    ),
    Mutant(
        name="the scan begins at the end of the topic",
        invariants=("K1",),
        style="swarm",
        parts=planted(
            RegionLoader, ("_begin_scan", "self.state.offset if self.state is not None", "self.next if self.state")
        ),
    ),
    Mutant(
        name="a topic whose first records are deleted and that has no check-point is opened as new",
        invariants=("K1", "K3"),
        style="outside",
        parts=planted(RegionLoader, ("_begin_scan", "elif self.first == 0:", "else:")),
    ),
    Mutant(
        name="the marks of a check-point are left out",
        invariants=("K1",),
        style="takeover",
        seeds=1000,
        parts=planted(RegionState, ("_take_marks", "known is not None and ", "False and ")),
    ),
    Mutant(
        name="dropping a table is answered before a check-point has it",
        invariants=("K1", "assert"),
        style="swarm",
        seeds=1000,
        parts=planted(Maintenance, ("drop", "self._drops.append(ticket)", "self._out.answer([ticket], None)")),
    ),
    Mutant(
        name="a reader delivers entries below the start that it was given",
        invariants=("K4",),
        style="clean",
        parts=planted(EntryScan, ("_take", "not expected <= sequence < end", "not sequence < end")),
    ),
    Mutant(
        name="a reader skips lost entries without an event",
        invariants=("K4",),
        style="outside",
        parts=planted(EntryScan, ("_take", "if sequence > expected:", "if False:")),
    ),
    Mutant(
        name="a follower begins with the rule of an empty topic",
        invariants=("K4",),
        style="takeover",
        parts=planted(TailScan, ("__init__", "self._rule = start.rule", "self._rule = CountingRule()")),
    ),
    Mutant(
        name="a batch is split between two reads",
        invariants=("K4", "K1", "K3", "K5"),
        style="swarm",
        parts=planted(
            ItemReader,
            (
                "_complete",
                "Columns(Entry, (self._tables, self._sequences, self._payloads))",
                "Columns(Entry, (self._tables[:1], self._sequences[:1], self._payloads[:1]))",
            ),
        ),
    ),
    Mutant(
        name="a follower takes an empty read for the topic up to an append that came later",
        invariants=("K7", "K8"),
        style="tables",
        parts=planted(
            RegionFollower,
            ("_read", "self._read_upto)", "min((goal.upto for goal in self._goals), default=0))"),
        ),
    ),
    Mutant(
        name="a follower answers a table's end as soon as its own record is appended",
        invariants=("K7",),
        style="tables",
        parts=planted(
            RegionFollower,
            ("_appended", "self._goals.append(_Goal(wish.ticket, reply.offset + number, wish.then))", "wish.then()"),
            ("_answer_end", "if table not in self._state.rule.ended:", "if False:"),
        ),
    ),
    Mutant(
        name="a follower answers a table's end from its present state",
        invariants=("K7",),
        style="tables",
        parts=planted(
            RegionFollower,
            ("_recover", "if table in self._state.rule.ended:", "if table in self._state.meta.tables:"),
            ("_answer_end", "if table not in self._state.rule.ended:", "if False:"),
        ),
    ),
    Mutant(
        name="a table that was not found may be begun later",
        invariants=("K7",),
        style="tables",
        parts=planted(
            RegionFollower,
            (
                "_recover",
                "in self._state.rule.ended:",
                "not in (self._state.meta.tables.keys() - self._state.rule.ended):",
            ),
            ("_answer_end", "if table not in self._state.rule.ended:", "if False:"),
        ),
    ),
    Mutant(
        name="entries behind the end of their table count",
        invariants=("K7", "K9"),
        style="tables",
        parts=planted(
            CountingRule,
            ("after", "if entry.table not in self.ended)", ")"),
            ("after_placed", "if entry.table not in ended)", ")"),
        ),
    ),
    Mutant(
        name="a snapshot leaves out which tables have ended",
        invariants=("K8", "K1", "K7", "K9"),
        style="tables",
        parts=planted(RegionState, ("snapshot", "tuple(sorted(rule.ended))", "()")),
    ),
    Mutant(
        name="an owner ignores that other processes ended tables",
        invariants=("K5", "K7", "K1"),
        style="tables",
        parts=planted(
            RegionOwner,
            (
                "_take_offset",
                "() if number else others)",
                "() if number else [o for o in others if not isinstance(o[1], TableEnd | TableDropped)])",
            ),
        ),
    ),
    Mutant(
        name="an owner keeps a table that another process dropped",
        invariants=("K9",),
        style="tables",
        parts=planted(RegionOwner, ("_take_offset", "self.state.note(item)", "pass")),
    ),
    Mutant(
        name="the begin of a table is acknowledged though it does not count",
        invariants=("K5",),
        style="tables",
        parts=planted(
            RegionOwner,
            ("_finish", "if missing:", "if missing and not write.begins:"),
            ("_finish", "counted[write.entries[0][0], 0]", "counted.get((write.entries[0][0], 0), 0)"),
        ),
    ),
    Mutant(
        name="an entry gets the sequence of one that was refused",
        invariants=("K12",),
        style="tables",
        parts=planted(
            WaitingAppends, ("_next_batch", "if write.sequence and write.sequence != expected:", "if False:")
        ),
    ),
    Mutant(
        name="an owner answers a table's end from its present state",
        invariants=("K7",),
        style="tables",
        parts=planted(
            RegionOwner,
            (
                "_take",
                "self._waiting.add_end(ticket, table)",
                "self._waiting.add_end(0, table)\n"
                "            self._out.answer([ticket], self.state.meta.next_seq_num(table) - 1)",
            ),
        ),
    ),
    Mutant(
        name="a follower has caught up as soon as it knows the end of the topic",
        invariants=("K8",),
        style="tables",
        parts=planted(RegionFollower, ("_catch_up", "reply.next, then))", "known, then))")),
    ),
    Mutant(
        name="the bytes of a table are counted from the newest snapshot on",
        invariants=("K8", "K1", "K7"),
        style="tables",
        parts=planted(RegionMeta, ("restored", "t.payload_bytes,", "0,")),
    ),
    Mutant(
        name="the begin of a table is not in a snapshot",
        invariants=("K8", "K1"),
        style="tables",
        parts=planted(RegionMeta, ("table_snapshots", "meta.begin,", "0,")),
    ),
    Mutant(
        name="a follower keeps recent entries that do not count",
        invariants=("K8",),
        style="tables",
        parts=planted(
            RegionFollower,
            (
                "_apply",
                "self._keep(self._state.apply(found))",
                "self._state.apply(found); self._keep(tuple(enumerate(getattr(found[1], 'entries', ()))))",
            ),
            (
                "_keep",
                "if entry.sequence:",
                "if entry.sequence and (entry.table, entry.sequence) not in self.recent._order:",
            ),
        ),
    ),
    Mutant(
        name="recent entries are found one sequence too late",
        invariants=("K8",),
        style="tables",
        parts=planted(RecentEntries, ("find", "get((table, first))", "get((table, first + 1))")),
    ),
    Mutant(
        name="a follower goes on behind records that were deleted before it read them",
        invariants=("K8",),
        style="tables",
        parts=planted(
            RegionFollower,
            (
                "_read_failed",
                "self._enter(Phase.CLOSED)",
                "self._reader.offset = max(self._reader.offset, error.first)\n        return",
            ),
        ),
    ),
    Mutant(
        name="a drop is acknowledged before it is in the topic",
        invariants=("K9",),
        style="tables",
        parts=planted(
            RegionFollower,
            (
                "_remove",
                "lambda: self._answer_removed(ticket, table)))",
                "lambda: None))\n        self._out.answer([ticket], None)",
            ),
        ),
    ),
    Mutant(
        name="a table is ended instead of dropped",
        invariants=("K9",),
        style="tables",
        parts=planted(
            RegionFollower,
            ("_remove", "TableDropped(table)", "TableEnd(table)"),
            ("_answer_removed", "None if self._is_removed(table) else self._vanished_error()", "None"),
        ),
    ),
    Mutant(
        name="what is written to a dropped table counts",
        invariants=("K9",),
        style="tables",
        parts=planted(CountingRule, ("after", "TableEnd(table) | TableDropped(table)", "TableEnd(table)")),
    ),
    Mutant(
        name="a state keeps tables that were dropped",
        invariants=("K9",),
        style="tables",
        parts=planted(RegionState, ("note", "self.meta.drop(table)", "pass")),
    ),
    Mutant(
        name="a follower deletes without a check-point",
        invariants=("K2",),
        style="tables",
        parts=planted(
            RegionFollower, ("_trim", "self._wishes.append(_Wish(ticket, Checkpoint(made), delete))", "delete()")
        ),
    ),
    Mutant(
        name="a follower deletes without a snapshot",
        invariants=("K2",),
        style="tables",
        parts=planted(
            RegionFollower,
            (
                "_trim",
                "self._out.ask(Topic.META, AppendRecords(self._out.number(), (encode_record(record),)), saved, failed)",
                "self._wishes.append(_Wish(ticket, Checkpoint(made), delete))",
            ),
        ),
    ),
    Mutant(
        name="a follower deletes everything that it has read",
        invariants=("K2",),
        style="tables",
        parts=planted(RegionFollower, ("_trim", "safe = state.meta.safe_offset", "safe = state.offset")),
    ),
    Mutant(
        name="a follower deletes records after its older snapshot that are not needed now",
        invariants=("K2",),
        style="tables",
        parts=planted(
            RegionFollower,
            ("_trim", "(self._out.number(), safe)", "(self._out.number(), self._state.meta.safe_offset)"),
        ),
    ),
    Mutant(
        name="the record that begins a table is not kept",
        invariants=("K2",),
        style="tables",
        parts=planted(TableMeta, ("first_needed", "if self.begin and", "if False and")),
    ),
    Mutant(
        name="a region is retired though tables are left",
        invariants=("K10",),
        style="tables",
        parts=planted(RegionFollower, ("_retire", "not state.meta.tables if is_final", "True if is_final")),
    ),
    Mutant(
        name="a region is retired without a fence",
        invariants=("K10",),
        style="tables",
        parts=planted(RegionFollower, ("_retire", "elif self._state.rule.epoch == FINAL_EPOCH:", "elif True:")),
    ),
    Mutant(
        name="a region is retired by a fence that a later owner supersedes",
        invariants=("K10",),
        style="tables",
        seeds=1000,
        parts=planted(
            RegionFollower,
            ("_retire", "(self._make_nonce(), FINAL_EPOCH)", "(self._make_nonce(), self._state.rule.epoch + 1)"),
            ("_retire", "is_final = state.rule.epoch == FINAL_EPOCH", "is_final = True"),
        ),
    ),
    Mutant(
        name="a follower whose next record was deleted does not load a snapshot again",
        invariants=("K11",),
        style="tables",
        parts=planted(
            RegionFollower,
            ("_read_failed", "if isinstance(error, OffsetOutOfRangeError):", "if False:"),
        ),
    ),
    Mutant(
        name="a follower whose read failed reads nothing more",
        invariants=("K11",),
        style="tables",
        parts=planted(RegionFollower, ("_read_failed", "self._is_reading = False", "pass")),
    ),
    Mutant(
        name="a failed append keeps a follower from appending anything more",
        invariants=("K11",),
        style="tables",
        parts=planted(RegionFollower, ("_append_failed", "sent, self._sent = self._sent, []", "sent = self._sent")),
    ),
)
