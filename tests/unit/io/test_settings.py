"""Options come from four sources, the later one wins, and an unknown option is an error in each of them."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import actors
import dlog
import proxies
from dlog.errors import ConfigError
from dlog.io.settings import SECTIONS, configured, ignored_variables, load
from dlog.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 3181
    cache_bytes: int = option(1024, sim=(1, 10))
    sync: bool = True
    wait_s: float = 1.0
    password: str = ""

    def __post_init__(self) -> None:
        if self.port < 0:
            raise ValueError(f"port is not negative: port={self.port}")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "local.toml"
    path.write_text('[bookie]\nhost = "10.0.0.1"\nport = 1\ncache_bytes = "4KiB"\n[write]\nother = 1\n')
    return path


def test_the_later_source_wins(config: Path) -> None:
    assert load(Options, "bookie", None, {}, environ={}) == Options()
    from_file = load(Options, "bookie", config, {}, environ={})
    assert (from_file.host, from_file.port, from_file.cache_bytes) == ("10.0.0.1", 1, 4096)
    environ = {"DLOG_BOOKIE_PORT": "2", "DLOG_BOOKIE_SYNC": "no", "DLOG_WRITE_OTHER": "x", "PATH": "/bin"}
    from_environ = load(Options, "bookie", config, {}, environ=environ)
    assert (from_environ.port, from_environ.sync) == (2, False)
    from_flags = load(Options, "bookie", config, {"port": 3, "host": None, "wait_s": "250ms"}, environ=environ)
    assert (from_flags.port, from_flags.host, from_flags.wait_s) == (3, "10.0.0.1", 0.25)


@pytest.mark.parametrize(
    "text, words",
    [
        ("[bookie]\nprot = 1\n", "unknown option"),
        ("[bokie]\nport = 1\n", "unknown section"),
        ("port = 1\n", "unknown section"),
        ("[bookie\n", "not TOML"),
        ("[bookie]\nport = 'many'\n", "not a number"),
        ("[bookie]\nport = -1\n", "out of range"),
        ("[bookie]\nsync = 3\n", "wrong type"),
        ("[bookie]\nhost = 3\n", "wrong type"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load(Options, "bookie", path, {}, environ={})


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read.*nowhere\.toml"):
        load(Options, "bookie", tmp_path / "nowhere.toml", {}, environ={})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(Options, "bookie", tmp_path, {}, environ={})
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\0")
    with pytest.raises(ConfigError, match="not TOML"):
        load(Options, "bookie", binary, {}, environ={})


def test_a_mistake_in_environment_or_flags_is_named() -> None:
    with pytest.raises(ConfigError, match="DLOG_BOOKIE_PROT"):
        load(Options, "bookie", None, {}, environ={"DLOG_BOOKIE_PROT": "1"})
    with pytest.raises(ConfigError, match="prot"):
        load(Options, "bookie", None, {"prot": 1}, environ={})
    with pytest.raises(ConfigError, match="not a number"):
        load(Options, "bookie", None, {}, environ={"DLOG_BOOKIE_PORT": "many"})


def test_everything_is_shown_and_secrets_are_masked(config: Path) -> None:
    event = configured("bookie", Options(password="hunter2"), config)
    shown = dict(event.options)
    assert shown["port"] == 3181 and shown["password"] == "***"
    assert set(shown) == set(Options.__dataclass_fields__)
    assert event.sources == ("defaults", str(config), "DLOG_BOOKIE_*", "flags")


def service_links(service: str, port: int, name: str = "HTTP") -> dict[str, str]:
    """The variables that Kubernetes sets in a pod for a service of its namespace."""
    prefix = service.upper().replace("-", "_")
    each = f"{prefix}_PORT_{port}_TCP"
    return {
        f"{prefix}_SERVICE_HOST": "10.0.0.1",
        f"{prefix}_SERVICE_PORT": str(port),
        f"{prefix}_SERVICE_PORT_{name}": str(port),
        f"{prefix}_PORT": f"tcp://10.0.0.1:{port}",
        each: f"tcp://10.0.0.1:{port}",
        f"{each}_PROTO": "tcp",
        f"{each}_PORT": str(port),
        f"{each}_ADDR": "10.0.0.1",
    }


@pytest.mark.parametrize("section", sorted(SECTIONS))
@pytest.mark.parametrize("more", ["", "-http"])
def test_variables_of_a_kubernetes_service_are_no_options(section: str, more: str) -> None:
    environ = service_links(f"dlog-{section}{more}", 8001)
    assert load(Options, section, None, {}, environ=environ) == Options()
    assert ignored_variables(environ) == tuple(sorted(environ))
    prefix = f"DLOG_{section.upper()}_"
    assert load(Options, section, None, {}, environ={**environ, f"{prefix}PORT": "7"}).port == 7
    with pytest.raises(ConfigError, match="PROT"):
        load(Options, section, None, {}, environ={**environ, f"{prefix}PROT": "7"})


def docker_links(alias: str, port: int) -> dict[str, str]:
    """The variables that Docker sets in a container for one that is linked under `alias`."""
    prefix = alias.upper().replace("-", "_")
    each = f"{prefix}_PORT_{port}_TCP"
    return {
        f"{prefix}_NAME": f"/web/{alias}",
        f"{prefix}_PORT": f"tcp://172.17.0.5:{port}",
        each: f"tcp://172.17.0.5:{port}",
        f"{each}_PROTO": "tcp",
        f"{each}_PORT": str(port),
        f"{each}_ADDR": "172.17.0.5",
        f"{each}_START": f"tcp://172.17.0.5:{port}",
        f"{each}_END": f"tcp://172.17.0.5:{port + 9}",
        f"{each}_PORT_START": str(port),
        f"{each}_PORT_END": str(port + 9),
        f"{prefix}_ENV_PATH": "/usr/bin:/bin",
        f"{prefix}_ENV_DLOG_WRITE_PORT": "8001",
        f"{prefix}_ENV_a.b": "",
    }


@pytest.mark.parametrize("section", sorted(SECTIONS))
@pytest.mark.parametrize("more", ["", "-1"])
def test_variables_of_a_linked_container_are_no_options(section: str, more: str) -> None:
    environ = docker_links(f"dlog-{section}{more}", 7000)
    assert load(Options, section, None, {}, environ=environ) == Options()
    assert ignored_variables(environ) == tuple(sorted(environ))
    prefix = f"DLOG_{section.upper()}_"
    for name, text in (("NAME", "web"), ("NAME", "/web"), ("ENV", "x"), ("PORT_7000_TCP_HOST", "x")):
        with pytest.raises(ConfigError, match=name):
            load(Options, section, None, {}, environ={**environ, prefix + name: text})


def test_no_option_has_the_name_of_a_link() -> None:
    """An option with such a name would be ignored in the environment."""
    for package in (dlog, actors, proxies):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith((".options", ".server", ".serving")):
                importlib.import_module(module.name)
    kinds = [
        kind
        for name, module in sys.modules.items()
        if name.partition(".")[0] in ("dlog", "actors", "proxies")
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__name__.endswith("Options") and dataclasses.is_dataclass(kind)
    ]
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert {"port", "upload_bytes", "topics", "journal_dirs"} <= names
    taken = {name for name in names if ignored_variables({f"DLOG_WRITE_{name.upper()}": "7"})}
    assert taken == set()


def test_a_variable_of_no_role_is_told_and_those_of_ours_are_not() -> None:
    ours = (
        "DLOG_CONNECT",
        "DLOG_DIR",
        "DLOG_ZOOKEEPER",
        "DLOG_NAMESPACE",
        "DLOG_WRITE_PORT",
        "DLOG_COLD_ROOTS",
        "PATH",
    )
    assert ignored_variables({**dict.fromkeys(ours, "x"), "DLOG_WIRTE_PORT": "1", "DLOG_PORT": "tcp://h:1"}) == (
        "DLOG_PORT",
        "DLOG_WIRTE_PORT",
    )
