"""Which cluster a command means: as told, or the `dlog up` that runs for this directory.

The law of this file: a run file counts only while its `dlog up` lives, which the lock beside it proves. Looked for in
order: --connect, DLOG_CONNECT, --dir, DLOG_DIR, then the working directory itself, its `.dlog` and its other
subdirectories.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from dlog.cli.telling import CommandError, json_option

RUN_FILE = "dlog.run.json"
LOCK_FILE = "dlog.lock"
DEFAULT_DIR = ".dlog"
NAMESPACE = "/dlog"
_START = "start a cluster with `dlog up`, or say where one is with --connect dlog://host:port or DLOG_CONNECT"


@dataclass(frozen=True, slots=True)
class RunningPart:
    """One process of a running cluster."""

    role: str
    id: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What a run file says. Addresses are host:port."""

    directory: str
    pid: int
    zookeeper: str
    namespace: str
    parts: list[RunningPart] = field(default_factory=list)

    @property
    def connect(self) -> str:
        """The target for clients: write proxies first."""
        addresses = [p.address for role in ("write", "read") for p in self.parts if p.role == role]
        return "dlog://" + ",".join(addresses)

    def write(self) -> None:
        """Put the run file into its directory, whole or not at all."""
        path = Path(self.directory) / RUN_FILE
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({**asdict(self), "connect": self.connect}, indent=1) + "\n")
        fresh.replace(path)


def read_run_file(directory: Path) -> Running | None:
    """What runs for this directory, None if nothing does."""
    try:
        told = json.loads((directory / RUN_FILE).read_text())
        parts = [RunningPart(**part) for part in told["parts"]]
        if not all(type(text) is str for part in parts for text in (part.role, part.address)):
            return None
        running = Running(
            directory=str(directory.absolute()),
            pid=int(told["pid"]),
            zookeeper=told["zookeeper"],
            namespace=told["namespace"],
            parts=parts,
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return running if is_locked(directory) else None


def is_locked(directory: Path) -> bool:
    """Whether a `dlog up` lives on this directory."""
    try:
        with (directory / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def find_running(directory: str | None) -> Running | None:
    """What runs for `directory`, or for the working directory if that is None."""
    for place in _places(directory):
        running = read_run_file(place)
        if running is not None:
            return running
    return None


def target(connect: str | None, directory: str | None) -> str:
    """Where clients connect. Raises CommandError that says what to do when nothing is known."""
    if connect:
        return connect
    running = find_running(directory)
    if running is None:
        where = (
            f"for {directory}" if directory else f"for {Path.cwd()} (looked in it, its .dlog and its subdirectories)"
        )
        raise CommandError(f"no cluster: no `dlog up` runs {where}", _START)
    return running.connect


def zookeeper(hosts: str | None, directory: str | None) -> tuple[str, str | None]:
    """ZooKeeper's hosts, and the namespace if a run file says it. Raises CommandError."""
    if hosts:
        return hosts, None
    running = find_running(directory)
    if running is None:
        raise CommandError(
            "no cluster: no --zookeeper given, and no `dlog up` runs for this directory",
            "say where ZooKeeper is with --zookeeper host:port or DLOG_ZOOKEEPER, or start a cluster with `dlog up`",
        )
    return running.zookeeper, running.namespace


def _places(directory: str | None) -> Iterator[Path]:
    if directory:
        yield Path(directory)
        return
    here = Path.cwd()
    yield here / DEFAULT_DIR
    yield here
    with contextlib.suppress(OSError), os.scandir(here) as found:
        for entry in sorted(found, key=lambda e: e.name):
            if entry.is_dir() and (Path(entry.path) / RUN_FILE).exists():
                yield Path(entry.path)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that talks to proxies: `connect` and `directory`, and --json."""
    command = json_option(command)
    command = _dir_option(command)
    return click.option(
        "--connect",
        envvar="DLOG_CONNECT",
        metavar="dlog://HOST:PORT[,...]",
        help="Proxies of the cluster (or DLOG_CONNECT). Default: the `dlog up` of this directory.",
    )(command)


def zookeeper_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that talks to ZooKeeper and bookies: `hosts`, `namespace` and `directory`, and --json."""
    command = json_option(command)
    command = _dir_option(command)
    command = click.option(
        "--namespace", envvar="DLOG_NAMESPACE", metavar="PATH", help=f"Znode of the streams. Default {NAMESPACE}."
    )(command)
    return click.option(
        "--zookeeper",
        "hosts",
        envvar="DLOG_ZOOKEEPER",
        metavar="HOST:PORT[,...]",
        help="ZooKeeper of the cluster (or DLOG_ZOOKEEPER). Default: the `dlog up` of this directory.",
    )(command)


def _dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--dir",
        "directory",
        envvar="DLOG_DIR",
        metavar="DIR",
        help="Directory of the running `dlog up` to use (or DLOG_DIR).",
    )(command)
