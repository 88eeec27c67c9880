"""`dlog up`: runs a whole cluster on this machine until Ctrl-C; the next `dlog up` on the directory finds the data.

Invariants:
- parts start in the order of their dependencies (ZooKeeper, the cluster's root znode, bookies, recovery and proxies),
  but load their code at the same time; they stop in the reverse order, and proxies hand their streams over;
- the plan is changed for good once every part serves (what bookies need: before they start);
- a lock allows one `dlog up` per directory;
- a cluster that serves goes on while the disk is full, though its run file or standard output cannot be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from dlog.cli.discovery import DEFAULT_DIR, LOCK_FILE, RUN_FILE, RunningCluster, RunningPart, read_run_file
from dlog.cli.objects import check_objects
from dlog.cli.output import (
    EXIT_FAILED,
    EXIT_MISUSED,
    EXIT_OK,
    CommandError,
    FileRefusedError,
    OutputLostError,
    json_option,
    output,
    say_json,
)
from dlog.cli.parameters import NON_EMPTY_TEXT
from dlog.cli.parts import ProcessPart, SupervisedProcess, ZooKeeperPart, last_words
from dlog.cli.plan import Plan, UpOptions, check_ports, make_plan, objects_base, plan_for_bookies, read_plan, write_plan
from dlog.cli.screen import Screen, open_screen
from dlog.cli.topics import check_topics
from dlog.errors import DLogError
from dlog.hostport import is_any_host, join_host_port
from dlog.io.bookie_dirs import VERSION
from dlog.io.children import die_with_parent, module_environment, on_signals, python_module
from dlog.io.embedded_zookeeper import HEAP_USABLE_MIN_MIB
from dlog.io.file_errors import describe_error, is_misuse, named_errors, names_file, remedy_for
from dlog.io.kafka_settings import KafkaOptions, parse_topics_address
from dlog.io.settings import load
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.wire.bookie_info import decode_cookie

STOP_PROXIES_S = 20.0
STOP_OTHERS_S = 20.0
_PROXIES = "Number. Default: as before, 2 at first, or one in each region."


@click.command()
@click.option(
    "--dir",
    "directory",
    envvar="DLOG_DIR",
    metavar="DIR",
    type=NON_EMPTY_TEXT,
    default=DEFAULT_DIR,
    show_default=True,
    help="Directory of the cluster's data, logs and plan.",
)
@click.option(
    "--bookies",
    type=click.IntRange(0, 64),
    help="Number of bookies; 0: none, streams lie in Kafka (see --kafka), as objects (see --objects) or in files. "
    "Default: as before, 3 at first.",
)
@click.option(
    "--racks",
    type=click.IntRange(1, 64),
    help="Racks that bookies and proxies are spread over, in each region. Default: as before, one at first.",
)
@click.option(
    "--regions",
    type=click.IntRange(1, 64),
    help="Regions that bookies and proxies are spread over. Default: as before, one at first.",
)
@click.option(
    "--kafka",
    metavar="HOST:PORT[,...]",
    type=NON_EMPTY_TEXT,
    help="Brokers of Kafka, for streams on Kafka; with --bookies 0 new streams lie there. Or file:///path, for topics "
    "in a directory. Default: as before.",
)
@click.option(
    "--objects",
    metavar="ROOT",
    type=NON_EMPTY_TEXT,
    help="Where the stores s3 and s3-direct have their objects, s3://bucket/prefix or file:///path; with --bookies 0 "
    "new streams lie there (s3-direct). Default: as before, `objects` in the directory at first.",
)
@click.option("--write-proxies", type=click.IntRange(1, 64), help=_PROXIES)
@click.option("--read-proxies", type=click.IntRange(1, 64), help=_PROXIES)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Of the first write proxy; others count on from it. Default: free ones.",
)
@click.option("--host", type=NON_EMPTY_TEXT, help="Address to listen on. Default: as before, 127.0.0.1 at first.")
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,...]",
    type=NON_EMPTY_TEXT,
    help="Use this ZooKeeper instead of starting one.",
)
@click.option(
    "--zookeeper-heap-mib",
    type=click.IntRange(min=HEAP_USABLE_MIN_MIB),
    help="JVM heap of the ZooKeeper started here. Default: 1/8 of the memory, 128 to 1024.",
)
@click.option(
    "--namespace", metavar="PATH", type=NON_EMPTY_TEXT, help="Znode that contains the streams. Default /dlog."
)
@click.option(
    "--config", type=click.Path(), metavar="FILE", help="TOML file: [up], [bookie], [write], [read], [recovery]."
)
@click.option(
    "--dirs-moved",
    is_flag=True,
    help="Once after the directory was moved, if it uses another ZooKeeper: start its bookies in their new place.",
)
@json_option
def up(directory: str, config: str | None, dirs_moved: bool, as_json: bool, **flags: object) -> int:
    """Start a whole cluster on this machine: ZooKeeper, bookies, write and read proxies, recovery of lost bookies.

    A process that dies is restarted with the same address. Ctrl-C stops all in order.
    """
    options = load(UpOptions, "up", config, flags)
    files = load(FileStoreOptions, "file", config, {})
    kafka = load(KafkaOptions, "kafka", config, {})
    objects = load(ObjectsOptions, "objects", config, {})
    root = Path(directory)
    if "," in str(root.absolute()) or not str(root.absolute()).isprintable():
        raise CommandError(
            f"the directory's path contains a comma or an unprintable character: dir={str(root.absolute())!r}",
            "choose another one with --dir",
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"cannot create the directory: {(error.strerror or str(error)).lower()}: dir={directory}",
            "choose another one with --dir",
            misused=is_misuse(error),
        ) from None
    with _locked(root):
        (root / RUN_FILE).unlink(missing_ok=True)  # left by a killed `dlog up`; its processes are gone
        old = read_plan(root)
        plan = make_plan(root, options, random.Random(os.urandom(8)))
        check_ports(plan)
        topics = plan.kafka or (parse_topics_address(kafka.topics) if kafka.topics else "")
        check_topics(topics, is_given=bool(options.kafka))
        objects_root = plan.objects or objects.root or _default_objects_root(root)
        check_objects(objects_root, options=objects, is_given=bool(options.objects))
        file_directory = str(Path(files.directory or root / "segments").absolute())
        places = _Places(file_directory, topics, objects_root)
        early = plan_for_bookies(old, plan)
        cluster = _Cluster(root, plan, early, options, config, places, as_json, dirs_moved=dirs_moved)
        return asyncio.run(cluster.run())


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the stores have their segments; empty: not this store."""

    file_directory: str
    kafka_topics: str
    objects_root: str


class _Cluster:
    """Runs the parts of a plan, from start to end."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        plan_for_bookies: Plan,
        options: UpOptions,
        config: str | None,
        places: _Places,
        as_json: bool,
        *,
        dirs_moved: bool = False,
    ) -> None:
        self._directory = directory.absolute()
        self._places = places
        self._plan = plan
        self._dirs_moved = dirs_moved or not plan.zookeeper  # one started here was moved, or copied, with them
        self._plan_for_bookies = plan_for_bookies
        self._config = str(Path(config).absolute()) if config else None
        self._as_json = as_json
        self._logs = self._directory / "logs"
        self._screen: Screen | None = None
        self._stopping = asyncio.Event()
        self._is_up = False
        self._is_announced = False
        self._is_run_file_due = False  # it could not be written
        self._lost: OutputLostError | None = None
        self.zookeeper: list[SupervisedProcess] = []
        if not plan.zookeeper:
            self.zookeeper.append(
                ZooKeeperPart(
                    self._directory / "zookeeper",
                    plan.host,
                    plan.zookeeper_port,
                    options.zookeeper_heap_mib,
                    self._changed,
                )
            )
        self.bookies = [self._bookie(n, port) for n, port in enumerate(plan.bookies, 1)]
        self.proxies = [
            *(self._proxy("write", n, port) for n, port in enumerate(plan.write, 1)),
            *(self._proxy("read", n, port) for n, port in enumerate(plan.read, 1)),
        ]
        self.recovery = [self._recovery()] if plan.bookies else []

    @property
    def parts(self) -> list[SupervisedProcess]:
        return [*self.zookeeper, *self.bookies, *self.recovery, *self.proxies]

    async def run(self) -> int:
        """Start everything, wait for a signal, stop everything."""
        self._logs.mkdir(exist_ok=True)
        on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self._on_signal)
        self._screen = open_screen(self.parts)
        failure: DLogError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                living = group.create_task(self._live(group), name="cluster")
                stop = group.create_task(self._stopping.wait(), name="stop")
                await asyncio.wait((living, stop), return_when=asyncio.FIRST_COMPLETED)
                living.cancel()
                stop.cancel()
                await self._end()
        except BaseExceptionGroup as errors:
            failure = _first(errors)
            if failure is None:
                raise
        finally:
            for part in self.parts:
                part.kill()
            for part in self.parts:
                await part.wait_killed()
            (self._directory / RUN_FILE).unlink(missing_ok=True)
            self._screen.close()
        failure = failure or self._lost
        if failure is not None:
            raise failure
        return EXIT_OK if self._is_up else EXIT_FAILED

    async def _live(self, group: asyncio.TaskGroup) -> None:
        held = (*self.bookies, *self.recovery, *self.proxies)
        early = [group.create_task(part.load(), name=f"load {part.name}") for part in held]
        await self._start(group, self.zookeeper)
        await self._init_cluster()
        await asyncio.wait(early)
        if self.bookies:
            write_plan(self._directory, self._plan_for_bookies)
        await self._start(group, self.bookies)
        await self._start(group, [*self.recovery, *self.proxies])
        write_plan(self._directory, self._plan)
        self._is_up = True
        running = self._write_run_file()
        if self._as_json:
            fields: dict[str, object] = {
                "connect": running.connect,
                "zookeeper": running.zookeeper,
                "directory": running.directory,
            }
            if self._plan.regions:
                fields["regions"] = self._plan.region_names
            with self._unless_lost():
                say_json(fields)
                with output():
                    sys.stdout.flush()
        else:
            self._say(f"the cluster is up: {running.connect}")
            self._say(f"use it from this directory, or from elsewhere with DLOG_CONNECT={running.connect}")
            if self._plan.regions:
                names = ", ".join(self._plan.region_names)
                self._say(f"clients use the proxies of their region with DLOG_REGION set to one of {names}")
        self._is_announced = True
        while True:
            await asyncio.sleep(1.0)
            if self._is_run_file_due:
                self._write_run_file()
            if self._screen is not None:
                with self._unless_lost():
                    self._screen.tick()

    async def _start(self, group: asyncio.TaskGroup, parts: Sequence[SupervisedProcess]) -> None:
        for part in parts:
            group.create_task(part.run(), name=part.name)
        for part in parts:
            await part.wait_ready()

    async def _end(self) -> None:
        """Stop proxies, which hand over while bookies and ZooKeeper still serve; then bookies; then ZooKeeper."""
        self._say("stopping: proxies hand over, then bookies, then ZooKeeper; Ctrl-C again kills all at once")
        (self._directory / RUN_FILE).unlink(missing_ok=True)
        for parts, patience_s in (
            (self.proxies, STOP_PROXIES_S),
            ([*self.recovery, *self.bookies], STOP_OTHERS_S),
            (self.zookeeper, STOP_OTHERS_S),
        ):
            for part in parts:
                part.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    for part in parts:
                        await part.wait_stopped()
            for part in parts:
                part.kill()

    async def _init_cluster(self) -> None:
        """Run `dlog cluster init` in its own process, to keep the ZooKeeper client out of this one's memory. Only once
        for a ZooKeeper started here: a marker file in its data directory records it."""
        made = self._directory / "zookeeper" / "cluster-made"
        if self.zookeeper and made.exists() and made.read_text() == self._plan.namespace:
            return
        log = self._logs / "cluster-init.log"
        command = ("cluster", "init", "--zookeeper", self._plan.zookeeper_hosts, "--namespace", self._plan.namespace)
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *python_module("dlog", *command),
                env=module_environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
            code = await process.wait()
        if code:
            raise CommandError(
                f"cannot create the cluster on ZooKeeper {self._plan.zookeeper_hosts}: {last_words(log, 0)}",
                "check that ZooKeeper runs and is reachable from here",
                misused=code == EXIT_MISUSED,
            )
        if self.zookeeper:
            with named_errors(made):
                made.write_text(self._plan.namespace)

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _bookie(self, number: int, port: int) -> ProcessPart:
        name = f"bookie-{number}"
        flags = [*self._port(port), "--dir", str(self._directory / name)]
        if self._dirs_moved:
            flags.append("--dirs-moved")
        known = _kept_id(self._directory / name)
        if known is not None and is_any_host(self._plan.host):
            flags += ["--bookie-id", known]  # else its id would change with this machine's name
        for flag, value in zip(("--rack", "--region"), self._plan.location_of(number), strict=True):
            flags += [flag, value] if value else []
        return self._process("bookie", name, port, "actors.bookie", flags)

    def _proxy(self, role: str, number: int, port: int) -> ProcessPart:
        name = f"{role}-{number}"
        flags = [*self._port(port), "--id", name]
        places = self._places
        environment = {"DLOG_FILE_DIRECTORY": places.file_directory}
        for level, value in zip(("RACK", "REGION"), self._plan.location_of(number), strict=True):
            if value:
                environment[f"DLOG_LEDGER_{level}"] = value
        stores = ["file"]
        if places.objects_root:  # of these two, what is only configured does not become the default
            environment["DLOG_OBJECTS_ROOT"] = places.objects_root
            stores[0 if self._plan.objects else 1 :] = ["s3-direct", "s3", *stores[0 if self._plan.objects else 1 :]]
        if places.kafka_topics:
            environment["DLOG_KAFKA_TOPICS"] = places.kafka_topics
            stores.insert(0 if self._plan.kafka else len(stores), "kafka")
        if not self._plan.bookies:
            flags += ["--stores", ",".join(stores)]
        return self._process(role, name, port, f"proxies.{role}", flags, **environment)

    def _recovery(self) -> ProcessPart:
        name, module = "recovery-1", "actors.recovery"
        log = self._logs / f"{name}.log"
        return ProcessPart("recovery", name, "-", module, [*self._flags(), "--id", name], log, self._changed)

    def _process(
        self, role: str, name: str, port: int, module: str, flags: list[str], **environment: str
    ) -> ProcessPart:
        log, address = self._logs / f"{name}.log", join_host_port(self._plan.host, port)
        return ProcessPart(role, name, address, module, flags, log, self._changed, environment)

    def _port(self, port: int) -> list[str]:
        return [*self._flags(), "--port", str(port)]

    def _flags(self) -> list[str]:
        plan = self._plan
        flags = ["--zookeeper", plan.zookeeper_hosts, "--namespace", plan.namespace]
        flags += ["--host", plan.host, "--log-format", "json"]
        return [*flags, "--config", self._config] if self._config else flags

    def _changed(self, part: SupervisedProcess) -> None:
        if self._screen is not None and not self._as_json:
            with self._unless_lost():
                self._screen.changed(part)
        if self._is_up and not self._stopping.is_set():
            self._write_run_file()

    def _write_run_file(self) -> RunningCluster:
        running = RunningCluster(
            directory=str(self._directory),
            pid=os.getpid(),
            zookeeper=self._plan.zookeeper_hosts,
            namespace=self._plan.namespace,
            parts=[RunningPart(p.role, p.id, p.address, p.pid or 0) for p in self.parts],
            file_directory=self._places.file_directory,
            kafka_topics=self._places.kafka_topics,
            objects_root=self._places.objects_root,
        )
        try:
            running.write()
        except OSError as error:
            if not self._is_announced and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise  # such as a directory of its name, in the way of a first start
            if not self._is_run_file_due:
                self._is_run_file_due = True
                self._say(
                    f"cannot write the run file, so that commands may find old addresses; the cluster goes on, and it "
                    f"is tried again: {describe_error(error)}; {remedy_for(error)}"
                )
        else:
            if self._is_run_file_due:
                self._is_run_file_due = False
                self._say("the run file is written again")
        return running

    def _say(self, text: str) -> None:
        if self._screen is not None and not self._as_json:
            with self._unless_lost():
                self._screen.message(text)

    @contextmanager
    def _unless_lost(self) -> Iterator[None]:
        """If output is lost in this context, or a signal comes while it waits, stop everything as after a signal; `run`
        raises the error of lost output. A cluster that serves goes on while the disk that gets its output is full."""
        try:
            yield
        except OutputLostError as error:
            if error.full and self._is_announced:
                return
            self._lost = self._lost or error
            self._stopping.set()
        except KeyboardInterrupt:  # a signal while the output waited for its reader
            self._stopping.set()

    def _on_signal(self, _: signal.Signals) -> None:
        if self._stopping.is_set():
            for part in self.parts:
                part.kill()
        self._stopping.set()


def _default_objects_root(directory: Path) -> str:
    """`objects` in the cluster's directory, by a path that a location can have."""
    return f"{objects_base(directory.absolute())}/objects"


def _kept_id(directory: Path) -> str | None:
    """The bookie id in a directory's cookie; None if it cannot be read."""
    try:
        return decode_cookie((directory / "ledgers" / VERSION).read_text()).bookie
    except (OSError, ValueError, DLogError):
        return None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock. Raises CommandError if another `dlog up` holds it."""
    with (directory / LOCK_FILE).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            running = read_run_file(directory)
            who = f" (pid {running.pid}, {running.connect})" if running else ""
            raise CommandError(
                f"a `dlog up` runs on this directory already{who}: dir={directory}",
                "use that cluster, stop it first, or start another one with --dir",
            ) from None
        yield


def _first(errors: BaseExceptionGroup[BaseException]) -> DLogError | None:
    """The first error in the group that a message can explain, or None."""
    for error in errors.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, OSError) and names_file(found):
            found = FileRefusedError(found)
        if isinstance(found, DLogError):
            return found
    return None
