"""Runs slow requests with one reply, each as a task of the process, a limited number per connection."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from actors.runtime import TaskScope
from dlog.errors import DLogError, OverCapacityError
from dlog.wire.proxy import Done
from proxies.connection import Connection

QUESTIONS_MAX = 64  # pending on one connection


class RequestTasks:
    """Slow requests of one connection. They run to their end if the connection closes; the reply is then dropped."""

    def __init__(self, tasks: TaskScope, connection: Connection) -> None:
        self._tasks = tasks
        self._connection = connection
        self._waiting = 0

    def answer(self, request: int, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Run `work` and reply with its result or the DLogError it raises. Raises OverCapacityError; UnavailableError
        while the process shuts down."""
        if self._waiting >= QUESTIONS_MAX:
            work.close()
            raise OverCapacityError("too many requests are pending on this connection, wait for their replies first")
        name = f"request {request} of {self._connection.peer}"
        try:
            task = self._tasks.start_alone(self._work_out(request, work), name=name)
        except DLogError:
            work.close()
            raise
        self._waiting += 1
        task.add_done_callback(lambda _: work.close())  # needed if cancelled before the first step

    async def _work_out(self, request: int, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        try:
            result = await work
        except DLogError as error:
            self._connection.fail(request, error)
        except Exception as error:
            self._connection.fail(
                request, DLogError(f"the request failed unexpectedly: {error!r}", outcome_unknown=True)
            )
            raise
        else:
            self._connection.send(Done(request, result))
        finally:
            self._waiting -= 1
