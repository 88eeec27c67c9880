"""The report of a run: the checker's verdict, the faults and their effects, and whether enough happened.

Invariants:
- A figure is shown with the conditions under which it was measured.
- What was not run is named.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.faults import Done
from tests.chaos.plan import STREAMS
from tests.history import History, Verdict
from tests.history.notes import Outcome

_BEFORE_NS, _AFTER_NS = 100_000_000, 500_000_000  # a silence that begins this near to a fault is attributed to it


@dataclass(slots=True)
class Report:
    """The content of a run's report."""

    seed: int
    seconds: float
    verdict: Verdict
    takeovers: int
    claims: int
    faults: dict[str, int]
    left_out: dict[str, int]
    gaps_ms: dict[str, dict[str, int]]
    restarts: dict[str, int]
    client_errors: dict[str, int]
    unhealed: list[str] = field(default_factory=list)  # parts that did not come back, or that died without a fault
    too_little: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)  # what `dlog object fsck` told; empty without objects
    directory: str = ""

    @property
    def exit_code(self) -> int:
        """0: green. 1: a promise was broken, or a part did not come back. 2: too little happened."""
        if not self.verdict.is_green or self.unhealed:
            return 1
        return 2 if self.too_little else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "exit": self.exit_code,
            "verdict": self.verdict.as_json(),
            "takeovers": self.takeovers,
            "claims": self.claims,
            "faults": self.faults,
            "left_out": self.left_out,
            "ack_gap_ms": self.gaps_ms,
            "restarts": self.restarts,
            "client_errors": self.client_errors,
            "unhealed": self.unhealed,
            "too_little": self.too_little,
            "not_run": self.not_run,
            "objects": self.objects,
            "directory": self.directory,
        }

    def text(self) -> str:
        verdict = self.verdict
        lines = [
            f"seed {self.seed}: {sum(self.faults.values())} faults in {self.seconds:.0f} s, "
            f"{self.takeovers} take-overs, {verdict.acknowledged} records acknowledged, {verdict.unknown} unknown "
            f"({verdict.unknown_found} of them written), {verdict.failed} refused, "
            f"{verdict.delivered} delivered to {verdict.readers} readers",
            " ".join(f"{kind}={verdict.found[kind]}" for kind in _FIVE)
            + f" others={sum(verdict.found.values()) - sum(verdict.found[kind] for kind in _FIVE)}"
            + f" unread={verdict.unread} stale={verdict.stale}",
            "fault             count  ack gap p50 ms  max ms",
        ]
        for kind, count in self.faults.items():
            gap = self.gaps_ms.get(kind, {"p50": 0, "max": 0})
            lines.append(f"{kind:<17} {count:>5}  {gap['p50']:>14}  {gap['max']:>6}")
        lines += [f"left out: {kind} {count}" for kind, count in self.left_out.items()]
        lines += [f"client: {what} {count}" for what, count in sorted(self.client_errors.items())]
        if self.objects:
            lines.append(
                f"objects: {self.objects['objects_listed']} listed, {self.objects['blocks_read']} blocks read, "
                f"{self.objects['chains_listed']} segments of s3-direct, {len(self.objects['findings'])} findings"
            )
        lines += [f"not run: {what}" for what in self.not_run]
        lines += [f"BREACH {example}" for example in verdict.examples]
        lines += [f"stale: {example}" for example in verdict.stale_examples[:5]]
        lines += [f"DID NOT COME BACK: {what}" for what in self.unhealed]
        lines += [f"TOO LITTLE HAPPENED: {what}" for what in self.too_little]
        lines.append(
            {0: "green", 1: f"NOT GREEN; all of it is kept in {self.directory}", 2: "proves nothing"}[self.exit_code]
        )
        return "\n".join(lines)


_FIVE = ("lost", "duplicated", "reordered", "early", "invented")


def gaps(histories: Mapping[str, History], faults: Iterable[Done]) -> dict[str, dict[str, int]]:
    """The longest time without an acknowledgement on any stream that begins during a fault; by kind and role."""
    answers = {name: sorted(_answers(history)) for name, history in histories.items()}
    of_kind: dict[str, list[float]] = {}
    for done in faults:
        if done.left_out:
            continue
        _, _, stream = done.fault.target.partition("owner:")
        names = [stream] if stream in STREAMS and ">" not in done.fault.target else list(STREAMS)
        begin, end = done.began - _BEFORE_NS, max(done.healed, done.began) + _AFTER_NS
        longest = max((_longest(answers[name], begin, end) for name in names), default=0)
        of_kind.setdefault(kind_of(done), []).append(longest / 1e6)
    return {
        kind: {"p50": round(sorted(found)[len(found) // 2]), "max": round(max(found))}
        for kind, found in sorted(of_kind.items())
    }


def kind_of(done: Done) -> str:
    """The kind of a fault and the role of its target: "kill owner"."""
    target = done.fault.target.rpartition(">")[2]
    role = target.partition(":")[0].rstrip("0123456789").rstrip("-")
    return f"{done.fault.kind} {'all' if role == '*' else role}"


def counted(faults: Iterable[Done]) -> tuple[dict[str, int], dict[str, int]]:
    """Number of faults done and left out, by kind."""
    did: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for done in faults:
        if done.left_out:
            left[f"{kind_of(done)}: {done.left_out}"] += 1
        else:
            did[kind_of(done)] += 1
    return dict(sorted(did.items())), dict(sorted(left.items()))


def _answers(history: History) -> Iterator[int]:
    appends = history.appends
    return (appends.answered[op] for op in range(len(appends)) if appends.outcome[op] == Outcome.OK)


def _longest(times: list[int], begin: int, end: int) -> int:
    """The longest stretch between two answers that begins in [begin, end]."""
    first, last = bisect_left(times, begin), bisect_right(times, end)
    return max((two - one for one, two in itertools.pairwise(times[first : last + 1])), default=0)


def owners_in(logs: Iterable[Path], stream: str, places: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """(segment, epoch) of every start of a segment that is in the list at the end, from the proxies' logs."""
    for path in logs:
        epoch = 0
        for event in _events(path):
            if event.get("stream") != stream:
                continue
            match event["event"]:
                case "stream.owned":
                    epoch = int(event["epoch"])
                case "segment.started" if places.get(int(event["segment"])) == event["location"] and epoch:
                    yield int(event["segment"]), epoch


def claims_in(logs: Iterable[Path]) -> tuple[int, int]:
    """Number of claims of streams, and of those that took over from another owner's epoch."""
    claims = takeovers = 0
    for path in logs:
        for event in _events(path):
            if event["event"] == "stream.owned":
                claims += 1
                takeovers += int(event["epoch"]) > 1
    return claims, takeovers


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b"{"):
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # killed in the middle of a line
                if "event" in event:
                    yield event
