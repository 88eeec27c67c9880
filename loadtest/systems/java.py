"""Java of the peers: fetches their jars by Maven, compiles our generators against them, builds JVM commands.

Invariants:
- jars are fetched once into .cache/peers; a stamp names their pom, so that a changed pom is fetched again;
- a missing tool or jar raises PartMissingError, which says how to get it, before anything starts.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.systems.base import CannotRunError

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "peers"
SOURCES = Path(__file__).parent / "java"
LOGGING = SOURCES / "log4j2.properties"
FETCH_S = 900.0
COMPILE_S = 180.0
_GET_JDK = "apt-get install openjdk-17-jdk-headless"
_GET_MAVEN = "apt-get install maven openjdk-17-jdk-headless"


class PartMissingError(CannotRunError):
    """A tool or package is not on this machine; the message says how to get it."""


class FetchFailedError(CannotRunError):
    """A registry did not deliver, or compilation failed."""


@dataclass(frozen=True, slots=True)
class Jars:
    """The jars of one peer. must: a file of every complete set. version: instead of the pom's `peer.version`."""

    peer: str
    pom: Path
    directory: Path
    must: str
    version: str = ""

    @property
    def stamp(self) -> Path:
        return self.directory.parent / f".{self.directory.name}.pom"

    def are_here(self) -> bool:
        """Whether there are jars, of any pom."""
        return any(self.directory.glob(self.must))

    def are_current(self) -> bool:
        """Whether they are those of the present pom."""
        return self.are_here() and self.stamp.exists() and self.stamp.read_text() == self._wanted()

    def need(self) -> None:
        """Raises PartMissingError."""
        find_java()
        if not self.are_here():
            raise PartMissingError(
                f"the jars of {self.peer} are not installed: run python -m loadtest peers install {self.peer} "
                f"(needs Maven: {_GET_MAVEN})"
            )

    def install(self) -> bool:
        """Fetch them by Maven unless present; whether anything was fetched. Raises PartMissingError,
        FetchFailedError."""
        if self.are_current():
            return False
        maven = shutil.which("mvn")
        if maven is None:
            raise PartMissingError(f"no mvn on PATH to fetch the jars of {self.peer}: run {_GET_MAVEN}")
        find_javac()
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.directory.parent, prefix=".fetching-") as work:
            fetched = Path(work) / "jars"
            run(
                [
                    *(maven, "-q", "-B", "-f", str(self.pom), "dependency:copy-dependencies"),
                    *([f"-Dpeer.version={self.version}"] if self.version else []),
                    *("-DincludeScope=runtime", f"-DoutputDirectory={fetched}"),
                ],
                FETCH_S,
            )
            if not any(fetched.glob(self.must)):
                raise FetchFailedError(f"Maven succeeded but fetched no {self.must}: pom={self.pom}")
            shutil.rmtree(self.directory, ignore_errors=True)  # removes jars of an older pom
            fetched.rename(self.directory)
        self.stamp.write_text(self._wanted())
        return True

    def class_path(self, *more: Path) -> str:
        """Argument of `java -cp`: `more` directories first, then every jar."""
        return os.pathsep.join([*map(str, more), f"{self.directory}/*"])

    def _wanted(self) -> str:
        return _digest([self.pom]) + self.version


_BOOKKEEPER_POM = ROOT / "tests" / "interop" / "java" / "pom.xml"  # names the version that we compare with
_BOOKKEEPER_MUST = "bookkeeper-server-*.jar"
BOOKKEEPER = Jars("bookkeeper", _BOOKKEEPER_POM, CACHE / "lib", _BOOKKEEPER_MUST)
#: the newest version of the release before that one, for one module of the interop tests
OLD_BOOKKEEPER = Jars("bookkeeper-4.17", _BOOKKEEPER_POM, CACHE / "bookkeeper-4.17" / "lib", _BOOKKEEPER_MUST, "4.17.3")
KAFKA = Jars("kafka", SOURCES / "kafka.pom.xml", CACHE / "kafka" / "lib", "kafka_2.13-*.jar")
HDFS = Jars("hdfs", SOURCES / "hdfs.pom.xml", CACHE / "hdfs" / "lib", "hadoop-hdfs-client-*.jar")  # for cold storage
DELTA = Jars("delta", SOURCES / "delta.pom.xml", CACHE / "delta" / "lib", "delta-spark_2.13-*.jar")  # for tables


def find_java() -> str:
    """The path of `java`. Raises PartMissingError."""
    java = shutil.which("java")
    if java is None:
        raise PartMissingError(f"no java on PATH: run {_GET_JDK}")
    return java


def java_version() -> str:
    """The version of `java`. Raises PartMissingError, FetchFailedError."""
    found = re.search(r'version "([^"]+)"', run([find_java(), "-version"], 60.0))
    return found[1] if found else "unknown"


def find_javac() -> str:
    """Raises PartMissingError."""
    javac = shutil.which("javac")
    if javac is None:
        raise PartMissingError(f"no javac on PATH: run {_GET_JDK}")
    return javac


def jvm(
    jars: Jars, main: str, *arguments: str, heap_mib: int = 384, flags: Sequence[str] = (), first: Sequence[Path] = ()
) -> list[str]:
    """A command that runs a class of a peer. Raises PartMissingError."""
    jars.need()
    return [
        *(find_java(), f"-Xmx{heap_mib}m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={LOGGING}", *flags),
        *("-cp", jars.class_path(*first), main, *arguments),
    ]


def classes_of(jars: Jars, sources: Sequence[str]) -> Path:
    """Directory of our generator for a peer, compiled once per version of its sources. Raises PartMissingError,
    FetchFailedError."""
    jars.need()
    javac = find_javac()
    files = [SOURCES / source for source in sources]
    classes = CACHE / "classes" / f"{jars.peer}-{_digest(files)[:16]}"
    if classes.is_dir():
        return classes
    classes.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=classes.parent, prefix=".compiling-") as work:
        out = Path(work) / "classes"
        run([javac, "-nowarn", "-proc:none", "-d", str(out), "-cp", jars.class_path(), *map(str, files)], COMPILE_S)
        try:
            out.rename(classes)  # if another process was first, its classes are the same
        except OSError:
            if not classes.is_dir():
                raise
    return classes


def run(command: Sequence[str], within_s: float, **environment: str) -> str:
    """Run a tool; its output. Raises FetchFailedError with the end of it."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=within_s,
            env={**os.environ, **environment},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchFailedError(f"{Path(command[0]).name} did not finish: {error}"[:500]) from error
    output = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        raise FetchFailedError(f"{Path(command[0]).name} failed: code={done.returncode} output={output[-1500:]}")
    return output


def _digest(files: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()
