"""Tests how `dlog pipeline` reports a job that ends with an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dlog.cli import pipeline
from dlog.cli.discovery import Cluster
from dlog.cli.main import main
from dlog.cli.output import CommandError

pytest.importorskip("pyspark")


class Session:
    """A session that is not used."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


def run(monkeypatch: pytest.MonkeyPatch, work: Any, **given: Any) -> tuple[Session, int]:
    session = Session()
    monkeypatch.setattr("dlog.spark.session", lambda *_, **__: session)
    where = {"hosts": "h:1", "namespace": None, "directory": None, "streams": (), "pattern": "", "master": "local[1]"}
    how = {"conf": (), "dry_run": False, "report_file": None, "as_json": False, "lines": lambda _: []}
    try:
        return session, pipeline.run("job", work, **{**where, **how, **given})
    finally:
        assert session.stopped


def test_what_spark_fails_with_says_what_to_do_and_is_no_misuse(monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    def work(*_: Any) -> Any:
        raise Py4JError("An error occurred\norg.apache.spark.SparkException: Python worker exited unexpectedly\n\tat X")

    with pytest.raises(CommandError, match=r"Spark failed: org\.apache.*: Python worker") as raised:
        run(monkeypatch, work)
    assert not raised.value.misused and "run it again" in raised.value.next_step


def test_ctrl_c_is_neither_wrong_usage_nor_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("dlog.cli.jobs.audit.run", interrupted)
    assert main(["pipeline", "audit", "--zookeeper", "h:1"]) == pipeline.EXIT_FAILED
    assert capsys.readouterr().err == (
        "dlog: stopped before the job was done\n  next: run it again: finished work is not repeated\n"
    )


def test_a_report_that_cannot_be_written_is_told_after_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dlog.spark.jobs.frame import Report

    with pytest.raises(CommandError, match="cannot write the report: No such file or directory") as raised:
        run(monkeypatch, lambda *_: Report(job="job"), report_file=str(tmp_path / "none" / "report"))
    assert not raised.value.misused
    done = run(monkeypatch, lambda *_: Report(job="job", findings=[{}]), report_file=str(tmp_path / "report"))
    assert done[1] == 2 and '"verdict": "findings"' in (tmp_path / "report").read_text()


def test_a_job_reads_segments_where_the_cluster_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlog.spark.jobs.frame import Report

    for name in ("DLOG_FILE_DIRECTORY", "DLOG_OBJECTS_ROOT", "DLOG_KAFKA_TOPICS"):
        monkeypatch.setenv(name, "file:///of/another/cluster")
    cluster = Cluster("", "h:1", "/dlog", "/its/files", "kafka://its:1", "s3://its/objects")
    run(monkeypatch, lambda *_: Report(job="job"), cluster=cluster)
    assert os.environ["DLOG_FILE_DIRECTORY"] == "/its/files"
    assert os.environ["DLOG_OBJECTS_ROOT"] == "s3://its/objects"
    assert os.environ["DLOG_KAFKA_TOPICS"] == "kafka://its:1"


WRONG_REGION = {
    "--region app/orders": "use kafka://host:port,host:port/NAMESPACE/REGION",
    "--region ftp://h/app/orders": "use file:///path or kafka://host:port,host:port",
    "--region file:///x/app/orders --stream s": "--stream is for streams",
    "--region file:///x/app/orders --pattern s": "--pattern is for streams",
    "--region file:///x/app/orders --zookeeper h:1": "--zookeeper is for streams",
    "--region file:///x/app/orders --namespace /n": "--namespace is for streams",
    "--region file:///x/app/orders --dir d": "--dir is for streams",
    "--region file:///x/app/orders --source startingTxid=7": "does not fit a region in topics",
    "--region file:///nowhere/app/orders": "there is no such region",
}


@pytest.mark.parametrize("given", WRONG_REGION)
def test_a_wrong_region_is_told(
    given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DLOG_DIR", "DLOG_ZOOKEEPER", "DLOG_NAMESPACE", "DLOG_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dlog.spark.session", lambda *_, **__: Session())
    assert main(["pipeline", "replay", "--to", "to", *given.split()]) == 1
    said = capsys.readouterr().err
    assert WRONG_REGION[given] in said
    if "nowhere" in given:
        assert "next: name a region that exists" in said
