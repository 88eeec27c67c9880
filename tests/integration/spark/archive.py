"""Makes Spark's processes start quickly: a class data sharing archive for Java, and PySpark from compiled files for
its Python workers.

Classes are loaded and checked in the archive. It is made once for each Java and each PySpark, and kept below .cache.
Spark starts a Python process for each query that it plans and for each batch that it commits.

    python -m tests.integration.spark.archive   a session that loads what tests load; its Java writes the archive
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from dlog.io.embedded_zookeeper import find_java

ROOT = Path(__file__).parents[3]
ARCHIVES = ROOT / ".cache" / "java"
WORKERS = ROOT / ".cache" / "spark-python"
MAKING_S = 300.0
#: options for a short-lived Java: it compiles once and cheaply, and has no extra threads for garbage collection. Java
#: ignores an archive that does not fit, without a message.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"

#: The Python of Spark's workers. Spark puts archives of PySpark's sources first on their path, and Python compiles what
#: it imports from a .zip file each time: without these archives a worker imports the same PySpark, as it is installed.
_WORKER = """#!/bin/sh
set -f
IFS=:
kept=
for path in $PYTHONPATH; do
  case $path in */python/lib/pyspark.zip | */python/lib/py4j-*.zip) ;; *) kept=$kept:$path ;; esac
done
export PYTHONPATH="${{kept#:}}"
exec "{python}" "$@"
"""


@cache
def start_quickly() -> None:
    """Let every Spark that this process or its children start use the archive, and workers that start quickly."""
    os.environ["PYSPARK_PYTHON"] = str(_worker())
    told = BRIEF
    archive = _archive()
    if archive is not None:
        told += f" -XX:SharedArchiveFile={archive}"
    os.environ["SPARK_SUBMIT_OPTS"] = told
    os.environ["SPARK_LAUNCHER_OPTS"] = BRIEF


def java_options() -> str:
    """Options for the Java of executors: those of the driver's Java, whose classes are the same."""
    return os.environ.get("SPARK_SUBMIT_OPTS", BRIEF)


def _worker() -> Path:
    """Write the program that Spark starts as Python; returns its path, which is another for each Python."""
    text = _WORKER.format(python=sys.executable)
    WORKERS.mkdir(parents=True, exist_ok=True)
    worker = WORKERS / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with tempfile.TemporaryDirectory(dir=WORKERS) as room:
        made = Path(room) / "made"
        made.write_text(text)
        made.chmod(0o755)
        made.rename(worker)
    return worker


def _archive() -> Path | None:
    """The archive's path, or None where Java makes none."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    jars, java = Path(found.origin).parent / "jars", find_java().resolve()
    parts = [java, *sorted(jars.glob("*.jar"))]
    told = "\n".join(f"{part} {part.stat().st_size} {part.stat().st_mtime_ns}" for part in parts)
    archive = ARCHIVES / f"{hashlib.sha256((told + BRIEF).encode()).hexdigest()[:16]}.jsa"
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return archive if archive.stat().st_size else None


def _make(archive: Path) -> None:
    """Make the archive; an empty file if that fails, so that it is tried once."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as room:
        made = Path(room) / "made"
        told = {"SPARK_SUBMIT_OPTS": f"{BRIEF} -XX:ArchiveClassesAtExit={made}", "TMPDIR": room}
        subprocess.run(
            [sys.executable, "-m", "tests.integration.spark.archive"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,  # until the end of Java, which holds these too
            env={**os.environ, **told},
            timeout=MAKING_S,
            check=False,
        )
        if not made.exists():
            made.touch()
        made.rename(archive)


def main() -> None:
    """Run batches and streams of a Python source, Parquet, and a shuffle."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader

    from dlog.spark import session

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0), InputPartition(1)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"number": pa.array([1, 2], pa.int64())})

    class StreamReader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"to": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
            return iter([(start["to"],)] if start["to"] < 2 else []), {"to": min(start["to"] + 1, 2)}

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:
            return iter([(number,) for number in range(start["to"], end["to"])])

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "number bigint"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

        def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
            return StreamReader()

    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = session("archive", **settings)
    spark.dataSource.register(Numbers)
    with tempfile.TemporaryDirectory() as room:
        frame = spark.read.format("numbers").load()
        frame.selectExpr("number", "current_date() as day").write.partitionBy("day").parquet(f"{room}/batch")
        read = spark.read.parquet(f"{room}/batch").where("number > 1")
        read.groupBy("day").agg({"number": "max"}).orderBy("day").collect()
        writer = spark.readStream.format("numbers").load().writeStream.format("parquet").option("path", f"{room}/table")
        query = writer.option("checkpointLocation", f"{room}/checkpoint").trigger(processingTime="0 seconds").start()
        query.processAllAvailable()
        query.stop()
        spark.read.parquet(f"{room}/table").count()
    spark.stop()


if __name__ == "__main__":
    main()
