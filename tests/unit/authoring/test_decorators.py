"""The decorators: bare, with options, reused, and refused uses."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import flowengine.authoring
from flowengine.authoring import EventFacet, Facet, Retry, Workflow, event_facet, facet, workflow
from flowengine.errors import AuthoringError
from flowengine.program.nodes import EventOptions


@event_facet
def bare(a: int) -> int:
    """Promise something."""
    return a


def test_decorators_work_bare_and_with_options() -> None:
    @event_facet(name="t.with", task_list="gpu", retry=Retry(attempts=2), timeout=5, max_losses=0)
    def with_options(a: int) -> int:
        return a

    assert bare.options == EventOptions()
    assert with_options.options == EventOptions("gpu", Retry(2), 5.0, 0)
    assert isinstance(facet(name="t.f")(with_options.fn), Facet)
    assert isinstance(workflow(name="t.w")(with_options.fn), Workflow)
    assert isinstance(bare, EventFacet)


def test_a_decorated_function_keeps_its_name_and_its_docstring() -> None:
    assert bare.__doc__ == "Promise something."
    assert (bare.__name__, bare.__module__) == ("bare", __name__)
    assert repr(bare) == f"<event facet '{__name__}.bare' ({bare.location})>"


def test_a_decorator_can_be_applied_to_many_functions() -> None:
    io = event_facet(task_list="io")

    one = io(_one)
    two = io(_two)
    assert (one.name, two.name) == (f"{__name__}._one", f"{__name__}._two")
    assert one.options == two.options == EventOptions("io")
    assert (one(1), two(1)) == (1, 2)


def _one(a: int) -> int:
    return a


def _two(a: int) -> int:
    return a * 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retry": Retry(attempts=0)}, r"retry\.attempts=0"),
        ({"retry": Retry(attempts=2, first_wait=-1)}, r"retry\.first_wait=-1"),
        ({"retry": 3}, r"retry=3 is not a Retry"),
        ({"timeout": -1}, "timeout=-1"),
        ({"timeout": "5"}, "timeout='5'"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"task_list": ""}, "task_list=''"),
        ({"max_losses": -1}, "max_losses=-1"),
        ({"max_losses": 1.5}, "max_losses=1.5"),
        ({"breaker": ""}, "breaker='' is not a name of 1 to 200 characters"),
        ({"breaker": "x" * 201}, "is not a name of 1 to 200 characters"),
        ({"breaker": 3}, "breaker=3 is neither the name of a circuit breaker nor a Breaker"),
        ({"aliases": "old"}, "aliases='old' is not a list"),
        ({"retries": 3}, "no option 'retries', the options are name, .*retry"),
    ],
)
def test_an_invalid_option_names_facet_and_line(options: dict[str, Any], problem: str) -> None:
    line = _one.__code__.co_firstlineno
    with pytest.raises(AuthoringError, match=rf"'_one' \({__file__}:{line}\): .*{problem}"):
        event_facet(**options)(_one)


def test_all_invalid_options_are_reported_together() -> None:
    with pytest.raises(AuthoringError, match=r"task_list=''.*; timeout=0"):
        event_facet(task_list="", timeout=0)(_one)


def test_a_workflow_takes_no_execution_options() -> None:
    with pytest.raises(AuthoringError, match="task_list: an option of a function that is run"):
        workflow(task_list="io")(_one)


def test_starred_parameters_are_refused() -> None:
    def starred(a: int, *rest: int, **more: int) -> None: ...

    with pytest.raises(AuthoringError, match=r"takes \*rest and \*\*more: .*a list or a dict"):
        event_facet(name="t.starred")(starred)


def test_generators_and_async_plain_facets_are_refused() -> None:
    def generator() -> Any:
        yield 1

    async def coroutine() -> None: ...

    with pytest.raises(AuthoringError, match=r"'t.g' .* yields"):
        event_facet(name="t.g")(generator)
    with pytest.raises(AuthoringError, match=r"'t.c' .* is an `async def`"):
        facet(name="t.c")(coroutine)


def test_only_an_undecorated_function_can_be_decorated() -> None:
    with pytest.raises(AuthoringError, match="already decorated"):
        workflow(bare)
    things: list[Any] = ["io", dict, functools.partial(_one, 1)]
    for thing in things:
        with pytest.raises(AuthoringError, match=r"test_decorators.py:\d+: .* is not a function"):
            event_facet(thing)


def test_every_name_in_all_can_be_imported() -> None:
    for name in flowengine.authoring.__all__:
        assert getattr(flowengine.authoring, name) is not None
