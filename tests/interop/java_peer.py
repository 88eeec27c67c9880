"""Runs the Java tools of tests/interop/java, each as one process that prints JSON lines."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from pathlib import Path
from typing import Any

from tests.parts import need

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".cache" / "peers" / "lib"
SOURCES = Path(__file__).parent / "java"
DEADLINE_S = 90.0


def need_java() -> None:
    """Skip (or, in CI, fail) where the JDK or the jars are not there."""
    need(shutil.which("javac") is not None, "a JDK", "apt-get install openjdk-17-jdk-headless")
    need(JARS.is_dir(), "Apache BookKeeper's jars", "make peers (needs Maven: apt-get install maven)")


async def run(tool: str, *arguments: str) -> list[dict[str, Any]]:
    """The JSON lines a tool printed. Fails with its log unless it came to its end."""
    process = await asyncio.create_subprocess_exec(
        "java",
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{JARS}/*",
        str(SOURCES / f"{tool}.java"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [line for line in out.decode().splitlines() if line.startswith("{") or line == "end"]
    assert lines and lines[-1] == "end", (
        f"{tool} {arguments} ended with {process.returncode}\n{out.decode()[-2000:]}{err.decode()[-4000:]}"
    )
    return [json.loads(line) for line in lines[:-1]]


def payloads(lines: list[dict[str, Any]]) -> list[bytes]:
    """The entries among the lines of `LedgerTool read`, which must be dense from 0."""
    entries = [line for line in lines if "entry" in line]
    assert [line["entry"] for line in entries] == list(range(len(entries)))
    return [base64.b64decode(line["payload"]) for line in entries]
