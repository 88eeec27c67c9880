"""A plan: a TOML of commands, run one after the other into one JSON; what that file has already is not run again.

The law of this file: a piece is a command line like any other, so that it can be run alone; all pieces are understood
before the first begins; a run that was interrupted goes on as it began, or not at all.
"""

from __future__ import annotations

import shlex
import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dlog.errors import ConfigError
from loadtest.runfile import Run

_FORBIDDEN = ("--plan", "--out", "--append", "--estimate", "--quiet")


@dataclass(frozen=True, slots=True)
class Piece:
    """One command of a plan."""

    name: str
    says: str  # what it is for
    arguments: tuple[str, ...]

    @property
    def asked(self) -> str:
        """The command as text: a part of a run that was asked for otherwise is not of this piece."""
        return shlex.join(self.arguments)


def read(path: Path, more: Sequence[str] = ()) -> list[Piece]:
    """The pieces of a plan, `more` arguments behind those of each. Raises ConfigError."""
    try:
        told = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"a plan cannot be read: file={path} {error}") from error
    pieces = told.pop("piece", None)
    if told or not isinstance(pieces, list) or not pieces:
        raise ConfigError(f"a plan has [[piece]] tables and nothing else: file={path.name}")
    found = [_piece(piece, path.name, more) for piece in pieces]
    twice = [name for name, count in Counter(piece.name for piece in found).items() if count > 1]
    if twice:
        raise ConfigError(f"each piece has a name of its own: file={path.name} name={twice[0]}")
    return found


def _piece(told: object, where: str, more: Sequence[str]) -> Piece:
    keys = {"name", "says", "run"}
    if not isinstance(told, dict) or set(told) != keys or not all(isinstance(told[key], str) for key in keys):
        raise ConfigError(f"a piece has name, says and run, which are texts: file={where} piece={told!r:.80}")
    try:
        arguments = (*shlex.split(told["run"]), *more)
    except ValueError as error:
        raise ConfigError(f"not a command line: file={where} piece={told['name']} {error}") from error
    for word in arguments:
        if word.partition("=")[0] in _FORBIDDEN:
            raise ConfigError(f"{word} is given once, beside --plan: file={where} piece={told['name']}")
    return Piece(told["name"], told["says"], arguments)


def rounds_done(run: Run, piece: Piece) -> dict[str, int]:
    """How many good rounds of each workload a run has of a piece. Raises ConfigError if it was asked for otherwise."""
    parts = {number: part for number, part in enumerate(run.parts) if part.get("piece") == piece.name}
    for part in parts.values():
        if part.get("asked") != piece.asked:
            raise ConfigError(
                f"the run has this piece from another command, take another file: piece={piece.name} "
                f"then={part.get('asked')} now={piece.asked}"
            )
    found: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for turn in run.turns:
        if turn["part"] in parts and not turn["void"]:
            found[turn["workload"]].add((turn["part"], turn["round"]))
    return {workload: len(rounds) for workload, rounds in found.items()}
