"""The driver: gives a machine a mailbox and performs its effects on asyncio. The only place that does.

The law of this room:
- facts are handed over one at a time, in mailbox order; effects are performed in order after `handle` has returned;
- requests are bounded at admission and refused at once (OverCapacityError); answers to our own questions and facts
  from peers never are: they were paid for when we asked;
- a failed send is a `PeerLost` fact; an exception that leaves the machine leaves through `run`, with the machine's
  story attached, and everybody who waits is told;
- a cancelled waiter is forgotten, its work never.

One loop owns a driver: nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dlog.errors import ClosedError, DLogError, OverCapacityError, Remedy, UnavailableError
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.metadata import Metadata
from dlog.io.shared_timers import ProcessTimers
from dlog.io.story import Story
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    CompareAndSet,
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
    Tell,
    TimerFired,
    Token,
)

BATCH_MAX = 128  # facts in a row, before what they caused is sent and other actors run
FAR_S = 30.0  # timers from here on are shared with other drivers of this process

Sink = Callable[[Any], None]


def _ignore(_: Any) -> None:
    """Nobody listens."""


def _send_nothing(_peer: Peer, _message: Any) -> None:
    """Nobody is there."""


class _Timer(Protocol):
    def cancel(self) -> None: ...


class Driver:
    """Drives one machine.

    send: puts a message on its way to a peer; may raise OSError or DLogError, which becomes PeerLost.
    metadata: where ReadMetadata and CompareAndSet go; without it they are an assertion failure.
    persist: where Persist goes; whoever performs it posts `Persisted` back.
    on_event: hears what the machine tells.
    requests_max: how many requests may wait for their answer at once.
    shared: timers of this process; without it the loop has all of them.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_context",
        "_ended",
        "_error",
        "_is_idle",
        "_life",
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
        "_story",
        "_tickets",
        "_timers",
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
        metadata: Metadata | None = None,
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
        self.refused = 0  # requests turned away at admission
        self._send = send
        self._metadata = metadata
        self._persist = persist
        self._on_event = on_event
        self._requests_max = requests_max
        self._shared = shared
        self._clock = clock
        self._mailbox: list[Fact] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # while it lives
        self._life: asyncio.Future[None] | None = None  # of `run`: done when there is no next turn
        self._on_end: Callable[[Driver, Exception | None], None] | None = None  # of `begin`: hears that there is none
        self._context: contextvars.Context | None = None  # of the life, not of whoever posts
        self._is_idle = False  # it lives, and no turn is planned
        self._sinks: dict[int, Sink] = {}
        self._tickets = 0
        self._timers: dict[Token, _Timer] = {}
        self._works: tuple[asyncio.Task[None], ...] = ()  # that are part of this life; few at once
        self._stopping = False
        self._ended = False
        self._error: Exception | None = None  # that ended it, until `on_end` has heard
        self._over: asyncio.Event | None = None  # made by who waits for the end
        self._story = Story()

    # ---- the mailbox ------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet."""
        return len(self._sinks)

    @property
    def ended(self) -> bool:
        """Whether `run` is over; requests are refused and facts dropped."""
        return self._ended

    def post(self, fact: Fact) -> None:
        """Put a fact into the mailbox; never refused, never blocks. After the end it is dropped."""
        if self._ended:
            return
        self._mailbox.append(fact)
        if self._is_idle:  # as `_plan_turn`: this is done for each fact of most machines
            self._is_idle = False
            self._loop.call_soon(self._turn, context=self._context)  # type: ignore[union-attr]  # who is idle lives

    def submit(self, request: Any, sink: Sink) -> None:
        """Ask the machine; `sink` hears the result or a DLogError once, from within the driver's turn.

        Raises OverCapacityError (nothing was taken) or ClosedError (the driver is stopping or has ended). `sink` must
        not raise and must not block.
        """
        if self._ended or self._stopping:
            raise ClosedError(f"not running any more: actor={self.name}")
        if len(self._sinks) >= self._requests_max:
            self.refused += 1
            raise OverCapacityError(f"too many requests wait: actor={self.name} requests_max={self._requests_max}")
        self._tickets += 1
        self._sinks[self._tickets] = sink
        self.post(Asked(self._tickets, request, self._clock.monotonic_s()))

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """Ask the machine; the future has the result or raises the DLogError. Raises at once what `submit` raises.

        Cancelling the future forgets the waiter only: the machine goes on and the request keeps its place.
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
        """Do something in a task that is part of this life: cancelled at its end; what it raises ends it."""
        assert self._loop is not None and not self._ended, f"only who lives starts something: actor={self.name}"
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
        """Take no more requests; `run` returns once what is in the mailbox has been handled."""
        self._stopping = True
        if self._is_idle:
            self._plan_turn()

    async def wait_ended(self) -> None:
        """Until its life is over, however it ended."""
        if not self._ended or self._works:
            self._over = self._over or asyncio.Event()
            await self._over.wait()

    # ---- the life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until cancelled or stopped. An exception of the machine leaves through here, with the story.

        However it ends: timers, open metadata questions and what was started are cancelled, and requests without an
        answer get an error whose outcome is unknown.
        """
        if self._ended:
            return
        self._life = life = asyncio.get_running_loop().create_future()
        self._begin()
        error: Exception | None = None
        try:
            await life
        except Exception as failure:
            error = failure
            raise
        finally:
            works = self._works
            self._end(error)
            if works:
                await asyncio.wait(works)

    def begin(self, on_end: Callable[[Driver, Exception | None], None]) -> None:
        """Live until stopped, without a task of its own: where thousands live, a task and what belongs to it is much
        of what each takes of memory.

        on_end: hears once that nothing happens any more here, what was started included, and which exception, with the
        story, has ended it; requests without an answer have heard it then, as in `run`. Who begins a life stops it and
        waits for its end.
        """
        self._on_end = on_end
        self._begin()

    def _begin(self) -> None:
        """Take turns until there is nothing more to do. A turn is a call of the loop's, not a step of a task, which
        costs a quarter."""
        assert self._loop is None, "a driver lives once"
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._plan_turn()

    def _plan_turn(self) -> None:
        assert self._loop is not None, "only who lives takes turns"
        self._is_idle = False
        self._loop.call_soon(self._turn, context=self._context)

    def _is_over(self) -> bool:
        return self._ended or ((life := self._life) is not None and life.done())

    def _turn(self) -> None:
        """Handle one batch of facts. What goes wrong ends the life."""
        life = self._life
        if self._ended or (life is not None and life.done()):  # `_is_over`, asked twice in each turn
            return
        mailbox, self._mailbox = self._mailbox, []
        if len(mailbox) > BATCH_MAX:
            self._mailbox = mailbox[BATCH_MAX:]
            del mailbox[BATCH_MAX:]
        self.batches += 1
        handle, note = self.machine.handle, self._story.note
        try:
            for fact in mailbox:  # one batch; newcomers wait their turn
                self.facts += 1
                try:
                    effects = handle(fact)
                except BaseException:
                    note(fact, ())
                    raise
                note(fact, effects)
                for effect in effects:
                    _PERFORM[effect.__class__](self, effect)
        except Exception as error:
            if self._is_over():
                raise  # we were cancelled in this turn, and nobody waits: the loop's handler tells
            self._finish(error)
            return
        if self._ended or (life is not None and life.done()):
            return  # somebody who was answered has cancelled us
        if self._mailbox:
            self._plan_turn()  # other actors run between batches
        elif self._stopping:
            self._finish(None)
        else:
            self._is_idle = True
            if not self._sinks:  # an empty dict keeps the room it had
                self._sinks.clear()
            if not self._timers:
                self._timers.clear()

    def _finish(self, error: Exception | None) -> None:
        """There is no next turn."""
        if error is not None:
            error.add_note(self._story.text(self.name))
        if self._life is None:
            self._end(error)
        elif error is None:
            self._life.set_result(None)
        else:
            self._life.set_exception(error)

    def _end(self, error: Exception | None) -> None:
        farewell: DLogError
        if error is not None:
            farewell = UnavailableError(f"failed before the answer: actor={self.name}", outcome_unknown=True)
        else:
            farewell = ClosedError(f"stopped before the answer: actor={self.name}", outcome_unknown=True)
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
        """Nothing happens any more."""
        if self._over is not None:
            self._over.set()
        on_end, self._on_end = self._on_end, None
        error, self._error = self._error, None
        if on_end is not None:
            on_end(self, error)

    def _let_go(self) -> None:
        """Leave no circle behind: the collector looks at what is old so rarely that nobody may wait for it."""
        self._life = self._context = None
        self._send = _send_nothing
        self._on_event = _ignore
        self._metadata = self._persist = None
        self._story = Story()

    # ---- effects, each as the machine ordered it --------------------------------------------------------------------

    def _perform_send(self, effect: Send) -> None:
        try:
            self._send(effect.peer, effect.message)
        except (OSError, DLogError) as error:
            self.post(PeerLost(effect.peer, str(error)))

    def _perform_answer(self, effect: Answer) -> None:
        sink = self._sinks.pop(effect.ticket, None)
        assert sink is not None, f"a ticket is answered once: actor={self.name} ticket={effect.ticket}"
        sink(effect.result)

    def _perform_set_timer(self, effect: SetTimer) -> None:
        self._perform_cancel_timer(effect)
        key, after_s = effect.key, effect.after_s
        shared = self._shared
        if shared is not None and effect.can_wait:
            self._timers[key] = shared.deferrable.call_later(after_s, self._fire, key)
        elif shared is not None and after_s >= FAR_S:
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

    async def _ask_metadata(self, metadata: Metadata, effect: ReadMetadata | CompareAndSet) -> None:
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

    def _perform_tell(self, effect: Tell) -> None:
        self._on_event(effect.event)


_PERFORM: dict[type[Any], Callable[[Driver, Any], None]] = {
    Send: Driver._perform_send,
    Answer: Driver._perform_answer,
    SetTimer: Driver._perform_set_timer,
    CancelTimer: Driver._perform_cancel_timer,
    ReadMetadata: Driver._perform_metadata,
    CompareAndSet: Driver._perform_metadata,
    Persist: Driver._perform_persist,
    Tell: Driver._perform_tell,
}
