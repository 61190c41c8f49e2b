"""Branches, recovery and loops as an author writes them, run to their end."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pydantic
import pytest

from flowengine import (
    ItemError,
    RunFailed,
    and_,
    attempt,
    concat,
    event_facet,
    facet,
    foreach,
    is_in,
    not_,
    now,
    or_,
    starts_with,
    uuid,
    when,
    workflow,
)
from flowengine.settings import Settings
from flowengine.testing import Flow

DONE: list[Any] = []


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    DONE.clear()
    with Flow(store_url=database_url) as one:
        yield one


class Refused(Exception):
    pass


class Range(NamedTuple):
    least: int
    most: int


class Order(pydantic.BaseModel):
    item: str
    cents: int


@event_facet
def do(what: Any) -> Any:
    """Record the argument; fail if it is "refuse"."""
    DONE.append(what)
    if what == "refuse":
        raise Refused("no")
    if what == "connect":
        raise ConnectionResetError("cut off")
    return what


@event_facet
def bounds(numbers: list[int]) -> Range:
    return Range(min(numbers), max(numbers))


@event_facet
def priced(item: str) -> Order:
    return Order(item=item, cents=len(item))


@event_facet
def days(moment: datetime.datetime, id: UUID) -> list[Any]:
    assert isinstance(moment, datetime.datetime)
    return [moment.isoformat(), str(id)]


@event_facet
def listed(errors: list[ItemError]) -> list[str]:
    return [f"{error.index}: {error.type}: {error.message}" for error in errors]


# --- when ---


@workflow
def sizes(n: int) -> str:
    return when(
        (n > 100, lambda: do("large")),
        (n > 10, lambda: do("middle")),
        (n == 0, "nothing"),
        otherwise=lambda: concat(do("small"), " ", n),
    )


@pytest.mark.parametrize(
    ("n", "result", "done"),
    [
        (500, "large", ["large"]),
        (50, "middle", ["middle"]),
        (0, "nothing", []),
        (5, "small 5", ["small"]),
    ],
)
def test_only_the_first_way_that_holds_is_run(
    flow: Flow, n: int, result: str, done: list[str]
) -> None:
    assert flow.run(sizes, n) == result
    assert done == DONE
    assert sizes.fn(n) == result


@workflow
def branches_on_results(n: int) -> list[Any]:
    first = do(n)
    second = do(n + 1)
    chosen = when(
        and_(first > 0, or_(is_in(second, [2, 3]), second == 10)),
        lambda: do(first + second),
        otherwise=None,
    )
    when(not_(first > 0), lambda: do("negative"))
    return [chosen, when(chosen == None, 1, otherwise=2)]  # noqa: E711


def test_a_condition_waits_for_its_steps(flow: Flow) -> None:
    assert flow.run(branches_on_results, 1) == [3, 2]
    assert sorted(DONE) == [1, 2, 3]
    DONE.clear()
    assert flow.run(branches_on_results, -1) == [None, 1]
    assert set(DONE) == {-1, 0, "negative"}


@workflow
def in_loops(words: list[str]) -> list[Any]:
    return foreach(
        words,
        lambda word: when(
            starts_with(word, "a"),
            lambda: foreach([word, "x"], lambda part: do(concat(word, part))),
            otherwise=word,
        ),
    )


def test_branches_and_loops_nest(flow: Flow) -> None:
    assert flow.run(in_loops, ["ab", "b"]) == [["abab", "abx"], "b"]


@workflow
def fails_in_a_way(n: int) -> Any:
    return when(n > 0, lambda: do("refuse"), otherwise=1)


def test_a_way_that_fails_fails_the_run(flow: Flow) -> None:
    with pytest.raises(RunFailed) as failed:
        flow.run(fails_in_a_way, 1)
    assert (failed.value.error_type, failed.value.message) == ("Refused", "no")
    assert flow.run(fails_in_a_way, 0) == 1


# --- composition ---


@workflow
def factorial(n: int) -> int:
    return when(n <= 1, 1, otherwise=lambda: n * factorial(n - 1))


def test_a_workflow_may_call_itself_where_a_branch_ends_it(flow: Flow) -> None:
    assert flow.run(factorial, 5) == 120
    assert factorial.fn(5) == 120


@facet
def even(n: int) -> bool:
    return when(n == 0, True, otherwise=lambda: odd(n - 1))


@facet
def odd(n: int) -> bool:
    return when(n == 0, False, otherwise=lambda: even(n - 1))


@workflow
def parity(n: int) -> list[bool]:
    return [even(n), odd(n)]


def test_facets_may_call_each_other(flow: Flow) -> None:
    assert flow.run(parity, 4) == [True, False]


@workflow
def uses_workflows(n: int) -> list[Any]:
    return [factorial(n), foreach([1, 2], lambda each: sizes(each))]


def test_a_workflow_is_a_step_of_another(flow: Flow) -> None:
    assert flow.run(uses_workflows, 3) == [6, ["small 1", "small 2"]]


# --- attempt ---


@workflow
def recovers(what: str) -> Any:
    return attempt(
        lambda: do(what),
        catch=lambda error: concat(do("caught"), ": ", error.type, " ", error.message),
        always=lambda: do("always"),
    )


def test_an_error_is_caught_and_always_is_done(flow: Flow) -> None:
    assert flow.run(recovers, "fine") == "fine"
    assert sorted(DONE) == ["always", "fine"]
    DONE.clear()
    assert flow.run(recovers, "refuse") == "caught: Refused no"
    assert sorted(DONE) == ["always", "caught", "refuse"]
    assert recovers.fn("refuse") == "caught: Refused no"


@workflow
def by_kind(what: str) -> Any:
    return attempt(
        lambda: do(what),
        catch={Refused: lambda error: "refused", OSError: lambda error: error.path},
        name="doing",
    )


def test_errors_are_caught_by_kind(flow: Flow) -> None:
    assert flow.run(by_kind, "refuse") == "refused"
    assert flow.run(by_kind, "connect") == "by_kind.doing.do"


@event_facet
def decoded(text: str) -> Any:
    return json.loads(text)


@workflow
def by_base(text: str) -> Any:
    return attempt(lambda: decoded(text), catch={ValueError: lambda error: error.type})


def test_a_handler_of_a_base_class_catches_a_subclass_from_another_module(flow: Flow) -> None:
    assert json.JSONDecodeError.__module__ != ValueError.__module__
    assert flow.run(by_base, "{") == "JSONDecodeError"
    assert by_base.fn("{") == "JSONDecodeError"


@facet
def grow(n: int) -> int:
    return when(n >= 0, lambda: do(n) + grow(n) + grow(n), otherwise=0)


@workflow
def grows_without_end(n: int) -> int:
    return grow(n)


def test_branching_recursion_without_end_fails_with_the_facet_and_the_limit(
    database_url: str,
) -> None:
    settings = Settings(max_recursive_calls=25)
    error = r"grow.*25 recursive calls.*max_recursive_calls"
    with (
        Flow(store_url=database_url, settings=settings) as one,
        pytest.raises(RunFailed, match=error),
    ):
        one.run(grows_without_end, 1)


@workflow
def other_kind(what: str) -> Any:
    return attempt(lambda: do(what), catch={KeyError: lambda error: 1}, always=lambda: do("always"))


def test_an_error_of_another_kind_stays_one(flow: Flow) -> None:
    with pytest.raises(RunFailed, match="Refused: no"):
        flow.run(other_kind, "refuse")
    assert sorted(DONE) == ["always", "refuse"]


@workflow
def only_reports(what: str, told: str) -> Any:
    return attempt(
        lambda: do(what),
        failed=lambda error: [do(concat("told ", error.type, ": ", error.message)), do(told)],
        reraise=True,
    )


def test_a_handler_that_only_reports_keeps_the_failure(flow: Flow) -> None:
    with pytest.raises(RunFailed) as failed:
        flow.run(only_reports, "refuse", "fine")
    problem = failed.value
    shown = problem.path, problem.error_type, problem.message
    assert shown == ("only_reports.attempt.do", "Refused", "no")
    assert sorted(DONE) == ["fine", "refuse", "told Refused: no"]
    DONE.clear()
    with pytest.raises(Refused, match="no"):
        only_reports.fn("refuse", "fine")
    assert sorted(DONE) == ["fine", "refuse", "told Refused: no"]


def test_a_handler_that_only_reports_does_nothing_after_success(flow: Flow) -> None:
    assert flow.run(only_reports, "fine", "again") == "fine"
    assert DONE == ["fine"]


def test_a_report_that_fails_does_not_replace_the_failure(flow: Flow) -> None:
    with pytest.raises(RunFailed) as failed:
        flow.run(only_reports, "refuse", "connect")
    assert (failed.value.error_type, failed.value.message) == ("Refused", "no")
    with pytest.raises(Refused) as plain:
        only_reports.fn("refuse", "connect")
    assert plain.value.__notes__ == ["`failed` failed too: ConnectionResetError: cut off"]


@workflow
def reports_by_kind(what: str) -> Any:
    return attempt(
        lambda: attempt(
            lambda: do(what),
            failed={Refused: lambda error: do("refused"), OSError: lambda error: do(error.type)},
        ),
        catch=lambda error: error.path,
    )


def test_a_failure_is_reported_by_its_kind_and_caught_outside(flow: Flow) -> None:
    assert flow.run(reports_by_kind, "refuse") == "reports_by_kind.attempt.attempt_2.do"
    assert DONE == ["refuse", "refused"]
    DONE.clear()
    flow.run(reports_by_kind, "connect")
    assert DONE == ["connect", "ConnectionResetError"]


@workflow
def all_or_none(parts: list[str]) -> Any:
    return attempt(
        lambda: [foreach(parts, lambda part: do(part)), do("after")],
        catch=lambda error: foreach(["one", "two"], lambda each: concat(error.message, " ", each)),
    )


def test_an_attempt_may_have_many_steps(flow: Flow) -> None:
    assert flow.run(all_or_none, ["a", "b"]) == [["a", "b"], "after"]
    assert flow.run(all_or_none, ["a", "refuse"]) == ["no one", "no two"]


@workflow
def each_recovers(parts: list[str]) -> Any:
    return foreach(parts, lambda part: attempt(lambda: do(part), catch=lambda error: error.message))


def test_each_item_recovers_alone(flow: Flow) -> None:
    assert flow.run(each_recovers, ["a", "refuse", "connect"]) == ["a", "no", "cut off"]


# --- foreach ---


@workflow
def collects(parts: list[str]) -> Any:
    found = foreach(parts, lambda part: do(part), collect_errors=True)
    first = when(found.errors == [], None, otherwise=lambda: found.errors[0].path)
    return [found.results, listed(found.errors), first]


def test_errors_of_items_are_collected(flow: Flow) -> None:
    assert flow.run(collects, ["a", "refuse", "b", "connect"]) == [
        ["a", "b"],
        ["1: Refused: no", "3: ConnectionResetError: cut off"],
        "collects.foreach[1].do",
    ]
    assert flow.run(collects, ["a"]) == [["a"], [], None]
    assert flow.run(collects, []) == [[], [], None]


@workflow
def limited(parts: list[str], most: int) -> list[Any]:
    return foreach(parts, lambda part: do(do(part)), limit=most)


def test_a_limit_holds_back_the_other_items(flow: Flow) -> None:
    run = flow.start(limited, ["a", "b", "c"], 2)
    assert len(flow.engine.tasks(run.id)) == 2
    flow.settle()
    assert run.result(timeout=0) == ["a", "b", "c"]


# --- values ---


@workflow
def values(numbers: list[int], item: str) -> Any:
    least, most = bounds(numbers)
    order = priced(item)
    cheap = Order.model_construct(item=order.item, cents=order.cents - 1)
    return [least, most, bounds(numbers).most, priced.named("again")(do(cheap.item)).cents]


def test_tuples_and_models_go_through_a_run(flow: Flow) -> None:
    assert flow.run(values, [3, 1, 2], "tea") == [1, 3, 3, 3]


@workflow
def recorded() -> Any:
    began, id = now(), uuid()
    worked = days(began, id)
    return [worked, began, id, now(after=worked)]


def test_the_time_and_ids_are_the_runs_own(flow: Flow) -> None:
    run = flow.start(recorded)
    began = flow.clock.now
    flow.clock.advance(minutes=1)
    flow.settle()
    worked, at, id, ended = run.result(timeout=0)
    moment = datetime.datetime.fromtimestamp(began / 1000, datetime.UTC)
    assert worked == [moment.isoformat(), id]
    assert at == moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert datetime.datetime.fromisoformat(ended) - moment == datetime.timedelta(minutes=1)
    other = flow.start(recorded)
    flow.settle()
    assert other.result(timeout=0)[2] != id
