"""Builds options (frozen dataclasses beside the code that uses them) from mappings, and parses sizes and times.

An unknown key is an error. Precedence, low to high: dataclass default, TOML file, DLOG_* environment, flag. A field
made by `option` has the range from which simulations draw it, so that tiny limits are tested too.
"""

from __future__ import annotations

import dataclasses
import random
import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from dlog.errors import ConfigError
from dlog.hostport import split_host_port

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

#: upper bound of every duration: a century
SECONDS_MAX = 100 * 366 * 86400.0
#: bounds of every time in unix milliseconds: September 2001, when seconds got their tenth digit, to before 2100
UNIX_MS_MIN, UNIX_MS_END = 10**12, 4_102_444_800_000

T = TypeVar("T")

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d|)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_NUMBER = re.compile(r"([0-9]{1,20})(?:\.[0-9]{1,9})?\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"KiB": KiB, "MiB": MiB, "GiB": GiB, "B": 1}


def option(default: Any, about: str = "", *, sim: tuple[float, float] | None = None, repr: bool = True) -> Any:
    """Define a field of options. about: its meaning, for help texts and the configuration reference. sim: the range
    (inclusive) from which a simulation may draw its value. repr: False for secrets."""
    return field(default=default, repr=repr, metadata={"about": about, **({"sim": sim} if sim else {})})


def check_address(text: str) -> None:
    """Raise ValueError unless `text` is empty or `host:port` with a port that can be connected to."""
    if text:
        split_host_port(text)


def build(cls: type[T], values: Mapping[str, Any], *, where: str = "configuration") -> T:
    """Build options of class `cls` from a mapping.

    Raises ConfigError for an unknown or missing key, a value of a wrong type, or one that the class refuses. Sizes may
    be text with a unit ("256MiB"). where: the source of the values, for the message.
    """
    assert dataclasses.is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}
    kwargs: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"unknown option in {where}, known are {sorted(known)}: key={key}")
        kwargs[key] = _in_range(key, _coerce(key, value, hints[key], where), where)
    for name, f in known.items():
        if name not in kwargs and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"option missing in {where}: key={name}")
    try:
        return cls(**kwargs)
    except ValueError as error:
        raise ConfigError(f"{error} in {where}") from error


def draw(cls: type[T], rng: random.Random) -> T:
    """Build random options for a simulation: each field with a range is drawn from it with probability 1/2."""
    assert dataclasses.is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    kwargs: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        sim = f.metadata.get("sim")
        if sim and rng.random() < 0.5:
            low, high = sim
            kwargs[f.name] = rng.randint(int(low), int(high)) if hints[f.name] is int else rng.uniform(low, high)
    return cls(**kwargs)


def parse_bytes(text: str) -> int:
    """ "256MiB" -> bytes. Accepts a whole number followed by B, KiB, MiB, GiB or nothing; raises ConfigError."""
    body = text.strip()
    unit = next((u for u in ("KiB", "MiB", "GiB", "B") if body.endswith(u)), "")
    number = body.removesuffix(unit).strip()
    if not (number.isascii() and number.isdigit() and len(number) <= 15):
        raise ConfigError(f"not a size, write a whole number with B, KiB, MiB or GiB: value={text[:60]!r}")
    return int(number) * _UNITS.get(unit, 1)


def parse_duration_s(text: str) -> float:
    """ "72h" -> seconds. Accepts a number followed by ms, s, m, h, d or nothing (seconds); raises ConfigError, also for
    a century or more."""
    found = _DURATION.match(text.strip())
    if found is not None:
        seconds = float(found[1]) * _SECONDS[found[2]]
        if seconds < SECONDS_MAX:
            return seconds
    raise ConfigError(f"not a duration, write a number with ms, s, m, h or d: value={text[:60]!r}")


def parse_unix_ms(text: str) -> int:
    """ "2026-11-20T08:00Z" -> unix milliseconds. Accepts ISO 8601 with a time zone, unix seconds (ten digits) and unix
    milliseconds (thirteen).

    Raises ConfigError, also for ambiguous times: a date without dashes, a time without a zone, a time before September
    2001 (when unix seconds got their tenth digit) or after 2099.
    """
    body = text.strip()
    number = _NUMBER.match(body)
    if number is not None:
        scale = {10: 1000, 13: 1}.get(len(number[1]))
        if scale is None:
            raise ConfigError(
                f"a time is unix milliseconds or as 2026-11-20T08:00Z; a number has ten digits for unix seconds or "
                f"thirteen for milliseconds: value={text[:60]!r}"
            )
        unix_ms = int(float(body) * scale)
    else:
        try:
            moment = datetime.fromisoformat(body)
        except ValueError:
            raise ConfigError(f"a time is unix milliseconds or as 2026-11-20T08:00Z: value={text[:60]!r}") from None
        if moment.utcoffset() is None:
            raise ConfigError(
                "which time zone? a time without a time zone differs between machines, write "
                f"2026-11-20T08:00Z for UTC, or +01:00 at its end: value={text[:60]!r}"
            )
        unix_ms = round((moment - _EPOCH) / timedelta(milliseconds=1))
    if not UNIX_MS_MIN <= unix_ms < UNIX_MS_END:
        raise ConfigError(f"a time must be between 2001-09-09 and 2100: value={text[:60]!r}")
    return unix_ms


def check_positive(options: Any, *names: str) -> None:
    """For a `__post_init__`: check limits and intervals, which must be at least 1 (int) or above 0 (float). Raises
    ValueError."""
    for name in names:
        value = getattr(options, name)
        if value < 1 if isinstance(value, int) else not value > 0:
            raise ValueError(f"{name} is {'at least 1' if isinstance(value, int) else 'above 0'}: value={value}")


def port_number(options: Any, *names: str) -> None:
    """For a `__post_init__`: check ports; 0 is none or any. Raises ValueError."""
    for name in names:
        if not 0 <= getattr(options, name) < 65536:
            raise ValueError(f"{name} is between 0 and 65535: value={getattr(options, name)}")


def _in_range(key: str, value: Any, where: str) -> Any:
    """Check that no option is negative, infinite, or text with control characters."""
    if isinstance(value, float) and not 0 <= value < SECONDS_MAX:
        raise ConfigError(f"number out of range in {where}, 0 to {SECONDS_MAX:.0f}: key={key} value={value}")
    if isinstance(value, int) and not 0 <= value < 2**53:
        raise ConfigError(f"number out of range in {where}, 0 to 2^53: key={key} value={str(value)[:40]}")
    if isinstance(value, str) and not value.isprintable():
        raise ConfigError(f"text with unprintable characters in {where}: key={key} value={value[:60]!r}")
    return value


def _coerce(key: str, value: Any, hint: Any, where: str) -> Any:
    if typing.get_origin(hint) is tuple:
        items = value.split(",") if isinstance(value, str) and value else value
        if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
            return tuple(items)
        raise ConfigError(f"wrong type in {where}, expected a list of text: key={key} value={value!r}")
    allowed = typing.get_args(hint) or (hint,)
    if isinstance(value, bool):
        if bool in allowed:
            return value
    elif isinstance(value, str) and str not in allowed:
        return _from_text(key, value, allowed, where)
    elif float in allowed and isinstance(value, int):
        return float(value)
    elif any(isinstance(value, a) for a in allowed if isinstance(a, type)):
        return value
    raise ConfigError(f"wrong type in {where}, expected {hint}: key={key} value={value!r}")


def _from_text(key: str, value: str, allowed: tuple[Any, ...], where: str) -> Any:
    if bool in allowed and value.lower() in ("true", "false", "1", "0", "yes", "no"):
        return value.lower() in ("true", "1", "yes")
    try:
        if int in allowed:
            return parse_bytes(value) if key.endswith(("bytes", "_bytes_max")) else int(value)
        if float in allowed:
            return parse_duration_s(value) if key.endswith("_s") else float(value)
    except ValueError as error:
        raise ConfigError(f"not a number in {where}: key={key} value={value!r}") from error
    except ConfigError as error:
        raise ConfigError(f"{error.message} in {where}: key={key}") from error
    raise ConfigError(f"wrong type in {where}, expected {allowed}: key={key} value={value!r}")
