"""The Agents page in a real, unmodified Flower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pydantic import SecretStr

from flowengine import agent, event_facet, tool
from flowengine.models import ModelRequest
from flowengine.models.messages import Answer, StopReason, Text, ToolCall, Usage
from flowengine.settings import Settings
from flowengine.store.database import system_clock
from flowengine.testing import Flow, ScriptedModel, calling
from tests.acceptance.test_flower import Flower, running

SECRET = "s3cr3t-word"


@event_facet(name="office.search")
def search(query: str) -> list[str]:
    """Search the archive."""
    return [f"<b>{query}</b> leaks", "no other <script>alert(1)</script>"]


@event_facet(name="office.login")
def login() -> SecretStr:
    """Log in."""
    return SecretStr(SECRET)


@event_facet(name="office.refund")
def refund(cents: int) -> str:
    """Pay money back."""
    return f"refunded {cents}"


def settle(request: ModelRequest) -> Answer | str:
    if request.messages[-1].role == "tool":
        return "The customer gets <i>42 euros</i> back."
    calls = (
        Text("I look into the archive & pay."),
        ToolCall("a", "search", {"query": "<i>kettle</i>"}),
        ToolCall("b", "login", {}),
        ToolCall("c", "refund", {"cents": 4200}),
    )
    return Answer(calls, StopReason.TOOL_CALLS, Usage(1_000, 234), "scripted")


@agent(
    model=ScriptedModel(settle),
    tools=[search, login, tool(refund, approval=True)],
    name="office.clerk",
)
def clerk(ticket: str) -> str:
    """You settle complaints."""
    return f"Settle this: {ticket}"


DELEGATE = ScriptedModel(lambda request: calling("clerk", ticket="x"))


@agent(model=DELEGATE, tools=[clerk], name="office.boss")
def boss() -> str:
    """You delegate."""
    return "Delegate."


class Turns(NamedTuple):
    """A database with a turn of each kind."""

    url: str
    waiting: str
    ended: str
    stopped: str
    queued: str
    asking: str


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Turns:
    url = f"sqlite:///{tmp_path_factory.mktemp('agents')}/flow.db"
    with Flow(store_url=url, settings=Settings(secret_keys="a" * 32)) as flow:
        flow.clock.now = system_clock() - 60_000
        ended = clerk.at("<b>bob</b>", project="acme").send("The <u>kettle</u> leaks")
        flow.settle()
        flow.clock.advance(seconds=10)
        (asked,) = [call for call in ended.calls() if call.approval]
        ended.approve(asked.id, by="<i>eva</i>")
        flow.settle()
        flow.clock.advance(seconds=1)
        stopped = clerk.at("carl").send("The pot leaks")
        flow.settle()
        stopped.stop("the <s>customer</s> left")
        flow.clock.advance(seconds=1)
        waiting = clerk.at("ada").send("The tap leaks")
        flow.settle()
        flow.clock.advance(seconds=1)
        queued = clerk.at("ada").send("So does the roof")
        flow.clock.advance(seconds=1)
        asking = boss.at("dora").send()
        flow.settle()
        return Turns(url, waiting.id, ended.id, stopped.id, queued.id, asking.id)


@pytest.fixture(scope="module")
def flower(turns: Turns) -> Iterator[Flower]:
    with running("flowengine", turns.url, FLOWER_UNAUTHENTICATED_API="true") as flower:
        yield flower


def test_every_page_of_flower_links_to_the_agents(flower: Flower) -> None:
    for path in ("/tasks", "/workflows", "/agents"):
        assert flower.get(path).text.count(">Agents</a>") >= 1


def test_agents_are_listed_with_the_turn_and_the_wait(flower: Flower, turns: Turns) -> None:
    page = flower.get("/agents").text
    assert f"/agents/turns/{turns.waiting}" in page
    assert "a person: refund, call " in page
    assert "&lt;b&gt;bob&lt;/b&gt;" in page
    assert "project acme" in page
    idle = flower.get("/agents?state=idle").text
    assert turns.waiting not in idle
    found = flower.get("/api/agents?state=suspended").json()["agents"]
    assert "ada" in [one["agent"] for one in found]


def test_turns_are_listed_newest_first(flower: Flower, turns: Turns) -> None:
    found = [turn["id"] for turn in flower.get("/api/agents/turns").json()["turns"]]
    ours = [turn for turn in found if turn in turns]
    assert ours == [turns.asking, turns.queued, turns.waiting, turns.stopped, turns.ended]
    page = flower.get("/agents/turns?state=canceled").text
    assert "stopped: the &lt;s&gt;customer&lt;/s&gt; left" in page
    assert turns.ended not in page


def test_a_turn_shows_steps_calls_runs_tokens_and_the_deliverable(
    flower: Flower, turns: Turns
) -> None:
    page = flower.get(f"/agents/turns/{turns.ended}").text
    whole = flower.get(f"/api/agents/turns/{turns.ended}").json()
    assert [step["tokens"] for step in whole["steps_made"]] == [1_234, 15]
    for run in (one["run_id"] for one in (*whole["steps_made"], *whole["calls"])):
        assert f"/workflows/{run}" in page
        assert flower.get(f"/workflows/{run}").status == 200
    assert "1,249 in 2 model calls" in page
    assert "approved by &lt;i&gt;eva&lt;/i&gt;" in page
    assert "The customer gets &lt;i&gt;42 euros&lt;/i&gt; back." in page
    assert whole["deliverable"] == {"text": "The customer gets <i>42 euros</i> back."}


def test_nothing_that_a_model_or_a_tool_says_is_markup(flower: Flower, turns: Turns) -> None:
    for turn in turns[1:]:
        page = flower.get(f"/agents/turns/{turn}").text
        for text in ("<script>alert", "<b>bob", "<i>kettle", "<i>42", "<u>kettle", "<s>cust"):
            assert text not in page


def test_secrets_of_a_turn_are_not_on_its_page(flower: Flower, turns: Turns) -> None:
    for path in (f"/agents/turns/{turns.ended}", f"/api/agents/turns/{turns.ended}"):
        assert SECRET not in flower.get(path).text


def test_a_turn_that_waits_shows_the_person_and_one_that_is_queued_the_turn_before(
    flower: Flower, turns: Turns
) -> None:
    page = flower.get(f"/agents/turns/{turns.waiting}").text
    assert "waits for a person" in page
    assert "data-final" not in page.partition('id="workflow-run"')[2][:200]
    assert "the turn before it" in flower.get(f"/agents/turns/{turns.queued}").text


def test_a_turn_links_to_the_turns_that_it_asked(flower: Flower, turns: Turns) -> None:
    page = flower.get(f"/agents/turns/{turns.asking}").text
    (child,) = flower.get(f"/api/agents/turns/{turns.asking}").json()["children"]
    assert f"/agents/turns/{child['turn']}" in page
    assert f"/agents/turns/{turns.asking}" in flower.get(f"/agents/turns/{child['turn']}").text


def test_unknown_turns_and_wrong_filters_are_refused(flower: Flower) -> None:
    assert flower.get("/agents/turns/ffff").status == 404
    assert flower.get("/agents?state=nonsense").status == 400
    assert flower.get("/agents/turns?cursor=x").status == 400


def test_runs_of_turns_are_on_the_page_of_runs_only_on_request(
    flower: Flower, turns: Turns
) -> None:
    assert "office.clerk__model__call" not in flower.get("/workflows").text
    assert "office.clerk__model__call" in flower.get("/workflows?agents=1").text


def test_prometheus_gets_the_numbers_of_agents(flower: Flower) -> None:
    lines = flower.get("/api/workflows/metrics").text.splitlines()
    assert 'flowengine_open_turns{tenant="",state="queued"} 1' in lines
    assert 'flowengine_turns_ended_last_hour{tenant="acme",status="success"} 1' in lines
    assert 'flowengine_turns_ended_last_hour{tenant="",status="canceled"} 1' in lines
    names = {line.partition("}")[0] for line in lines}
    assert 'flowengine_active_agents{tenant="",state="suspended"' in names
    assert 'flowengine_oldest_queued_turn_seconds{tenant=""' in names
    assert 'flowengine_oldest_suspended_agent_seconds{tenant=""' in names


def test_a_token_of_a_tenant_sees_the_agents_of_its_project_alone(
    turns: Turns, tmp_path: Path
) -> None:
    environment = {"FLOWENGINE_TENANT_TOKENS": f"acme={'t' * 32}"}
    with running("flowengine", turns.url, "--basic_auth=a:b", **environment) as flower:
        login = f"x:{'t' * 32}"
        page = flower.get("/agents", login=login)
        assert "bob" in page.text, page
        assert ">ada<" not in page.text
        assert flower.get(f"/agents/turns/{turns.waiting}", login=login).status == 404
        assert flower.get("/agents?project=other", login=login).status == 403
