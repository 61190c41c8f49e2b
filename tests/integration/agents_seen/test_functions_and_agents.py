"""Durable functions ask agents, and agents use durable functions as tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowengine import agent, event_facet, gather, workflow
from flowengine.models import ModelRequest
from flowengine.models.messages import Answer
from flowengine.testing import Flow, ScriptedModel, calling
from tests.integration.agents_seen.clerks import greeter, results

looked_up: list[str] = []


@event_facet(name="functions_and_agents.look_up")
def look_up(city: str) -> int:
    looked_up.append(city)
    if city == "Atlantis":
        raise LookupError("no such city")
    return len(city)


@workflow(name="functions_and_agents.population")
async def population(city: str) -> str:
    """Return the population of a city."""
    try:
        return f"{city} has {await look_up.acall(city)} million people"
    except LookupError as problem:
        return f"refused: {problem}"


def researched(request: ModelRequest) -> Answer | str:
    return "; ".join(results(request)) or calling("population", city="Oslo")


@agent(model=ScriptedModel(researched), tools=[population], name="functions_and_agents.researcher")
def researcher(question: str) -> str:
    """You know cities."""
    return question


@workflow(name="functions_and_agents.greets")
async def greets(names: list[str]) -> list[str]:
    told = await gather(*(greeter.acall(name) for name in names), limit=2)
    return [*told, await greeter(names[0]), await greeter.at("one").acall(names[0])]


@workflow(name="functions_and_agents.starts_a_turn")
async def starts_a_turn() -> str:
    return greeter.send("ada").result()


@pytest.fixture
def flow() -> Iterator[Flow]:
    looked_up.clear()
    with Flow() as flow:
        yield flow


def test_a_function_is_a_tool_of_an_agent(flow: Flow) -> None:
    told = flow.run_turn(researcher.send("How many people live in Oslo?"))
    assert "Oslo has 4 million people" in told
    assert looked_up == ["Oslo"]


def test_a_function_asks_agents_with_and_without_a_name(flow: Flow) -> None:
    run = flow.start(greets, ["ada", "bob", "cid"])
    flow.settle()
    assert run.result(timeout=0) == ["good day"] * 5
    calls = [path for path in flow.paths(run) if "#" in path]
    assert len(calls) == 5


def test_a_message_sent_past_the_record_is_refused(flow: Flow) -> None:
    with pytest.raises(Exception, match="each replay would start one more; await its call"):
        flow.run(starts_a_turn)
