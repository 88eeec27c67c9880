"""structlog without rich. If rich can be imported structlog loads it to paint tracebacks, which no log line of ours
shows: 7 MB and a tenth of a second of every process. Whoever needs rich (the CLI) imports it as ever.
"""

from __future__ import annotations

import sys

_hide = "rich" not in sys.modules
if _hide:
    sys.modules["rich"] = None  # type: ignore[assignment]

import structlog  # noqa: E402

if _hide:
    del sys.modules["rich"]

__all__ = ["structlog"]
