"""`dlog sink`: lists and deletes segments that Spark sinks have staged and no owner has imported."""

from __future__ import annotations

from typing import Any, TypeVar

import click

from dlog.cli.discovery import Cluster as SelectedCluster
from dlog.cli.discovery import find_cluster, zookeeper_options
from dlog.cli.output import EXIT_FAILED, EXIT_OK, CommandError, MutatingCommand, say, say_json, say_table
from dlog.io.clock import unix_ms
from dlog.model.sink import sink_name
from dlog.spark.cluster_connection import Work, reach
from dlog.spark.retiring import SinkStages, retire, sinks, staging

T = TypeVar("T")


@click.group()
def sink() -> None:
    """List or retire sinks: Spark queries and jobs that write batches to streams."""


@sink.command()
@zookeeper_options
def ls(hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> None:
    """List the sinks with staged segments, or about to stage some."""
    cluster = find_cluster(hosts=hosts, namespace=namespace, directory=directory, need_zookeeper=True)
    namespace = cluster.namespace
    found = _ask(cluster, lambda opened: sinks(opened, namespace))
    if as_json:
        say_json([_row(one) for one in found])
    else:
        rows = [_row(one) for one in found]
        say_table(
            ("sink", "stages", "oldest", "not understood", "streams"),
            ((r["sink"], r["stages"], _age(r["oldest_age_s"]), r["strange"], " ".join(r["streams"])) for r in rows),
        )


@sink.command(
    name="retire",
    cls=MutatingCommand,
    when_unknown="how much was done is unknown: run it again, that is harmless",
)
@click.argument("name", metavar="SINK")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
@zookeeper_options
def retire_(
    name: str, dry_run: bool, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool
) -> int:
    """Fence every program of SINK, and delete what they staged and no owner imported.

    For a query that will not run again: only a later query of that name would delete them. A query of that name that
    still runs fails with its next batch; to go on, it needs a higher sinkEpoch than the one printed. Exit 1 if a stream
    did not answer: run it again.
    """
    sink_name(name)
    cluster = find_cluster(hosts=hosts, namespace=namespace, directory=directory, need_zookeeper=True)
    namespace = cluster.namespace
    staged = _ask(cluster, lambda opened: staging(opened, namespace, name))
    if not staged.stages and not staged.strange:
        raise CommandError(
            f"the sink has nothing staged: sink={name}", "`dlog sink ls` lists the sinks that have", misused=False
        )
    if dry_run:
        if as_json:
            say_json(_row(staged))
        else:
            say(f"would fence {name} on {', '.join(staged.streams)} and check {len(staged.stages)} staged segments")
        return EXIT_OK
    done = _ask(cluster, lambda opened: retire(opened, namespace, name))
    if as_json:
        say_json(
            {"sink": name, "epoch": done.epoch, "streams": done.streams, "swept": done.swept, "failures": done.left}
        )
    else:
        say(
            f"{name} is fenced up to epoch {done.epoch}, {done.swept} staged segments deleted: "
            f"{', '.join(done.streams)}"
        )
        for stream, why in done.left.items():
            say(f"failed: stream={stream}: {why}")
    return EXIT_FAILED if done.left else EXIT_OK


def _ask(cluster: SelectedCluster, work: Work[T]) -> T:
    return reach(cluster.zookeeper, cluster.namespace, cluster.stores()).ask(work, timeout_s=None)


def _row(staged: SinkStages) -> dict[str, Any]:
    oldest = staged.oldest_unix_ms
    return {
        "sink": staged.sink,
        "stages": len(staged.stages),
        "oldest_age_s": None if oldest is None else max(0, (unix_ms() - oldest) // 1000),
        "strange": staged.strange,
        "streams": staged.streams,
    }


def _age(seconds: int | None) -> str:
    return "" if seconds is None else f"{seconds // 3600}:{seconds % 3600 // 60:02}:{seconds % 60:02} ago"
