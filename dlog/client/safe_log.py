"""The client's logger. It survives handlers of the program that raise."""

from __future__ import annotations

import logging
import traceback
from typing import Any


class SafeLog(logging.LoggerAdapter[logging.Logger]):
    """Logs like the logger that it is made of, but raises nothing: the client logs in its event loop, where an error of
    a handler would interrupt its own work. The error is printed to standard error, as `logging` does with those that a
    handler reports (unless `logging.raiseExceptions` is off)."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            super().log(level, msg, *args, **{"stacklevel": 2, **kwargs})  # the caller, not this line
        except Exception:  # noqa: BLE001 - whatever a handler of the program raises
            if logging.raiseExceptions:
                traceback.print_exc()
