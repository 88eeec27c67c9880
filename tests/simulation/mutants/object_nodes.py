"""Planted defects of nodes of streams in objects, and of what takes over from them: a step left out or done wrongly."""

from __future__ import annotations

from dlog.objects.controller import Controller
from dlog.objects.failover import NodeRecovery, RangeScan
from dlog.objects.idle_nodes import IdleNodes
from dlog.objects.node import ObjectNode, _Closing
from dlog.objects.node_wal import WalCleaner, WalWriter
from dlog.objects.outbox import Outbox
from dlog.objects.upload import Uploader
from tests.simulation.mutants.objects import planted
from tests.simulation.worlds import Mutant

MUTANTS = (
    Mutant(
        name="an append acknowledges those in flight behind it",
        invariants=("O4", "O5"),
        parts=planted(
            WalWriter,
            ("_confirm", "while self._in_flight and self._in_flight[0].is_confirmed:", "while self._in_flight:"),
        ),
    ),
    Mutant(
        name="a failed append counts as confirmed",
        invariants=("O4", "O5"),
        parts=planted(
            WalWriter,
            ("_submit", "self._confirm(one), self.over)", "self._confirm(one), lambda _: self._confirm(one))"),
        ),
    ),
    Mutant(
        name="a WAL segment is appended to before it is registered",
        invariants=("O4", "O5"),
        style="suspected",
        parts=planted(
            WalWriter,
            (
                "_register",
                "lambda _: self._registered(segment), self.over)",
                "lambda _: None, self.over)\n    self._registered(segment)",
            ),
        ),
    ),
    Mutant(
        name="a WAL segment is appended to while the one before is not confirmed",
        invariants=("O4",),
        parts=planted(
            WalWriter,
            ("_advance", "if self._next is not None and not self._in_flight:", "if self._next is not None:"),
        ),
    ),
    Mutant(
        name="a recovery scans a part of each segment",
        invariants=("O4",),
        parts=planted(NodeRecovery, ("_scan", "self._scan(at, first + len(payloads))", "self._scan(at + 1, 0)")),
    ),
    Mutant(
        name="a stream is closed at the last confirmed entry while more are in flight",
        invariants=("O5", "O4", "N1"),
        parts={
            "planted": (
                *planted(
                    _Closing,
                    ("is_drained", "all(stream.confirmed == stream.next for stream in self.streams)", "True"),
                    ("ends", "one.epoch, one.next)", "one.epoch, one.confirmed)"),
                )["planted"],
                *planted(
                    ObjectNode,
                    (
                        "_confirmed",
                        "self._streams[append.stream]",
                        "self._streams.get(append.stream) or LocalStream(append.stream, append.epoch, 0, append.first)",
                    ),
                )["planted"],
            )
        },
    ),
    Mutant(
        name="entries that a reader of the log may have seen do not count",
        invariants=("N1",),
        parts=planted(
            NodeRecovery,
            (
                "_recover",
                "self._ends[self._segments[at].number] = end",
                "self._ends[self._segments[at].number] = max(0, end - 1)",
            ),
        ),
    ),
    Mutant(
        name="the log is deleted before the commit is confirmed",
        invariants=("O6",),
        parts=planted(
            Uploader,
            (
                "_commit",
                "upload.change(Phase.COMMITTING)",
                "upload.change(Phase.COMMITTING); self._committed(upload.flush_point)",
            ),
        ),
    ),
    Mutant(
        name="the segment that has the flush point is deleted, too",
        invariants=("O6",),
        parts=planted(
            WalCleaner,
            ("_advance", "self._segments[0].number < self._below", "self._segments[0].number <= self._below"),
        ),
    ),
    Mutant(
        name="an upload moves the flush point past entries that came since",
        invariants=("O4", "O6"),
        parts=planted(
            Uploader, ("_commit", "tuple(stream_objects), upload.flush_point)", "tuple(stream_objects), self.end)")
        ),
    ),
    Mutant(
        name="a write of unknown outcome counts as done",
        invariants=("O1",),
        parts=planted(
            Uploader,
            ("_write", "lambda: ask(failures + 1))", "lambda: written(ObjectWritten(1, 0)))"),
        ),
    ),
    Mutant(
        name="an object of another writer is taken for ours",
        invariants=("O1",),
        parts=planted(Uploader, ("_write", "self._renew(upload)", "planned.written = ObjectWritten(1, 0)")),
    ),
    Mutant(
        name="an object that expired stays in the storage",
        invariants=("O2",),
        parts=planted(Controller, ("_mark_expired", "if expired:", "if False:")),
    ),
    Mutant(
        name="a refused commit is given up",
        invariants=("N2",),
        parts=planted(Uploader, ("_commit_refused", "self._renew(upload)", "return")),
    ),
    Mutant(
        name="a request without an answer is not repeated",
        invariants=("N2",),
        parts=planted(
            Outbox, ("repeat", "self.later(self.pause_s(attempt)", "(lambda *_: None)(self.pause_s(attempt)")
        ),
    ),
    Mutant(
        name="a recovery uploads again what is committed",
        invariants=("N2",),
        parts=planted(RangeScan, ("__init__", "self.next = found.committed", "self.next = found.start")),
    ),
    Mutant(
        name="the last segments of a log are kept",
        invariants=("N2",),
        parts=planted(Uploader, ("finish_at", "self._begin(flush_point)", "self.cut()")),
    ),
    Mutant(
        name="a node that is gone and was not fenced is left alone",
        invariants=("N2",),
        style="gone",
        parts=planted(IdleNodes, ("_may_be_left", "node not in fact.live", "False")),
    ),
    Mutant(
        name="a failover that died before its uploads is not begun again",
        invariants=("N2",),
        style="gone",
        parts=planted(IdleNodes, ("_may_be_left", "bool(its.wal) if its.is_failover", "False if its.is_failover")),
    ),
    Mutant(
        name="a node whose process is registered is taken over",
        invariants=("N3",),
        style="gone",
        parts=planted(IdleNodes, ("_may_be_left", "node not in fact.live", "True")),
    ),
    Mutant(
        name="a node is taken over after one look",
        invariants=("N3",),
        style="gone",
        parts=planted(IdleNodes, ("handle", "if before.get(node) == now]", "]")),
    ),
    Mutant(
        name="a node whose log advances counts as idle",
        invariants=("N3",),
        style="gone",
        parts=planted(
            IdleNodes,
            ("handle", "if before.get(node) == now]", "if node in before and before[node][:1] == now[:1]]"),
        ),
    ),
    Mutant(
        name="a process fences its own failover",
        invariants=("N3",),
        style="gone",
        parts=planted(IdleNodes, ("_may_be_left", "if fact.failovers.get(node, 0) >= its.node_epoch:", "if False:")),
    ),
    Mutant(
        name="a process takes over its own node",
        invariants=("N3",),
        style="gone",
        parts=planted(IdleNodes, ("handle", "if node != self._node and", "if")),
    ),
    Mutant(
        name="an upload of a node that was fenced is recorded",
        invariants=("O5",),
        style="gone",
        parts=planted(
            Controller,
            (
                "_decide",
                "decide(self.image, operation, self._now_ms, self._options)",
                "decide(self.image, operation if type(operation).__name__ not in ('PrepareObjects', 'CommitUpload')"
                " else __import__('dataclasses').replace("
                "operation, node_epoch=self.image.nodes[operation.node].node_epoch), self._now_ms, self._options)",
            ),
        ),
    ),
)
