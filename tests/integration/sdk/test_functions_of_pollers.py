"""Pollers run durable functions, with their own callbacks for the facets that these call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine import event_facet, sleep, workflow
from flowengine.engine import Engine
from flowengine.models import ScriptedModel
from flowengine.program import link_program
from flowengine.sdk import AgentPoller, AgentPollerConfig, ClaudeAgentRunner, ToolRegistry
from flowengine.sdk.model_tools import ModelTools
from flowengine.sdk.program_tools import tools_of, with_tool_workflows
from flowengine.settings import Settings
from tests.integration.engines import opened
from tests.integration.sdk.pollers import WAIT, started


@event_facet(name="function_pollers.Pay")
def pay(cents: int) -> str:
    raise AssertionError("a callback is called")


@event_facet(name="function_pollers.Note")
def note(text: str) -> str:
    return f"noted: {text}"


@workflow(name="function_pollers.order", version=3)
async def order(cents: int) -> list[str]:
    first = await pay.acall(cents)
    await sleep(0.05)
    return [first, await note.acall(first), await pay.acall(1)]


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    settings = Settings(spool_directory=str(tmp_path / "spool"))
    with opened(database_url, settings=settings) as engine:
        yield engine


def test_a_poller_runs_activations_and_its_own_callbacks(engine: Engine) -> None:
    poller = AgentPoller(engine, AgentPollerConfig(poll_interval_ms=20))
    poller.register(order)
    poller.register(note)

    @poller.register("function_pollers.Pay")
    def paid(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"result": f"paid {arguments['cents']}"}

    assert "function_pollers.order@3" in poller.registered_names()
    inputs = order.inputs(4200)
    with started(poller):
        run = engine.start(order.program(), order.name, inputs)
        outputs = run.outputs(timeout=WAIT)
    assert outputs == {"result": ["paid 4200", "noted: paid 4200", "paid 1"]}


def test_a_registry_takes_a_function_under_the_names_of_its_activations() -> None:
    registry = ToolRegistry()
    assert registry.register(order) is order
    assert registry.registered_names() == ["function_pollers.order@3"]


def test_a_runner_with_a_model_runs_a_function_with_registered_tools(engine: Engine) -> None:
    tools = ToolRegistry()
    tools.register(note)
    tools.register("function_pollers.Pay", lambda given: {"result": f"paid {given['cents']}"})
    runner = ClaudeAgentRunner(engine, tools, model=ScriptedModel(["never asked"]))
    with runner:
        assert runner.run(order, {"cents": 5}).outputs["result"][0] == "paid 5"


def test_a_call_without_a_handler_is_refused_where_a_model_does_the_steps(engine: Engine) -> None:
    with ClaudeAgentRunner(engine, ToolRegistry(), model=ScriptedModel(["never asked"])) as runner:
        ended = runner.run(order, {"cents": 5})
    assert not ended.success
    assert "register it in the ToolRegistry of the runner" in str(ended.error)


@workflow(name="function_pollers.shop")
def shop(cents: int) -> list[str]:
    return order(cents)


@pytest.mark.parametrize("flow", [order, shop], ids=["function", "graph"])
def test_a_function_is_one_tool_of_its_program(flow: Any) -> None:
    plan = link_program(with_tool_workflows(flow.program()))
    tools = tools_of(plan)
    tool = tools["function_pollers_order"]
    assert plan.workflow(tool.workflow).params[0].name == "cents"
    assert sorted(tools) == sorted({"function_pollers_order", flow.name.replace(".", "_")})


def test_a_model_is_offered_no_function_as_tool() -> None:
    registry = ToolRegistry()
    registry.register(order)
    registry.register(note)
    tools = ModelTools(registry, link_program(shop.program()), (1_000, 10), 1_000)
    assert [tool.name for tool in tools.offered("", None).values()] == ["function_pollers__Note"]
