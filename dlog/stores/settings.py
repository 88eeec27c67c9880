"""The settings that a store takes for each stream: their names, defaults and bounds.

A stream's metadata and requests carry the settings of its store without knowing them (`StoreSettings` in
dlog/model/segment.py). Each store declares in its own module which it takes; only the store reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dlog.errors import InvalidRequestError
from dlog.model.segment import StoreSettings

WHOLE_NUMBER_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """One setting: a whole number from `least` to `most`."""

    default: int
    least: int = 1
    most: int = WHOLE_NUMBER_MAX


@dataclass(frozen=True, slots=True)
class SettingsSchema:
    """The settings that one kind of store takes.

    store: its name. numbers: by name, in the order in which they are stored. check: raises InvalidRequestError if
    values that are within their bounds contradict each other.
    """

    store: str
    numbers: Mapping[str, WholeNumber] = field(default_factory=lambda: MappingProxyType({}))
    check: Callable[[Mapping[str, int]], object] = lambda _: None

    def complete(self, given: Mapping[str, Any]) -> StoreSettings:
        """All settings of a stream: those given, and defaults. Raises InvalidRequestError, which names the settings of
        this store if one of another store is given."""
        for name in given:
            if name not in self.numbers:
                known = ", ".join(self.numbers) or "none"
                raise InvalidRequestError(
                    f"unknown stream setting, those of this store are {known}: store={self.store} setting={name[:60]}"
                )
        found = {name: given.get(name, number.default) for name, number in self.numbers.items()}
        for name, value in found.items():
            if type(value) is not int:
                raise InvalidRequestError(
                    f"stream setting must be a whole number: setting={name} value={str(value)[:60]}"
                )
            least, most = self.numbers[name].least, self.numbers[name].most
            if value < 1:
                raise InvalidRequestError(f"stream setting must be positive: setting={name} value={str(value)[:60]}")
            if not least <= value <= most:
                raise InvalidRequestError(
                    f"stream setting must be from {least} to {most}: setting={name} value={str(value)[:60]}"
                )
        self.check(found)
        return tuple(found.items())

    def complete_stored(self, stored: Mapping[str, Any]) -> StoreSettings:
        """As `complete`, of what metadata holds: names that the store does not know have no effect, since a later
        version may have written them, and earlier ones wrote the settings of ledgers for every store."""
        return self.complete({name: value for name, value in stored.items() if name in self.numbers})
