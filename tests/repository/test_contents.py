"""Tests the repository: import contracts are effective, the wheel is complete, documents name things that exist."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dlog.client.batch_queue import BatchBorrower

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PROSE = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("config/*.md")])

# (contract, file to add a line to, the line that breaks it)
BREAKAGES = [
    ("proxies and loadtest stand on actors, actors on dlog", "dlog/model/ids.py", "import actors.runtime"),
    ("proxies and loadtest stand on actors, actors on dlog", "actors/runtime.py", "import proxies.write"),
    ("loadtest measures from outside", "loadtest/__init__.py", "import actors.runtime"),
    ("reports of the load test come from the run's file alone", "loadtest/report/page.py", "import loadtest.runner"),
    ("inside dlog imports run one way", "dlog/model/ids.py", "import dlog.wire.digest"),
    ("inside dlog imports run one way", "dlog/ledger/adding.py", "import dlog.bookie.bookie"),
    ("protocol rooms know no clock, socket, file or loop", "dlog/ledger/adding.py", "import asyncio"),
    ("protocol rooms know no clock, socket, file or loop", "dlog/bookie/bookie.py", "import time"),
    ("protocol rooms know no clock, socket, file or loop", "dlog/log/owner.py", "import os"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked source tree, which tests change."""
    target = tmp_path_factory.mktemp("local")
    for name in ("dlog", "actors", "proxies", "loadtest"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    return target


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_import_contracts_hold(copy: Path) -> None:
    result = lint_imports(copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(("contract", "file", "line"), BREAKAGES, ids=[f"{f}: {line}" for _, f, line in BREAKAGES])
def test_an_import_against_the_arrows_is_caught(copy: Path, contract: str, file: str, line: str) -> None:
    path = copy / file
    before = path.read_text()
    path.write_text(before + f"\n{line}\n")
    try:
        result = lint_imports(copy)
    finally:
        path.write_text(before)
    assert result.returncode != 0
    assert f"{contract} BROKEN" in result.stdout


@pytest.mark.parametrize(
    "line",
    [
        "import asyncio\nasyncio.create_task(None)",
        "import asyncio\nasyncio.gather()",
        "import asyncio\nasyncio.wait_for(None, 1)",
        "import asyncio\nasyncio.shield(None)",
        "import time\ntime.time()",
        "import random\nrandom.random()",
        "try:\n    pass\nexcept Exception:\n    pass",
    ],
)
def test_ruff_bans_bite(line: str) -> None:
    command = [str(BIN / "ruff"), "check", "--stdin-filename", "dlog/io/probe.py", "-"]
    result = subprocess.run(command, input=line + "\n", cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout


@pytest.fixture(scope="module")
def wheel(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(copy)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (made,) = target.glob("dlogd-*.whl")
    return made


def test_the_wheel_holds_the_library_and_the_service_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"dlog", "actors", "proxies"}
    assert "dlog/py.typed" in names


PROGRAM = ROOT / "tests" / "repository" / "user_program.py"


def test_a_users_program_is_checked_strictly_against_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """A wrong use is found, which shows that the types of the installed package are really checked."""
    python = tmp_path / "env" / "bin" / "python"
    installed = f"{sys.executable} -m pip --python {python} install --quiet --no-deps --no-index {wheel}"
    for command in (f"{sys.executable} -m venv --without-pip {tmp_path / 'env'}", installed):
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    program, wrong = tmp_path / "program.py", tmp_path / "wrong.py"
    program.write_text(PROGRAM.read_text())
    wrong.write_text(
        "import dlog\n\nasync def main(client: dlog.Client) -> int:\n"
        "    await client.alter('s', colour='red')\n    return await client.append('s', 'text')\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--python-executable={python}"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    checked = subprocess.run(
        [*mypy, program.name, wrong.name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    found = checked.stdout.splitlines()
    assert not [line for line in found if line.startswith(program.name)], checked.stdout
    assert [line.rpartition("[")[2] for line in found if f"{wrong.name}:" in line and ": error:" in line] == [
        "call-arg]",
        "return-value]",
        "arg-type]",
    ], checked.stdout + checked.stderr


def test_the_users_program_calls_every_public_method() -> None:
    import dlog

    text = PROGRAM.read_text()
    missing = [
        f"{cls.__name__}.{name}"
        for cls in (dlog.Client, dlog.SyncClient, dlog.Pipeline, dlog.Reader, dlog.SyncReader, dlog.RecordBatch)
        for name, value in vars(cls).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
        if not hasattr(BatchBorrower, name) and f".{name}" not in text
    ]
    assert not missing


def test_documents_point_at_files_that_exist() -> None:
    broken = []
    for document in PROSE:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text()):
            if not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)} -> {target}")
        for path in re.findall(
            r"`((?:dlog|actors|proxies|config|loadtest|tests|docs)/[\w./-]*\w\.(?:py|toml|md|java))`",
            document.read_text(),
        ):
            if not (ROOT / path).exists():
                broken.append(f"{document.relative_to(ROOT)} names {path}")
    assert not broken


def test_no_address_of_a_registry_and_no_path_of_a_machine_is_committed() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = []
    for name in files:
        if name == "tests/repository/test_contents.py" or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_text(errors="replace")
        if re.search(r"(?m)[\"' =(](?:/root/|/home/|/work/)", text):
            found.append(name)
        if name.endswith((".lock", ".toml", "Makefile")) and re.search(
            r"https?://(?!maven\.apache\.org/POM|www\.w3\.org)", text
        ):
            found.append(name)
    assert not found
