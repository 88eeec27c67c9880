"""Histories of what a generator sent, had acknowledged or read, as text (format: loadtest/systems/base.py).

Invariants:
- one line covers a run of consecutive records, so that a million records cost little;
- runs of a log are in order of time;
- an unreadable line is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from loadtest.systems.base import Position

RUN_SPAN_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Sent:
    log: int
    producer: int
    count: int


@dataclass(frozen=True, slots=True)
class AckedRun:
    log: int
    producer: int
    first: int
    count: int
    position: Position | None
    sent_ns: int


@dataclass(frozen=True, slots=True)
class RefusedRun:
    log: int
    producer: int
    first: int
    count: int
    unknown: bool


@dataclass(frozen=True, slots=True)
class ReadRun:
    log: int
    producer: int
    first: int
    count: int
    position: Position
    at_ns: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A record whose CRC does not match."""

    log: int
    position: Position
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The reader reached the end of this log."""

    log: int


Note = Sent | AckedRun | RefusedRun | ReadRun | Broken | End


class HistoryWriter:
    """Joins consecutive records into runs and writes them. `close` writes the open runs."""

    def __init__(self, path: str) -> None:
        # `close` closes the file
        self._file: TextIO = open(path, "w", encoding="ascii", errors="replace", buffering=1 << 16)  # noqa: SIM115
        self._open: dict[tuple[str, int], tuple[int, int, int, Position | None, int]] = {}

    def acked(self, log: int, producer: int, first: int, count: int, position: Position | None, sent_ns: int) -> None:
        self._run("A", log, producer, first, count, position, sent_ns)

    def read(self, log: int, producer: int, first: int, count: int, position: Position, at_ns: int) -> None:
        self._run("R", log, producer, first, count, position, at_ns)

    def sent(self, log: int, producer: int, count: int) -> None:
        self._file.write(f"S {log} {producer} {count}\n")

    def refused(self, log: int, producer: int, first: int, count: int, unknown: bool) -> None:
        self._file.write(f"F {log} {producer} {first} {count} {int(unknown)}\n")

    def broken(self, log: int, position: Position, payload: bytes) -> None:
        self._flush("R", log)
        self._file.write(f"X {log} {_text(position)} {bytes(payload[:32]).hex() or '-'}\n")

    def end(self, log: int) -> None:
        self._flush("R", log)
        self._file.write(f"E {log}\n")

    def close(self) -> None:
        for kind, log in list(self._open):
            self._flush(kind, log)
        self._file.close()

    def _run(self, kind: str, log: int, producer: int, first: int, count: int, at: Position | None, ns: int) -> None:
        key = (kind, log)
        run = self._open.get(key)
        if run is not None:
            whose, begin, so_far, position, begun_ns = run
            if (
                whose == producer
                and begin + so_far == first
                and ns - begun_ns < RUN_SPAN_NS
                and (at is position or (at is not None and position is not None and _follows(position, so_far, at)))
            ):
                self._open[key] = (whose, begin, so_far + count, position, begun_ns)
                return
            self._flush(kind, log)
        self._open[key] = (producer, first, count, at, ns)

    def _flush(self, kind: str, log: int) -> None:
        run = self._open.pop((kind, log), None)
        if run is not None:
            producer, first, count, position, ns = run
            self._file.write(f"{kind} {log} {producer} {first} {count} {_text(position)} {ns}\n")


def after(position: Position, count: int) -> Position:
    """The position `count` records further on in a run."""
    return position if not count else (*position[:-1], position[-1] + count)


def _follows(position: Position, count: int, then: Position) -> bool:
    """Whether `then` is `count` records after `position`."""
    return position[-1] + count == then[-1] and position[:-1] == then[:-1]


def notes(path: Path) -> Iterator[Note]:
    """Read a history. Raises ValueError that names the line."""
    with path.open(encoding="ascii", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield _note(line.split())
            except (ValueError, IndexError) as error:
                raise ValueError(f"history with an unreadable line: {path.name}:{number}: {line[:80]!r}") from error


def _note(words: list[str]) -> Note:
    match words:
        case ["R", log, producer, first, count, at, ns]:
            return ReadRun(int(log), int(producer), int(first), _many(count), _position(at), int(ns))
        case ["A", log, producer, first, count, at, ns]:
            position = None if at == "-" else _position(at)
            return AckedRun(int(log), int(producer), int(first), _many(count), position, int(ns))
        case ["S", log, producer, count]:
            return Sent(int(log), int(producer), int(count))
        case ["F", log, producer, first, count, unknown]:
            return RefusedRun(int(log), int(producer), int(first), _many(count), bool(["0", "1"].index(unknown)))
        case ["X", log, at, *text]:
            return Broken(int(log), _position(at), " ".join(text))
        case ["E", log]:
            return End(int(log))
    raise ValueError("no such note")


def _many(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError("a run has at least one record")
    return count


def _position(text: str) -> Position:
    return tuple(int(number) for number in text.split("."))


def _text(position: Position | None) -> str:
    return "-" if position is None else ".".join(map(str, position))
