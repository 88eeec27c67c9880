"""The command line of a server, with a help text that arrives whole.

argparse drops what a full non-blocking pipe does not accept, and exits with 0 on a full disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from dlog.io.output_stream import waiting_output


class ServerArgumentParser(argparse.ArgumentParser):
    """A parser without abbreviated flags. Its help waits for a slow reader; exit code 1 if it cannot be written."""

    def __init__(self, prog: str, description: str | None = None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse_flags(self, arguments: Sequence[str] | None) -> dict[str, Any]:
        """The flags by name. Raises SystemExit for --help (0, or 1 if it cannot be written) and a wrong flag (2)."""
        with waiting_output():
            return vars(self.parse_args(arguments))

    def print_help(self, file: Any = None) -> None:
        """Write the help text. A closed pipe is no failure: its reader wants no more."""
        stream = sys.stdout if file is None else file
        if stream is None:
            return
        try:
            stream.write(self.format_help())
            stream.flush()
        except BrokenPipeError:
            _drop(stream)
        except OSError as error:
            _drop(stream)
            why = (error.strerror or str(error)).lower()
            step = "free disk space, or redirect the output elsewhere"
            self.exit(1, f"dlog: cannot write the output: {why}\n  next: {step}\n")


def _drop(stream: Any) -> None:
    """Point a broken stream to /dev/null, so that its flush at exit succeeds."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
