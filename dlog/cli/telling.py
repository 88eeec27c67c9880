"""How commands speak: results as text for a person or JSON for a program, errors with what to do next.

The law of this file: a result that cannot be written ends the command (OutputLostError, which main.py makes an exit
code of); what is said on stderr never does, for nothing is undone because nobody hears of it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import click

from dlog.errors import (
    BY_CODE,
    ClusterNotFoundError,
    ConfigError,
    ConnectionLostError,
    DamagedError,
    DLogError,
    EndOfStreamError,
    EntryUnreadableError,
    InvalidRequestError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    MetadataWentBackError,
    NotEnoughBookiesError,
    NotReadyError,
    OverCapacityError,
    OwnedElsewhereError,
    RecordTooLargeError,
    RequestTimeoutError,
    StreamExistsError,
    StreamNotFoundError,
    TruncatedError,
    TxidOutOfOrderError,
    UnavailableError,
)
from dlog.io.file_errors import is_misuse, what_happened, what_to_do

EXIT_OK, EXIT_FAILED, EXIT_MISUSED = 0, 1, 2

#: what to do next, by the most particular class that is listed
_NEXT: dict[type[DLogError], str] = {
    StreamNotFoundError: "`dlog ls` lists the streams, `dlog create NAME` makes one",
    StreamExistsError: "use it as it is, or choose another name",
    EndOfStreamError: "the stream is sealed for good; append to another one",
    RecordTooLargeError: "split the record, or keep it elsewhere and append where it lies",
    TruncatedError: "read from a later place, or --from-start for the first record there is",
    LedgerNotFoundError: "`dlog ledger ls` lists the ledgers",
    NotEnoughBookiesError: "`dlog bookie ls` shows who is there; start more, or use a smaller --ensemble",
    MetadataUnavailableError: "check that ZooKeeper runs and can be reached; `dlog cluster status` asks it",
    MetadataWentBackError: "bring the newest ZooKeeper data back; docs/operations.md, `metadata.went_back`",
    EntryUnreadableError: "`dlog bookie ls` shows which bookies are there; start those that are missing",
    NotReadyError: "try again in a moment; `dlog owners` shows who serves what",
    OverCapacityError: "try again in a moment; too much waits there already",
    OwnedElsewhereError: "try again in a moment; `dlog owners` shows who serves what",
    ClusterNotFoundError: "`dlog cluster init` makes one on this ZooKeeper",
    RequestTimeoutError: "try again; `dlog cluster status` shows which parts answer",
    ConnectionLostError: "try again; `dlog owners` shows who serves what",
    UnavailableError: "start a cluster with `dlog up`, or say where one is with --connect or DLOG_CONNECT",
    DamagedError: "`dlog ledger verify LEDGER` shows which replica is damaged",
}

#: the command was right, and what it is about is not (or no longer) so
_STATE = (StreamNotFoundError, StreamExistsError, TxidOutOfOrderError, ClusterNotFoundError)


class CommandError(DLogError):
    """An error of a command itself, with its own advice."""

    next_step: str

    def __init__(self, message: str, next_step: str, *, misused: bool = True) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.misused = misused


class FileRefusedError(CommandError):
    """The system refuses something with a file or directory that the command needs."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(what_happened(cause), what_to_do(cause), misused=is_misuse(cause))


class OutputLostError(CommandError):
    """Standard output takes no more: its reader has enough (`closed`), or there is no room for it."""

    def __init__(self, cause: OSError) -> None:
        self.closed = cause.errno == errno.EPIPE
        why = (cause.strerror or str(cause)).lower()
        super().__init__(f"cannot write the output: {why}", "make room where it goes", misused=False)


class StoppedError(CommandError):
    """A signal ended the command before it was known whether what it asked for was done."""

    def __init__(self, message: str, next_step: str, *, outcome_unknown: bool = True) -> None:
        super().__init__(message, next_step, misused=False)
        self.outcome_unknown = outcome_unknown


class Changing(click.Command):
    """A command that changes something. when_unknown: what a person does when nobody knows whether it was done.

    A signal ends it with StoppedError, which says the same.
    """

    def __init__(self, *given: Any, when_unknown: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.when_unknown = when_unknown

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _interrupted_by_any_signal():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise StoppedError("stopped before the answer came", self.when_unknown) from None
        except BaseException as error:
            for leaf in leaves(error):
                if isinstance(leaf, DLogError) and leaf.outcome_unknown and leaf.next_step is None:
                    leaf.next_step = self.when_unknown
            raise


#: signals that ask a command to end; one that whoever started it had ignored stays ignored (nohup, a job of a script)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ending_signals() -> list[signal.Signals]:
    """Those that may end this process."""
    return [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def _interrupted_by_any_signal() -> Iterator[None]:
    """In here every signal that asks for the end does it as Ctrl-C does: by KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ending_signals()}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, and of the groups in it; of any other error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


@contextmanager
def output() -> Iterator[None]:
    """What writes to standard output does it in here. Raises OutputLostError."""
    try:
        yield
    except OSError as error:
        raise OutputLostError(error) from None


def next_step(error: DLogError) -> str | None:
    """What a person does about it."""
    if error.next_step is not None:
        return error.next_step
    for cls in type(error).__mro__:
        if cls in _NEXT:
            return _NEXT[cls]
    return None


def exit_code(error: DLogError) -> int:
    """2 when the command was misused, 1 when it failed."""
    if isinstance(error, CommandError):
        return EXIT_MISUSED if error.misused else EXIT_FAILED
    if isinstance(error, _STATE):
        return EXIT_FAILED
    return EXIT_MISUSED if isinstance(error, InvalidRequestError | ConfigError) else EXIT_FAILED


def tell_error(error: DLogError | str, *, kind: str = "", as_json: bool = False) -> int:
    """Say it on stderr; returns the exit code."""
    if isinstance(error, str):
        message, step, code = error, None, EXIT_MISUSED
        told: dict[str, Any] = {"kind": kind, "message": message}
    else:
        message, step, code = error.message, next_step(error), exit_code(error)
        named = BY_CODE.get(error.code, type(error)) if type(error) is DLogError else type(error)
        told = {"kind": named.__name__, "code": error.code, "message": message}
        if error.outcome_unknown:
            told["outcome_unknown"] = True
    if as_json:
        if step:
            told["next"] = step
        note(json.dumps({"error": told}))
    else:
        note(f"dlog: {message}" + (f"\n  next: {step}" if step else ""))
    return code


def say(text: str) -> None:
    """A line of the result. Raises OutputLostError."""
    with output():
        sys.stdout.write(text + "\n")


def say_bytes(data: bytes) -> None:
    """Bytes of the result, handed on at once. Raises OutputLostError."""
    with output():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def note(text: str) -> None:
    """A line about the work; stderr, so that results stay clean. Lost, if stderr takes nothing."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def drop(stream: IO[str]) -> None:
    """Let nothing be flushed at exit into what takes nothing."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def say_json(value: Any) -> None:
    """A result for programs, one line. Raises OutputLostError."""
    say(json.dumps(value, separators=(",", ":"), default=str))


def say_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(head))]
    for row in (list(head), *cells):
        line = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        say(line.rstrip())


def confirm(question: str, without: str) -> None:
    """Ask at the terminal, and abort unless the answer is yes. Raises CommandError where nobody can be asked.

    without: what cannot be asked then, for the message.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"nobody can be asked here {without}: not a terminal", "add --yes")
    click.confirm(question, abort=True, err=True)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`, which every command has; `dlog --json COMMAND` means the same."""

    def given(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        return value or bool(ctx.find_root().params.get("as_json"))

    return click.option("--json", "as_json", is_flag=True, callback=given, help="Results and errors as JSON.")(command)


def size_text(size: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes everything")


def dlsn_text(triple: Sequence[int] | None) -> str:
    """A DLSN from its wire form."""
    return ":".join(map(str, triple)) if triple else "-"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").isdigit()
