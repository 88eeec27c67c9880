"""Workloads: reads loadtest/workloads/*.toml into cells and estimates their duration.

Invariants:
- an unknown key, a wrong type or an impossible number is an error that names the file;
- the scale (quick, full) changes duration and amount, never what is measured.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dlog.errors import ConfigError
from dlog.options import MiB, build
from loadtest.payload import PAYLOAD_BYTES_MIN
from loadtest.systems.base import FEATURES

WORKLOADS = Path(__file__).parent / "workloads"
Scale = Literal["quick", "full"]
SCRIPTS = (
    *("load", "catch-up", "fault", "roll", "kill-all", "hand-over", "idle", "soak", "scan", "reopen"),
    *("uploads", "examine", "lost-bookie", "restart-bookie"),
)
SUBJECTS = {"search": 5e-6, "image": 2.5e-5, "chain": 1e-4, "commit": 0.0, "node-kill": 0.0}  # estimated s an object
SCALES: Mapping[str, Mapping[str, float]] = {
    "quick": {"seconds": 5.0, "warmup_s": 2.0},
    "full": {"seconds": 60.0, "warmup_s": 10.0},
}
CELL_S = 3.0  # estimated overhead per cell: starting generators, reading records back, checking them
LOG_S = 0.005  # estimated time to create, open and read back one log
CREATE_S = 0.02  # estimated time to create one stream in objects
REGION_RECORD_S = 2e-5  # estimated time to write and to read one record of a region
LOST_S = 0.07  # estimated time to write 1 MB of a bookie in three copies, to make its copies again and to check all
FULL_S = 0.012  # estimated time to write 1 MB to one bookie
LEDGER_S = 3e-4  # estimated time to read two entries of a ledger back from one bookie
JUDGE_S = 0.7  # estimated time to read back and check one second of a maximum-throughput load


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Options of one cell of a workload. Sizes are of payloads; rates are of all producers together."""

    script: str = "load"
    flavour: str = "fast"  # or "user": the client that a Python program would use
    mode: str = "window"  # see loadtest/systems/base.py
    record_bytes: int = 100
    batch_bytes: int = 0  # size of the batches that the application makes; 0: it appends single records
    window: int = 4096  # pending records; with batches: pending batches
    tasks: int = 256
    rate: int = 10_000  # records a second, open loop
    logs: int = 1
    zipf: float = 0.0
    producers: int = 1  # processes
    tables: int = 1  # of a region: records go to them in turns; other systems have none
    readers: int = 0  # tail readers while the load runs
    reader_processes: int = 1  # processes that share the readers
    backlog_mb: int = 0  # MB written beforehand: for catch-up to read, for kill-all to recover, on a bookie to be lost
    ledgers: int = 1  # of the backlog of a bookie
    faults: int = 10  # number of faults, of passes (script "roll") or of hand-overs
    calm_s: float = 1.0  # pause between two faults
    fault: str = ""  # "kill" or "freeze", for script "fault"
    target: str = "owner"  # or "storage", "leader"
    unsaved: float = 0.01  # share of a backlog that is behind the last snapshot, for script "reopen"
    subject: str = ""  # for script "examine": see SUBJECTS
    objects: int = 1  # of an image, or chunks of a chain
    frozen_s: float = 5.0
    idle_s: float = 10.0
    retention_s: float = 10.0  # of the streams of a soak
    warmup_s: float = 1.0
    seconds: float = 5.0
    patience_s: float = 120.0  # timeout of one acknowledgement, and of followers at the end

    def __post_init__(self) -> None:
        _one_of("script", self.script, SCRIPTS)
        _one_of("flavour", self.flavour, ("fast", "user"))
        _one_of("mode", self.mode, ("window", "await", "open"))
        _one_of("target", self.target, ("owner", "storage", "leader"))
        if self.script == "examine":
            _one_of("subject", self.subject, tuple(SUBJECTS))
        if self.script == "fault":
            _one_of("fault", self.fault, ("kill", "freeze"))
        if self.record_bytes < PAYLOAD_BYTES_MIN:
            raise ValueError(f"record_bytes must be at least {PAYLOAD_BYTES_MIN}: record_bytes={self.record_bytes}")
        if self.record_bytes > MiB:
            raise ValueError(f"record_bytes must be at most {MiB}: record_bytes={self.record_bytes}")
        if self.batch_bytes and self.batch_bytes < self.record_bytes:
            raise ValueError(f"batch_bytes must be 0 or at least record_bytes: batch_bytes={self.batch_bytes}")
        for name in (
            "window",
            "tasks",
            "rate",
            "logs",
            "tables",
            "producers",
            "reader_processes",
            "faults",
            "objects",
            "ledgers",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {name}={getattr(self, name)}")
        for name in ("readers", "backlog_mb", "calm_s", "frozen_s", "idle_s", "warmup_s", "zipf"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative: {name}={getattr(self, name)}")
        if not 0 < self.unsaved < 1:
            raise ValueError(f"unsaved must be in (0, 1): unsaved={self.unsaved}")
        if self.retention_s < 1:
            raise ValueError(f"retention_s must be at least 1: retention_s={self.retention_s}")
        if not 0 < self.seconds <= 86_400 or self.patience_s <= 0:
            raise ValueError(f"seconds must be in (0, 86400], patience_s above 0: seconds={self.seconds}")

    @property
    def batch_records(self) -> int:
        return max(1, self.batch_bytes // self.record_bytes) if self.batch_bytes else 1

    @property
    def window_records(self) -> int:
        return self.window * self.batch_records

    def needs(self) -> list[str]:
        """The features (systems/base.py) that a system needs for this cell."""
        found = []
        if self.batch_bytes:
            found.append("batch")
        if self.logs > 1:
            found.append("many-logs")
        if self.readers:
            found.append("tail")
        if self.script in ("fault", "roll", "kill-all"):
            found.append("faults")
        if self.script == "fault" and self.target == "storage":
            found.append("storage")
        if self.script == "hand-over":
            found.append("handover")
        assert all(feature in FEATURES for feature in found)
        return found

    def duration_s(self) -> float:
        """Estimated duration on a fast system."""
        once = {"fault": self.calm_s + 2 + self.frozen_s * (self.fault == "freeze"), "roll": 40.0, "hand-over": 1.5}
        if self.script in once:
            return CELL_S + self.faults * once[self.script]
        backlog = self.backlog_mb / 100
        if self.script == "kill-all":
            return CELL_S + backlog + 20
        if self.script == "lost-bookie":
            return CELL_S + self.backlog_mb * LOST_S + 2 * (self.warmup_s + self.seconds)
        if self.script == "restart-bookie":
            return CELL_S + self.backlog_mb * FULL_S + self.ledgers * LEDGER_S + 10
        if self.script in ("scan", "reopen"):
            return CELL_S + backlog * 4 + self.backlog_mb * 1e6 / self.record_bytes * REGION_RECORD_S
        if self.script == "examine":
            creating_s = 2 * self.logs * CREATE_S if self.subject == "node-kill" else 0.0
            return CELL_S + self.seconds + creating_s + self.objects * SUBJECTS[self.subject]
        if self.script == "soak":
            return CELL_S + self.seconds * 1.05
        if self.script == "idle":
            return CELL_S + self.idle_s + self.logs * LOG_S
        load_s = (self.warmup_s + self.seconds) * (2 if self.script == "catch-up" else 1)
        judging_s = JUDGE_S * load_s if self.mode == "window" else 0.2 * self.readers
        return CELL_S + backlog + load_s + judging_s + self.logs * LOG_S


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a workload."""

    key: Mapping[str, Any]  # what differs between the cells of this workload
    shape: Shape

    @property
    def label(self) -> str:
        return ", ".join(_label(name, value) for name, value in self.key.items()) or "one shape"


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload file, at one scale."""

    id: str
    name: str
    asks: str
    cells: tuple[Cell, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    id: str
    name: str
    asks: str
    note: str = ""
    shape: dict[str, Any] = field(default_factory=dict)


def known() -> dict[str, Path]:
    """Every workload by id and by name, in order of ids."""
    found: dict[str, Path] = {}
    for path in WORKLOADS.glob("W*.toml"):
        number, _, name = path.stem.partition("-")
        found[number] = found[name] = path
    return dict(sorted(found.items(), key=lambda item: (_number(item[1]), item[0])))


def ids() -> list[str]:
    """The ids of all workloads."""
    return [name for name, path in known().items() if path.stem.startswith(f"{name}-")]


def load(name: str, scale: Scale = "quick", changes: Mapping[str, str] | None = None) -> Workload:
    """Read a workload by id, name or path of a TOML file. Raises ConfigError.

    changes: options that replace the file's; for a key of the matrix, a comma-separated list of values.
    """
    path = known().get(name)
    if path is None:
        path = Path(name)
        if not name.endswith(".toml") or not path.is_file():
            raise ConfigError(f"no such workload; choose {', '.join(ids())}, or a TOML file: name={name[:60]}")
    try:
        content = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"workload file is not readable TOML: file={path.name} {error}") from error
    return _workload(content, path.name, scale, changes or {})


def _workload(content: dict[str, Any], where: str, scale: Scale, changes: Mapping[str, str]) -> Workload:
    names = {f.name for f in dataclasses.fields(Shape)}
    scaled = {name: content.pop(name, {}) for name in ("quick", "full")}
    matrix = content.pop("matrix", {})
    if not all(isinstance(table, dict) for table in (matrix, *scaled.values())):
        raise ConfigError(f"quick, full and matrix must be tables: file={where}")
    head: dict[str, Any] = {key: content.pop(key) for key in ("id", "name", "asks", "note") if key in content}
    mine = dict(scaled[scale])
    matrix = {**matrix, **mine.pop("matrix", {})}
    for key, values in matrix.items():
        if key not in names or not isinstance(values, list) or not values:
            raise ConfigError(f"a matrix maps options of a workload to non-empty lists: file={where} key={key}")
    base = {**SCALES[scale], **content, **mine}
    for key, value in changes.items():
        if key in matrix:
            matrix[key] = [one.strip() for one in value.split(",")]
        else:
            base[key] = value
    about = build(_Head, head, where=where)
    cells = []
    for values in itertools.product(*matrix.values()):
        key = dict(zip(matrix, values, strict=True))
        shape = build(Shape, {**base, **key}, where=where)
        cells.append(Cell({name: getattr(shape, name) for name in key}, shape))
    return Workload(about.id, about.name, about.asks, tuple(cells), about.note)


def chosen(given: str, scale: Scale, changes: Mapping[str, str]) -> list[Workload]:
    """The workloads of "W1,W3" or "all". Raises ConfigError, also if a change does not fit one."""
    wanted: Sequence[str] = ids() if given == "all" else [name.strip() for name in given.split(",") if name.strip()]
    if not wanted:
        raise ConfigError(f"no workload given; choose from {', '.join(ids())}")
    return [load(name, scale, changes) for name in wanted]


def _one_of(name: str, value: str, among: Sequence[str]) -> None:
    if value not in among:
        raise ValueError(f"{name} must be one of {', '.join(among)}: {name}={value}")


def _number(path: Path) -> int:
    digits = path.stem.partition("-")[0][1:]
    return int(digits) if digits.isdecimal() else 10**6


def _label(name: str, value: Any) -> str:
    match name:
        case "record_bytes" | "batch_bytes":
            return _size(value) + (" batches" if name == "batch_bytes" else "")
        case "rate":
            return f"{value:,}/s"
        case "logs" | "readers" | "tables" | "objects":
            return f"{value:,} {name if value != 1 else name[:-1]}"
    return f"{name} {value}"


def _size(count: int) -> str:
    for unit, name in ((MiB, "MiB"), (1024, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"
