"""Runs the commands of README.md and of pages in docs as a reader would: one `dlog up`, then each line.

A line `$ command` in a fenced `console` block behind a `<!-- tour -->` mark runs in a shell in the cluster's directory;
it must exit 0 unless the line above says `# exits N`. Each Python block behind `<!-- tour-python -->` is a program.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
UP_DEADLINE_S = 180


def blocks(document: Path, mark: str) -> list[str]:
    text = document.read_text()
    return re.findall(rf"<!-- {mark} -->\n```\w+\n(.*?)```", text, re.DOTALL)


def commands(block: str) -> list[tuple[str, int]]:
    """(command, expected exit status) of each `$` line; `# exits N` applies to the next command."""
    found, status = [], 0
    for line in block.splitlines():
        if match := re.match(r"# exits (\d)", line):
            status = int(match[1])
        elif line.startswith("$ "):
            found.append((line[2:], status))
            status = 0
    return found


@contextmanager
def running(where: Path, *flags: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """A cluster in a directory, and the environment of commands there."""
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    env.pop("DLOG_CONNECT", None)
    log = (where / "up.log").open("w")
    up = subprocess.Popen(["dlog", "up", "--dir", "data", *flags], cwd=where, env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + UP_DEADLINE_S
        while subprocess.run(["dlog", "ls"], cwd=where, env=env, capture_output=True, check=False).returncode != 0:
            assert up.poll() is None, (where / "up.log").read_text()
            assert time.monotonic() < deadline, (where / "up.log").read_text()
            time.sleep(0.2)  # no notification exists; a person at a prompt would look again, too
        yield where, env
    finally:
        up.send_signal(signal.SIGINT)
        try:
            assert up.wait(timeout=120) == 0, (where / "up.log").read_text()
        finally:
            up.kill()
            log.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    where = tmp_path_factory.mktemp("tour")
    (where / "README.md").write_text((ROOT / "README.md").read_text())
    with running(where) as started:
        yield started


def run_commands(found: list[tuple[str, int]], where: Path, env: dict[str, str]) -> list[str]:
    """Run commands one after the other; returns what they print."""
    printed: list[str] = []
    for command, status in found:
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=where,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert result.returncode == status, f"$ {command}\n{result.stdout}{result.stderr}"
        printed += result.stdout.splitlines()
    return printed


@pytest.mark.parametrize("document", ["README.md", "docs/quickstart.md", "docs/operations.md"])
def test_the_commands_of_the_document_run(cluster: tuple[Path, dict[str, str]], document: str) -> None:
    where, env = cluster
    found = [each for block in blocks(ROOT / document, "tour") for each in commands(block)]
    assert len(found) > 3
    run_commands(found, where, env)


def run_python(document: str, cluster: tuple[Path, dict[str, str]], directory: Path) -> list[str]:
    """Run the one Python program of a document with the DLOG_CONNECT that `dlog up` prints; return what it prints."""
    where, env = cluster
    (block,) = blocks(ROOT / document, "tour-python")
    program = directory / "tour.py"
    program.write_text(block)
    told = re.search(r"DLOG_CONNECT=(\S+)", (where / "up.log").read_text())
    assert told is not None, "dlog up prints the value of DLOG_CONNECT"
    env = {**env, "DLOG_CONNECT": told[1]}
    result = subprocess.run(
        [sys.executable, str(program)], cwd=where, env=env, capture_output=True, text=True, check=False, timeout=180
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_the_python_of_the_readme_runs(cluster: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    payloads = [line.split()[-1] for line in run_python("README.md", cluster, tmp_path)]
    assert payloads == ["b'hello'", "b'how'", "b'are'", "b'you'", "b'fine'", "b'thanks'"]


def test_the_python_of_the_quick_start_runs(cluster: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    lines = run_python("docs/quickstart.md", cluster, tmp_path)
    payloads = [line.split()[-1] for line in lines]
    assert payloads[1:] == ["b'first'", *(f"{number}'" for number in range(5))]
    assert lines[-1].startswith("resumed at")


def test_the_commands_of_the_page_on_streams_on_kafka_run(tmp_path: Path) -> None:
    """On topics in a directory. `dlog up` on brokers is in tests/integration/regions/test_streams_on_kafka.py, the demo
    in test_kafka_demo.py beside it."""
    page = ROOT / "docs/streams-on-kafka.md"
    (block,) = blocks(page, "streams-on-kafka")
    address = f"file://{tmp_path}/topics"
    assert "dlog up --bookies 0 --kafka file:///path/of/the/topics" in page.read_text()
    with running(tmp_path, "--bookies", "0", "--kafka", address) as (where, env):
        printed = run_commands(commands(block), where, env)
    assert "created orders" in printed and f"at {address}" in "\n".join(printed)
    assert any(line.startswith("store      kafka, records are synced") for line in printed)


def test_the_commands_of_the_page_on_streams_on_s3_run(tmp_path: Path) -> None:
    """On objects in the cluster's directory."""
    page = ROOT / "docs/streams-on-s3.md"
    (block,) = blocks(page, "streams-on-s3")
    assert "It was started by `dlog up --bookies 0`." in page.read_text()
    with running(tmp_path, "--bookies", "0") as (where, env):
        printed = run_commands(commands(block), where, env)
    assert "created orders" in printed and any(line.startswith("object       file://") for line in printed)


def test_the_commands_and_the_program_of_the_page_on_regions_run(tmp_path: Path) -> None:
    page = ROOT / "docs/regions.md"
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "DLOG_KAFKA_TOPICS": f"file://{tmp_path}/topics"}
    (block,) = blocks(page, "regions")
    expected = [line for line in block.splitlines() if not line.startswith("$ ")]
    printed: list[str] = []
    for command, status in commands(block):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        printed += done.stdout.splitlines()
    assert printed == expected
    (program,) = blocks(page, "regions-python")
    (tmp_path / "program.py").write_text(program.replace("/tmp/dlog-regions", f"{tmp_path}/wal"))
    for _ in range(2):
        done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "[(2, 1, b'customer 1')]\n".replace("1, b", f"{1 + _}, b")
