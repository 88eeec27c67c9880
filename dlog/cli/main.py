"""`dlog`: the commands, found when they are called."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from dlog.cli.telling import EXIT_FAILED, EXIT_MISUSED, EXIT_OK, CommandError, tell_error
from dlog.errors import DLogError

_COMMANDS = {
    "up": "dlog.cli.up",
    "create": "dlog.cli.streams",
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
    "bookie": "dlog.cli.bookies",
    "cluster": "dlog.cli.cluster",
}


class _Commands(click.Group):
    """Imports a command's file when it is called, so that none pays for the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: Any = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `dlog up` in one terminal; the other commands in the same directory find it. "
    "Elsewhere say where the cluster is: --connect dlog://host:port or DLOG_CONNECT.",
)
@click.version_option(package_name="dlogd", prog_name="dlog")
@click.option("--json", "as_json", is_flag=True, help="Results and errors of the command as JSON.")
def dlog(as_json: bool) -> None:
    """A replicated, durable, ordered log: many streams of records on a cluster of bookies and proxies."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. Every error a person can cause leaves as a message, never a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    if sys.stderr is None:  # closed by who called us: there is nobody to tell
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    if sys.stdout is None:
        return tell_error(CommandError("there is no standard output here", "redirect it, to a file or /dev/null"))
    return _flushed(_run(given, as_json), as_json)


def _flushed(code: int, as_json: bool) -> int:
    """What was said has left, or the command has failed; a reader that has enough is no failure."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        why = (error.strerror or str(error)).lower()
        return tell_error(CommandError(f"cannot write the output: {why}", "make room", misused=False), as_json=as_json)
    return code


def _drop_output() -> None:
    """Let nothing be flushed at exit into what does not take it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(given: list[str], as_json: bool) -> int:
    try:
        result = dlog.main(args=given, prog_name="dlog", standalone_mode=False)
    except click.exceptions.Abort:
        sys.stderr.write("stopped\n")
        return EXIT_FAILED
    except click.UsageError as error:
        if as_json:
            tell_error(error.format_message(), kind="UsageError", as_json=True)
        else:
            error.show()
        return EXIT_MISUSED
    except click.ClickException as error:
        tell_error(error.format_message(), kind=type(error).__name__, as_json=as_json)
        return EXIT_MISUSED
    except DLogError as error:
        return tell_error(error, as_json=as_json)
    except BrokenPipeError:
        return EXIT_OK  # whoever reads us has enough; click hears of it too
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return tell_error(CommandError("cannot write the output: no room", "make room", misused=False), as_json=as_json)
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        told = [error for error in leaves if isinstance(error, DLogError)]
        if len(told) == len(leaves):
            return tell_error(told[0], as_json=as_json)
        raise
    except KeyboardInterrupt:
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


if __name__ == "__main__":
    sys.exit(main())
