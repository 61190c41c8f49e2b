"""Calls of a durable function: made when they are awaited, ended by what is recorded.

A call is a coroutine for asyncio, so that `gather`, `create_task` and `TaskGroup` take it. Its
arguments are written as JSON where it is called, and its result is read from JSON: a facet that
changes its argument changes nothing in the function, live and replayed alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic

from flowengine.authoring.annotations import Annotation, mismatch
from flowengine.authoring.current_function import current_activation
from flowengine.authoring.definitions import Definition
from flowengine.authoring.functions.durable_function import global_names
from flowengine.authoring.functions.loop import FunctionFuture, FunctionLoop
from flowengine.authoring.functions.rebuilt_errors import Names, RebuiltErrors
from flowengine.authoring.locations import user_location
from flowengine.authoring.registry import older_version
from flowengine.errors import DoesNotFit, FunctionMisuse, TooLarge, ValueRefused
from flowengine.program.deadlines import deadline_of, is_deadline
from flowengine.program.event_options import NO_OPTIONS
from flowengine.program.function_calls import CallEnd, CallKind, FunctionCall, digest_and_size
from flowengine.program.nodes import Json, Location, Mixin
from flowengine.program.option_mixins import with_mixins
from flowengine.program.standard import RESULT

if TYPE_CHECKING:
    from flowengine.authoring.functions.activation import Activation

R = TypeVar("R")
_AROUND = digest_and_size({"": 1})[1] - 1  # bytes around one value


@dataclass(frozen=True, slots=True)
class Callee:
    """The subject of a call."""

    kind: CallKind
    facet: str  #: qualified name
    read: Callable[[Json], Any]  #: of its result
    definition: Definition | None = None  #: None: the engine ends it, without code
    code: Any = None  #: the decorated function
    mixins: tuple[Mixin, ...] = ()  #: of this call
    name: str = ""  #: given by the author
    due: Callable[[int], int] | None = None  #: of a timer: from the time of its call

    @property
    def names(self) -> Names:
        """The names of the module of its code."""
        return {} if self.definition is None else global_names(self.definition.fn)


class PendingCall(Coroutine[Any, Any, R]):
    """A call that was not awaited yet."""

    __slots__ = (
        *("_hash", "_iterator", "activation", "arguments", "callee", "digest", "location", "size"),
    )

    def __init__(
        self, activation: Activation, callee: Callee, arguments: dict[str, Json], line: Location
    ) -> None:
        self.activation, self.callee, self.location = activation, callee, line
        self.arguments = arguments
        self.digest, self.size = digest_and_size(arguments)
        self._iterator: Generator[Any, Any, Any] | None = None
        self._hash = activation.created(self)

    @property
    def facet(self) -> str:
        return self.callee.facet

    def made(
        self, number: int, heard: tuple[int, ...], changes: tuple[str, ...], group: int | None
    ) -> FunctionCall:
        """Return the call for its row."""
        callee = self.callee
        options, deadline = NO_OPTIONS, None
        if callee.definition is not None:
            options = self.activation.options_of(callee.definition)
            if callee.mixins:
                others = [one for one in callee.mixins if not is_deadline(one)]
                options = with_mixins(options, others, self._refuse)
            for mixin in callee.mixins:
                if is_deadline(mixin) and isinstance(seconds := deadline_of(mixin), float):
                    deadline = seconds
        return FunctionCall(
            number,
            callee.kind,
            callee.facet,
            self.arguments,
            self.digest,
            heard=heard,
            changes=changes,
            options=options,
            deadline=deadline,
            due=callee.due(self.activation.now_ms) if callee.due else None,
            name=callee.name,
            group=group,
            version=older_version(callee.code) if callee.kind is CallKind.RUN else None,
            location=self.location,
            size=self.size,
        )

    def check_size(self, most: int) -> None:
        """Raise FunctionMisuse if an argument has more bytes than a stored value may have."""
        for name, value in self.arguments.items():
            size = digest_and_size({"": value})[1] - _AROUND
            if size > most:
                self._refuse(str(TooLarge(f"argument {name!r} of {self.facet}", size, most)))

    def _refuse(self, problem: str) -> None:
        raise FunctionMisuse(f"{self.location}: {problem}")

    def __await__(self) -> Generator[Any, Any, R]:
        return self._begun()

    def _begun(self) -> Generator[Any, Any, Any]:
        if self._iterator is not None:
            raise FunctionMisuse(
                f"{user_location()}: the call of {self.facet} ({self.location}) is awaited twice: "
                "keep its result, or await a task of it"
            )
        if current_activation() is not self.activation:
            raise FunctionMisuse(
                f"{self.location}: the call of {self.facet} is awaited outside of its function"
            )
        self._iterator = self.activation.make(self).__await__()
        return self._iterator

    # Of a coroutine, for tasks.

    def send(self, value: Any) -> Any:
        return (self._iterator or self._begun()).send(value)

    def throw(self, *problem: Any) -> Any:
        if self._iterator is None:  # its task was cancelled before it began
            self.close()
            raise problem[0]
        return self._iterator.throw(*problem)

    def close(self) -> None:
        if self._iterator is None:
            self.activation.awaited(self)
        else:
            self._iterator.close()

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<call of {self.facet} at {self.location}>"


#: The words of an error for the subject of a call, if it is no event facet.
_KINDS = {CallKind.RUN: "workflow", CallKind.STEP: "function"}


class CallFuture(FunctionFuture):
    """The end of a call that was made."""

    def __init__(
        self,
        loop: FunctionLoop,
        number: int,
        callee: Callee,
        at_cancel: Callable[[int], object],
    ) -> None:
        super().__init__(loop=loop)
        self.number, self.callee, self._at_cancel = number, callee, at_cancel

    def tell(self, end: CallEnd, errors: RebuiltErrors) -> None:
        """End the call with its recorded result or error."""
        callee = self.callee
        if end.error is not None:
            self.set_exception(errors.error_of(end.error, callee.names))
        else:
            try:
                self.set_result(callee.read(end.result))
            except pydantic.ValidationError as error:
                hint = callee.definition and callee.definition.signature.result
                assert isinstance(hint, Annotation)
                problem = mismatch(RESULT, hint, end.result, error)
                kind = _KINDS.get(callee.kind, "event facet")
                self.set_exception(DoesNotFit(callee.facet, [problem], kind))
        self.exception()  # marks it as seen: its row has it, also if nobody awaits it

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._at_cancel(self.number)
        return is_cancelled


def pending_call(
    activation: Activation, callee: Callee, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> PendingCall[Any]:
    """Write the arguments of a call; raises FunctionMisuse for those that have no JSON form."""
    line, definition = user_location(), callee.definition
    assert definition is not None
    signature = definition.signature
    given, problems = signature.bound(args, kwargs)
    try:
        arguments, unfit = signature.written(given, f"an argument of {callee.facet}")
    except ValueRefused as error:
        arguments, unfit = {}, [str(error)]
    if problems or unfit:
        if call := next(_calls_in(given), None):
            raise FunctionMisuse(
                f"{line}: {definition.title} gets a call that is not awaited, of "
                f"{_call_name(call)}: write `await` before it"
            )
        raise FunctionMisuse(
            f"{line}: {definition.title} cannot take these arguments: {'; '.join(problems + unfit)}"
        )
    return PendingCall(activation, callee, arguments, line)


def _calls_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield calls and coroutines in lists and maps."""
    if isinstance(value, PendingCall) or asyncio.iscoroutine(value):
        yield value
    elif depth < 8 and isinstance(value, Mapping):
        for item in value.values():
            yield from _calls_in(item, depth + 1)
    elif depth < 8 and isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _calls_in(item, depth + 1)


def _call_name(call: Any) -> str:
    call.close()  # else Python warns of it, or the function of a second problem
    return call.facet if isinstance(call, PendingCall) else str(call.__qualname__)
