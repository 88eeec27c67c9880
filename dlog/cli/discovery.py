"""Selects the cluster that a command uses: a named one, or the `dlog up` that runs for this directory.

Invariants:
- A run file counts only while its `dlog up` runs, which holds the lock beside it.
- The first source that names a cluster wins: flags (--connect, --zookeeper, --dir), the environment (DLOG_CONNECT,
  DLOG_ZOOKEEPER, DLOG_DIR), the `dlog up` of the working directory: its `.dlog`, itself, its other subdirectories.
- Proxies and ZooKeeper come from one source. A source that names two clusters is an error, and so is a namespace that
  the selected `dlog up` does not have.
- A file that the user may not read is an error, never taken for a cluster that does not run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlog.cli.output import CommandError, json_option
from dlog.cli.parameters import NON_EMPTY_TEXT
from dlog.client.address import parse_target
from dlog.io.file_errors import describe_error, is_misuse, named_errors, owner_of
from dlog.io.zookeeper_hosts import is_same_ensemble

if TYPE_CHECKING:
    from dlog.io.stores import StoresOptions

RUN_FILE = "dlog.run.json"
LOCK_FILE = "dlog.lock"
DEFAULT_DIR = ".dlog"
NAMESPACE = "/dlog"
_START = "start a cluster with `dlog up`, or name one with --connect dlog://host:port or DLOG_CONNECT"


@dataclass(frozen=True, slots=True)
class RunningPart:
    """One process of a running cluster."""

    role: str
    id: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCluster:
    """The content of a run file. Addresses are host:port. file_directory: of the file store. kafka_topics: address of
    the topics with streams on Kafka, or empty. objects_root: of the store s3-direct, or empty."""

    directory: str
    pid: int
    zookeeper: str
    namespace: str
    parts: list[RunningPart] = field(default_factory=list)
    file_directory: str = ""
    kafka_topics: str = ""
    objects_root: str = ""

    @property
    def connect(self) -> str:
        """The target for clients: write proxies first."""
        addresses = [p.address for role in ("write", "read") for p in self.parts if p.role == role]
        return "dlog://" + ",".join(addresses)

    def write(self) -> None:
        """Write the run file into its directory, atomically."""
        path = Path(self.directory) / RUN_FILE
        fresh = path.with_suffix(".new")
        with named_errors(fresh):
            fresh.write_text(json.dumps({**asdict(self), "connect": self.connect}, indent=1) + "\n")
        fresh.replace(path)


def read_run_file(directory: Path) -> RunningCluster | None:
    """The cluster that runs for this directory, or None. Raises CommandError if its files cannot be read."""
    try:
        with _readable(directory):
            text = (directory / RUN_FILE).read_text()
        content = json.loads(text)
        parts = [RunningPart(**part) for part in content["parts"]]
        if not all(type(text) is str for part in parts for text in (part.role, part.address)):
            return None
        running = RunningCluster(
            directory=str(directory.absolute()),
            pid=int(content["pid"]),
            zookeeper=content["zookeeper"],
            namespace=content["namespace"],
            parts=parts,
            file_directory=str(content.get("file_directory", "")),
            kafka_topics=str(content.get("kafka_topics", "")),
            objects_root=str(content.get("objects_root", "")),
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return running if is_locked(directory) else None


def is_locked(directory: Path) -> bool:
    """Whether a `dlog up` runs for this directory. Raises CommandError if its lock cannot be read."""
    try:
        with _readable(directory), (directory / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False


class _UnreadableError(CommandError):
    """The user may not read the files of a directory in which a cluster may run."""


@contextmanager
def _readable(directory: Path) -> Iterator[None]:
    """Turns an OSError about a file of the directory into _UnreadableError, except that it is absent or locked."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, BlockingIOError):
        raise
    except OSError as error:
        owner = owner_of(Path(error.filename or directory))
        raise _UnreadableError(
            f"cannot see whether a `dlog up` runs for {directory}: {describe_error(error)}",
            f"run the command as {owner}, who owns the path, or get the right to read it and to search its directory; "
            "or name the cluster with --connect or --zookeeper",
            misused=is_misuse(error),
        ) from None


def find_running(directory: str | None) -> RunningCluster | None:
    """The cluster that runs for `directory`, or, if that is None, for the working directory: in its `.dlog`, in itself,
    or in another subdirectory. Raises CommandError if clusters run in several of these, or if none is found and files
    cannot be read."""
    if directory is not None:
        return read_run_file(Path(directory))
    here = Path.cwd()
    for folder in (here / DEFAULT_DIR, here):
        running = read_run_file(folder)
        if running is not None:
            return running
    found: list[RunningCluster] = []
    unreadable: _UnreadableError | None = None
    for folder in _subdirectories(here):
        try:
            running = read_run_file(folder)
        except _UnreadableError as error:
            unreadable = unreadable or error
            continue
        if running is not None:
            found.append(running)
    if len(found) > 1:
        names = ", ".join(Path(running.directory).name for running in found)
        raise CommandError(f"several clusters run in subdirectories of {here}: {names}", "name one with --dir DIR")
    if not found and unreadable is not None:
        raise unreadable
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The selected cluster. connect and zookeeper are empty if they are not named and the command does not need
    them; file_directory, kafka_topics and objects_root are known of a running `dlog up`."""

    connect: str
    zookeeper: str
    namespace: str
    file_directory: str = ""
    kafka_topics: str = ""
    objects_root: str = ""

    def stores(self) -> StoresOptions:
        """How its segments are reached: as a running `dlog up` says, and as the environment does for what that says
        nothing of. Raises ConfigError."""
        from dlog.io.stores import load_stores

        known = {
            "file.directory": self.file_directory,
            "objects.root": self.objects_root,
            "kafka.topics": self.kafka_topics,
        }
        return load_stores(None, {option: value for option, value in known.items() if value})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What one source, the flags or the environment, names."""

    names: tuple[str, str, str, str]  # of connect, zookeeper, directory and namespace, as a user writes them
    connect: str
    zookeeper: str
    directory: str
    namespace: str

    @property
    def named(self) -> str:
        """The names of the values that it has, for a message."""
        values = (self.connect, self.zookeeper, self.directory)
        return " and ".join(name for name, value in zip(self.names[:3], values, strict=True) if value)


def find_cluster(
    *,
    connect: str | None = None,
    hosts: str | None = None,
    namespace: str | None = None,
    directory: str | None = None,
    need_proxies: bool = False,
    need_zookeeper: bool = False,
) -> Cluster:
    """The cluster named by the flags (the arguments), else by the environment, else by the working directory.

    Proxies and ZooKeeper come from the same source, so that no command uses the proxies of one cluster and the
    ZooKeeper of another. A namespace of the environment does not count with a directory that a flag names. Raises
    CommandError if no source names a cluster, or if the source lacks what the command needs or names two clusters.
    """
    flags = _Source(
        names=("--connect", "--zookeeper", "--dir", "--namespace"),
        connect=connect or "",
        zookeeper=hosts or "",
        directory=directory or "",
        namespace=namespace or "",
    )
    variables = _Source(
        names=("DLOG_CONNECT", "DLOG_ZOOKEEPER", "DLOG_DIR", "DLOG_NAMESPACE"),
        connect=os.environ.get("DLOG_CONNECT", ""),
        zookeeper=os.environ.get("DLOG_ZOOKEEPER", ""),
        directory=os.environ.get("DLOG_DIR", ""),
        namespace=os.environ.get("DLOG_NAMESPACE", ""),
    )
    source = next((each for each in (flags, variables) if each.named), None)
    if source is not None and source.connect:
        parse_target(source.connect)  # raises InvalidRequestError with an example
    if source is None:
        running = find_running(None)
        if running is None:
            raise _no_cluster(need_zookeeper and not need_proxies)
    elif source.directory:
        running = _running_of(source)
    else:
        known = flags if flags.namespace else variables
        return _named(source, known, need_proxies=need_proxies, need_zookeeper=need_zookeeper)
    return _cluster_of(running, variables if source is not flags and not flags.namespace else flags)


def _cluster_of(running: RunningCluster, given: _Source, connect: str = "") -> Cluster:
    """The cluster of a `dlog up`. given: the source whose namespace counts, if it names one. Raises CommandError if
    that is not the cluster's."""
    if given.namespace and given.namespace.rstrip("/") != running.namespace:
        raise CommandError(
            f"{given.names[3]}={given.namespace} is not the namespace of the `dlog up` in {running.directory}, "
            f"which has {running.namespace}",
            f"leave it out; for another namespace on that ZooKeeper, give {given.names[1]}={running.zookeeper}, too, "
            f"and no directory",
        )
    return Cluster(
        connect or running.connect,
        running.zookeeper,
        running.namespace,
        running.file_directory,
        running.kafka_topics,
        running.objects_root,
    )


def target(connect: str | None, directory: str | None) -> str:
    """The target for clients. Raises CommandError as find_cluster does."""
    return find_cluster(connect=connect, directory=directory, need_proxies=True).connect


def zookeeper(hosts: str | None, namespace: str | None, directory: str | None) -> tuple[str, str]:
    """ZooKeeper's hosts and the namespace. Raises CommandError as find_cluster does."""
    found = find_cluster(hosts=hosts, namespace=namespace, directory=directory, need_zookeeper=True)
    return found.zookeeper, found.namespace


def _running_of(source: _Source) -> RunningCluster:
    """The cluster of the directory that a source names. Raises CommandError if none runs, or if the source also names
    another one."""
    running = find_running(source.directory)
    if running is None:
        raise CommandError(f"no cluster: no `dlog up` runs for {source.directory} ({source.names[2]})", _START)
    for name, there, is_same in (
        (f"{source.names[0]}={source.connect}", running.connect, _serves(running, source.connect)),
        (f"{source.names[1]}={source.zookeeper}", running.zookeeper, _same_hosts(running.zookeeper, source.zookeeper)),
    ):
        if not is_same:
            raise CommandError(
                f"{source.named} name two clusters: {name} {source.names[2]}={source.directory}, which is {there}",
                "name only one of them",
            )
    return running


def _named(source: _Source, known: _Source, *, need_proxies: bool, need_zookeeper: bool) -> Cluster:
    """The cluster of a source that names no directory. known: the source whose namespace counts. A missing value is
    taken from the `dlog up` of the working directory only if that is the same cluster."""
    connect, hosts = source.connect, source.zookeeper
    if (need_proxies and not connect) or (need_zookeeper and not hosts):
        running = find_running(None)
        if running is not None and _serves(running, connect) and _same_hosts(running.zookeeper, hosts):
            return _cluster_of(running, known, connect)
        missing = source.names[0] if not connect else source.names[1]
        raise CommandError(
            f"{source.named} is given and {missing} is not, and the command needs both: "
            "the proxies and the ZooKeeper of one cluster",
            f"add {missing}, or give neither and use --dir DIR of a running `dlog up`",
        )
    return Cluster(connect, hosts, known.namespace or NAMESPACE)


def _serves(running: RunningCluster, connect: str) -> bool:
    """Whether all addresses of a target are proxies of this cluster; true for an empty target."""
    return not connect or set(parse_target(connect)) <= set(parse_target(running.connect))


def _same_hosts(hosts: str, given: str) -> bool:
    return not given or is_same_ensemble(hosts, given)


def _no_cluster(is_zookeeper: bool) -> CommandError:
    where = f"for {Path.cwd()} (looked in it, its .dlog and its subdirectories)"
    if is_zookeeper:
        return CommandError(
            f"no cluster: no --zookeeper given, and no `dlog up` runs {where}",
            "name ZooKeeper with --zookeeper host:port or DLOG_ZOOKEEPER, or start a cluster with `dlog up`",
        )
    return CommandError(f"no cluster: no `dlog up` runs {where}", _START)


def _subdirectories(here: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(here) as found:
        return sorted(Path(entry.path) for entry in found if entry.is_dir())
    return []


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that uses proxies: `connect` and `directory`, and --json."""
    return _connect_option(_dir_option(json_option(command)))


def zookeeper_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that uses ZooKeeper and bookies: `hosts`, `namespace` and `directory`, and --json."""
    return _zookeeper_option(_dir_option(json_option(command)))


def all_cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that uses all of them."""
    return _connect_option(zookeeper_options(command))


def _connect_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--connect",
        metavar="dlog://HOST:PORT[,...]",
        type=NON_EMPTY_TEXT,
        help="Proxies of the cluster (or set DLOG_CONNECT). Default: the `dlog up` of this directory.",
    )(command)


def _zookeeper_option(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--namespace",
        metavar="PATH",
        type=NON_EMPTY_TEXT,
        help=f"Znode that contains the streams (or set DLOG_NAMESPACE). Default {NAMESPACE}.",
    )(command)
    return click.option(
        "--zookeeper",
        "hosts",
        metavar="HOST:PORT[,...]",
        type=NON_EMPTY_TEXT,
        help="ZooKeeper of the cluster (or set DLOG_ZOOKEEPER). Default: the `dlog up` of this directory.",
    )(command)


def _dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--dir",
        "directory",
        metavar="DIR",
        type=NON_EMPTY_TEXT,
        help="Directory of the running `dlog up` to use (or set DLOG_DIR).",
    )(command)
