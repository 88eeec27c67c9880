"""`python -m loadtest peers`: installs the systems that dlog is compared with, or starts one of them.

It also installs a newer BookKeeper for interop tests, HDFS and versitygw (an S3 server) for tests of cold storage and
of streams on S3, and Delta Lake for tests of tables; `peers start versitygw` prints its address and keys as lines for a
shell.

    peers install NAME... | --all    install what is missing, in .cache/peers
    peers start NAME [--dir DIR]     start it on loopback, print its addresses, stop it on Ctrl-C

Invariants:
- the servers end with this process, however it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadtest.spark import jars as spark_kafka
from loadtest.systems import bookkeeper, kafka, nats, versitygw
from loadtest.systems.base import CannotRunError, Variant
from loadtest.systems.java import BOOKKEEPER, DELTA, HDFS, KAFKA, OLD_BOOKKEEPER, FetchFailedError, PartMissingError
from loadtest.systems.nodes import ServerSystem

INSTALL: Mapping[str, Callable[[], bool]] = {
    "bookkeeper": BOOKKEEPER.install,
    "bookkeeper-4.17": OLD_BOOKKEEPER.install,
    "kafka": KAFKA.install,
    "nats": nats.install,
    "spark-kafka": spark_kafka.install,
    "hdfs": HDFS.install,
    "delta": DELTA.install,
    "versitygw": versitygw.install,
}
VARIANTS: Mapping[str, Variant] = {**bookkeeper.VARIANTS, **kafka.VARIANTS, **nats.VARIANTS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0: done; 1: a registry or a server failed, or a tool is missing; 2: wrong usage."""
    given = _parser().parse_args(arguments)
    if given.command == "install":
        names = list(INSTALL) if given.all else given.names
        if not names:
            print("peers install: give names, or --all: " + ", ".join(INSTALL), file=sys.stderr)
            return 2
        return max(install(name, given.if_possible) for name in names)
    try:
        options = dict(_pair(text) for text in given.option)
        return asyncio.run(_serve(given.name, _empty(given.dir), given.dir is None, options))
    except ValueError as error:
        print(f"peers start: {error}", file=sys.stderr)
        return 2
    except CannotRunError as error:
        print(f"peers start: {error}", file=sys.stderr)
        return 1


def install(name: str, if_possible: bool = False) -> int:
    """Install one peer; the exit code. if_possible: a missing tool is reported but is no failure."""
    try:
        fetched = INSTALL[name]()
    except PartMissingError as error:
        print(f"{name} is skipped: {error}" if if_possible else f"peers install: {error}", file=sys.stderr)
        return 0 if if_possible else 1
    except FetchFailedError as error:
        print(f"peers install: {name}: {error}", file=sys.stderr)
        return 1
    print(f"{name}: {'installed' if fetched else 'already installed'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest peers", description="Install or start the systems that dlog is compared with."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="install systems from their registries, if missing")
    installing.add_argument("names", nargs="*", choices=[[], *INSTALL], metavar="NAME", help=", ".join(INSTALL))
    installing.add_argument("--all", action="store_true", help="install all of them")
    installing.add_argument(
        "--if-possible", action="store_true", help="skip systems whose tools (mvn, javac, go) are missing"
    )
    starting = commands.add_parser("start", help="start a system on loopback; Ctrl-C stops it")
    names = (*VARIANTS, "versitygw")
    starting.add_argument("name", choices=sorted(names), metavar="NAME", help=", ".join(names))
    starting.add_argument("--dir", help="empty directory for its data, kept afterwards; default: a temporary one")
    starting.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="option of the system, such as heap_mib=512"
    )
    return parser


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"expected --option KEY=VALUE: {text[:60]}")
    return key, value


def _empty(named: str | None) -> Path:
    """Create the directory for the data. Raises ValueError if it is not empty."""
    directory = Path(named or tempfile.mkdtemp(prefix="dlog-peer-"))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"the directory must be empty: --dir {directory}")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _system(name: str) -> tuple[ServerSystem | versitygw.S3Server, Mapping[str, str]]:
    """A system that is not started, and the options that it has unless others are given."""
    if name == "versitygw":
        return versitygw.S3Server(), {}
    variant = VARIANTS[name]
    system = variant.make(name)
    assert isinstance(system, ServerSystem)
    return system, variant.preset


async def _serve(name: str, room: Path, passing: bool, options: Mapping[str, str]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    system, preset = _system(name)
    try:
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(system.start(room, {**preset, **options}), name="start")
            stopping = group.create_task(stop.wait(), name="stop")
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and not starting.cancelled() and starting.exception() is None:
                print("\n".join(system.describe()))
                print(
                    f"ready {name} {system.durability.letter}: {system.durability.sentence}; Ctrl-C stops it",
                    flush=True,
                )
                await stop.wait()
            starting.cancel()
            stopping.cancel()
    except* CannotRunError as errors:
        raise errors.exceptions[0] from None
    except* ValueError as errors:
        raise errors.exceptions[0] from None
    finally:
        await system.stop()
        if passing:
            with contextlib.suppress(OSError):
                shutil.rmtree(room)
    return 0


if __name__ == "__main__":
    sys.exit(main())
