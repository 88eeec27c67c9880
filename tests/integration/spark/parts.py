"""Requirements of Spark's tests on this machine."""

from __future__ import annotations

import importlib.util

from dlog.io.embedded_zookeeper import INSTALL_HINT, JavaNotFoundError, find_java
from tests.integration.spark.archive import start_quickly
from tests.parts import need


def need_spark() -> None:
    """Skip, or fail in CI, without PySpark, Arrow or a Java. Otherwise Spark starts quickly from here on."""
    for part in ("pyspark", "pyarrow"):
        need(importlib.util.find_spec(part) is not None, part, "pip install 'dlogd[spark]'")
    try:
        find_java()
    except JavaNotFoundError:
        need(False, "Java", INSTALL_HINT)
    start_quickly()
