"""Loads a process's options from dataclass defaults, TOML file, environment and flags; a later source overrides.

Invariants:
- An unknown key in any source is a ConfigError that names the source.
- A process prints all its options when it starts.
- Options are read only here and passed down.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dlog.errors import ConfigError
from dlog.events import ProcessConfigured
from dlog.options import build

T = TypeVar("T")

#: sections of a configuration file: one for each role, read by its process only; cold, file and objects: by all segment
#: readers; kafka: by these, and by commands that use regions; ledger: by all that create ledgers
SECTIONS = frozenset({"bookie", "write", "read", "recovery", "up", "cold", "file", "kafka", "ledger", "objects"})

#: former names of options
_RENAMED = {"metrics_port": "http_port", "health_port": "http_port"}

_SECRETS = ("password", "secret", "token")

#: our environment variables that are not options
_OTHERS = frozenset(
    {
        *("DLOG_CONNECT", "DLOG_DIR", "DLOG_HELD", "DLOG_NAMESPACE", "DLOG_REGION", "DLOG_ZOOKEEPER"),
        "DLOG_ZOOKEEPER_JARS",
    }
)
#: variables that Kubernetes sets in each pod for each service of its namespace, and Docker in each container for those
#: that are linked to it, as DLOG_WRITE_PORT=tcp://10.0.0.1:8001
_LINK = re.compile(
    r"_SERVICE_HOST\Z|_SERVICE_PORT(_\w+)?\Z"
    r"|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|ADDR|(PORT_)?(START|END)|PORT))?\Z"
    r"|_ENV_.+\Z"
)
#: ends of variables that Kubernetes or Docker set only if the value matches, too: Docker's _NAME is /CONTAINER/ALIAS
_LINK_VALUES = {"_PORT": re.compile(r"(tcp|udp|sctp)://\S+:\d+\Z"), "_NAME": re.compile(r"/[^/\s]+/[^/\s]+\Z")}

HELD = "DLOG_HELD"  # environment variable of a process started early: it waits for a byte on stdin (process.py)


def load(
    cls: type[T],
    section: str,
    config_path: str | Path | None,
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
) -> T:
    """Return options of class `cls` for the role `section`.

    config_path: a TOML file with one table for each role, or None. flags: by option name; None means not given.
    environ: holds DLOG_<ROLE>_<KEY> variables (default: the process environment).
    Raises ConfigError: file unreadable or not TOML, unknown section or key, value of a wrong type.
    """
    assert dataclasses.is_dataclass(cls) and section in SECTIONS
    names = {f.name for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    if config_path is not None:
        values.update(_from_file(Path(config_path), section, names))
    values.update(_from_environ(os.environ if environ is None else environ, section, names))
    values.update({key: value for key, value in flags.items() if value is not None})
    return build(cls, values, where=f"section [{section}]")


def ignored_variables(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Names of `DLOG_*` variables that no process reads; each process warns of them when it starts."""
    environ = os.environ if environ is None else environ
    sections = tuple(f"DLOG_{section.upper()}_" for section in SECTIONS)
    return tuple(
        name
        for name, text in sorted(environ.items())
        if name.startswith("DLOG_")
        and name not in _OTHERS
        and (_is_service_link(name, text) or not name.startswith(sections))
    )


def add_flags(parser: argparse.ArgumentParser, cls: type[Any]) -> None:
    """Add a flag `--name-of-option VALUE` for each option. A boolean flag without a value means true."""
    for field in dataclasses.fields(cls):
        flag = "--" + field.name.replace("_", "-")
        help_text = f"{field.metadata.get('about', '')} (default {field.default!r})".strip().replace("%", "%%")
        if isinstance(field.default, bool):
            parser.add_argument(flag, nargs="?", const=True, metavar="BOOL", help=help_text)
        else:
            parser.add_argument(flag, metavar=type(field.default).__name__.upper(), help=help_text)


def configured(role: str, options: Any, config_path: str | Path | None) -> ProcessConfigured:
    """The event to log at the start: every option with its value, secrets masked."""
    sources = ("defaults", *([str(config_path)] if config_path else []), f"DLOG_{role.upper()}_*", "flags")
    shown = tuple((f.name, _shown(f.name, getattr(options, f.name))) for f in dataclasses.fields(options))
    return ProcessConfigured(role, sources, shown)


def _from_file(path: Path, section: str, names: set[str]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"configuration file cannot be read: {error.strerror}: file={path}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number too long, nested too deep
        raise ConfigError(f"configuration file is not TOML: {error}: file={path}") from error
    for key, table in document.items():
        if key not in SECTIONS or not isinstance(table, dict):
            raise ConfigError(f"unknown section in {path}, known are {sorted(SECTIONS)}: section={key}")
    table = document.get(section, {})
    for key in table:
        if key not in names:
            raise ConfigError(f"unknown option in {path} section [{section}], {_hint(key, names)}: key={key}")
    return dict(table)


def _from_environ(environ: Mapping[str, str], section: str, names: set[str]) -> dict[str, str]:
    prefix = f"DLOG_{section.upper()}_"
    values: dict[str, str] = {}
    for variable, text in environ.items():
        if variable.startswith(prefix) and variable not in _OTHERS and not _is_service_link(variable, text):
            key = variable.removeprefix(prefix).lower()
            if key not in names:
                raise ConfigError(f"unknown option in the environment, {_hint(key, names)}: variable={variable}")
            values[key] = text
    return values


def _hint(key: str, names: set[str]) -> str:
    """What to write instead of an unknown key."""
    renamed = _RENAMED.get(key)
    return f"it is {renamed} now" if renamed in names else f"known are {sorted(names)}"


def _is_service_link(variable: str, text: str) -> bool:
    """Whether Kubernetes or Docker set this variable, as far as its name and value say."""
    has_value = any(variable.endswith(end) and value.match(text) for end, value in _LINK_VALUES.items())
    return has_value or _LINK.search(variable) is not None


def _shown(name: str, value: Any) -> Any:
    if value and any(word in name for word in _SECRETS):
        return "***"
    return value
