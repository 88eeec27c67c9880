"""Logs events as lines on stderr: text on a terminal, JSON elsewhere.

Invariants:
- The service logs only events of dlog/events.py; records of libraries that use `logging` get the same format.
- Nothing is logged to stdout, which is for the process's results.
- A line that stderr does not accept (full disk, full non-blocking pipe, pipe without a reader) is lost; nothing else
  fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from typing import Any

from dlog.events import Event
from dlog.io.lean_structlog import structlog

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_log: Any = structlog.get_logger("dlog")
_threshold = LEVELS["info"]


def setup(log_format: str | None = None, *, level: str = "info", **bound: Any) -> None:
    """Set format and level of this process, once, at its start.

    log_format: "json", "text", or None: text on a terminal, JSON elsewhere. bound: fields of every line (role, id).
    Raises ValueError for an unknown level or format.
    """
    global _threshold, _log
    if log_format not in ("json", "text", None) or level not in LEVELS:
        raise ValueError(
            f"unknown log format or level, use json or text and debug, info, warning or error: format={log_format} "
            f"level={level}"
        )
    _threshold = LEVELS[level]
    as_json = log_format == "json" or (log_format is None and not sys.stderr.isatty())
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_threshold, logging.WARNING))
    _log = structlog.get_logger("dlog").bind(**bound)


def log_event(event: Event) -> None:
    """Log one event if its level is at or above the threshold."""
    number = LEVELS[event.level]
    if number >= _threshold:
        with contextlib.suppress(OSError):
            _log.log(number, event.name, **{f.name: getattr(event, f.name) for f in dataclasses.fields(event)})
