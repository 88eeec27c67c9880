"""Streams in Spark: `dlog.spark.register(spark)`, then `spark.read.format("dlog")`. Needs the extra `dlogd[spark]`.

Nothing else of the service needs this room, and nothing of it is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: settings of a session that reads streams, and why: docs/spark.md
SESSION = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}

#: of the driver's environment, what workers are told too: how cold storage is reached
_TOLD = ("DLOG_COLD_", "AWS_")


def register(spark: SparkSession) -> None:
    """Make the format known to a session. Once a session; again does no harm, and helps where a streaming write says
    that there is no such format: Spark looks for it in the session that its thread has as the active one."""
    from dlog.spark.source import DlogDataSource

    spark.dataSource.register(DlogDataSource)
    class_of = getattr(spark, "_get_j_spark_session_class", None)  # not so where Spark is reached by Connect
    if class_of is not None:
        class_of(spark._jvm).setActiveSession(spark._jsparkSession)


def session(name: str = "dlog", **settings: Any) -> SparkSession:
    """A session with `SESSION` and `settings` that knows the format. In a key without a dot `_` stands for one."""
    import os
    import sys

    from pyspark.sql import SparkSession

    from dlog.spark.java import provide_java

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    provide_java()
    builder = SparkSession.builder.appName(name)
    told = {f"spark.executorEnv.{key}": value for key, value in os.environ.items() if key.startswith(_TOLD)}
    for key, value in {**told, **SESSION, **{_key(key): value for key, value in settings.items()}}.items():
        builder = builder.config(key, str(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _key(name: str) -> str:
    return name if "." in name else name.replace("_", ".")
