"""Entry point of the `dlog` command: runs a subcommand, reports errors, sets the exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from dlog.cli.output import (
    EXIT_FAILED,
    EXIT_MISUSED,
    EXIT_OK,
    CommandError,
    FileRefusedError,
    OutputLostError,
    drop,
    leaves,
    note,
    output,
    print_error,
)
from dlog.errors import DLogError
from dlog.io.file_errors import names_file
from dlog.io.output_stream import waiting_output

_COMMANDS = {
    "up": "dlog.cli.up",
    "create": "dlog.cli.streams",
    "alter": "dlog.cli.streams",
    "append": "dlog.cli.append",
    "read": "dlog.cli.read",
    "ls": "dlog.cli.streams",
    "show": "dlog.cli.streams",
    "truncate": "dlog.cli.streams",
    "seal": "dlog.cli.streams",
    "delete": "dlog.cli.streams",
    "owners": "dlog.cli.streams",
    "explain": "dlog.cli.explain",
    "ledger": "dlog.cli.ledgers",
    "object": "dlog.cli.object_commands",
    "bookie": "dlog.cli.bookies",
    "write-proxy": "dlog.cli.servers",
    "read-proxy": "dlog.cli.servers",
    "recovery": "dlog.cli.servers",
    "sink": "dlog.cli.sinks",
    "cluster": "dlog.cli.cluster",
    "pipeline": "dlog.cli.pipeline",
    "region": "dlog.cli.regions",
}


class _Commands(click.Group):
    """Imports the module of a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: Any = getattr(importlib.import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `dlog up` in one terminal; the other commands in the same directory find it. "
    "From elsewhere, name the cluster with --connect dlog://host:port or DLOG_CONNECT.",
)
@click.version_option(package_name="dlogd", prog_name="dlog")
@click.option("--json", "as_json", is_flag=True, help="Print results and errors as JSON.")
def dlog(as_json: bool) -> None:
    """Manage, write and read streams of dlog, a replicated, durable, ordered log service."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors that a user can cause are printed without a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    return run_flushed(lambda: _run(given, as_json), as_json=as_json)


def run_flushed(command: Callable[[], int], *, as_json: bool = False) -> int:
    """Run `command` and flush its output; returns the exit code of the process.

    A closed pipe ends the command without failure (exit 0): its reader wants no more. Output that cannot be written
    for another reason is a failure (exit 1), with a message.
    """
    if sys.stderr is None:  # closed by the calling process: messages are dropped
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    if sys.stdout is None:
        return print_error(CommandError("standard output is closed", "redirect it to a file or /dev/null"))
    with waiting_output():
        return _run_flushed(command, as_json)


def _run_flushed(command: Callable[[], int], as_json: bool) -> int:
    streams = sys.stdout, sys.stderr
    try:
        code = command()
        with output():
            sys.stdout.flush()
        return code
    except OutputLostError as error:
        lost = error
    except SystemExit:
        if sys.stdout is streams[0]:
            raise
        # click met a closed pipe while it printed text of its own (--help): it replaced both streams, to exit with 1
        lost = OutputLostError(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
        sys.stdout, sys.stderr = streams
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        lost = OutputLostError(error)  # while click printed text of its own
    except KeyboardInterrupt:  # while the flush waited for the reader
        drop(sys.stdout)
        return EXIT_FAILED
    drop(sys.stdout)
    return EXIT_OK if lost.closed else print_error(lost, as_json=as_json)


def _run(given: list[str], as_json: bool) -> int:
    try:
        result = dlog.main(args=given, prog_name="dlog", standalone_mode=False)
    except click.exceptions.Abort:
        note("stopped")
        return EXIT_FAILED
    except click.UsageError as error:
        if as_json:
            print_error(error.format_message(), kind="UsageError", as_json=True)
        else:
            words = io.StringIO()
            error.show(words)
            note(words.getvalue().rstrip())
        return EXIT_MISUSED
    except click.ClickException as error:
        print_error(error.format_message(), kind=type(error).__name__, as_json=as_json)
        return EXIT_MISUSED
    except OutputLostError:
        raise
    except DLogError as error:
        return print_error(error, as_json=as_json)
    except OSError as error:
        explained = _explained(error)
        if not isinstance(explained, DLogError):
            raise
        return print_error(explained, as_json=as_json)
    except BaseExceptionGroup as group:
        found = [_explained(error) for error in leaves(group)]
        errors = [error for error in found if isinstance(error, DLogError)]
        if len(errors) < len(found):
            raise
        for leaf in errors:
            if isinstance(leaf, OutputLostError):
                raise leaf from None
        return print_error(errors[0], as_json=as_json)
    except KeyboardInterrupt:
        return EXIT_FAILED
    return result if isinstance(result, int) else EXIT_OK


def _explained(error: BaseException) -> BaseException:
    """An OSError as an error of the command, if it is about a file or the working directory; else the error itself."""
    if isinstance(error, OSError) and names_file(error):
        return FileRefusedError(error)
    if isinstance(error, FileNotFoundError) and _is_working_directory_gone():
        return CommandError(
            "the working directory was deleted or moved away", "change into a directory that exists with `cd`"
        )
    return error


def _is_working_directory_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
