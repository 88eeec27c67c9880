"""Fetches the jars of Spark's Kafka source, for the installed Spark, from Maven; once."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from pathlib import Path

from loadtest.systems.base import CannotRunError
from loadtest.systems.java import CACHE, SOURCES, FetchFailedError, PartMissingError, run

POM = SOURCES / "spark-kafka.pom.xml"
DIRECTORY = CACHE / "spark-kafka"
#: the source and its dependencies that Spark lacks
ARTIFACTS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
#: used if Maven lacks the installed version; tested with Spark 4.3
ELSE = "4.2.0"
FETCH_S = 600.0
_HOW = "python -m loadtest peers install spark-kafka"


def spark_version() -> str:
    """The version of PySpark. Raises CannotRunError."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise CannotRunError("PySpark is not installed: pip install 'dlogd[spark]'") from None


def found() -> tuple[str, list[Path]]:
    """The version of the source, and its jars. Raises PartMissingError."""
    for version in (spark_version(), ELSE):
        jars = sorted((DIRECTORY / version).glob("*.jar"))
        if jars:
            return version, jars
    raise PartMissingError(f"the jars of Spark's Kafka source are not installed: run {_HOW} (needs Maven)")


def install() -> bool:
    """Fetch them unless present; whether anything was fetched. Raises PartMissingError, FetchFailedError."""
    wanted = spark_version()
    if (DIRECTORY / wanted).is_dir() or (DIRECTORY / ELSE).is_dir():
        return False
    maven = shutil.which("mvn")
    if maven is None:
        raise PartMissingError("no mvn on PATH to fetch the jars of Spark's Kafka source: run apt-get install maven")
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    errors: list[str] = []
    for version in dict.fromkeys((wanted, ELSE)):
        with tempfile.TemporaryDirectory(dir=DIRECTORY, prefix=".fetching-") as work:
            jars = Path(work) / "jars"
            try:
                run(
                    [
                        *(maven, "-q", "-B", "-f", str(POM), f"-Dspark.version={version}"),
                        *("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"),
                        f"-DincludeArtifactIds={','.join(ARTIFACTS)}",
                    ],
                    FETCH_S,
                )
            except FetchFailedError as error:
                errors.append(f"{version}: {error}")
                continue
            jars.rename(DIRECTORY / version)
            return True
    raise FetchFailedError(f"Maven has no {ARTIFACTS[0]}: {' '.join(errors)[-800:]}")
