"""The advice of a command fits the command: it mentions records only for commands that have some, and a new cluster
only where none answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest

from dlog.cli.main import dlog, main
from dlog.cli.output import MutatingCommand, next_step
from dlog.errors import (
    ConnectionLostError,
    DLogError,
    EntryUnreadableError,
    FencedError,
    MetadataUnavailableError,
    MetadataWentBackError,
    NotReadyError,
    OverCapacityError,
    ProducerUnknownError,
    RequestTimeoutError,
    StreamUnavailableError,
)

#: what each command needs; a command that is not listed needs nothing
WORDS: dict[str, tuple[str, ...]] = {
    "create": ("s",),
    "alter": ("s",),
    "append": ("s", "-"),
    "read": ("s",),
    "show": ("s",),
    "truncate": ("s", "1:0:0"),
    "seal": ("s",),
    "delete": ("s", "--yes"),
    "explain": ("s", "1:0:0"),
    "bookie convert": ("nowhere", "--to", "db"),
    "bookie decommission": ("nobody:1",),
    "bookie fsck": ("nowhere",),
    "bookie pause": ("nobody:1",),
    "bookie replace": ("nobody:1", "nobody:2"),
    "cluster rebalance": (),
    "ledger show": ("1",),
    "ledger read": ("1",),
    "ledger verify": ("1",),
    "ledger recover": ("1", "--yes"),
    "ledger adopt": ("1",),
    "ledger create": ("/dev/null",),
    "object show": ("s",),
    "object search": ("s",),
    "sink retire": ("k",),
    "region create": ("n/r",),
    "region write": ("n/r", "--table", "1"),
    "region show": ("n/r",),
    "region mark": ("n/r", "--table", "1", "--below", "2"),
    "region drop": ("n/r", "--table", "1"),
    "region clean": ("n/r",),
    "region read": ("n/r",),
    "region verify": ("n/r",),
}
#: they change nothing, or have no single answer that could be lost, as `up` that runs until it is ended
OTHERS = {
    "up",
    "read",
    "ls",
    "show",
    "owners",
    "explain",
    "cluster status",
    "sink ls",
    "bookie ls",
    "bookie status",
    "bookie run",
    "recovery run",
    "write-proxy run",
    "read-proxy run",
    "region show",
    "region read",
    "region verify",
    "object ls",
    "object show",
    "object search",
} | {f"ledger {name}" for name in ("ls", "show", "read", "verify", "strays")}


def commands(group: Any = dlog, before: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        if name == "pipeline":
            continue  # needs Spark
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, f"{before}{name} ")
        else:
            yield f"{before}{name}", found


ALL = list(commands())
UNKNOWN = [
    RequestTimeoutError("x", outcome_unknown=True),
    ConnectionLostError("x"),
    MetadataUnavailableError("x", outcome_unknown=True),
    FencedError("x"),
    ProducerUnknownError("x"),
    DLogError("x", outcome_unknown=True),
]


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
@pytest.mark.parametrize("error", UNKNOWN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("grouped", [False, True])
def test_an_unknown_outcome_is_explained_by_the_command(
    name: str,
    command: click.Command,
    error: DLogError,
    grouped: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> None:
        told = type(error)(error.message, outcome_unknown=True)
        raise BaseExceptionGroup("of tasks", [told]) if grouped else told

    monkeypatch.setattr(command, "callback", fail)
    assert main([*name.split(), *WORDS.get(name, ())]) == 1
    said = capsys.readouterr().err
    assert isinstance(command, MutatingCommand) != (name in OTHERS), "does it change something?"
    if isinstance(command, MutatingCommand):
        assert command.when_unknown in said
    assert ("written" in said or "record" in said) == (name in ("append", "region write")), said


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_what_was_stopped_says_what_is_left_open(
    name: str, command: click.Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "callback", stop)
    assert main([*name.split(), *WORDS.get(name, ())]) == 1
    said = capsys.readouterr().err
    if isinstance(command, MutatingCommand):
        assert "stopped before the reply came" in said and command.when_unknown in said
    else:
        assert said.strip() == "stopped"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OverCapacityError("x"), "try again in a moment"),
        (NotReadyError("x"), "try again in a moment"),
        (StreamUnavailableError("x"), "try again in a moment"),
        (EntryUnreadableError("x"), "dlog bookie ls"),
        (MetadataWentBackError("x"), "newest ZooKeeper data"),
    ],
)
def test_whoever_answered_is_not_to_be_started(error: DLogError, advice: str) -> None:
    said = next_step(error) or ""
    assert advice in said
    assert "dlog up" not in said
