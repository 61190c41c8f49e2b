"""ClaudeAgentRunner with a scripted model: the flow of the specification, repairs, limits."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from flowengine import Secret, event_facet, workflow
from flowengine.afl import compile_text
from flowengine.engine import Engine
from flowengine.engine.results import ExecutionStatus
from flowengine.errors import (
    InvalidProgram,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestRefused,
    RunnerRefused,
    UnknownRun,
)
from flowengine.evaluator import TaskState
from flowengine.models import (
    Answer,
    Anthropic,
    Chunk,
    ModelRequest,
    ModelRetry,
    ScriptedModel,
    StopReason,
    calling,
)
from flowengine.sdk import AgentPoller, ClaudeAgentRunner, ToolRegistry
from flowengine.sdk.journal import ANSWER, END, REFUSAL
from flowengine.secret_keys import set_secret_key_source
from flowengine.settings import Settings
from flowengine.worker.step_context import current_step
from tests.integration.engines import opened
from tests.model_server import KEY, Refuses, Says, Sends, serving

TEXT = """
namespace press {
  schema Card { title: String, stars: Long }
  event facet Review(topic: String, cards: Json) => (summary: String, card: Card) prompt {
    system "You review {topic}."
    template "Review {topic}: {cards} {{as JSON}}"
    model "claude-small"
  }
  event facet Publish(text: String) => (url: String)
  event facet Search(query: String) => (hits: [String])

  workflow Article(topic: String) => (url: String, stars: Long) andThen {
    review = Review(topic = $.topic, cards = [1, 2])
    page = Publish(text = review.summary)
    yield Article(url = page.url, stars = review.card.stars)
  }
}
"""
PROGRAM = compile_text(TEXT, "press.afl")
CARD = {"title": "kettles", "stars": 4}
GOOD = calling("submit_result", summary="they boil", card=CARD)


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    settings = Settings(spool_directory=str(tmp_path / "spool"), max_value_bytes=20_000)
    with opened(database_url, settings=settings) as engine:
        yield engine


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Engine]:
    """On one database: the conversation is the same on both."""
    settings = Settings(spool_directory=str(tmp_path / "spool"), max_value_bytes=20_000)
    with opened(f"sqlite:///{tmp_path}/flow.db", settings=settings) as engine:
        yield engine


@event_facet(name="claude_runner.rate")
def rate(ticket: str) -> int:
    raise AssertionError("the model is asked")


@workflow
def rated(ticket: str) -> int:
    return rate(ticket)


def judged_call() -> Any:
    return rated.call("x")


def publish(payload: dict[str, Any]) -> dict[str, Any]:
    """Publish a text."""
    return {"url": f"http://x/{payload['text']}"}


def registry(**more: Any) -> ToolRegistry:
    tools = ToolRegistry()
    tools.register("press.Publish", publish)
    for name, callback in more.items():
        tools.register(name, callback)
    return tools


def entries(engine: Engine, run_id: str) -> list[tuple[str, Any]]:
    """Return the facets and the results of the calls below the steps of a run."""
    calls = [step for step in engine.steps(run_id) if "#" in step.path]
    return [(call.facet, call.returns["result"]) for call in calls]


def run(engine: Engine, script: Any, tools: ToolRegistry | None = None, **options: Any) -> Any:
    runner = ClaudeAgentRunner(engine, tools or registry(), ScriptedModel(script), **options)
    return runner.run(PROGRAM, {"topic": "kettles"})


# --- the flow of the specification, section 8.2 ---


def test_a_run_is_driven_through_handlers_and_the_model_to_its_end(engine: Engine) -> None:
    model = ScriptedModel([calling("Search", query="kettle"), GOOD])
    tools = registry(Search=lambda payload: {"hits": [payload["query"] * 2]})
    runner = ClaudeAgentRunner(engine, tools, model)
    result = runner.run(PROGRAM, {"topic": "kettles"})
    assert result.status == ExecutionStatus.COMPLETED
    assert result.outputs == {"url": "http://x/they boil", "stars": 4}
    assert engine.servers() == [], "no server is registered"
    first, second = model.requests
    assert first.model == "claude-small"
    assert first.messages[0].text.startswith("You review kettles.\n\n")
    assert first.messages[1].text == "Review kettles: [1, 2] {as JSON}"
    assert [tool.name for tool in first.tools] == ["Search", "press__Publish", "submit_result"]
    assert second.messages[-1].content[0].to_json()["content"] == '{"hits": ["kettlekettle"]}'
    facets = [facet for facet, _ in entries(engine, result.workflow_id)]
    assert facets == [ANSWER, "Search", ANSWER]


def test_usage_is_shown_with_the_step(engine: Engine) -> None:
    run_id = run(engine, [GOOD]).workflow_id
    shown = next(step for step in engine.steps(run_id) if step.path.endswith("review"))
    assert shown.progress == {
        "model": "scripted",
        "turns": 1,
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
    }


def test_the_schema_of_the_result_is_that_of_the_declared_returns(on_sqlite: Engine) -> None:
    model = ScriptedModel([GOOD])
    ClaudeAgentRunner(on_sqlite, registry(), model).run(PROGRAM, {"topic": "k"})
    submit = model.requests[0].tools[-1]
    schema: Any = submit.input_schema
    assert schema["required"] == ["summary", "card"]
    assert schema["properties"]["summary"] == {"type": "string"}
    card = schema["$defs"][schema["properties"]["card"]["$ref"].removeprefix("#/$defs/")]
    assert card["properties"] == {"title": {"type": "string"}, "stars": {"type": "integer"}}


def test_an_exception_of_a_handler_fails_the_step_and_not_the_runner(on_sqlite: Engine) -> None:
    tools = ToolRegistry()

    @tools.register("Publish")
    def refuse(payload: dict[str, Any]) -> dict[str, Any]:
        raise LookupError("no such page")

    result = run(on_sqlite, [GOOD], tools)
    assert result.status == ExecutionStatus.ERROR
    assert "LookupError: no such page" in (result.error or "")


# --- results ---


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (calling("submit_result"), "'summary', 'card' are missing"),
        (calling("submit_result", summary="a"), "'card' is missing"),
        (calling("submit_result", summary=1, card=CARD), "expected String, found"),
        (calling("submit_result", summary="a", card={"title": "b"}), "which has 'stars'"),
        (calling("submit_result", summary="a", card=CARD, more=1), "'more' is unknown"),
        (calling("submit_result", summary="x" * 30_000, card=CARD), "FLOWENGINE_MAX_VALUE_BYTES"),
        (calling("submit_result", summary=None, card=CARD), "expected String, found null"),
        (calling("submit_result", summary=float("nan"), card=CARD), "it is no JSON object"),
        ("I have finished.", "it answers with text instead of submit_result"),
    ],
)
def test_a_result_that_does_not_fit_is_repaired_once(
    on_sqlite: Engine, bad: Answer, why: str
) -> None:
    model = ScriptedModel([bad, GOOD])
    runner = ClaudeAgentRunner(on_sqlite, registry(), model)
    assert runner.run(PROGRAM, {"topic": "k"}).status == ExecutionStatus.COMPLETED
    again = run(on_sqlite, [bad, bad])
    assert again.status == ExecutionStatus.ERROR
    assert "ModelResultRefused: scripted: the result does not fit" in (again.error or "")
    assert why in (again.error or "")


def test_a_call_of_an_unknown_tool_is_answered_with_the_known_ones(on_sqlite: Engine) -> None:
    model = ScriptedModel([calling("Delete", all=True), GOOD])
    result = ClaudeAgentRunner(on_sqlite, registry(), model).run(PROGRAM, {"topic": "k"})
    assert result.success
    (reply,) = model.requests[1].messages[-1].content
    expected = "there is no tool 'Delete'; call one of: press__Publish, submit_result"
    assert reply.to_json() == {
        "type": "tool_result",
        "call_id": "call_Delete",
        "content": expected,
        "is_error": True,
    }


def replies(model: ScriptedModel) -> list[Mapping[str, Any]]:
    return [part.to_json() for part in model.requests[-1].messages[-1].content]


def test_arguments_of_a_tool_are_checked_before_it_is_called(on_sqlite: Engine) -> None:
    called: list[Any] = []
    tools = registry(Search=lambda payload: called.append(payload))
    model = ScriptedModel([calling("Search", query=3, all=True), GOOD])
    ClaudeAgentRunner(on_sqlite, tools, model).run(PROGRAM, {"topic": "k"})
    assert called == []
    (reply,) = replies(model)
    assert "'all' is unknown, it takes query" in reply["content"]
    assert "'query': expected String" in reply["content"]


def test_the_error_of_a_tool_is_sent_to_the_model(on_sqlite: Engine) -> None:
    def search(payload: dict[str, Any]) -> dict[str, Any]:
        raise OSError("the archive is closed")

    model = ScriptedModel([calling("Search", query="a"), GOOD])
    ClaudeAgentRunner(on_sqlite, registry(Search=search), model).run(PROGRAM, {"topic": "k"})
    (reply,) = replies(model)
    assert (reply["is_error"], reply["content"]) == (True, "OSError: the archive is closed")


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ({"hits": ["x" * 30_000]}, "FLOWENGINE_MAX_VALUE_BYTES"),
        ({"hits": {1, 2}}, "NotJson"),
        ([1], "it must return a dict with the results of the facet by name"),
        (judged_call, "a tool of a model cannot continue with a workflow"),
    ],
    ids=["large", "set", "list", "workflow"],
)
def test_an_unusable_result_of_a_tool_is_reported_to_the_model(
    on_sqlite: Engine, returned: Any, why: str
) -> None:
    def search(payload: dict[str, Any]) -> Any:
        return returned() if callable(returned) else returned

    model = ScriptedModel([calling("Search", query="a"), GOOD])
    runner = ClaudeAgentRunner(on_sqlite, registry(Search=search), model)
    assert runner.run(PROGRAM, {"topic": "k"}).success
    (reply,) = replies(model)
    assert reply["is_error"]
    assert why in reply["content"]


def test_each_call_of_a_tool_has_an_idempotency_key_of_its_own(on_sqlite: Engine) -> None:
    keys: list[str] = []

    async def search(payload: dict[str, Any]) -> dict[str, Any]:
        keys.append(current_step().idempotency_key)
        return {"hits": []}

    script = [calling("Search", query="a"), calling("Search", query="a"), GOOD]
    assert run(on_sqlite, script, registry(Search=search)).success
    assert len(set(keys)) == 2


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([calling("Search", query="a")] * 3, "ModelTurnsExceeded"),
        ([Answer((), StopReason.MAX_TOKENS)], "ModelAnswerCut"),
        ([Answer((), StopReason.DECLINED)], "ModelDeclined"),
        ([ModelRequestRefused("p", "no")], "ModelRequestRefused"),
    ],
)
def test_conversations_have_limits(on_sqlite: Engine, script: Any, error: str) -> None:
    tools = registry(Search=lambda payload: {"hits": []})
    result = run(on_sqlite, script, tools, max_turns=3)
    assert error in (result.error or "")


def test_a_runner_stops_after_max_dispatches_and_goes_on_when_resumed(on_sqlite: Engine) -> None:
    runner = ClaudeAgentRunner(on_sqlite, registry(), ScriptedModel([GOOD]), max_dispatches=1)
    with pytest.raises(RunnerRefused, match=r"has not ended after 1 steps: raise max_dispatches"):
        runner.run(PROGRAM, {"topic": "k"}, key="one")
    (listed,) = on_sqlite.list()
    assert runner.resume(listed.id).success


# --- retries of requests ---


def test_a_request_is_repeated_as_long_as_its_error_is_transient(
    on_sqlite: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    script = [ModelRateLimited("p", "slow", 0.0), ModelOverloaded("p", "x", 0.0), GOOD]
    with caplog.at_level(logging.WARNING, "flowengine"):
        assert run(on_sqlite, script).success
    actions = [getattr(record, "action", "") for record in caplog.records]
    assert actions == ["model_retry"] * 2


def test_a_demand_for_a_longer_wait_fails_a_step_without_a_retry_policy(on_sqlite: Engine) -> None:
    result = run(on_sqlite, [ModelRateLimited("p", "slow", 3600.0)], retry=ModelRetry(max_wait=5))
    assert "ModelRateLimited: p: too many requests or tokens: slow" in (result.error or "")
    assert "retry=Retry(attempts=" in (result.error or "")


RETRIED = compile_text(
    TEXT.replace(
        "event facet Review(topic: String, cards: Json) => (summary: String, card: Card)",
        "event facet Review(topic: String, cards: Json) => (summary: String, card: Card) "
        "with flowengine.Retry(attempts = 2, first_wait = 0.0)",
    ),
    "press.afl",
)


def test_a_demand_for_a_longer_wait_is_the_due_time_of_the_next_try(on_sqlite: Engine) -> None:
    tools = registry(Search=lambda payload: {"hits": []})
    model = ScriptedModel([calling("Search", query="a"), ModelRateLimited("p", "x", 3600.0), GOOD])
    runner = ClaudeAgentRunner(on_sqlite, tools, model, retry=ModelRetry(max_wait=5))
    result = runner.run(RETRIED, {"topic": "k"}, wait=0)
    assert len(model.requests) == 2
    database: Any = on_sqlite.database
    with database.read() as session:
        (task,) = session.driven_runs.open_tasks(result.workflow_id)
        now = session.now()
    assert task.state == TaskState.PENDING
    assert 3_000_000 < task.due - now <= 3_600_000
    database._clock = lambda: task.due
    assert runner.resume(result.workflow_id).success
    assert len(model.requests[2].messages) == 4, "the answer before the demand is kept"
    assert len(model.requests) == 3


def test_a_second_try_goes_on_after_an_outage_and_anew_after_a_failure(on_sqlite: Engine) -> None:
    tools = registry(Search=lambda payload: {"hits": []})
    search, down = calling("Search", query="a"), ModelOverloaded("p", "x")
    model = ScriptedModel([search, down, GOOD])
    runner = ClaudeAgentRunner(on_sqlite, tools, model, retry=ModelRetry(attempts=1))
    assert runner.run(RETRIED, {"topic": "k"}).success
    assert len(model.requests[2].messages) == 4, "the answer before the outage is kept"
    bad = calling("submit_result")
    model = ScriptedModel([bad, bad, GOOD])
    result = ClaudeAgentRunner(on_sqlite, tools, model).run(RETRIED, {"topic": "k"})
    assert result.success
    assert len(model.requests[2].messages) == 2, "the failed conversation is not gone on with"
    facets = [facet for facet, _ in entries(on_sqlite, result.workflow_id)]
    assert facets == [ANSWER, REFUSAL, ANSWER, END, ANSWER]


# --- workflows in Python ---


@event_facet(name="claude_runner.judge")
def judge(ticket: str, password: Secret) -> int:
    """Judge a complaint from 1 to 5."""
    raise AssertionError("the model is asked")


@workflow
def judged(ticket: str, password: Secret) -> int:
    return judge(ticket, password)


def test_a_function_without_a_prompt_is_described_by_its_docstring_and_arguments(
    on_sqlite: Engine,
) -> None:
    previous = set_secret_key_source(lambda: "k" * 32)
    try:
        model = ScriptedModel([calling("submit_result", result=4)])
        inputs = judged.inputs("It leaks", Secret("hunter2"))
        result = ClaudeAgentRunner(on_sqlite, model=model).run(judged, inputs)
    finally:
        set_secret_key_source(previous)
    assert result.outputs == {"result": 4}
    asked = model.requests[0].messages[1].text
    assert "Carry out the step 'claude_runner.judge'.\nJudge a complaint from 1 to 5.\n" in asked
    assert "ticket: It leaks" in asked
    assert "password: ****" in asked


# --- the real package ---


def test_a_run_survives_every_transient_failure_of_the_api(on_sqlite: Engine) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "submit_result"}
    found = {**use, "input": {"summary": "they boil", "card": CARD}}
    replies = [
        Refuses(429, "rate_limit_error", "slow down", {"retry-after": "0"}),
        Refuses(529, "overloaded_error", "Overloaded"),
        Says([found], cut_after=3),
        Sends(b"{garbage"),
        Says([found], "tool_use", pings=2),
    ]
    pieces: list[Chunk] = []
    with serving(replies) as server, closing(Anthropic(api_key=KEY, base_url=server.url)) as model:
        retry = ModelRetry(attempts=5, first_wait=0.0)
        runner = ClaudeAgentRunner(
            on_sqlite, registry(), model, retry=retry, on_chunk=pieces.append
        )
        result = runner.run(PROGRAM, {"topic": "k"})
    assert result.success
    assert len(server.requests) == 5
    assert [facet for facet, _ in entries(on_sqlite, result.workflow_id)] == [ANSWER]
    assert {piece.kind for piece in pieces} == {"arguments"}
    shown = next(s for s in on_sqlite.steps(result.workflow_id) if s.path.endswith("review"))
    assert shown.progress["cache_read_tokens"] == 3


def test_a_wrong_key_fails_the_step_at_once(on_sqlite: Engine) -> None:
    with serving([]) as server, closing(Anthropic(api_key="no", base_url=server.url)) as model:
        result = ClaudeAgentRunner(on_sqlite, registry(), model).run(RETRIED, {"topic": "k"})
    assert "ModelAuthenticationFailed: anthropic: the request is not authorized: 401" in str(
        result.error
    )
    assert len(on_sqlite.tasks(result.workflow_id)) == 1, "it is not tried again"


# --- leases ---


def test_a_slow_answer_keeps_its_lease(tmp_path: Path) -> None:
    settings = Settings(spool_directory=str(tmp_path / "spool"), server_timeout=0.2)
    with opened(f"sqlite:///{tmp_path}/flow.db", settings=settings) as engine:

        def slow(request: ModelRequest) -> Answer:
            ends = time.monotonic() + 20
            while activity(engine) < 2:
                assert time.monotonic() < ends, "no heartbeat"
                time.sleep(0.01)
            return GOOD

        assert run(engine, [slow]).success


def activity(engine: Engine, seen: set[int] = set()) -> int:  # noqa: B006 - counts over calls
    """Return how many times of activity the running task has shown, without that of its claim."""
    with engine.database.read() as session:
        query = "SELECT activity, started FROM flowengine_task WHERE state = 'running'"
        last, started = session.connection.execute(text(query)).one()
    if last > started:
        seen.add(last)
    return len(seen)


# --- storage ---


def test_large_answers_are_stored_apart_and_removed_with_their_run(engine: Engine) -> None:
    long = calling("submit_result", summary="x" * 15_000, card=CARD)
    result = run(engine, [long])
    assert result.success
    assert entries(engine, result.workflow_id)[0][1]["content"][0]["arguments"] == {
        "summary": "x" * 15_000,
        "card": CARD,
    }
    assert engine.doctor(older_than=timedelta(seconds=-1)) == []
    assert payloads(engine) > 0
    with engine.database.write() as session:
        age = "UPDATE flowengine_run SET created = created - 9000, finished = finished - 9000"
        session.connection.execute(text(age))
    assert engine.purge(older_than=5).runs == 1
    assert _count(engine, "flowengine_step") == payloads(engine) == 0


def payloads(engine: Engine) -> int:
    return _count(engine, "flowengine_payload")


def _count(engine: Engine, table: str) -> int:
    with engine.database.read() as session:
        return int(session.connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)


# --- bad input ---


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{topics}", "names the unknown parameter 'topics'"),
        ("{", "has a single '{' at character 1; write {{"),
        ("a }", "has a single '}' at character 3; write }}"),
        ("{}", "names the unknown parameter ''"),
    ],
)
def test_placeholders_of_a_template_are_checked_when_it_is_loaded(
    on_sqlite: Engine, template: str, problem: str
) -> None:
    source = TEXT.replace("Review {topic}: {cards} {{as JSON}}", template)
    with pytest.raises(InvalidProgram) as raised:
        compile_text(source, "press.afl")
    assert f"press.Review: the template of its prompt {problem}" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_dispatches": 0}, "max_dispatches is a number greater than 0, not 0"),
        ({"max_turns": 1.5}, "max_turns is a number greater than 0, not 1.5"),
        ({"timeout": -1}, "timeout is a number greater than 0, not -1"),
        ({"tools": ["Delete"]}, "tools names 'Delete', and the registry has: press.Publish"),
    ],
)
def test_a_runner_refuses_what_it_could_not_work_with(
    on_sqlite: Engine, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RunnerRefused, match=message):
        ClaudeAgentRunner(on_sqlite, registry(), ScriptedModel([]), **options)


def test_an_unknown_run_is_not_resumed(on_sqlite: Engine) -> None:
    with pytest.raises(UnknownRun):
        ClaudeAgentRunner(on_sqlite, model=ScriptedModel([])).resume("0" * 32)


def test_a_program_with_several_workflows_needs_a_name(on_sqlite: Engine) -> None:
    two = compile_text("workflow A() => () workflow B() => ()", "two.afl")
    with pytest.raises(RunnerRefused, match="there are: A, B"):
        ClaudeAgentRunner(on_sqlite, model=ScriptedModel([])).run(two)


def test_a_step_without_any_model_says_so(on_sqlite: Engine) -> None:
    plain = compile_text(
        "event facet E() => (x: Long) workflow W() => (x: Long) andThen "
        "{ e = E() yield W(x = e.x) }",
        "plain.afl",
    )
    result = ClaudeAgentRunner(on_sqlite).run(plain)
    assert "anthropic: the request is refused: no model is named" in (result.error or "")
    assert json.dumps(result.outputs) == "{}"


def test_a_runner_does_not_block_an_event_loop(on_sqlite: Engine) -> None:
    async def inside() -> None:
        run(on_sqlite, [GOOD])

    with pytest.raises(RunnerRefused, match="call it with asyncio"):
        asyncio.run(inside())


def test_a_facet_that_the_model_may_not_do_is_left_to_other_agents(on_sqlite: Engine) -> None:
    runner = ClaudeAgentRunner(on_sqlite, model=ScriptedModel([GOOD]), facets=["press.Review"])
    result = runner.run(PROGRAM, {"topic": "k"}, wait=0)
    assert result.status == ExecutionStatus.PAUSED
    poller = AgentPoller(on_sqlite)
    poller.register("press.Publish", publish)
    assert poller.poll_once() == 1
    assert runner.resume(result.workflow_id).success


def test_only_named_handlers_are_offered_as_tools(on_sqlite: Engine) -> None:
    model = ScriptedModel([GOOD])
    tools = registry(Search=lambda payload: {"hits": []})
    ClaudeAgentRunner(on_sqlite, tools, model, tools=["Search"]).run(PROGRAM, {"topic": "k"})
    assert [tool.name for tool in model.requests[0].tools] == ["Search", "submit_result"]


def test_a_cancelled_run_ends_the_conversation(on_sqlite: Engine) -> None:
    def cancel(request: ModelRequest) -> Answer:
        (listed,) = on_sqlite.list()
        on_sqlite.cancel(listed.id)
        return GOOD

    result = run(on_sqlite, [cancel])
    assert result.status == ExecutionStatus.ERROR
    (listed,) = on_sqlite.list()
    assert listed.state == "CANCELLED"
    assert entries(on_sqlite, listed.id) == [], "nothing is written under a lost lease"
