"""Requests that have one reply: sent again, to other proxies, until they are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dlog.client.backoff import Backoff
from dlog.client.connection import Connection
from dlog.client.routing import WRITE, Router
from dlog.client.safe_log import SafeLog
from dlog.errors import (
    ConnectionLostError,
    DLogError,
    OwnedElsewhereError,
    ProducerUnknownError,
    ProtocolError,
    Remedy,
    RequestTimeoutError,
    StreamNotFoundError,
    UnavailableError,
    with_outcome,
)
from dlog.wire import proxy

_log = SafeLog(logging.getLogger(__name__))

_READ_ONLY_REQUESTS = (
    proxy.GetOwner,
    proxy.GetOwners,
    proxy.Stat,
    proxy.List,
    proxy.GetIncarnation,
)  # they change nothing


async def ask(
    router: Router, question: Callable[[int], proxy.Question], *, stream: str | None = None
) -> dict[str, Any]:
    """Send a request until it is answered: follows redirects, tries other proxies, backs off, up to
    `request_deadline_s`.

    stream: send it to this stream's owner. Raises the server's error, or RequestTimeoutError, which names the last
    obstacle. `outcome_unknown` is set once any attempt may have been executed (a later refusal says nothing about an
    earlier attempt), but never for requests that change nothing.
    """
    options = router.options
    obstacle: DLogError | None = None
    unknown = False  # an earlier attempt may have been executed
    is_out = False  # this attempt was sent and is unanswered
    backoff = Backoff(options.backoff_first_s, options.backoff_max_s, router.rng)
    suspect: str | None = None

    def sent(request: int) -> proxy.Question:
        nonlocal is_out
        message = question(request)
        if isinstance(message, proxy.GetOwner) and connection is not None:
            message = replace(message, region=connection.region)
        is_out = not isinstance(message, _READ_ONLY_REQUESTS)
        return message

    try:
        async with asyncio.timeout(options.request_deadline_s):
            while True:
                connection: Connection | None = None
                try:
                    if stream is not None:
                        connection = await router.owner(stream, suspect)
                    else:
                        connection = await router.pool.connect_any(WRITE, (suspect,) if suspect else ())
                    result = await connection.ask(sent)
                    return dict(result)
                except DLogError as error:
                    unknown = unknown or (is_out and error.outcome_unknown)
                    is_out = False
                    # a producer's state that the log has lost stays lost: no retry helps
                    is_final = error.remedy not in (Remedy.RETRY, Remedy.FOLLOW, Remedy.REOPEN)
                    if stream is not None and isinstance(error, StreamNotFoundError):
                        router.forget_stream(stream)
                    if is_final or isinstance(error, ProducerUnknownError):
                        raise with_outcome(error, unknown) from error.__cause__
                    obstacle = error
                    _log.info("request is retried: stream=%s obstacle=%s", stream, error)
                    suspect = _note_obstacle(router, stream, connection, error)
                await asyncio.sleep(router.pause_s(backoff))
    except TimeoutError as late:
        what = obstacle.message if obstacle is not None else "no answer"
        raise RequestTimeoutError(
            f"no success within {options.request_deadline_s:g} s, last obstacle: {what}",
            outcome_unknown=unknown or is_out,
        ) from late


def _note_obstacle(router: Router, stream: str | None, connection: Connection | None, error: DLogError) -> str | None:
    """Pass on to the router what the error reports of the stream's owner. Returns the address of a proxy that may be
    gone."""
    if connection is None:
        return None
    if stream is not None and isinstance(error, OwnedElsewhereError | ConnectionLostError):
        router.forget(stream, connection.address)
    if isinstance(error, OwnedElsewhereError) and error.location is not None:
        if stream is not None:
            router.owner_is(stream, error.location)
        else:
            router.pool.learn([error.location])
    return connection.address if isinstance(error, ConnectionLostError) else None


async def list_owned(router: Router) -> list[dict[str, Any]]:
    """Streams owned by the known, reachable write proxies. Raises UnavailableError if no proxy is reachable."""
    found: dict[str, dict[str, Any]] = {}
    asked: set[str] = set()
    obstacle: DLogError | None = None
    while True:
        left = [a for a in router.pool.candidates(WRITE) if a not in asked]
        if not left:
            break
        asked.add(left[0])
        try:
            connection = await router.pool.connect_within_timeout(left[0])
            if connection is None:
                raise UnavailableError(f"not reachable: address={left[0]}")
            if not connection.role.startswith(WRITE):
                continue
            _note_owned(found, connection, await connection.ask(lambda request: proxy.GetOwners(request)))
        except (UnavailableError, ProtocolError) as error:
            obstacle = error
    forwarding = await router.connect_forwarding(WRITE) if obstacle is not None else None
    if forwarding is not None:  # ask a proxy that forwards to all of them
        _note_owned(found, forwarding, await forwarding.ask(lambda request: proxy.GetOwners(request)))
    elif obstacle is not None and not found:
        raise obstacle
    return [found[stream] for stream in sorted(found)]


def _note_owned(found: dict[str, dict[str, Any]], connection: Connection, result: dict[str, Any]) -> None:
    for stream, epoch, state, *where in result.get("owned", ()):
        location = where[0] if where else connection.address
        if stream not in found or found[stream]["epoch"] < epoch or where:
            found[stream] = {"stream": stream, "epoch": epoch, "state": state, "location": location}
