"""Questions with one answer that take a while: each a task of the process, few at a time for each connection."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from actors.runtime import Lifetime
from dlog.errors import DLogError, OverCapacityError
from dlog.wire.proxy import Done
from proxies.connection import Connection

QUESTIONS_MAX = 64  # unanswered on one connection


class Questions:
    """Of one connection. Work goes on when the connection is gone: its outcome is then nobody's news."""

    def __init__(self, tasks: Lifetime, connection: Connection) -> None:
        self._tasks = tasks
        self._connection = connection
        self._waiting = 0

    def answer(self, request: int, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Do the work and answer with its result, or with the DLogError it raises. Raises OverCapacityError."""
        if self._waiting >= QUESTIONS_MAX:
            work.close()
            raise OverCapacityError("too many questions wait on this connection")
        self._waiting += 1
        self._tasks.start_alone(self._work_out(request, work), name=f"question {request} of {self._connection.peer}")

    async def _work_out(self, request: int, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        try:
            result = await work
        except DLogError as error:
            self._connection.fail(request, error)
        except Exception as error:
            self._connection.fail(request, DLogError(f"failed unexpectedly: {error!r}", outcome_unknown=True))
            raise
        else:
            self._connection.send(Done(request, result))
        finally:
            self._waiting -= 1
