"""The demos on Kafka and on S3: what they say if a part is missing, and how the Makefile starts them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import kafka_demo, s3_demo
from loadtest.systems import versitygw
from loadtest.systems.java import KAFKA

ROOT = Path(__file__).resolve().parents[3]


def test_without_maven_a_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_demo, "KAFKA", replace(KAFKA, directory=tmp_path / "lib"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert kafka_demo.main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "no mvn on PATH to fetch the jars of kafka: run apt-get install maven" in line


def test_without_go_a_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versitygw, "SERVER", tmp_path / "versitygw")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert s3_demo.main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "no go on PATH to build versitygw: run apt-get install golang-go" in line


@pytest.mark.parametrize(
    ("given", "status", "runs"),
    [
        ((), 0, "dlog.cli.demo x.txt"),
        (("STORE=kafka",), 0, "loadtest.kafka_demo x.txt"),
        (("STORE=s3-direct",), 0, "loadtest.s3_demo --store s3-direct x.txt"),
        (("STORE=s3",), 0, "loadtest.s3_demo --store s3 x.txt"),
        (("STORE=tape",), 2, "no such store for the demo: STORE=tape; use STORE=kafka"),
    ],
)
def test_make_demo_takes_a_store(given: tuple[str, ...], status: int, runs: str, tmp_path: Path) -> None:
    """Run by make itself, with a stand-in for Python, and what `setup` makes taken as made."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    make = ["make", "-C", str(ROOT), "-o", f"{tmp_path}/.ready", f"VENV={tmp_path}", "demo", "FILE=x.txt", *given]
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert runs in done.stdout + done.stderr
