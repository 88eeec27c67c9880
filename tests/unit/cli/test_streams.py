"""Tests what `dlog create`, `dlog alter` and `dlog show` print about a stream and its settings."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest

from dlog.cli.main import main
from dlog.cli.streams import retention_text
from dlog.model.segment import StreamSettings
from tests.unit.client.proxy_double import Double, Log
from tests.unit.client.test_stream_info import SEGMENTS


def test_a_stream_is_kept_for_ever_unless_somebody_says_otherwise() -> None:
    assert StreamSettings().retention_s == 0


@pytest.mark.parametrize(
    ("retention_s", "text"),
    [
        (0.0, "kept for ever"),
        (0, "kept for ever"),
        (259200.0, "kept for 3d"),
        (1.5, "kept for 1.5s"),
        (20261120.0, "kept for 20261120s"),
    ],
)
def test_retention_in_words(retention_s: float, text: str) -> None:
    assert retention_text(retention_s) == text


@pytest.mark.parametrize("option", ["--retention", "--segment-age"])
@pytest.mark.parametrize("text", ["20261120", "7", "1.5", "0.001s", "999ms", "0.9s"])
def test_an_age_has_a_unit_and_is_at_least_a_second(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("create", "alter"):
        assert main([command, "s", option, text, "--connect", "dlog://127.0.0.1:1"]) == 2
        said = capsys.readouterr().err
        assert f"{option}={text}" in said and "such as 7d, 12h or 90s" in said
        assert ("or 0: for ever" in said) == (option == "--retention")


async def shown(log: Log, *words: str) -> tuple[int, Any, str]:
    """Exit code, JSON on stdout, and stderr of a command that talks to a double."""
    async with Double(log) as double:
        command = [sys.executable, "-m", "dlog", *words, "--connect", double.target, "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        out, err = await process.communicate()
    return process.returncode or 0, json.loads(out) if out else None, err.decode()


async def test_show_tells_what_a_proxy_told_under_the_same_keys() -> None:
    log = Log()
    segment = {**SEGMENTS[1], "last_txid": None}
    stat = log.stat() | {
        "state": "serving",
        "producers": 2,
        "first_dlsn": [1, 3, 2],
        "segments": [SEGMENTS[0], segment],
    }
    log.stat = lambda: stat  # type: ignore[method-assign]
    code, told, _ = await shown(log, "show", "s")
    assert (code, told) == (0, stat)


async def test_create_and_alter_tell_settings_and_what_differs() -> None:
    log = Log()
    assert await shown(log, "alter", "s", "--retention", "1h") == (
        0,
        {"stream": "s", "settings": log.settings | {"retention_s": 3600.0}},
        "",
    )
    code, told, _ = await shown(log, "create", "s", "--exist-ok", "--retention", "60m")
    assert (code, told["exists"], told["settings"]["retention_s"]) == (0, True, 3600.0)
    code, told, err = await shown(log, "create", "s", "--exist-ok", "--retention", "2h", "--ensemble", "5")
    assert (code, told) == (1, None) and "retention_s=3600.0 wanted=7200" in err and "ensemble=3 wanted=5" in err
    for zero in ("0", "0s"):
        assert (await shown(log, "alter", "s", "--retention", zero))[1]["settings"]["retention_s"] == 0
    code, _, err = await shown(log, "alter", "s", "--segment-age", "0")
    assert code == 2 and "--segment-age=0" in err
    code, _, err = await shown(log, "alter", "s")
    assert code == 2 and "no setting is given" in err
