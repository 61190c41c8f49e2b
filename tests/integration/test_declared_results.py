"""A run completes with the result that its workflow declares, or fails and names the step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from flowengine import attempt, event_facet, facet, foreach, workflow
from flowengine.errors import DoesNotFit
from flowengine.store.payloads import Payloads
from flowengine.testing import Flow


@event_facet(name="declared.given")
def given(value: Any) -> Any:
    return value


@event_facet(name="declared.many")
def many(n: int) -> list[int]:
    return list(range(n))


@event_facet(name="declared.fails")
def fails(n: int) -> list[int]:
    raise LookupError("nothing there")


class Album(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    name: str = Field(alias="Name")
    tags: list[str] = Field(default_factory=list)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def title(self) -> str:
        return self.name.upper()


class Box(BaseModel):
    width: int
    depth: int = 1


@event_facet(name="declared.album")
def album(name: str) -> Album:
    return Album(Name=name)


@workflow(name="declared.ints")
def ints(value: Any) -> list[int]:
    return given(value)


@workflow(name="declared.floats")
def floats(value: Any) -> list[float]:
    return given(value)


@workflow(name="declared.maybe")
def maybe(value: Any) -> int | None:
    return given(value)


@workflow(name="declared.word")
def word(value: Any) -> Literal["yes", "no"]:
    return given(value)


@workflow(name="declared.box")
def box(value: Any) -> Box:
    return given(value)


@workflow(name="declared.nothing")
def nothing(value: Any) -> None:
    return given(value)


@workflow(name="declared.free")
def free(value: Any) -> Any:
    return given(value)


@workflow(name="declared.undeclared")
def undeclared(value: Any):  # type: ignore[no-untyped-def]
    return given(value)


@workflow(name="declared.albums")
def albums(names: list[str]) -> list[Album]:
    return foreach(names, lambda name: album(name))


@workflow(name="declared.caught")
def caught(n: int) -> list[int]:
    return attempt(lambda: fails(n), catch=lambda error: given(None))


@facet(name="declared.inner")
def inner(value: Any) -> list[int]:
    return given(value)


@workflow(name="declared.recovering")
def recovering(value: Any) -> Any:
    return attempt(lambda: inner(value), catch=lambda error: error.type)


@workflow(name="declared.recovering_workflow")
def recovering_workflow(value: Any) -> Any:
    return attempt(lambda: ints(value), catch=lambda error: error.type)


@event_facet(name="declared.delegate")
def delegate(value: Any) -> Any:
    return ints.call(value)


@workflow(name="declared.recovering_run")
def recovering_run(value: Any) -> Any:
    return attempt(lambda: delegate(value), catch=lambda error: error.type)


@workflow(name="declared.function")
async def function(value: Any) -> list[int]:
    return value  # type: ignore[no-any-return]


@workflow(name="declared.awaiting")
async def awaiting(value: Any) -> str:
    try:
        await ints(value)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return "it fits"


@workflow(name="declared.passed_on")
def passed_on(n: int) -> list[int]:
    return many(n)


@workflow(name="declared.lengths")
def lengths(n: int) -> list[str]:
    return many(n)  # type: ignore[return-value]


def ended(flow: Flow, a_workflow: Any, *args: Any) -> Any:
    run = a_workflow.start(*args)
    flow.settle()
    assert run.info().is_final
    return run.info()


def test_a_workflow_that_completes_with_null_fails_with_the_step_that_gave_it(
    database_url: str,
) -> None:
    with Flow(store_url=database_url) as flow:
        info = ended(flow, ints, None)
    assert (info.state, info.error["type"], info.error["path"]) == ("FAILED", "DoesNotFit", "ints")
    assert info.error["message"] == (
        "workflow 'declared.ints', whose result is that of ints.given: "
        "'result': expected [Long], found null"
    )


MISFITS = [
    (ints, [1, "two"], "item 1: expected Long, found 'two'"),
    (ints, [1, None], "item 1: expected Long, found null"),
    (ints, {"a": 1}, "expected a list, found a map"),
    (ints, [1.5], "item 0: expected Long, found 1.5"),
    (maybe, "text", "not valid under any"),
    (word, "perhaps", "not one of"),
    (word, None, "not one of"),
    (box, {}, "'width' is a required property"),
    (box, {"width": "wide"}, "width: 'wide' is not of type 'integer'"),
    (box, None, "None is not of type 'object'"),
    (nothing, 7, "7 is not of type 'null'"),
]


@pytest.mark.parametrize(("a_workflow", "value", "why"), MISFITS)
def test_a_result_of_another_type_fails_the_run(a_workflow: Any, value: Any, why: str) -> None:
    with Flow() as flow:
        info = ended(flow, a_workflow, value)
        assert (info.state, info.error["type"]) == ("FAILED", "DoesNotFit")
        assert why in info.error["message"]


@pytest.mark.parametrize(
    ("a_workflow", "value"),
    [
        *((ints, []), (ints, [1, 2.0]), (floats, [1, 2.5]), (maybe, None), (maybe, 3)),
        *((word, "yes"), (box, {"width": 2}), (box, {"width": 2, "depth": 3}), (nothing, None)),
        *((free, None), (free, "text"), (undeclared, None), (undeclared, [1])),
    ],
)
def test_a_result_that_fits_completes_the_run(a_workflow: Any, value: Any) -> None:
    with Flow() as flow:
        info = ended(flow, a_workflow, value)
        assert (info.state, info.outputs) == ("COMPLETED", {"result": value})


def test_models_with_aliases_and_computed_fields_fit_by_name_and_by_alias() -> None:
    by_hand = workflow(name="declared.by_hand")(lambda_album)
    with Flow() as flow:
        run = albums.start(["sea", "hill"])
        flow.settle()
        assert [each.title for each in run.result()] == ["SEA", "HILL"]
        assert ended(flow, by_hand, "sea").state == "COMPLETED"


def lambda_album(name: str) -> Album:
    return {"Name": name}  # type: ignore[return-value]


def test_the_step_inside_a_catch_is_named(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        info = ended(flow, caught, 1)
    assert info.state == "FAILED"
    assert "whose result is that of caught.attempt[catch].given" in info.error["message"]


@pytest.mark.parametrize("a_workflow", [recovering, recovering_workflow, recovering_run])
def test_the_catch_of_a_parent_gets_the_error_of_a_body_below_it(
    database_url: str, a_workflow: Any
) -> None:
    with Flow(store_url=database_url) as flow:
        assert ended(flow, a_workflow, None).outputs == {"result": "DoesNotFit"}
        assert ended(flow, a_workflow, [1]).outputs == {"result": [1]}


def test_a_durable_function_is_held_to_its_annotation(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        info = ended(flow, function, None)
        assert (info.state, info.error["type"]) == ("FAILED", "DoesNotFit")
        assert "workflow 'declared.function': 'result' should be list[int]" in info.error["message"]
        assert ended(flow, function, ["7"]).outputs == {"result": [7]}, "as pydantic reads it"


def test_a_durable_function_gets_the_error_of_a_workflow_that_it_awaits() -> None:
    with Flow() as flow:
        said = ended(flow, awaiting, None).outputs["result"]
        assert "DoesNotFit" in said
        assert ended(flow, awaiting, [1]).outputs == {"result": "it fits"}


def test_a_large_result_is_read_only_if_its_step_declares_something_else(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    load = Payloads.load

    def noted(self: Payloads, hashes: Iterable[str]) -> dict[str, Any]:
        wanted = list(hashes)
        loaded.append(len(wanted))
        return load(self, wanted)

    with Flow(store_url=database_url) as flow:
        monkeypatch.setattr(Payloads, "load", noted)
        run = passed_on.start(5_000)
        flow.settle()
        assert loaded == [], "no statement more than without the check"
        assert run.result() == list(range(5_000))
        info = ended(flow, lengths, 5_000)
    assert (info.state, info.error["type"]) == ("FAILED", "DoesNotFit")
    assert "item 0: expected String, found 0" in info.error["message"]


def test_a_result_that_was_stored_by_earlier_code_is_refused_as_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Flow() as flow:
        monkeypatch.setattr("flowengine.evaluator.yields.check_results", lambda *_: None)
        run = ints.start(None)
        flow.settle()
        with pytest.raises(DoesNotFit, match=r"workflow 'declared.ints': 'result' should be list"):
            run.result()
