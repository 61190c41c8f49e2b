"""One activation of a durable function: its code runs until everything in it waits.

    activation = Activation(research, inputs, step_id=…, started=…, record=…)
    progress = activation.advance()         # replays the record, and goes on behind it
    …                                       # make progress.calls, record their ends
    progress = activation.advance(ends)     # the same coroutine goes on
    activation.drop()                       # or: forget it; another activation replays the record

An activation has no effects: it returns the calls that the function wants to be made. Ends are told
one at a time, and the loop rests in between, so that the order of the ends alone decides what
happens. A replay tells the recorded ends in the recorded order and compares the calls.

Invariant: an activation that has neither ended nor been dropped is not collected as garbage.
Python closes a collected coroutine outside of its loop, and the calls of facets in its `finally`
blocks would run as plain functions. `drop` closes it inside, where calls are refused.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import atexit
import contextvars
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Self

from flowengine.authoring.current_function import running
from flowengine.authoring.definitions import Definition
from flowengine.authoring.functions.call_numbers import CallNumbers
from flowengine.authoring.functions.durable_function import DurableFunction
from flowengine.authoring.functions.loop import FunctionLoop, FunctionTimer, Spinning
from flowengine.authoring.functions.loop_refusals import explained
from flowengine.authoring.functions.pending_calls import CallFuture, PendingCall
from flowengine.authoring.functions.rebuilt_errors import RebuiltErrors, record_of
from flowengine.authoring.functions.unawaited import UnawaitedCalls, is_use_of_call, never_awaited
from flowengine.authoring.functions.waiting_lines import waiting_line
from flowengine.errors import Divergence, FunctionMisuse
from flowengine.program.event_options import EventOptions
from flowengine.program.function_calls import (
    NO_RECORD,
    CallEnd,
    CallKind,
    FunctionCall,
    FunctionEnd,
    FunctionRecord,
    Progress,
    arguments_digest,
)
from flowengine.program.nodes import Json, Location
from flowengine.program.standard import SLEEP


@dataclass(frozen=True, slots=True)
class ActivationLimits:
    """How far one function may go."""

    max_calls: int = 10_000
    max_iterations: int = 100_000  #: of the loop, until it rests
    max_value_bytes: int = 1 << 20  #: of an argument, as JSON


class Activation:
    """A coroutine of a durable function, in a loop of its own. Used by one thread at a time."""

    def __init__(
        self,
        function: DurableFunction,
        inputs: Mapping[str, Json],
        *,
        step_id: str,
        started: int,
        record: FunctionRecord = NO_RECORD,
        limits: ActivationLimits = ActivationLimits(),  # noqa: B008 - frozen
        strict: bool = False,
    ) -> None:
        """Prepare to run; `started` is the time of its beginning in milliseconds since the epoch.

        With `strict`, for tests, a recorded call with other arguments, or one that is made
        before what it had heard, is a Divergence too.
        """
        self.function, self.step_id, self.inputs = function, step_id, inputs
        self._record, self._limits = record, limits
        base = int.from_bytes(blake2b(step_id.encode(), digest_size=7).digest())
        self._loop = FunctionLoop(base, started)  # type: ignore[abstract]
        self._loop.at_cancelled_timer = self._forget
        self._has_begun = False
        self._main: asyncio.Task[Any] | None = None
        self._context = contextvars.copy_context()
        self._context.run(running.set, self)
        self._errors = RebuiltErrors(function.globals)
        self.numbers = CallNumbers(function.name, step_id, record, limits.max_calls, strict=strict)
        self._open: dict[int, CallFuture | FunctionTimer] = {}
        self._unawaited = UnawaitedCalls()
        self._calls: list[FunctionCall] = []
        self._cancelled: list[int] = []
        self._options: dict[Definition, EventOptions] = {}
        self._divergence: Divergence | None = None
        self._end: FunctionEnd | None = None

    # --- For the worker -----------------------------------------------------------------------

    def advance(self, ends: Iterable[CallEnd] = ()) -> Progress:
        """Run until everything waits, after the first time with the ends of calls, one by one.

        Ends of calls that the function has cancelled, or has heard already, change nothing.
        Raises Divergence if the code does not fit the record; the activation is dropped then.
        """
        if self.is_dropped and self._end is None:
            raise RuntimeError(
                f"the activation of {self.function.name} was dropped: make a new one"
            )
        try:
            with _Inside(self._loop):
                if not self._has_begun:
                    self._has_begun = True
                    self._begin()
                    self._replay()
                for end in ends:
                    self._tell(end)
        except BaseException:
            self.drop()
            raise
        return self._progress()

    def drop(self) -> None:
        """Close the coroutine. Its `finally` blocks run; calls in them are refused silently."""
        if not self._loop.is_dropped:
            with _Inside(self._loop):
                self._context.run(self._loop.close_tasks)
        # Without these references nothing is left to the garbage collector.
        self._main, self._context = None, contextvars.Context()
        self._loop.at_cancelled_timer = _forget_nothing
        _live.discard(self)
        self._open.clear()
        self._unawaited.clear()

    def code_of(self, number: int) -> Any:
        """Return the facet or the plain function of an open call, as the code has it."""
        future = self._open[number]
        return future.callee.code if isinstance(future, CallFuture) else None

    @property
    def open_numbers(self) -> list[int]:
        """The numbers of calls whose ends the function would hear."""
        return list(self._open)

    @property
    def is_dropped(self) -> bool:
        """Whether the coroutine is closed: it has ended, or was dropped."""
        return self._loop.is_dropped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    # --- For calls inside the function ----------------------------------------------------------

    def created(self, call: PendingCall[Any]) -> int:
        """Keep a call until it is awaited; return the number it hashes by."""
        number = self._loop.next_hash()
        if not self._loop.is_dropped:
            self._unawaited.add(number, call)
        return number

    def awaited(self, call: PendingCall[Any]) -> None:
        """Note that a call is awaited, or will never be, because its task was cancelled."""
        self._unawaited.remove(hash(call))

    def make(self, call: PendingCall[Any], group: int | None = None) -> CallFuture:
        """Make a call: return the future of its end. In a dropped function it is not made."""
        self._unawaited.remove(hash(call))
        if self._loop.is_dropped:
            return CallFuture(self._loop, -1, call.callee, self._forget)  # never ends
        is_new = self.numbers.is_new(self.numbers.next)
        if is_new and call.size > self._limits.max_value_bytes:  # a record may exceed a later limit
            call.check_size(self._limits.max_value_bytes)
        number = self._take(call.facet, call.digest, call.location)
        if is_new:
            self._calls.append(call.made(number, *self.numbers.claim(), group))
        future = CallFuture(self._loop, number, call.callee, self._forget)
        self._open[number] = future
        return future

    def options_of(self, definition: Definition) -> EventOptions:
        """Return the options of a facet; the routes of an app are asked once for each."""
        options = self._options.get(definition)
        if options is None:
            options = self._options[definition] = definition.options
        return options

    @property
    def now_ms(self) -> int:
        """The time of the last end that was heard, in milliseconds since the epoch."""
        return self._loop.now_ms

    # --- Numbers --------------------------------------------------------------------------------

    def _take(self, facet: str, digest: str, line: Location) -> int:
        """Return the number of a call. One that does not fit the record stops the loop."""
        number, divergence = self.numbers.take(facet, digest, line)
        if divergence is not None:
            # Not raised into the code, which might catch it.
            self._divergence = self._divergence or divergence
            self._loop.is_stopped = True
        return number

    def _record_timers(self) -> None:
        """Make a call of each timer that still waits."""
        timers, self._loop.new_timers = self._loop.new_timers, []
        for timer in timers:
            if not timer.cancelled():
                arguments: dict[str, Json] = {"seconds": timer.seconds}
                call = FunctionCall(
                    0, CallKind.WAIT, SLEEP, arguments, arguments_digest(arguments),
                    due=round(timer.when() * 1000), location=timer.line,
                )  # fmt: skip
                timer.number = number = self._take(SLEEP, call.digest, timer.line)
                self._open[number] = timer
                if self.numbers.is_new(number):
                    heard, changes = self.numbers.claim()
                    self._calls.append(replace(call, number=number, heard=heard, changes=changes))

    def _forget(self, number: int) -> None:
        """Note that the function has cancelled a call or a timer."""
        if self._open.pop(number, None) is not None and self.numbers.is_open(number):
            self._cancelled.append(number)

    # --- Running --------------------------------------------------------------------------------

    def _begin(self) -> None:
        _live.add(self)
        try:
            body = self._context.run(self.function.coroutine, self.inputs)
        except Exception as problem:  # inputs that the code refuses now
            self._main = self._loop.create_future()  # type: ignore[assignment]
            self._finish(FunctionEnd(error=record_of(problem)))
            return
        self._main = self._loop.create_task(body, context=self._context)
        self._rest()

    def _replay(self) -> None:
        """Tell the recorded ends as the recorded calls heard them, then the others in order."""
        ends = {end.number: end for end in self._record.ends}
        for number, call in enumerate(self._record.calls):
            for heard in call.heard:
                if heard not in ends:
                    raise ValueError(f"the record has no end of call {heard}, which was heard")
                self._tell(ends[heard])
            if self.numbers.next <= number:
                raise self.numbers.missing(number, self._line("it has ended"))
            self.numbers.heard.clear()  # this call has them
        for end in self._record.ends:
            self._tell(end)

    def _tell(self, end: CallEnd) -> None:
        """Tell the end of a call and run until everything waits again."""
        if self._end is not None:
            return
        if end.number >= self.numbers.next:
            raise ValueError(f"call {end.number} has ended, and the function has not made it")
        waiter = self._open.pop(end.number, None)
        if waiter is None:
            return  # heard before, or cancelled: nobody waits for it
        self._loop.now_ms = max(self._loop.now_ms, end.at)
        self.numbers.heard.append(end.number)
        if isinstance(waiter, FunctionTimer):
            self._loop.fire(waiter)
        else:
            waiter.tell(end, self._errors)
        self._rest()

    def _rest(self) -> None:
        main = self._main
        assert main is not None
        try:
            self._loop.rest(main, self._limits.max_iterations)
            if self._loop.new_timers and not main.done() and self._divergence is None:
                self._record_timers()
        except Spinning:
            self._fail(
                f"{self._line()}: {self.function.name} goes round without awaiting a call, "
                f"{self._limits.max_iterations:,} times: await a call or sleep(…) in the loop"
            )
        # A timer is one call too many; or code exits, which ends the function and no process.
        except (FunctionMisuse, SystemExit) as problem:
            self._finish(FunctionEnd(error=record_of(problem)))
        if self._divergence is not None:
            raise self._divergence
        if self._end is not None:
            return
        lost = self._unawaited.lost()
        if main.done():
            self._finish(self._end_of(main))
        elif not lost and not self._open:
            self._fail(
                f"{self._line()}: {self.function.name} waits for something that no call ends: "
                "await calls, timers, or tasks and queues of this function, no threads or "
                "other loops"
            )
        elif lost:
            self._fail(never_awaited(lost))

    def _end_of(self, main: asyncio.Task[Any]) -> FunctionEnd:
        try:
            returned = main.result()
            if unawaited := self._unawaited.first():  # before the result, which may be that call
                raise FunctionMisuse(never_awaited(unawaited))
            return FunctionEnd(result=self.function.written(returned))
        except BaseException as problem:
            unawaited = self._unawaited.first()
            if unawaited is not None and is_use_of_call(problem):
                misuse = FunctionMisuse(f"{never_awaited(unawaited)} ({problem})")
                return FunctionEnd(error=record_of(misuse.with_traceback(problem.__traceback__)))
            return FunctionEnd(error=record_of(explained(problem)))

    def _fail(self, message: str) -> None:
        self._finish(FunctionEnd(error=record_of(FunctionMisuse(message))))

    def _finish(self, end: FunctionEnd) -> None:
        self._end = end
        for number in list(self._open):
            self._forget(number)
        self.drop()

    def _line(self, otherwise: str = "") -> str:
        """Return the line at which the function waits."""
        main = self._main
        coro = main.get_coro() if isinstance(main, asyncio.Task) and not main.done() else None
        return str(waiting_line(coro) or otherwise or self.function.definition.location)

    def _progress(self) -> Progress:
        calls, self._calls = tuple(self._calls), []
        cancelled, self._cancelled = tuple(self._cancelled), []
        warning, self.numbers.warning = self.numbers.warning, None
        return Progress(calls, tuple(self.numbers.heard), cancelled, self._end, warning)


def _forget_nothing(_: int) -> None: ...


class _Inside:
    """Makes a loop the running one of this thread. No generator: it is entered for every end."""

    def __init__(self, loop: FunctionLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._outer, self._hooks = asyncio.events._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio.events._set_running_loop(self._loop)
        sys.set_asyncgen_hooks(self._loop.begin_generator, self._loop.end_generator)

    def __exit__(self, *_: object) -> None:
        sys.set_asyncgen_hooks(*self._hooks)
        asyncio.events._set_running_loop(self._outer)


_live: set[Activation] = set()


@atexit.register
def _drop_all() -> None:
    """Close the kept coroutines before Python does, which would run their calls."""
    for activation in list(_live):
        activation.drop()
