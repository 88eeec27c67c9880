"""`dlog pipeline`: runs Spark jobs on whole streams. The jobs are in dlog/spark/jobs.

Exit codes differ from other commands: 0 done, 1 wrong usage (nothing done), 2 done with findings, 3 failed.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlog.cli.discovery import Cluster, find_cluster, zookeeper_options
from dlog.cli.output import EXIT_MISUSED as MISUSED_ELSEWHERE
from dlog.cli.output import CommandError, FileRefusedError, exit_code, output, print_error, say
from dlog.errors import DLogError
from dlog.io.file_errors import names_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlog.spark.jobs.frame import Report, Selection

EXIT_MISUSED, EXIT_FAILED = 1, 3
AGAIN = "run it again: finished work is not repeated"

_JOBS: dict[str, str] = {  # name -> file of its command, which is called as the job
    "audit": "dlog.cli.jobs.audit",
    "backfill": "dlog.cli.jobs.backfill",
    "offload": "dlog.cli.jobs.offload",
    "replay": "dlog.cli.jobs.replay",
    "report": "dlog.cli.jobs.report",
    "table": "dlog.cli.jobs.table",
}


class Jobs(click.Group):
    """Imports the module of a job when it is called."""

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
        """Run the job; returns the exit code, in which 2 means findings (wrong usage is 1)."""
        as_json = bool(ctx.find_root().params.get("as_json")) or "--json" in sys.argv
        try:
            code = super().invoke(ctx)
            return code if isinstance(code, int) else 0
        except click.UsageError as error:
            print_error(error.format_message(), kind="UsageError", as_json=as_json)
            return EXIT_MISUSED
        except KeyboardInterrupt:
            stopped = CommandError("stopped before the job was done", AGAIN, misused=False)
            print_error(stopped, as_json=as_json)
            return EXIT_FAILED
        except (DLogError, OSError) as error:
            if isinstance(error, OSError):
                if not names_file(error):
                    raise
                error = FileRefusedError(error)
            print_error(error, as_json=as_json)
            return EXIT_MISUSED if exit_code(error) == MISUSED_ELSEWHERE else EXIT_FAILED


@click.command(cls=Jobs)
def pipeline() -> None:
    """Run Spark jobs on whole streams. Exit codes: 0 done, 1 wrong usage, 2 done with findings, 3 failed."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise CommandError("PySpark or PyArrow is not installed", "pip install 'dlogd[spark]'")


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every job: the cluster, the streams, Spark's master and settings, --dry-run, the report's file. The
    command gets them as `hosts`, `namespace`, `directory`, `streams`, `pattern`, `master`, `conf`, `dry_run`,
    `report_file` and `as_json`, and passes them to `run`."""
    options = [
        click.option("--stream", "streams", multiple=True, metavar="NAME", help="A stream; may be repeated."),
        click.option(
            "--pattern", default="", metavar="REGEX", help="All streams whose full name matches. Default: all."
        ),
        click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Spark master."),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
        click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing."),
        click.option("--report", "report_file", type=click.Path(dir_okay=False), help="Write the JSON report to FILE."),
    ]
    for option in reversed(options):
        command = option(command)
    return zookeeper_options(command)


def run(
    name: str,
    work: Callable[[SparkSession, Selection, Any], Report],
    *,
    lines: Callable[[Report], list[str]],
    cluster: Cluster | None = None,
    hosts: str | None = None,
    namespace: str | None = None,
    directory: str | None = None,
    streams: tuple[str, ...],
    pattern: str,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    report_file: str | None,
    as_json: bool,
) -> int:
    """Run a job; returns the exit code. work: called with the session, the Selection and a progress display. lines: the
    report as text. cluster: the one to work on; None: the one that hosts, namespace and directory name. dry_run is not
    used here; the caller passes it to `work`. Raises DLogError if the whole job
    failed."""
    from dlog.spark import session
    from dlog.spark.jobs.frame import Selection

    if streams and pattern:
        raise click.UsageError("give --stream or --pattern, not both")
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # replaced by _Bar
        "spark.log.level": "ERROR",
        **_settings(conf),
    }
    if cluster is None:
        cluster = find_cluster(hosts=hosts, namespace=namespace, directory=directory, need_zookeeper=True)
    if cluster.file_directory:
        os.environ["DLOG_FILE_DIRECTORY"] = cluster.file_directory  # for Spark's workers, too
    if cluster.objects_root:
        os.environ["DLOG_OBJECTS_ROOT"] = cluster.objects_root
    if cluster.kafka_topics:
        os.environ["DLOG_KAFKA_TOPICS"] = cluster.kafka_topics
    selection = Selection(zookeeper=cluster.zookeeper, namespace=cluster.namespace, streams=streams, pattern=pattern)
    logging.getLogger().addFilter(lambda _: False)  # py4j logs tracebacks there, of errors that are reported here
    opened = session(f"dlog pipeline {name}", **settings)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's calls the JVM, also within another call
    screen = _Bar() if sys.stderr.isatty() and not as_json else _Nothing()
    try:
        report = _worked(work, opened, selection, screen)
    finally:
        screen.close()
        opened.stop()
    if report_file is not None:
        try:
            Path(report_file).write_text(report.as_json())
        except OSError as error:
            raise CommandError(
                f"cannot write the report: {error.strerror}: file={report_file}",
                "the job is done; for its report, run it again with another --report",
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
    work: Callable[[SparkSession, Selection, Any], Report], spark: SparkSession, selection: Selection, screen: Any
) -> Report:
    """The report that `work` returns. Turns an error of Spark, such as a killed worker, into a CommandError."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        return work(spark, selection, screen)
    except (Py4JError, PySparkException) as error:
        if isinstance(
            error.__context__, KeyboardInterrupt
        ):  # what a job does in the end, on a connection that is closed
            raise KeyboardInterrupt from None
        reason = next((line for line in str(error).splitlines() if "Exception: " in line), str(error).split("\n")[0])
        raise CommandError(f"Spark failed: {reason.strip()[:300]}", AGAIN, misused=False) from error


def _settings(conf: tuple[str, ...]) -> Mapping[str, str]:
    given = {}
    for text in conf:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--conf must be KEY=VALUE: {text[:60]!r}")
        given[key] = value
    return given


class _Nothing:
    def step(self, what: str, done: int, whole: int) -> None: ...

    def close(self) -> None: ...


class _Bar:
    """A progress bar on the terminal."""

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
