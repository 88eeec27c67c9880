"""Reference pages made from the code: configuration, errors, events and metrics, command line, Python API."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

import actors
import dlog
import proxies
from dlog.errors import DLogError
from dlog.events import Event
from dlog.options import GiB, KiB, MiB

#: sections of a configuration file: the module and the class with their options
SECTIONS = {
    "bookie": ("dlog.bookie.options", "BookieOptions"),
    "write": ("proxies.write.options", "WriteOptions"),
    "read": ("proxies.read.options", "ReadOptions"),
    "recovery": ("actors.recovery.options", "RecoveryOptions"),
    "up": ("dlog.cli.plan", "UpOptions"),
    "ledger": ("dlog.ledger.ledger_options", "LedgerOptions"),
    "cold": ("dlog.stores.cold.options", "ColdOptions"),
    "file": ("dlog.stores.file.options", "FileStoreOptions"),
    "kafka": ("dlog.io.kafka_settings", "KafkaOptions"),
    "objects": ("dlog.stores.s3_direct.options", "ObjectsOptions"),
}
_UNITS = {
    "_bytes": "bytes",
    "_bytes_max": "bytes",
    "_bytes_s": "bytes per second",
    "_s": "seconds",
    "_ms": "milliseconds",
    "_per_s": "per second",
}


def configuration() -> str:
    """Every option of every section: key, unit, default, meaning."""
    parts = [
        "# Configuration",
        "A process takes each option from, lowest to highest: the default, a TOML file (`--config FILE`, one",
        "section per role), the environment (`DLOG_<SECTION>_<KEY>`), a flag (`--key-of-option`). A key that",
        "no option has is an error. Sizes may be written `64MiB`, times `1.5`, `10m`, `72h`.",
    ]
    for section, (module, name) in SECTIONS.items():
        cls = getattr(importlib.import_module(module), name)
        parts += ["", f"## [{section}]", "", _doc(cls), "", "| key | unit | default | meaning |", "|---|---|---|---|"]
        for field in dataclasses.fields(cls):
            default = _default(field)
            parts.append(f"| `{field.name}` | {_unit(field.name)} | {default} | {_cell(_about(field))} |")
    return "\n".join(parts) + "\n"


def errors() -> str:
    """Every error class that a program can meet: code, meaning, remedy."""
    _import_all()
    parts = [
        "# Errors",
        "Every error is a `dlog.DLogError` with a `code` (BookKeeper's and DistributedLog's numbers; from 530 on",
        "dlog's own), a `remedy` and `outcome_unknown`. The remedy says what to do:",
        "",
        "| remedy | what to do |",
        "|---|---|",
        "| fix | The request is wrong: change it. |",
        "| retry | Send the same request again later. |",
        "| follow | Another process serves this: go there. The client does it by itself. |",
        "| reopen | This handle is dead: open a new one. |",
        "| stop | Nothing follows, and that is final. |",
        "| report | Data is damaged or missing: a person must look. |",
        "",
        "With `outcome_unknown` a write may be carried out or not:",
        "[what to do](../reliability.md#outcome-unknown).",
        "",
        "| code | class | remedy | outcome unknown | meaning |",
        "|---|---|---|---|---|",
    ]
    classes = [DLogError, *_subclasses(DLogError)]
    for cls in sorted(classes, key=lambda c: (c.code, c.__name__)):
        unknown = "yes" if cls.outcome_unknown else ""
        parts.append(f"| {cls.code} | `{cls.__name__}` | {cls.remedy.value} | {unknown} | {_cell(_doc(cls))} |")
    return "\n".join(parts) + "\n"


def events() -> str:
    """Every event with its level and fields, and every metric."""
    _import_all()
    parts = [
        "# Events and metrics",
        "A process logs each event as one JSON line with the event's name, level and fields, and counts it as",
        '`dlog_events_total{event="..."}`. What to do about warnings and errors:',
        "[alarms](../operations.md#alarms).",
        "",
        "## Events",
        "",
        "| event | level | fields | meaning |",
        "|---|---|---|---|",
    ]
    for cls in sorted(_subclasses(Event), key=lambda c: c.name):
        fields = ", ".join(f"`{f.name}`" for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else ""
        parts.append(f"| `{cls.name}` | {cls.level} | {fields} | {_cell(_doc(cls))} |")
    parts += [
        "",
        "## Metrics",
        "",
        "Served for Prometheus at `http://HOST:HTTP_PORT/metrics`.",
        "",
        "| metric | kind | meaning |",
        "|---|---|---|",
    ]
    for name, kind, about in sorted(_metrics()):
        parts.append(f"| `dlog_{name}` | {kind} | {_cell(about)} |")
    return "\n".join(parts) + "\n"


def cli() -> str:
    """Every command with its help text."""
    from dlog.cli.main import dlog as command

    parts = ["# Command line", "", "Exit codes: 0 done, 1 failed, 2 the command was wrong.", ""]
    parts += _help(command, "dlog", None)
    return "\n".join(parts) + "\n"


def python() -> str:
    """The public names, each as mkdocstrings renders it."""
    parts = [
        "# Python API",
        "Everything here is imported from `dlog`; every other name may change without notice. Errors have",
        "[a page of their own](errors.md).",
        "",
    ]
    errors_ = {cls.__name__ for cls in [DLogError, *_subclasses(DLogError)]}
    for name in dlog.__all__:
        if name in errors_:
            continue
        module = dlog._HOME.get(name, "dlog.errors")
        parts += [f"::: {module}.{name}", ""]
        rows = _fields(getattr(dlog, name))
        if rows:
            parts += ["| field or member | type | value or default | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(parts) + "\n"


#: generated pages by their path in the site
PAGES: dict[str, Callable[[], str]] = {
    "reference/python.md": python,
    "reference/cli.md": cli,
    "reference/configuration.md": configuration,
    "reference/errors.md": errors,
    "reference/events.md": events,
}


def _help(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, info_name=name.rsplit(" ", 1)[-1], parent=parent, max_content_width=100)
    yield from (f"## {name}", "", "```text", command.get_help(context), "```", "")
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            if not found.hidden:
                yield from _help(found, f"{name} {child}", context)


def _import_all() -> None:
    """Import every module that may define events or errors."""
    for package in (dlog, actors, proxies):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            last = module.name.rsplit(".", 1)[-1]
            if last in ("events", "errors", "contract", "fitness", "meters", "metrics"):
                importlib.import_module(module.name)


def _subclasses(cls: type[Any]) -> list[type[Any]]:
    """Every subclass that its module names. `dataclass(slots=True)` leaves the class that it replaced behind."""
    found = [deep for sub in cls.__subclasses__() for deep in (sub, *_subclasses(sub))]
    return [sub for sub in found if getattr(sys.modules[sub.__module__], sub.__name__, None) is sub]


def _fields(thing: object) -> list[str]:
    """Rows of the fields of a class, or of the members of an enum, with the comments beside or above them."""
    if not inspect.isclass(thing):
        return []
    source = inspect.getsource(thing)
    lines = source.splitlines()
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    rows = []
    for node in definition.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                kind = ast.unparse(annotation)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if issubclass(thing, enum.Enum):
                kind = ""
            case _:
                continue
        if name.startswith("_") or kind.startswith("ClassVar"):
            continue
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("option", "field"):
            defaults = [*value.args, *(word.value for word in value.keywords if word.arg == "default")]
            value = defaults[0] if defaults else None
        assert node.end_lineno is not None
        about = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().partition("# ")[2]
        above = node.lineno - 2
        while lines[above].lstrip().startswith("#: "):
            about = f"{lines[above].lstrip()[3:]} {about}"
            above -= 1
        cells = [f"`{text}`" if text else "" for text in (name, kind, "" if value is None else ast.unparse(value))]
        rows.append(f"| {' | '.join(cells)} | {_cell(about)} |")
    return rows


def _doc(cls: type[Any]) -> str:
    """The docstring as one paragraph; none of what `dataclass` makes up."""
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    return "" if text.startswith(f"{cls.__name__}(") else text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _unit(key: str) -> str:
    return next((unit for end, unit in sorted(_UNITS.items(), key=lambda i: -len(i[0])) if key.endswith(end)), "")


def _about(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("about", ""))


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, int) and not isinstance(value, bool) and "bytes" in field.name:
        for unit, factor in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
            if value and value % factor == 0:
                return f"{value // factor} {unit}"
    if value in ("", ()):
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"


def _metrics() -> Iterator[tuple[str, str, str]]:
    """(name, kind, meaning): numbers of dlog.io.metrics, and what proxies and bookies register by name."""
    from dlog.io import metrics

    for number in metrics._NUMBERS:
        yield (
            number.name + ("" if number.is_gauge else "_total"),
            "gauge" if number.is_gauge else "counter",
            number.what,
        )
    pattern = re.compile(r'\.(gauge|counter)\(\s*"([a-z_]+)",\s*((?:"[^"]*"\s*)+)')
    for package in (actors, proxies):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            spec = module.module_finder.find_spec(module.name, None)
            if spec is None or not spec.origin or module.ispkg:
                continue
            with open(spec.origin) as file:
                for kind, name, about in pattern.findall(file.read()):
                    yield name + ("_total" if kind == "counter" else ""), kind, "".join(re.findall(r'"([^"]*)"', about))
