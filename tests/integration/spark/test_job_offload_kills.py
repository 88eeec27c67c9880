"""`offload` is killed at each of its steps, and run again: every record can be read at every moment, and after the
second run there is one object for each segment and nothing else."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlog.client.client import Client
from dlog.client.sync import SyncClient
from dlog.io.children import die_with_parent
from dlog.spark.jobs import offload_settle
from dlog.spark.jobs.frame import Verdict
from dlog.spark.jobs.offload_records import OffloadRecords
from dlog.stores.cold.locations import ObjectName
from dlog.stores.ledger import LedgerStore
from dlog.stores.object_storage.locations import parse_root
from tests.integration.cli.up import Up
from tests.integration.spark.deaths import ROOT, environment
from tests.integration.spark.offload_killing import AMID_COPY, BEHIND_COPY, BEHIND_RECORD, Arguments
from tests.integration.spark.offloading import Yard
from tests.integration.storage import storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def yard(
    cluster: Up, client: SyncClient, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Yard]:
    """A `Yard` with a directory, for which its proxies need no configuration."""
    with storage("file", tmp_path_factory.mktemp("kept")) as kept:
        yield Yard(cluster, client, spark, kept)


class Killed(Exception):
    """Raised in the driver in the place of a kill."""


@contextmanager
def dying(where: Any, what: str, after: int = 0) -> Iterator[None]:
    """End a run in the body at this step, after so many times."""
    work, calls = getattr(where, what), itertools.count()

    async def watched(*given: Any, **more: Any) -> Any:
        if next(calls) >= after:
            raise Killed
        return await work(*given, **more)

    with pytest.MonkeyPatch.context() as patch, pytest.raises((Killed, BaseExceptionGroup)):
        patch.setattr(where, what, watched)
        yield


def finished(yard: Yard, name: str) -> None:
    """Do what an operator does after a crash: run it again, and once more after the grace period."""
    assert yard.offload(name).verdict is Verdict.OK
    assert yard.offload(name, grace_s=0.0, orphan_age_s=0.0).verdict is Verdict.OK
    assert yard.offload(name, grace_s=0.0, orphan_age_s=0.0).items == []


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize(
    ("where", "what"),
    [
        (OffloadRecords, "begin"),  # the object exists, without a record
        (offload_settle, "_is_there"),  # recorded, its stream was not changed
        (Client, "move_segment"),
        (offload_settle, "_note"),  # its stream was changed, the grace period has not begun
    ],
)
def test_a_run_that_dies_while_it_moves_segments(yard: Yard, where: Any, what: str, after: int) -> None:
    name = yard.written()
    rows, hot = yard.rows(name), yard.hot(name)
    with dying(where, what, after):
        yard.offload(name)
    assert yard.rows(name) == rows
    finished(yard, name)
    yard.check_over(name, rows, hot)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize(("where", "what"), [(LedgerStore, "delete"), (OffloadRecords, "forget")])
def test_a_run_that_dies_while_it_deletes_ledgers(yard: Yard, where: Any, what: str, after: int) -> None:
    name = yard.written()
    rows, hot = yard.rows(name), yard.hot(name)
    yard.offload(name)
    with dying(where, what, after):
        yard.offload(name, grace_s=0.0)
    assert yard.rows(name) == rows
    finished(yard, name)
    yard.check_over(name, rows, hot)


def test_a_run_that_dies_while_it_takes_a_segment_back(yard: Yard) -> None:
    """The run ends between noting that the object is damaged and changing the stream: no later run may take it for
    sound."""
    name = yard.written()
    rows, hot = yard.rows(name), yard.hot(name)
    yard.offload(name)
    file = yard.kept.file_of(yard.cold_segments(name)[0].name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with dying(Client, "move_segment"):
        yard.offload(name, grace_s=0.0)
    assert yard.offload(name).counts["segments_taken_back"] == 1
    assert yard.rows(name) == rows
    finished(yard, name)
    yard.check_over(name, rows, hot)


@pytest.mark.parametrize("what", ["claim", "unmark_swept"])
def test_a_run_that_dies_while_it_sweeps(yard: Yard, what: str) -> None:
    name = yard.written()
    rows, hot = yard.rows(name), yard.hot(name)
    yard.offload(name)
    left = parse_root(yard.objects(name)[0]).parent.below(str(ObjectName(1, os.urandom(8).hex(), 7)))
    yard.kept.file_of(str(left)).write_bytes(b"of a run that was killed")
    with dying(OffloadRecords, what):
        yard.offload(name, orphan_age_s=0.0)
    assert yard.rows(name) == rows
    finished(yard, name)
    yard.check_over(name, rows, hot)


def test_a_stream_that_is_deleted_under_a_run_leaves_nothing(yard: Yard) -> None:
    name = yard.written()
    hot = yard.hot(name)
    with dying(Client, "move_segment", after=1):
        yard.offload(name)
    yard.client.delete(name)
    yard.client.create(name)
    yard.client.append(name, b"another stream of the same name")
    assert yard.offload(name, orphan_age_s=0.0).verdict is Verdict.OK
    assert yard.objects(name) == [] and yard.znodes(name) == []
    assert [place for place in hot.values() if yard.has_ledger(place)] == []
    assert [row[4] for row in yard.rows(name)] == [b"another stream of the same name"]


# ---- kill -9 --------------------------------------------------------------------------------------------------------


def killed(yard: Yard, name: str, directory: Path, plans: dict[str, str], **given: str) -> tuple[int, str]:
    """Run it in processes of its own, of which some are killed. Returns exit code and output."""
    room = directory / "plans"
    room.mkdir()
    for point, who in plans.items():
        (room / point).write_text(who)
    arguments = Arguments(yard.zookeeper, yard.namespace, name, yard.kept.root, str(room), **given)
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark.offload_killing", json.dumps(asdict(arguments))],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        start_new_session=True,
        preexec_fn=die_with_parent(),
        check=False,
    )
    left = [path.name for path in room.iterdir() if not path.name.endswith(".done")]
    assert left == [], f"who was to die at {left} did not: {done.stderr[-3000:]}"
    return done.returncode, done.stdout


def test_workers_and_then_the_driver_are_killed(yard: Yard, tmp_path: Path) -> None:
    """Spark repeats the tasks, so each killed worker leaves an attempt behind; then the whole group is killed."""
    name = yard.written()
    rows, hot = yard.rows(name), yard.hot(name)
    plans = {AMID_COPY: "worker", BEHIND_COPY: "worker", BEHIND_RECORD: "driver"}
    code, out = killed(yard, name, tmp_path, plans)
    assert code == -9 and "report" not in out
    assert yard.rows(name) == rows
    assert yard.unfinished(name) != [] and len(yard.objects(name)) >= len(hot), "two attempts were killed"
    finished(yard, name)
    yard.check_over(name, rows, hot)


def test_executors_are_killed(yard: Yard, tmp_path: Path) -> None:
    """Executors are separate processes; two of them are killed in the job, which completes on others."""
    name = yard.written()
    rows, hot = yard.rows(name), yard.hot(name)
    plans = {AMID_COPY: "executor", BEHIND_COPY: "executor"}
    code, out = killed(yard, name, tmp_path, plans, master="local-cluster[2,1,1024]")
    assert code == 0
    report = json.loads(out.partition("report ")[2])
    assert (report["verdict"], report["counts"]["segments_offloaded"]) == ("ok", len(hot) - 1)
    assert yard.rows(name) == rows
    finished(yard, name)
    yard.check_over(name, rows, hot)
