"""The systems that can be measured, ours and peers, by name; base.py is what each of them answers to.

The law of this room: a system is measured only through `System` and generators; nothing outside this room knows any by
name. The module of `kafka-default` is `kafka`: the name up to the first hyphen.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from loadtest.systems.base import Variant

_NOT_SYSTEMS = {"base", "nodes", "peers"}


def variants(module: str) -> Mapping[str, Variant]:
    """What one module of this room offers; empty if it is no system."""
    if module in _NOT_SYSTEMS or module not in names():
        return {}
    found = getattr(importlib.import_module(f"loadtest.systems.{module}"), "VARIANTS", {})
    assert isinstance(found, Mapping)
    return found


def find(name: str) -> Variant:
    """The system of this name. Raises ValueError naming those that there are."""
    found = variants(name.partition("-")[0]).get(name)
    if found is None:
        raise ValueError(f"no such system, there are {', '.join(sorted(everything()))}: system={name}")
    return found


def everything() -> dict[str, Variant]:
    """Every variant of every system."""
    return {name: variant for module in names() for name, variant in variants(module).items()}


def names() -> list[str]:
    """The modules of this room that are systems, or may be."""
    return [m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_SYSTEMS and not m.ispkg]
