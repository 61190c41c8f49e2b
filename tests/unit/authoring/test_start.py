"""`.start()` validates its inputs and passes them to the launcher."""

from __future__ import annotations

import asyncio
import datetime
from dataclasses import dataclass
from typing import Any

import pytest

from flowengine.authoring import (
    RunHandle,
    StartOptions,
    Workflow,
    launcher,
    launcher_slot,
    set_launcher_source,
    workflow,
)
from flowengine.errors import AuthoringError, InvalidInputs, NotJson


@dataclass
class Buyer:
    name: str


@workflow
def order(buyer: Buyer, day: datetime.date, count: int = 1, note: Any = None) -> int:
    return count


@dataclass
class Handle:
    id: str

    def result(self, timeout: float | None = None) -> Any:
        return 1

    async def aresult(self, timeout: float | None = None) -> Any:
        return 1


class Recorder:
    """A launcher that only records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], StartOptions]] = []

    def start(
        self, workflow: Workflow[..., Any], inputs: dict[str, Any], options: StartOptions
    ) -> RunHandle[Any]:
        self.calls.append((workflow.name, inputs, options))
        return Handle("r1")

    async def astart(
        self, workflow: Workflow[..., Any], inputs: dict[str, Any], options: StartOptions
    ) -> RunHandle[Any]:
        return self.start(workflow, inputs, options)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(launcher_slot, "_source", None)
    recorder = Recorder()
    set_launcher_source(lambda: recorder)
    return recorder


def test_an_empty_slot_raises_with_the_import_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_slot, "_source", None)
    with pytest.raises(AuthoringError, match="`import flowengine`"):
        launcher()


def test_inputs_are_serialized_with_their_defaults(recorder: Recorder) -> None:
    run = order.start(Buyer("Ada"), day=datetime.date(2026, 1, 2))
    assert (run.id, run.result(timeout=1)) == ("r1", 1)
    assert recorder.calls == [
        (
            order.name,
            {"buyer": {"name": "Ada"}, "day": "2026-01-02", "count": 1, "note": None},
            StartOptions(),
        )
    ]


def test_inputs_are_coerced(recorder: Recorder) -> None:
    order.start({"name": "Ada"}, "2026-01-02", "3")  # type: ignore[arg-type]
    assert recorder.calls[0][1]["count"] == 3
    assert recorder.calls[0][1]["buyer"] == {"name": "Ada"}


def test_options_are_passed_to_the_launcher(recorder: Recorder) -> None:
    connection = object()
    configured = order.options(key="k", priority=5, labels={"a": "b"}, connection=connection)
    configured.start(Buyer("Ada"), datetime.date(2026, 1, 2))
    asyncio.run(configured.astart(Buyer("Ada"), datetime.date(2026, 1, 2)))
    assert [o for _, _, o in recorder.calls] == [StartOptions("k", 5, {"a": "b"}, connection)] * 2


def test_a_coroutine_can_start_a_run(recorder: Recorder) -> None:
    async def begin() -> str:
        return (await order.astart(Buyer("Ada"), datetime.date(2026, 1, 2))).id

    assert asyncio.run(begin()) == "r1"


def test_all_invalid_inputs_are_reported(recorder: Recorder) -> None:
    with pytest.raises(InvalidInputs) as raised:
        order.start(5, count="many", colour="red")  # type: ignore[arg-type, call-arg]
    assert raised.value.workflow == order.name
    missing, unknown = "'day' (datetime.date) is missing", "'colour' is unknown, it takes buyer"
    assert any(problem.startswith(unknown) for problem in raised.value.problems)
    assert missing in raised.value.problems
    assert raised.match(r"'buyer' should be .*Buyer, was 5 \(int\)")
    assert raised.match(r"'count' should be int, was 'many' \(str\)")
    assert recorder.calls == []


def test_surplus_and_duplicate_inputs_are_reported() -> None:
    with pytest.raises(InvalidInputs, match="5 positional values were given, it takes 4"):
        order.inputs(1, 2, 3, 4, 5)  # type: ignore[call-arg, arg-type]
    with pytest.raises(InvalidInputs, match="'buyer' was given twice"):
        order.inputs(Buyer("Ada"), buyer=Buyer("Bob"))  # type: ignore[call-arg, misc]


def test_an_input_without_json_form_is_reported() -> None:
    with pytest.raises(NotJson, match=r"of workflow '.*order' is not JSON: note\['a'\] is of"):
        order.inputs(Buyer("Ada"), datetime.date(2026, 1, 2), note={"a": object()})
