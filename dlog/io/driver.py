"""Drives a state machine on asyncio: gives it a mailbox and performs its effects. No other module does this.

Invariants:
- Facts are handled one at a time, in mailbox order; effects are performed in order after `handle` has returned.
- Requests above `requests_max` are refused at once (OverCapacityError). Responses and facts from peers never are.
- A failed send becomes a `PeerLost` fact.
- An exception of the machine ends the driver: it leaves through `run` or `on_end` with the recent facts and effects
  as a note, and every pending request gets an error.
- Cancelling a waiter stops the wait, not the work.

A driver belongs to one event loop; call it from that thread only.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dlog.errors import ClosedError, DLogError, OverCapacityError, Remedy, UnavailableError
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.event_trace import EventTrace
from dlog.io.metadata import VersionedStore
from dlog.io.shared_timers import ProcessTimers
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    CompareAndSet,
    Emit,
    Fact,
    Machine,
    MetadataSeen,
    OutcomeUnknown,
    Peer,
    PeerLost,
    Persist,
    ReadMetadata,
    Refused,
    SeenOutcome,
    Send,
    SetTimer,
    TimerFired,
    Token,
)

FACTS_PER_BATCH_MAX = 128  # facts handled in one turn; then the event loop sends what they caused and runs other actors
TRACED_PER_TURN_MAX = 16  # of a turn only the last facts are traced; if an earlier one fails, all up to it
SHARED_TIMER_MIN_S = 30.0  # timers at least this far off share one timer of the event loop with those of other drivers

Sink = Callable[[Any], None]


def _ignore(_: Any) -> None:
    """Drop an event or result."""


def _send_nothing(_peer: Peer, _message: Any) -> None:
    """Drop a message."""


class _Timer(Protocol):
    def cancel(self) -> None: ...


class Driver:
    """Drives one machine.

    send: starts sending a message to a peer; an OSError or DLogError that it raises becomes PeerLost.
    metadata: performs ReadMetadata and CompareAndSet; None: these effects fail an assertion.
    persist: performs Persist, and posts `Persisted` back later.
    on_event: gets the event of each `Emit`.
    requests_max: pending requests at most.
    shared: shared timers of this process; None: each timer is one of the event loop.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_context",
        "_done",
        "_ended",
        "_error",
        "_is_idle",
        "_loop",
        "_mailbox",
        "_metadata",
        "_on_end",
        "_on_event",
        "_over",
        "_persist",
        "_requests_max",
        "_send",
        "_shared",
        "_sinks",
        "_stopping",
        "_tickets",
        "_timers",
        "_trace",
        "_works",
        "batches",
        "facts",
        "machine",
        "name",
        "refused",
    )

    def __init__(
        self,
        machine: Machine,
        *,
        name: str,
        send: Callable[[Peer, Any], None],
        metadata: VersionedStore | None = None,
        persist: Callable[[int, Any], None] | None = None,
        on_event: Callable[[Any], None] = _ignore,
        requests_max: int = 10_000,
        shared: ProcessTimers | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self.machine = machine
        self.facts = 0  # handled so far
        self.batches = 0
        self.refused = 0  # requests refused because requests_max were pending
        self._send = send
        self._metadata = metadata
        self._persist = persist
        self._on_event = on_event
        self._requests_max = requests_max
        self._shared = shared
        self._clock = clock
        self._mailbox: list[Fact] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # set by `run` or `begin`
        self._done: asyncio.Future[None] | None = None  # of `run`: done when no further turn will run
        self._on_end: Callable[[Driver, Exception | None], None] | None = None  # of `begin`: called once at the end
        self._context: contextvars.Context | None = None  # that of `run` or `begin`, not that of a caller of `post`
        self._is_idle = False  # running, with no turn scheduled
        self._sinks: dict[int, Sink] = {}
        self._tickets = 0
        self._timers: dict[Token, _Timer] = {}
        self._works: tuple[asyncio.Task[None], ...] = ()  # tasks of `start` that have not ended; few at once
        self._stopping = False
        self._ended = False
        self._error: Exception | None = None  # that ended it, until `on_end` gets it
        self._over: asyncio.Event | None = None  # made by the first `wait_ended`
        self._trace = EventTrace()

    # ---- the mailbox ------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of pending requests."""
        return len(self._sinks)

    @property
    def ended(self) -> bool:
        """Whether the driver has ended: requests are refused, facts dropped."""
        return self._ended

    def post(self, fact: Fact) -> None:
        """Put a fact into the mailbox. Never blocks or refuses; after the end the fact is dropped."""
        if self._ended:
            return
        self._mailbox.append(fact)
        if self._is_idle:  # `_plan_turn` inlined: most machines come here once a fact
            self._is_idle = False
            self._loop.call_soon(self._turn, context=self._context)  # type: ignore[union-attr]  # idle: has a loop

    def submit(self, request: Any, sink: Sink) -> None:
        """Send the machine a request; `sink` is called once, on the event loop, with the result or a DLogError.

        Raises OverCapacityError (request not taken) or ClosedError (the driver is stopping or has ended). `sink` must
        not raise and must not block.
        """
        if self._ended or self._stopping:
            raise ClosedError(f"the actor has stopped, open it again: actor={self.name}")
        if len(self._sinks) >= self._requests_max:
            self.refused += 1
            raise OverCapacityError(
                f"too many requests are pending, try again later: actor={self.name} requests_max={self._requests_max}"
            )
        self._tickets += 1
        self._sinks[self._tickets] = sink
        self.post(Asked(self._tickets, request, self._clock.monotonic_s()))

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """`submit` with a future, which gets the result or raises the DLogError. Raises what `submit` raises.

        Cancelling the future stops the wait only: the machine still handles the request.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, DLogError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(request, settle)
        return future

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run work in a task that is cancelled when the driver ends; an exception of it ends the driver."""
        assert self._loop is not None and not self._ended, f"a task needs a running driver: actor={self.name}"
        task = self._loop.create_task(work, name=name)
        self._works += (task,)
        task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._works = tuple(other for other in self._works if other is not task)
        error = None if task.cancelled() else task.exception()
        if self._ended:
            if not self._works:
                self._close()
        elif isinstance(error, Exception) and not self._is_over():
            self._finish(error)

    def stop(self) -> None:
        """Refuse further requests and end once the mailbox is empty."""
        self._stopping = True
        if self._is_idle:
            self._plan_turn()

    async def wait_ended(self) -> None:
        """Wait until the driver and its tasks have ended, with or without an error."""
        if not self._ended or self._works:
            self._over = self._over or asyncio.Event()
            await self._over.wait()

    # ---- running ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled or stopped. Raises an exception of the machine, with its recent facts and effects noted.

        At the end timers, metadata requests and tasks are cancelled; pending requests get an error with
        outcome_unknown.
        """
        if self._ended:
            return
        self._done = done = asyncio.get_running_loop().create_future()
        self._begin()
        error: Exception | None = None
        try:
            await done
        except Exception as failure:
            error = failure
            raise
        finally:
            works = self._works
            self._end(error)
            if works:
                await asyncio.wait(works)

    def begin(self, on_end: Callable[[Driver, Exception | None], None]) -> None:
        """`run` without a task, until stopped. With thousands of drivers, a task each would take much of their memory.

        on_end: called once when the driver and its tasks have ended, with the exception that ended it, if any; pending
        requests have got their error by then, as in `run`. The caller must call `stop` and `wait_ended`.
        """
        self._on_end = on_end
        self._begin()

    def _begin(self) -> None:
        """Schedule the first turn. A turn is a loop callback: it costs a quarter of a step of a task."""
        assert self._loop is None, "a driver runs once"
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._plan_turn()

    def _plan_turn(self) -> None:
        assert self._loop is not None, "a turn needs a running driver"
        self._is_idle = False
        self._loop.call_soon(self._turn, context=self._context)

    def _is_over(self) -> bool:
        return self._ended or ((done := self._done) is not None and done.done())

    def _turn(self) -> None:
        """Handle one batch of facts. An exception ends the driver."""
        done = self._done
        if self._ended or (done is not None and done.done()):  # `_is_over` inlined: checked twice a turn
            return
        mailbox, self._mailbox = self._mailbox, []
        if len(mailbox) > FACTS_PER_BATCH_MAX:
            self._mailbox = mailbox[FACTS_PER_BATCH_MAX:]
            del mailbox[FACTS_PER_BATCH_MAX:]
        self.batches += 1
        handle, note = self.machine.handle, self._trace.note
        untraced = len(mailbox) - TRACED_PER_TURN_MAX
        begun = handled = 0
        try:
            for fact in mailbox:  # facts posted meanwhile wait for the next turn
                begun += 1
                effects = handle(fact)
                handled += 1
                if handled > untraced:
                    note(fact, effects)
                for effect in effects:
                    _PERFORM[effect.__class__](self, effect)
        except Exception as error:
            for fact in mailbox[handled if handled > untraced else 0 : begun]:
                note(fact, ())
            if self._is_over():
                raise  # cancelled in this turn, so `run` does not raise it: the loop's exception handler reports it
            self._finish(error)
            return
        finally:
            self.facts += handled
        if self._ended or (done is not None and done.done()):
            return  # a callback of this turn has cancelled the driver
        if self._mailbox:
            self._plan_turn()  # other actors run in between
        elif self._stopping:
            self._finish(None)
        else:
            self._is_idle = True
            if not self._sinks:  # an emptied dict keeps its memory until it is cleared
                self._sinks.clear()
            if not self._timers:
                self._timers.clear()

    def _finish(self, error: Exception | None) -> None:
        """End: no further turn runs."""
        if error is not None:
            error.add_note(self._trace.text(self.name))
        if self._done is None:
            self._end(error)
        elif error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def _end(self, error: Exception | None) -> None:
        farewell: DLogError
        if error is not None:
            farewell = UnavailableError(
                f"the actor failed before it replied, outcome unknown: actor={self.name}", outcome_unknown=True
            )
        else:
            farewell = ClosedError(
                f"the actor stopped before it replied, outcome unknown: actor={self.name}", outcome_unknown=True
            )
        self._ended = True
        self._is_idle = False
        for work in self._works:
            work.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._mailbox.clear()
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink(farewell)
        self._let_go()
        self._error = error
        if not self._works:
            self._close()

    def _close(self) -> None:
        """Report the end, once no task is left."""
        if self._over is not None:
            self._over.set()
        on_end, self._on_end = self._on_end, None
        error, self._error = self._error, None
        if on_end is not None:
            on_end(self, error)

    def _let_go(self) -> None:
        """Break reference cycles: the garbage collector visits old objects too rarely to rely on it."""
        self._done = self._context = None
        self._send = _send_nothing
        self._on_event = _ignore
        self._metadata = self._persist = None
        self._trace = EventTrace()

    # ---- performing effects -----------------------------------------------------------------------------------------

    def _perform_send(self, effect: Send) -> None:
        try:
            self._send(effect.peer, effect.message)
        except (OSError, DLogError) as error:
            self.post(PeerLost(effect.peer, str(error)))

    def _perform_answer(self, effect: Answer) -> None:
        sink = self._sinks.pop(effect.ticket, None)
        assert sink is not None, f"a request is answered once: actor={self.name} ticket={effect.ticket}"
        sink(effect.result)

    def _perform_set_timer(self, effect: SetTimer) -> None:
        self._perform_cancel_timer(effect)
        key, after_s = effect.key, effect.after_s
        shared = self._shared
        if shared is not None and effect.can_wait:
            self._timers[key] = shared.deferrable.call_later(after_s, self._fire, key)
        elif shared is not None and after_s >= SHARED_TIMER_MIN_S:
            self._timers[key] = shared.far.call_later(after_s, self._fire, key)
        else:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(after_s, self._fire, key, context=self._context)

    def _perform_cancel_timer(self, effect: SetTimer | CancelTimer) -> None:
        timer = self._timers.pop(effect.key, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, key: Token) -> None:
        del self._timers[key]
        self.post(TimerFired(key, self._clock.monotonic_s()))

    def _perform_metadata(self, effect: ReadMetadata | CompareAndSet) -> None:
        assert self._metadata is not None, f"no metadata given: actor={self.name}"
        verb = "read" if isinstance(effect, ReadMetadata) else "write"
        self.start(self._ask_metadata(self._metadata, effect), name=f"{self.name} {verb} {effect.key}")

    async def _ask_metadata(self, metadata: VersionedStore, effect: ReadMetadata | CompareAndSet) -> None:
        outcome: SeenOutcome
        try:
            if isinstance(effect, ReadMetadata):
                outcome = await metadata.read(effect.key)
            else:
                outcome = await metadata.compare_and_set(effect.key, effect.value, effect.version)
        except DLogError as error:
            outcome = OutcomeUnknown(error.message) if error.remedy is Remedy.RETRY else Refused(error)
        self.post(MetadataSeen(effect.token, outcome))

    def _perform_persist(self, effect: Persist) -> None:
        assert self._persist is not None, f"no storage given: actor={self.name}"
        self._persist(effect.token, effect.data)

    def _perform_emit(self, effect: Emit) -> None:
        self._on_event(effect.event)


_PERFORM: dict[type[Any], Callable[[Driver, Any], None]] = {
    Send: Driver._perform_send,
    Answer: Driver._perform_answer,
    SetTimer: Driver._perform_set_timer,
    CancelTimer: Driver._perform_cancel_timer,
    ReadMetadata: Driver._perform_metadata,
    CompareAndSet: Driver._perform_metadata,
    Persist: Driver._perform_persist,
    Emit: Driver._perform_emit,
}
