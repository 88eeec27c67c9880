"""Errors of `dlog region`: each says what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.cli.main import main
from dlog.io.file_topics import DirectoryTopics


@pytest.fixture
def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLOG_KAFKA_TOPICS", f"file://{tmp_path}/topics")
    assert main(["region", "create", "app/orders"]) == 0
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    assert main(["region", "write", "app/orders", "--table", "7", str(lines)]) == 0
    return tmp_path / "topics"


WRONG = {
    "region show orders": "name it as NAMESPACE/NAME",
    "region show app/other": "`dlog region create NAMESPACE/NAME` creates a region",
    "region show app/a/b": "a region has 1 to 100 of a-z A-Z 0-9 _ -",
    "region read app/orders --from 2": "add --table NUMBER",
    "region read app/orders --table 8": "no record of this table was ever written",
    "region read app/orders --table 7 --from 9": "beyond the next one: table=7 sequence=9 next=3",
    "region mark app/orders --table 7 --below 9": "a mark lies between the last mark and the next record",
    "region write app/orders --table 7 nowhere": "nowhere",
    "region show app/orders --topics ftp://x": "use file:///path or kafka://host:port,host:port",
}


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_says_what_to_do(command: str, topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(command.split()) == 2
    assert WRONG[command] in capsys.readouterr().err


def test_without_topics_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DLOG_KAFKA_TOPICS", raising=False)
    assert main(["region", "show", "app/orders"]) == 2
    assert "DLOG_KAFKA_TOPICS" in capsys.readouterr().err


def test_damage_is_told_with_the_command_that_goes_on(topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DirectoryTopics(str(topics)).append("app.data.orders", [(b"foreign", b"x")])
    capsys.readouterr()
    assert main(["region", "read", "app/orders", "--table", "7"]) == 1
    assert "offset=4" in (said := capsys.readouterr().err) and "--skip-damaged" in said
    assert main(["region", "read", "app/orders", "--table", "7", "--skip-damaged"]) == 1
    out, err = capsys.readouterr()
    assert "left out: data topic: not a record of a region: key_bytes=7 value_bytes=1 offset=4" in err
    assert main(["region", "verify", "app/orders"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["7", "2"]
    assert out.splitlines()[-1] == "app/orders: 2 records, 1 problems"


@pytest.mark.parametrize(("variable", "value"), [("DLOG_KAFKA_FLUSH", "maybe"), ("DLOG_KAFKA_NOTHING", "1")])
def test_a_wrong_setting_of_kafka_is_refused(
    topics: Path, variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["region", "show", "app/orders"]) == 2
    assert variable.removeprefix("DLOG_KAFKA_").lower() in capsys.readouterr().err.lower()


def test_version_0_is_written_on_request_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLOG_KAFKA_TOPICS", f"file://{tmp_path}/topics")
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    topics = DirectoryTopics(str(tmp_path / "topics"))
    for kind in ("meta", "data"):
        topics.create(f"app.{kind}.5")
    for given in (["--format", "0"], []):
        assert main(["region", "write", "app/5", "--table", "7", *given, str(lines)]) == 0
    assert main(["region", "mark", "app/5", "--table", "7", "--below", "2"]) == 0
    records = topics.read("app.data.5", 0, 1 << 20)
    assert [key.hex() for _, key, _ in records] == [f"01{5:016x}{7:016x}{sequence:016x}00" for sequence in (1, 2, 3, 4)]
    assert [value for _, _, value in records] == [b"\0one", b"\0two"] * 2
    capsys.readouterr()
    assert main(["region", "show", "app/5"]) == 0
    assert "records of version 0: no fence keeps a second writer out" in capsys.readouterr().out
    topics.append("app.data.5", [records[0][1:]])
    assert main(["region", "verify", "app/5"]) == 1
    assert "does not count, it is not the next one: expected=5: table=7 sequence=1 offset=4" in capsys.readouterr().out
    assert main(["region", "write", "app/5", "--table", "7", "--format", "1", str(lines)]) == 0
    capsys.readouterr()
    assert main(["region", "write", "app/5", "--table", "7", "--format", "0", str(lines)]) == 2
    assert "no record of version 0 counts any more, open it with format 1" in capsys.readouterr().err
    assert main(["region", "read", "app/5", "--table", "7"]) == 1
    assert capsys.readouterr().out.splitlines() == ["two", *["one", "two"] * 2]
    assert main(["region", "show", "app/5"]) == 0
    assert "version 0" not in capsys.readouterr().out
