"""Values and errors cross as JSON, live and replayed alike; mistakes are named with their line."""

from __future__ import annotations

import asyncio
import datetime
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flowengine import event_facet, facet, workflow
from flowengine.authoring.current_function import refuse_construct
from flowengine.authoring.functions import (
    FunctionMisuse,
    StepFailed,
    acall,
    changed,
    durable_function,
    gather,
    now,
    random,
    sleep,
    sleep_until,
    step,
    uuid,
    wait_for,
)
from flowengine.errors import AuthoringError, CommandFailed, DoesNotFit
from flowengine.program.function_calls import CallKind
from tests.unit.authoring.functions.recorded import START, Recorded


@dataclass
class Parcel:
    to: str
    sent: datetime.date | None = None


class Refused(Exception):
    def __init__(self, why: str, code: int) -> None:
        super().__init__(why, code)


@event_facet
def pack(parcel: Parcel, fragile: bool = False) -> Parcel:
    return parcel


@event_facet
def listed(items: list[Any]) -> list[Any]:
    return items


@facet
def traced(n: int) -> int:
    return n


@workflow
def graph(n: int) -> int:
    return n


def test_values_are_written_at_the_call_and_read_at_its_end() -> None:
    async def body(parcel: Parcel) -> Parcel:
        sent = await acall(pack, parcel)
        assert sent is not parcel
        assert sent.sent == datetime.date(2024, 2, 29)
        return sent

    run = Recorded(body, parcel={"to": "Ada"})
    assert run.calls[0].arguments == {"parcel": {"to": "Ada", "sent": None}, "fragile": False}
    run.end(0, {"to": "Ada", "sent": "2024-02-29"})
    assert run.result == {"to": "Ada", "sent": "2024-02-29"}


def test_a_changed_argument_or_result_changes_no_other_value() -> None:
    async def body() -> list[Any]:
        items: list[Any] = [1]
        call = acall(listed, items)
        items.append(2)
        found = await call
        found.append(3)
        again = await acall(listed, found)
        return [items, found, again]

    run = Recorded(body)
    assert run.calls[0].arguments == {"items": [1]}
    stored: list[Any] = [1]
    run.end(0, stored)
    run.end(1, [1, 3])
    assert stored == [1]
    assert run.result == [[1, 2], [1, 3], [1, 3]]
    assert run.activate().advance() == run.progress


def test_a_workflow_is_awaited_as_a_run_of_its_own() -> None:
    async def body() -> int:
        return await acall(graph, 4)

    run = Recorded(body)
    assert (run.calls[0].kind, run.calls[0].arguments) == (CallKind.RUN, {"n": 4})
    assert run.activation.code_of(0) is graph


def test_an_answer_from_outside_is_read_by_its_type() -> None:
    async def body() -> str:
        parcel = await wait_for("parcel", Parcel, timeout=60)
        return parcel.to

    run = Recorded(body)
    assert run.calls[0].facet == "flowengine.wait_for"
    assert run.calls[0].arguments["timeout"] == 60.0
    run.end(0, {"to": "Ada"})
    assert run.result == "Ada"


def test_sleep_until_is_due_at_its_moment() -> None:
    moment = datetime.datetime(2024, 1, 1)

    async def body() -> str:
        return (await sleep_until(moment)).isoformat()

    run = Recorded(body)
    assert run.calls[0].due == round(moment.replace(tzinfo=datetime.UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("kind", "bases", "caught"),
    [
        ("Refused", ["Exception"], Refused),
        ("KeyError", ["LookupError", "Exception"], LookupError),
        ("ConnectionRefusedError", ["ConnectionError", "OSError", "Exception"], OSError),
        ("NotLoadedHere", ["TimeoutError", "OSError", "Exception"], TimeoutError),
        ("CommandFailed", ["FlowengineError", "Exception"], CommandFailed),
        ("UnicodeDecodeError", ["UnicodeError", "ValueError", "Exception"], UnicodeDecodeError),
        ("NowhereKnown", ["Exception"], StepFailed),
        ("StopIteration", ["Exception"], StepFailed),
        ("ExceptionGroup", ["BaseExceptionGroup", "Exception"], StepFailed),
        ("CancelledError", [], StepFailed),
        ("SystemExit", [], StepFailed),
    ],
)
def test_an_error_is_step_failed_and_its_own_class(
    kind: str, bases: list[str], caught: type[Exception]
) -> None:
    async def body() -> list[str]:
        try:
            await acall(listed, [])
        except caught as problem:
            found: Any = problem
            return [str(problem), found.path, found.error_type, found.message]
        return []

    run = Recorded(body)
    run.end(0, error={"type": kind, "message": "no stock", "path": "a.b", "bases": bases})
    assert run.result == ["no stock", "a.b", kind, "no stock"]  # of StepFailed
    assert run.activate().advance() == run.progress


def test_a_class_of_another_module_is_found_if_one_alone_has_its_name_and_bases() -> None:
    class FoundByName(ValueError):
        pass

    async def body() -> bool:
        try:
            await acall(listed, [])
        except StepFailed as problem:
            return isinstance(problem, FoundByName)
        return False

    run = Recorded(body)
    bases = ["ValueError", "Exception"]
    run.end(0, error={"type": "FoundByName", "message": "", "path": "", "bases": bases})
    assert run.result is True


def test_an_uncaught_error_of_a_call_ends_the_function_with_the_record_of_the_call() -> None:
    async def body() -> None:
        await acall(listed, [])

    run = Recorded(body)
    error = {"type": "Refused", "message": "no", "path": "f.listed", "bases": ["Exception"]}
    run.end(0, error={**error, "traceback": "long"})
    assert run.error == error


def test_an_error_of_the_body_has_its_class_bases_and_lines() -> None:
    async def body() -> None:
        raise ConnectionError("gone")

    error = Recorded(body).error
    assert (error["type"], error["message"]) == ("ConnectionError", "gone")
    assert error["bases"] == ["OSError", "Exception"]
    assert 'raise ConnectionError("gone")' in error["traceback"]
    assert "flowengine/" not in error["traceback"]


def test_inputs_and_results_that_do_not_fit_end_the_function() -> None:
    async def body(n: int) -> int:
        return "text" if n else await acall(listed, [])  # type: ignore[return-value]

    assert "'n' should be int" in Recorded(body, n="x").error["message"]
    assert "'result' should be int" in Recorded(body, n=1).error["message"]
    run = Recorded(body, n=0)
    run.end(0, "no list")
    assert "'result' should be list[Any], was 'no list'" in run.error["message"]


# --- Mistakes ---------------------------------------------------------------------------------


async def _never_awaited() -> None:
    acall(listed, [])
    await acall(listed, [1])


async def _never_awaited_at_the_end() -> None:
    await acall(pack, Parcel("x"))
    acall(listed, [])


async def _kept_and_never_awaited() -> Any:
    calls = [acall(listed, [])]
    await acall(pack, Parcel("x"))
    return len(calls)


async def _used_like_a_result() -> Any:
    call: Any = acall(listed, [])
    return call + [1]  # noqa: RUF005


async def _an_attribute_of_a_call() -> Any:
    call: Any = acall(listed, [])
    return call.copy()


async def _gathered_and_not_awaited() -> Any:
    calls: Any = gather(acall(listed, []), acall(listed, []))
    try:
        first, _second = calls
    finally:
        calls.close()
    return first


async def _a_list_of_calls() -> Any:
    calls: Any = [acall(listed, [])]
    return await gather(calls)


async def _as_argument() -> Any:
    return await acall(listed, [acall(pack, Parcel("x"))])


async def _coroutine_as_argument() -> Any:
    return await acall(listed, _never_awaited())  # type: ignore[arg-type]


async def _no_json() -> Any:
    await acall(listed, [object()])


async def _wrong_arguments() -> Any:
    await acall(pack, 5, colour="red")  # type: ignore[call-arg, arg-type]


async def _twice() -> Any:
    call = acall(listed, [])
    await asyncio.gather(call, asyncio.sleep(0))
    await call


async def _traced() -> Any:
    await acall(traced, 1)


async def _no_function() -> Any:
    await step(len, [])


async def _any_arguments() -> Any:
    await step(lambda **names: names, n=1)


async def _wrong_limit() -> Any:
    await gather(acall(listed, []), limit=0)


async def _backwards() -> Any:
    await sleep(-1)


async def _no_name() -> Any:
    changed("")


async def _construct() -> Any:
    refuse_construct("foreach")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_construct, r"this function is run: write `await gather"),
        (_never_awaited, "listed is called and never awaited, .*: write `await listed"),
        (_never_awaited_at_the_end, "listed is called and never awaited"),
        (_kept_and_never_awaited, "listed is called and never awaited"),
        (_used_like_a_result, "listed is called and never awaited, .*: write `await listed"),
        (_an_attribute_of_a_call, r"called and never awaited, .* has no attribute 'copy'\)"),
        (_a_list_of_calls, r"gather takes calls, not a list of them: write `await gather\(\*calls"),
        (_as_argument, "gets a call that is not awaited, of .*pack: write `await`"),
        (_coroutine_as_argument, "a call that is not awaited, of _never_awaited"),
        (_no_json, r"items\[0\] is of type object; annotate it"),
        (_wrong_arguments, "'colour' is unknown"),
        (_twice, "is awaited twice: keep its result"),
        (_traced, "is traced and has no code to run: make it an @event_facet"),
        (_no_function, r"write step\(function, argument\), with a function that calls it"),
        (_any_arguments, r"takes \*\*names, and a record needs a name for each argument"),
        (_wrong_limit, "the limit of gather is 1 or more, not 0"),
        (_backwards, "a sleep is a number of seconds from 0"),
        (_no_name, "the name of a change is a text"),
    ],
)
def test_a_mistake_is_named_with_its_line(body: Callable[[], Awaitable[Any]], words: str) -> None:
    run = Recorded(body)
    if run.progress.ended is None:
        run.end_all(lambda call: [] if call.facet.endswith("listed") else {"to": "x"})
    message = run.error["message"]
    assert re.search(words, message, re.DOTALL), message
    assert (run.error["type"], run.error["bases"][0]) == ("FunctionMisuse", "AuthoringError")
    first = body.__code__.co_firstlineno  # type: ignore[attr-defined]
    line = int(re.match(r".*?test_values\.py:(\d+)", message)[1])  # type: ignore[index]
    assert first < line < first + 4


def test_a_gather_that_is_unpacked_and_never_awaited_names_its_first_call() -> None:
    message = Recorded(_gathered_and_not_awaited).error["message"]
    assert "listed is called and never awaited" in message


def test_a_function_of_the_main_file_is_a_step_of_the_same_name_in_a_module() -> None:
    def helper() -> int:
        return 1

    async def body() -> int:
        return await step(helper)

    imported = Recorded(body).calls[0].facet
    helper.__module__ = "__main__"
    assert Recorded(body).calls[0].facet == imported


async def numbers() -> AsyncIterator[int]:
    yield 1


def one_number() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("body", [numbers, one_number])
def test_a_generator_is_refused(body: Any) -> None:
    with pytest.raises(FunctionMisuse, match=r"yields: .* collect them in a list"):
        durable_function(body)


def test_a_plain_function_and_a_local_one_without_a_name_are_refused() -> None:
    async def local() -> None: ...

    with pytest.raises(FunctionMisuse, match="is no `async def`"):
        durable_function(test_a_generator_is_refused)  # type: ignore[arg-type]
    with pytest.raises(AuthoringError, match="local function"):
        durable_function(local)


def test_a_call_is_awaited_in_its_function_only() -> None:
    kept: list[Any] = []

    async def first() -> None:
        kept.append(acall(listed, []))
        await acall(listed, [])

    async def second() -> None:
        await kept[0]

    run = Recorded(first)
    assert "outside of its function" in Recorded(second).error["message"]
    run.activation.drop()


def test_outside_of_a_function_everything_is_plain_python() -> None:
    async def body() -> list[Any]:
        await sleep(0)
        await sleep_until(datetime.datetime(2000, 1, 1))
        assert uuid() != uuid()
        assert 0 <= random() < 1
        assert changed("x")
        assert now().tzinfo is datetime.UTC
        both = gather(acall(listed, [1]), step(lambda: [2]))
        return [*await both, await gather(acall(listed, [3]), acall(listed, [4]), limit=1)]

    assert asyncio.run(body()) == [[1], [2], [[3], [4]]]
    refuse_construct("foreach")
    with pytest.raises(FunctionMisuse, match="test it with Flow"):
        wait_for("x", int)


def test_a_function_runs_inside_of_another_loop() -> None:
    async def body() -> list[Any]:
        return await acall(listed, [1])

    async def outer() -> Any:
        run = Recorded(body)
        await asyncio.sleep(0)
        return run.end(0, [5]).ended

    assert asyncio.run(outer()).result == [5]
    assert START


@workflow
async def weighed(parcel: str) -> int:
    return len(parcel)


@pytest.mark.parametrize(("called", "kind"), [(weighed, "workflow"), (pack, "event facet")])
def test_a_result_that_does_not_fit_names_the_kind_of_its_source(called: Any, kind: str) -> None:
    async def body() -> str:
        try:
            await called("a" if called is weighed else Parcel("a"))
        except DoesNotFit as problem:
            return str(problem)
        return ""

    run = Recorded(body)
    run.end(0, "heavy")
    assert run.result.startswith(f"{kind} '{__name__}.{called.definition.fn.__name__}'")
