"""Tests every misuse that needs no cluster: an exit code, a message, and the next command to try."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlog.cli.main import main
from dlog.cli.output import EXIT_FAILED, EXIT_MISUSED, next_step
from dlog.errors import (
    DLogError,
    InvalidRequestError,
    PositionBeyondEndError,
    RequestTimeoutError,
    StreamNotFoundError,
    UnavailableError,
)

NOBODY = "dlog://127.0.0.1:1"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DLOG_CONNECT", "DLOG_DIR", "DLOG_ZOOKEEPER", "DLOG_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "No such command"),
        (["ls", "--frob"], "No such option"),
        (["ls"], "no cluster"),
        (["cluster", "status"], "no cluster"),
        (["ls", "--connect", "nonsense"], "dlog://host:port"),
        (["show", "a/b", "--connect", NOBODY], "stream name"),
        (["create", "", "--connect", NOBODY], "may not be empty"),
        (["create", "s", "--retention", "7parsecs", "--connect", NOBODY], "not a duration"),
        (["create", "s", "--segment-bytes", "3q", "--connect", NOBODY], "not a size"),
        (["create", "s", "--ensemble", "0", "--connect", NOBODY], "0"),
        (["truncate", "s", "abc", "--connect", NOBODY], "segment:entry:slot"),
        (["append", "s", "nofile", "--connect", NOBODY], "no such file"),
        (["append", "s", ".", "--connect", NOBODY], "directory"),
        (["read", "s", "--from", "x", "--connect", NOBODY], "segment:entry:slot"),
        (["read", "s", "--from-txid", "x", "--connect", NOBODY], "not a valid integer"),
        (["read", "s", "--from-time", "x", "--connect", NOBODY], "not a time"),
        (["read", "s", "--tail", "--from-start", "--connect", NOBODY], "give only one of"),
        (["read", "s", "--format", "xml", "--connect", NOBODY], "xml"),
        (["delete", "s", "--connect", NOBODY], "--yes"),
        (["ledger", "show", "x"], "not a valid integer"),
        (["ledger", "recover", "1", "--zookeeper", "h:1"], "--yes"),
        (["bookie", "status", "a b", "--zookeeper", "h:1"], "not a bookie id"),
        (["cluster", "rebalance", "--until", "nan"], "'nan' is not a finite number"),
        (["object", "fsck", "--older-than", "nan"], "'nan' is not a finite number"),
        (["object", "fsck", "--older-than", "inf"], "inf"),
        (["object", "fsck", "--older-than", "1e300"], "1e"),
        (["cluster", "init", "--wait", "nan", "--zookeeper", "h:1"], "'nan' is not a finite number"),
        (["cluster", "init", "--wait", "inf", "--zookeeper", "h:1"], "inf"),
        (["up", "--bookies", "-1"], "-1"),
        (["up", "--config", "nofile.toml"], "cannot be read"),
        (["up", "--dir", "/dev/null/x"], "cannot create the directory"),
    ],
)
def test_misuse_ends_in_2_and_says_what_to_do(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == EXIT_MISUSED
    told = capsys.readouterr()
    assert says in told.err
    assert "Traceback" not in told.err
    assert not told.out


def test_an_unknown_option_in_a_file_is_named(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "up.toml").write_text("[up]\nbokies = 3\n")
    assert main(["up", "--config", "up.toml"]) == EXIT_MISUSED
    assert "bokies" in capsys.readouterr().err


def test_nobody_listening_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--connect", NOBODY]) == EXIT_FAILED
    told = capsys.readouterr().err
    assert "connection refused" in told
    assert "next:" in told


def test_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["truncate", "s", "abc", "--connect", NOBODY, "--json"]) == EXIT_MISUSED
    told = json.loads(capsys.readouterr().err)["error"]
    assert told["kind"] == "InvalidRequestError"
    assert told["code"] == 400
    assert main(["--json", "truncate", "s", "abc", "--connect", NOBODY]) == EXIT_MISUSED
    assert json.loads(capsys.readouterr().err)["error"] == told
    assert main(["ls", "--json", "--frob"]) == EXIT_MISUSED
    assert json.loads(capsys.readouterr().err)["error"]["kind"] == "UsageError"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    for name in [
        "up",
        "create",
        "append",
        "read",
        "ls",
        "show",
        "truncate",
        "seal",
        "delete",
        "owners",
        "explain",
        "ledger",
        "bookie",
        "cluster",
    ]:
        assert f"\n  {name} " in told


@pytest.mark.parametrize(
    "arguments",
    [
        ["delete", "s", "--connect", NOBODY],
        ["ledger", "recover", "1", "--zookeeper", "h:1"],
        ["append", "s", "--connect", NOBODY],
    ],
)
def test_a_command_that_asks_or_reads_without_standard_input_says_so(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(arguments) == EXIT_MISUSED
    assert "next: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (StreamNotFoundError("x"), "dlog create"),
        (UnavailableError("x"), "dlog up"),
        (RequestTimeoutError("x"), "try again"),
        (RequestTimeoutError("x", outcome_unknown=False), "cluster status"),
    ],
)
def test_advice(error: DLogError, advice: str) -> None:
    assert advice in (next_step(error) or "")


def test_an_error_without_advice_of_its_own_explains_itself() -> None:
    assert next_step(InvalidRequestError("how it is written")) is None


@pytest.mark.parametrize("command", ["ls", "up --dir zz", "bookie fsck x", "cluster status --dir zz"])
def test_a_working_directory_that_is_gone_is_told(
    command: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = elsewhere / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(command.split()) == EXIT_MISUSED
    said = capsys.readouterr().err
    assert "the working directory was deleted" in said or "zz" in said, said
    assert "next: " in said


@pytest.mark.parametrize("command", ["truncate s 9:0:0", "read s --from 9:0:0"])
def test_a_position_beyond_the_end_is_a_failure(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is a record so far depends on the stream, not on the usage; the help of `truncate` says so, too."""

    async def refuse(*_: object) -> None:
        raise PositionBeyondEndError("the truncation point is beyond the stream's end at 1:0:0: stream=s")

    monkeypatch.setattr("dlog.client.client.Client.reach", refuse)
    assert main([*command.split(), "--connect", NOBODY]) == EXIT_FAILED
