"""Plans: a TOML file of commands that run one after the other into one run file, without repeating finished ones.

Invariants:
- a piece is an ordinary command line, which can also be run alone;
- all pieces are validated before the first runs;
- an interrupted run continues only with the same commands.
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
    says: str  # its purpose
    arguments: tuple[str, ...]

    @property
    def asked(self) -> str:
        """The arguments as text; parts of a run file with others do not count as this piece."""
        return shlex.join(self.arguments)


def read(path: Path, more: Sequence[str] = ()) -> list[Piece]:
    """Read a plan; append the arguments `more` to each piece. Raises ConfigError."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the plan cannot be read: file={path} {error}") from error
    pieces = content.pop("piece", None)
    if content or not isinstance(pieces, list) or not pieces:
        raise ConfigError(f"a plan consists of [[piece]] tables and nothing else: file={path.name}")
    found = [_piece(piece, path.name, more) for piece in pieces]
    twice = [name for name, count in Counter(piece.name for piece in found).items() if count > 1]
    if twice:
        raise ConfigError(f"two pieces have the same name: file={path.name} name={twice[0]}")
    return found


def _piece(fields: object, where: str, more: Sequence[str]) -> Piece:
    keys = {"name", "says", "run"}
    if not isinstance(fields, dict) or set(fields) != keys or not all(isinstance(fields[key], str) for key in keys):
        raise ConfigError(f"a piece needs the strings name, says and run: file={where} piece={fields!r:.80}")
    try:
        arguments = (*shlex.split(fields["run"]), *more)
    except ValueError as error:
        raise ConfigError(f"run is not a command line: file={where} piece={fields['name']} {error}") from error
    for word in arguments:
        if word.partition("=")[0] in _FORBIDDEN:
            raise ConfigError(f"{word} is not allowed in a piece: file={where} piece={fields['name']}")
    return Piece(fields["name"], fields["says"], arguments)


def rounds_done(run: Run, piece: Piece) -> dict[str, int]:
    """Number of good rounds of a piece, by workload. Raises ConfigError if the run's piece had other arguments."""
    parts = {number: part for number, part in enumerate(run.parts) if part.get("piece") == piece.name}
    for part in parts.values():
        if part.get("asked") != piece.asked:
            raise ConfigError(
                f"the run file has this piece with other arguments, use another file: piece={piece.name} "
                f"then={part.get('asked')} now={piece.asked}"
            )
    found: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for turn in run.turns:
        if turn["part"] in parts and not turn["void"]:
            found[turn["workload"]].add((turn["part"], turn["round"]))
    return {workload: len(rounds) for workload, rounds in found.items()}
