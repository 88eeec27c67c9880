"""The systems that can be measured, dlog and peers, by name; base.py has their interface.

The module of `kafka-default` is `kafka`: the name up to the first hyphen.

Invariants:
- the runner uses a system only through `System` and generators, and knows none by name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from loadtest.systems.base import Variant

_NOT_SYSTEMS = {
    *("base", "dlog_bookies", "dlog_kafka", "dlog_ledger_client", "dlog_metadata", "dlog_regions", "dlog_s3"),
    *("lost_copies", "nodes", "peers", "region_opening"),
}


def variants(module: str) -> Mapping[str, Variant]:
    """The variants in a module of this package; empty if it is no system."""
    if module in _NOT_SYSTEMS or module not in names():
        return {}
    found = getattr(importlib.import_module(f"loadtest.systems.{module}"), "VARIANTS", {})
    assert isinstance(found, Mapping)
    return found


def find(name: str) -> Variant:
    """The system of this name. Raises ValueError that names all systems."""
    found = variants(name.partition("-")[0]).get(name)
    if found is None:
        raise ValueError(f"no such system; choose from {', '.join(sorted(everything()))}: system={name}")
    return found


def everything() -> dict[str, Variant]:
    """Every variant of every system."""
    return {name: variant for module in names() for name, variant in variants(module).items()}


def names() -> list[str]:
    """The modules of this package that may be systems."""
    return [m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_SYSTEMS and not m.ispkg]
