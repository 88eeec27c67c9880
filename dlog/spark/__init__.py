"""Streams in Spark: `dlog.spark.register(spark)`, then `spark.read.format("dlog")`. Needs the extra `dlogd[spark]`.

Nothing else of the service needs this package; its modules are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: settings of a session that reads streams; docs/spark.md explains them
SESSION = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}

#: variables of the driver's environment that workers get, too: how cold storage is reached
_FORWARDED = ("DLOG_COLD_", "AWS_")


def register(spark: SparkSession) -> None:
    """Register the format in a session. Doing it again is harmless, and helps where a streaming write reports an
    unknown format: Spark looks it up in the active session of its thread."""
    from dlog.spark.source import DlogDataSource

    spark.dataSource.register(DlogDataSource)
    class_of = getattr(spark, "_get_j_spark_session_class", None)  # absent with Spark Connect
    if class_of is not None:
        class_of(spark._jvm).setActiveSession(spark._jsparkSession)


def session(name: str = "dlog", **settings: Any) -> SparkSession:
    """A session with `SESSION` and `settings` that knows the format. In a key without a dot, `_` stands for a dot."""
    import os
    import sys

    from pyspark.sql import SparkSession

    from dlog.spark.java import provide_java

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    provide_java()
    builder = SparkSession.builder.appName(name)
    forwarded = {f"spark.executorEnv.{key}": value for key, value in os.environ.items() if key.startswith(_FORWARDED)}
    for key, value in {**forwarded, **SESSION, **{_key(key): value for key, value in settings.items()}}.items():
        builder = builder.config(key, str(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _key(name: str) -> str:
    return name if "." in name else name.replace("_", ".")
