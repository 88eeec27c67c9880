"""`dlog bookie run`, `dlog write-proxy run`, `dlog read-proxy run`, `dlog recovery run`: the servers, one process each.

They replace this process, so that signals, exit code and output are the server's own.
"""

from __future__ import annotations

import os
import sys

import click

from dlog.io.children import module_environment, python_module

_PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}


def server_command(module: str, what: str) -> click.Command:
    """The command `run` of a server's group; every argument goes to the server, --help too."""

    @click.command("run", context_settings=_PASSED_ON, help=f"Run {what} in the foreground. Options: --help.")
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]")
    def run(arguments: tuple[str, ...]) -> None:
        sys.stdout.flush()
        command = python_module(module, *arguments)
        os.execve(command[0], command, module_environment())

    return run


@click.group("write-proxy")
def write_proxy() -> None:
    """Run a write proxy."""


@click.group("read-proxy")
def read_proxy() -> None:
    """Run a read proxy."""


@click.group()
def recovery() -> None:
    """Run the process that copies to other bookies what a lost bookie held."""


write_proxy.add_command(server_command("proxies.write", "a write proxy"))
read_proxy.add_command(server_command("proxies.read", "a read proxy"))
recovery.add_command(server_command("actors.recovery", "an auditor and workers that repair ledgers"))
