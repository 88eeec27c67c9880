"""Output of commands: results as text or JSON on stdout, errors with the next step on stderr.

Invariants:
- a result that cannot be written ends the command (OutputLostError; main.py sets the exit code);
- a failure to write to stderr does not.
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
    PositionBeyondEndError,
    RecordTooLargeError,
    RequestTimeoutError,
    StreamExistsError,
    StreamNotFoundError,
    TruncatedError,
    TxidOutOfOrderError,
    UnavailableError,
)
from dlog.io.file_errors import describe_error, is_misuse, remedy_for

EXIT_OK, EXIT_FAILED, EXIT_MISUSED = 0, 1, 2

#: next step by error class; the most specific class listed wins
_NEXT: dict[type[DLogError], str] = {
    StreamNotFoundError: "`dlog ls` lists the streams, `dlog create NAME` creates one",
    StreamExistsError: "use the existing stream, or choose another name",
    EndOfStreamError: "the stream is sealed for good; append to another one",
    RecordTooLargeError: "split the record, or store it elsewhere and append a reference to it",
    TruncatedError: "read from a later DLSN, or --from-start for the first record that is kept",
    LedgerNotFoundError: "`dlog ledger ls` lists the ledgers",
    NotEnoughBookiesError: "`dlog bookie ls` lists the bookies; start more, or use a smaller ensemble",
    MetadataUnavailableError: "check that ZooKeeper runs and is reachable; test it with `dlog cluster status`",
    MetadataWentBackError: "restore the newest ZooKeeper data; docs/operations.md, `metadata.went_back`",
    EntryUnreadableError: "`dlog bookie ls` lists the bookies; start those that are missing",
    NotReadyError: "try again in a moment; `dlog owners` lists the owners of streams",
    OverCapacityError: "try again in a moment; the proxy has too many pending requests",
    OwnedElsewhereError: "try again in a moment; `dlog owners` lists the owners of streams",
    ClusterNotFoundError: "create one on this ZooKeeper with `dlog cluster init`",
    RequestTimeoutError: "try again; `dlog cluster status` lists the registered processes",
    ConnectionLostError: "try again; `dlog owners` lists the owners of streams",
    UnavailableError: "start a cluster with `dlog up`, or name one with --connect or DLOG_CONNECT",
    DamagedError: "`dlog ledger verify LEDGER` checks a ledger, `dlog pipeline audit` segments in every store",
}

#: errors about the state of the cluster, not about the usage of the command: exit 1
_STATE = (StreamNotFoundError, StreamExistsError, PositionBeyondEndError, TxidOutOfOrderError, ClusterNotFoundError)


class CommandError(DLogError):
    """An error of a command itself, with its own next step. misused: exit 2 instead of 1."""

    next_step: str

    def __init__(self, message: str, next_step: str, *, misused: bool = True) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.misused = misused


class FileRefusedError(CommandError):
    """The operating system refused access to a file or directory that the command needs."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(describe_error(cause), remedy_for(cause), misused=is_misuse(cause))


class OutputLostError(CommandError):
    """Standard output cannot be written: the pipe is closed (`closed`), or the disk is full (`full`)."""

    def __init__(self, cause: OSError) -> None:
        self.closed = cause.errno == errno.EPIPE
        self.full = cause.errno in (errno.ENOSPC, errno.EDQUOT)
        why = (cause.strerror or str(cause)).lower()
        super().__init__(
            f"cannot write the output: {why}", "free disk space, or redirect the output elsewhere", misused=False
        )


class StoppedError(CommandError):
    """A signal ended the command before the outcome of its request was known."""

    def __init__(self, message: str, next_step: str, *, outcome_unknown: bool = True) -> None:
        super().__init__(message, next_step, misused=False)
        self.outcome_unknown = outcome_unknown


class MutatingCommand(click.Command):
    """A command that changes state. when_unknown: the next step if its outcome is unknown.

    A signal ends it with StoppedError, which names the same next step.
    """

    def __init__(self, *given: Any, when_unknown: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.when_unknown = when_unknown

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _interrupted_by_any_signal():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise StoppedError("stopped before the reply came", self.when_unknown) from None
        except BaseException as error:
            for leaf in leaves(error):
                if isinstance(leaf, DLogError) and leaf.outcome_unknown and leaf.next_step is None:
                    leaf.next_step = self.when_unknown
            raise


#: signals that end a command; one that the parent process set to be ignored stays ignored (nohup, background jobs)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ending_signals() -> list[signal.Signals]:
    """The signals of `_ENDING` that are not ignored."""
    return [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def _interrupted_by_any_signal() -> Iterator[None]:
    """Within this context every ending signal raises KeyboardInterrupt, as Ctrl-C does; `stopping.run` has handlers of
    its own, for a loop."""
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
    """The errors in a group and in its nested groups; for any other error, the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


@contextmanager
def output() -> Iterator[None]:
    """Context for writes to standard output: turns OSError into OutputLostError."""
    try:
        yield
    except OSError as error:
        raise OutputLostError(error) from None


def next_step(error: DLogError) -> str | None:
    """The next step for the user, if one is known."""
    if error.next_step is not None:
        return error.next_step
    for cls in type(error).__mro__:
        if cls in _NEXT:
            return _NEXT[cls]
    return None


def exit_code(error: DLogError) -> int:
    """2 for wrong usage, 1 for a failure."""
    if isinstance(error, CommandError):
        return EXIT_MISUSED if error.misused else EXIT_FAILED
    if isinstance(error, _STATE):
        return EXIT_FAILED
    return EXIT_MISUSED if isinstance(error, InvalidRequestError | ConfigError) else EXIT_FAILED


def print_error(error: DLogError | str, *, kind: str = "", as_json: bool = False) -> int:
    """Print the error on stderr; returns the exit code."""
    if isinstance(error, str):
        message, step, code = error, None, EXIT_MISUSED
        fields: dict[str, Any] = {"kind": kind, "message": message}
    else:
        message, step, code = error.message, next_step(error), exit_code(error)
        named = BY_CODE.get(error.code, type(error)) if type(error) is DLogError else type(error)
        fields = {"kind": named.__name__, "code": error.code, "message": message}
        if error.outcome_unknown:
            fields["outcome_unknown"] = True
    if as_json:
        if step:
            fields["next"] = step
        note(json.dumps({"error": fields}))
    else:
        note(f"dlog: {message}" + (f"\n  next: {step}" if step else ""))
    return code


def say(text: str) -> None:
    """Print a line of the result. Raises OutputLostError."""
    with output():
        sys.stdout.write(text + "\n")


def say_bytes(data: bytes) -> None:
    """Write bytes of the result and flush. Raises OutputLostError."""
    with output():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def flush() -> None:
    """Write what `say` has buffered: what follows may take long. Raises OutputLostError."""
    with output():
        sys.stdout.flush()


def note(text: str) -> None:
    """Print a message on stderr; dropped if that cannot be written."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def drop(stream: IO[str]) -> None:
    """Point a broken stream to /dev/null, so that the flush at exit succeeds."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def say_json(value: Any) -> None:
    """Print a result as one line of JSON. Raises OutputLostError."""
    say(json.dumps(value, separators=(",", ":"), default=str))


def say_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; numbers are right-aligned. Raises OutputLostError."""
    for line in table_lines(head, rows):
        say(line)


def table_lines(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The lines of a table, as `say_table` prints them."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(head))]
    for row in (list(head), *cells):
        line = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        yield line.rstrip()


def confirm(question: str, without: str) -> None:
    """Ask at the terminal, and abort unless the answer is yes. Raises CommandError without a terminal.

    without: the question as a clause, for that error's message.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"cannot ask {without}: not a terminal", "add --yes to confirm")
    click.confirm(question, abort=True, err=True)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--json`; `dlog --json COMMAND` means the same."""

    def given(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        return value or bool(ctx.find_root().params.get("as_json"))

    return click.option("--json", "as_json", is_flag=True, callback=given, help="Print results and errors as JSON.")(
        command
    )


def size_text(size: float) -> str:
    """A size with a unit, such as 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit accepts every size")


def dlsn_text(triple: Sequence[int] | None) -> str:
    """A DLSN as text, from its wire form; "-" for None."""
    return ":".join(map(str, triple)) if triple else "-"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").isdigit()
