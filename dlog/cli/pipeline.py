"""`dlog pipeline`: jobs on whole streams, in Spark. What they do is in dlog/spark/jobs.

Exit codes of its own: 0 done and well, 2 done and something was found, 3 something failed; 1 misused, nothing begun.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlog.cli.discovery import zookeeper, zookeeper_options
from dlog.cli.telling import EXIT_MISUSED as MISUSED_ELSEWHERE
from dlog.cli.telling import CommandError, FileRefusedError, exit_code, output, say, tell_error
from dlog.errors import DLogError
from dlog.io.file_errors import names_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlog.spark.jobs.frame import Place, Report

EXIT_MISUSED, EXIT_FAILED = 1, 3

_JOBS: dict[str, str] = {  # name -> file of its command, which is called as the job
    "audit": "dlog.cli.jobs.audit",
    "backfill": "dlog.cli.jobs.backfill",
    "offload": "dlog.cli.jobs.offload",
    "replay": "dlog.cli.jobs.replay",
    "report": "dlog.cli.jobs.report",
    "table": "dlog.cli.jobs.table",
}


class Jobs(click.Group):
    """Imports a job's file when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _JOBS.get(cmd_name)
        if module is None:
            return None
        command: Any = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> int:
        """The exit code, whatever happens: 2 has another meaning here than with other commands."""
        as_json = bool(ctx.find_root().params.get("as_json")) or "--json" in sys.argv
        try:
            code = super().invoke(ctx)
            return code if isinstance(code, int) else 0
        except click.UsageError as error:
            tell_error(error.format_message(), kind="UsageError", as_json=as_json)
            return EXIT_MISUSED
        except (DLogError, OSError) as error:
            if isinstance(error, OSError):
                if not names_file(error):
                    raise
                error = FileRefusedError(error)
            tell_error(error, as_json=as_json)
            return EXIT_MISUSED if exit_code(error) == MISUSED_ELSEWHERE else EXIT_FAILED


@click.command(cls=Jobs)
def pipeline() -> None:
    """Jobs on whole streams, in Spark. Exit 0: well, 2: something was found, 3: failed, 1: misused."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise CommandError("PySpark is not installed here", "pip install 'dlogd[spark]'")


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that every job has: where the cluster is, which streams, Spark's master and settings, --dry-run, and
    where the report goes. The command gets them as `hosts`, `namespace`, `directory`, `streams`, `pattern`, `master`,
    `conf`, `dry_run`, `report_file` and `as_json`; `run` takes them as they are."""
    options = [
        click.option("--stream", "streams", multiple=True, metavar="NAME", help="A stream; may be given again."),
        click.option("--pattern", default="", metavar="REGEX", help="Streams whose whole name matches. Default: all."),
        click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Spark's master."),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be given again."),
        click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
        click.option("--report", "report_file", type=click.Path(dir_okay=False), help="Write the JSON report here."),
    ]
    for option in reversed(options):
        command = option(command)
    return zookeeper_options(command)


def run(
    name: str,
    work: Callable[[SparkSession, Place, Any], Report],
    *,
    lines: Callable[[Report], list[str]],
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    streams: tuple[str, ...],
    pattern: str,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    report_file: str | None,
    as_json: bool,
) -> int:
    """Run a job: `work` gets the session, the place and a Progress. lines: the report for a person. Returns the exit
    code. dry_run is told to `work` by whoever makes it. Raises DLogError for what ended the job as a whole."""
    from dlog.spark import session
    from dlog.spark.jobs.frame import Place

    if streams and pattern:
        raise click.UsageError("--stream or --pattern, not both")
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # there is one of our own
        "spark.log.level": "ERROR",
        **_settings(conf),
    }
    where, znode = zookeeper(hosts, namespace, directory)
    place = Place(zookeeper=where, namespace=znode, streams=streams, pattern=pattern)
    opened = session(f"dlog pipeline {name}", **settings)
    screen = _Bar() if sys.stderr.isatty() and not as_json else _Nothing()
    try:
        report = _worked(work, opened, place, screen)
    finally:
        screen.close()
        opened.stop()
    if report_file is not None:
        try:
            Path(report_file).write_text(report.as_json())
        except OSError as error:
            raise CommandError(
                f"the report cannot be written: {error.strerror}: file={report_file}",
                "the job itself is done; run it again with another --report for its report",
                misused=False,
            ) from error
    if as_json:
        with output():
            sys.stdout.write(report.as_json())
    else:
        for line in lines(report):
            say(line)
        for failure in report.failures:
            say("failed: " + " ".join(f"{key}={value}" for key, value in failure.items()))
    return int(report.verdict)


def _worked(
    work: Callable[[SparkSession, Place, Any], Report], spark: SparkSession, place: Place, screen: Any
) -> Report:
    """What `work` makes. Spark's own failure, as of a worker that was killed, becomes an error that says what to do."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        return work(spark, place, screen)
    except (Py4JError, PySparkException) as error:
        told = next((line for line in str(error).splitlines() if "Exception: " in line), str(error).split("\n")[0])
        raise CommandError(
            f"Spark failed: {told.strip()[:300]}", "run it again: what is done is not done again", misused=False
        ) from error


def _settings(conf: tuple[str, ...]) -> Mapping[str, str]:
    given = {}
    for text in conf:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--conf is KEY=VALUE: {text[:60]!r}")
        given[key] = value
    return given


class _Nothing:
    def step(self, what: str, done: int, whole: int) -> None: ...

    def close(self) -> None: ...


class _Bar:
    """A line on the terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        self._progress = RichProgress(console=Console(stderr=True), transient=True)
        self._tasks: dict[str, Any] = {}
        self._progress.start()

    def step(self, what: str, done: int, whole: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=whole)
        self._progress.update(self._tasks[what], completed=done, total=whole)

    def close(self) -> None:
        self._progress.stop()
