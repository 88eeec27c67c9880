"""The files in config/ contain keys that exist, with valid values."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.bookie.__main__ import _parser as bookie_parser
from actors.recovery.options import RecoveryOptions
from dlog.bookie.options import BookieOptions
from dlog.errors import ConfigError
from dlog.io.settings import load
from dlog.wire.proxy import Hello
from proxies import serving
from proxies.connection import Connection, Session
from proxies.read.options import ReadOptions
from proxies.write.options import WriteOptions

CONFIG = Path(__file__).parents[3] / "config"
PROXIES: list[tuple[str, Any]] = [("write", WriteOptions), ("read", ReadOptions)]
ROLES: list[tuple[str, Any]] = [("bookie", BookieOptions), ("recovery", RecoveryOptions), *PROXIES]


@pytest.mark.parametrize("file", sorted(CONFIG.glob("*.toml")), ids=lambda path: path.name)
@pytest.mark.parametrize(("role", "cls"), ROLES)
def test_a_configuration_file_loads_for_every_role(file: Path, role: str, cls: Any) -> None:
    load(cls, role, file, {}, environ={})


@pytest.mark.parametrize(
    "flags",
    [
        ["--port", "70000"],
        ["--port", "http"],
        ["--batch-bytes-max", "2MiB"],
        ["--id", "a/b"],
        ["--advertise", "nowhere"],
        ["--advertise", "host:70000"],
        ["--peer-address", "nowhere"],
        ["--log-format", "xml"],
        ["--config", "no-such-file.toml"],
    ],
)
def test_a_flag_that_makes_no_sense_is_a_configuration_error(flags: list[str]) -> None:
    with pytest.raises(ConfigError):
        serving.configure("write", WriteOptions, serving.parse("write", WriteOptions, flags))


@pytest.mark.parametrize(("role", "cls"), PROXIES)
def test_a_proxy_takes_a_list_of_stores(role: str, cls: Any, tmp_path: Path) -> None:
    config = tmp_path / "dlog.toml"
    config.write_text(f'[{role}]\nstores = ["ledger", "file"]\n')

    def stores(*flags: str, environ: dict[str, str] | None = None) -> tuple[str, ...]:
        parsed = serving.parse(role, cls, [*flags, "--config", str(config)])
        parsed.pop("config")
        options = load(cls, role, config if environ is None else None, parsed, environ=environ or {})
        return tuple(options.stores)

    assert stores() == ("ledger", "file")
    assert stores("--stores", "file") == ("file",)
    assert stores(environ={f"DLOG_{role.upper()}_STORES": "file,ledger"}) == ("file", "ledger")


def parse_bookie(arguments: list[str]) -> dict[str, Any]:
    return vars(bookie_parser().parse_args(arguments))


PARSERS: dict[str, tuple[Any, Callable[[list[str]], dict[str, Any]]]] = {
    "bookie": (BookieOptions, parse_bookie),
    "write": (WriteOptions, lambda arguments: serving.parse("write", WriteOptions, arguments)),
    "read": (ReadOptions, lambda arguments: serving.parse("read", ReadOptions, arguments)),
}


@pytest.mark.parametrize("role", PARSERS)
def test_a_flag_that_is_true_or_false_means_the_same_for_every_process(role: str) -> None:
    cls, parse = PARSERS[role]
    switches = [field.name for field in dataclasses.fields(cls) if isinstance(field.default, bool)]
    assert "tcp_only" in switches
    for name in switches:
        flag = "--" + name.replace("_", "-")
        for given, meant in (([flag], True), ([flag, "true"], True), ([flag, "false"], False), ([], False)):
            needed = ["--tls-certificate", "c", "--tls-key", "k"] if name == "tls_required" else []
            flags = parse([*given, *needed, "--port", "7"])
            assert getattr(load(cls, role, None, flags, environ={}), name) is meant


@pytest.mark.parametrize("role", PARSERS)
@pytest.mark.parametrize("key", ["metrics_port", "health_port"])
def test_a_former_name_of_an_option_is_an_error_that_tells_the_name(role: str, key: str, tmp_path: Path) -> None:
    cls, _ = PARSERS[role]
    assert load(cls, role, None, {}, environ={f"DLOG_{role.upper()}_HTTP_PORT": "9101"}).http_port == 9101
    with pytest.raises(ConfigError, match="it is http_port now: variable="):
        load(cls, role, None, {}, environ={f"DLOG_{role.upper()}_{key.upper()}": "9101"})
    config = tmp_path / "dlog.toml"
    config.write_text(f"[{role}]\n{key} = 9101\n")
    with pytest.raises(ConfigError, match=f"it is http_port now: key={key}"):
        load(cls, role, config, {}, environ={})


def test_an_unknown_flag_ends_with_the_list_of_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        serving.parse("read", ReadOptions, ["--colour", "red"])
    assert ended.value.code == 2
    assert "--cache-bytes-max" in capsys.readouterr().err


def test_sizes_and_seconds_come_as_text_and_go_as_numbers() -> None:
    flags = {"cache_bytes_max": "64MiB", "idle_s": "2m", "port": "9001"}
    options = load(ReadOptions, "read", None, flags, environ={})
    assert (options.cache_bytes_max, options.idle_s, options.port) == (64 << 20, 120.0, 9001)


async def test_a_proxy_on_every_interface_is_known_by_the_name_of_its_machine() -> None:
    options = ReadOptions(host="0.0.0.0")
    listener = serving.Listener("read", "", serving.limits(options), options, _no_session, on_event=lambda _: None)
    try:
        host, _, port = (await listener.bind()).rpartition(":")
    finally:
        listener.close()
    assert host == socket.gethostname()
    assert int(port) > 0


def _no_session(connection: Connection, hello: Hello) -> Session:
    raise AssertionError("nobody connects")


def test_a_read_proxy_fetches_no_more_at_once_than_its_cache_can_keep() -> None:
    """A block that evicts itself from the cache is fetched again for each of its entries."""
    assert ReadOptions().tailer.fetch_bytes == ReadOptions().fetch_bytes
    assert ReadOptions(cache_bytes_max=4000, fetch_bytes=65536).tailer.fetch_bytes == 1000
    assert ReadOptions(cache_bytes_max=0).tailer.fetch_bytes == 1
