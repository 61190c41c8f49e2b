"""The answers of a model and the results of its tools are calls below their step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.afl import compile_text
from flowengine.engine import Engine
from flowengine.engine.run_tree import StepLine, load_run_tree
from flowengine.errors import ModelOverloaded
from flowengine.models import ModelRetry, ScriptedModel, calling
from flowengine.models.messages import ToolResult
from flowengine.sdk import ClaudeAgentRunner, ToolRegistry
from flowengine.sdk.journal import ANSWER, END
from flowengine.settings import Settings
from flowengine.store import codec
from flowengine.testing.replay import replay
from tests.integration.engines import opened

pytestmark = pytest.mark.each_database

PROGRAM = compile_text(
    """
namespace shelf {
  event facet Count(kind: String) => (number: Long)
  event facet Sum(goal: String) => (total: Long) prompt { template "{goal}" }
  event facet Print(total: Long) => (page: String)

  workflow Stock(goal: String) => (page: String) andThen {
    sum = Sum(goal = $.goal) catch { said = Print(total = 0) }
    yield Stock(page = "none")
  }
  workflow Plain(goal: String) => (page: String) andThen {
    sum = Sum(goal = $.goal)
    printed = Print(total = sum.total)
    yield Plain(page = printed.page)
  }
}
""",
    "shelf.afl",
)
COUNT, GOOD = calling("shelf__Count", "one", kind="cups"), calling("submit_result", total=4)
DOWN = ModelOverloaded("scripted", "down")


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path / "spool"))) as engine:
        yield engine


def runner_of(engine: Engine, *script: Any) -> tuple[ClaudeAgentRunner, ScriptedModel]:
    tools, model = ToolRegistry(), ScriptedModel(list(script))
    tools.register("shelf.Count", lambda payload: {"number": len(payload["kind"])})
    tools.register("shelf.Print", lambda payload: {"page": f"there are {payload['total']}"})
    return ClaudeAgentRunner(engine, tools, model, retry=ModelRetry(attempts=1)), model


def calls(engine: Engine, run_id: str) -> list[tuple[str, str]]:
    return [(one.path, one.facet) for one in engine.steps(run_id) if "#" in one.path]


def shown(engine: Engine, run_id: str) -> list[str]:
    with engine.database.read() as session:
        lines = load_run_tree(session, run_id).lines
    return [line.name for line in lines if isinstance(line, StepLine)]


def test_the_tree_shows_answers_and_tools_below_the_step(engine: Engine) -> None:
    runner, _ = runner_of(engine, COUNT, GOOD)
    run_id = runner.run(PROGRAM, {"goal": "x"}, workflow="shelf.Plain").workflow_id
    step = "Plain.sum"
    assert calls(engine, run_id) == [
        (f"{step}.ask_model#0", ANSWER),
        (f"{step}.Count#1", "shelf.Count"),
        (f"{step}.ask_model#2", ANSWER),
    ]
    count = next(one for one in engine.steps(run_id) if one.path.endswith("Count#1"))
    assert count.params == {"kind": "cups"}
    assert shown(engine, run_id) == [
        *("Plain", "sum", "ask_model#0", "Count#1", "ask_model#2", "printed"),
    ]
    assert engine.doctor() == []
    assert replay(engine.export(run_id)).check().state == "COMPLETED"


def test_a_step_with_calls_still_shows_the_block_that_catches_its_error(engine: Engine) -> None:
    runner, _ = runner_of(engine, calling("submit_result"), calling("submit_result"))
    run_id = runner.run(PROGRAM, {"goal": "x"}, workflow="shelf.Stock").workflow_id
    names = shown(engine, run_id)
    assert names[-2:] == ["end_conversation#3", "[catch].said"]
    assert calls(engine, run_id)[-1] == ("Stock.sum.end_conversation#3", END)


def test_a_retry_of_a_step_that_a_model_failed_begins_a_new_conversation(engine: Engine) -> None:
    runner, model = runner_of(engine, COUNT, DOWN, GOOD)
    result = runner.run(PROGRAM, {"goal": "x"}, workflow="shelf.Plain")
    assert not result.success
    run_id = result.workflow_id
    before = steps_counted(engine, run_id)
    engine.retry(run_id)
    assert runner.resume(run_id).success
    assert len(model.requests[-1].messages) == 2, "the conversation is a new one"
    assert [facet for _, facet in calls(engine, run_id)] == [ANSWER]
    assert steps_counted(engine, run_id) >= before, "calls of models are not counted"


def test_a_run_is_retried_from_a_call_of_a_model(engine: Engine) -> None:
    """The answers in front of the call are kept, as those of a durable function are."""
    runner, model = runner_of(engine, COUNT, calling("submit_result", total=3), GOOD)
    run_id = runner.run(PROGRAM, {"goal": "x"}, workflow="shelf.Plain").workflow_id
    engine.retry(run_id, from_step="Plain.sum.ask_model#2")
    assert runner.resume(run_id).outputs == {"page": "there are 4"}
    assert len(model.requests[-1].messages) == 4, "the first answer and its tool are kept"


def test_a_fork_takes_over_the_answers_of_the_model(engine: Engine) -> None:
    runner, model = runner_of(engine, COUNT, calling("submit_result", total=3), GOOD)
    run_id = runner.run(PROGRAM, {"goal": "x"}, workflow="shelf.Plain").workflow_id
    fork = engine.fork(run_id, from_step="Plain.sum.ask_model#2")
    assert runner.resume(fork.id).outputs == {"page": "there are 4"}
    assert len(model.requests) == 3
    assert engine.get(run_id).outputs == {"page": "there are 3"}


def test_a_step_goes_on_from_the_exchanges_of_an_earlier_version(engine: Engine) -> None:
    """Earlier versions recorded them in a table of their own."""
    runner, model = runner_of(engine, GOOD)
    run = engine.start(PROGRAM, "shelf.Plain", {"goal": "x"})
    (task,) = engine.tasks(run.id)
    insert = (
        "INSERT INTO flowengine_exchange (run_id, step_id, number, kind, content, created) "
        "VALUES (%s, %s, %s, %s, %s, 1) RETURNING number"
    )
    result = ToolResult("one", '{"number": 4}')
    given = [("answer", COUNT), ("end", None), ("answer", COUNT), ("result", result)]
    with engine.database.write() as session:
        for number, (kind, entry) in enumerate(given):
            content = {"type": "x"} if entry is None else entry.to_json()
            row = (run.id, task.step_id, number, kind, stored(content))
            session.rows(insert, row)
    assert runner.resume(run.id).outputs == {"page": "there are 4"}
    (request,) = model.requests
    assert [message.role for message in request.messages][2:] == ["assistant", "tool"]
    assert calls(engine, run.id) == [("Plain.sum.ask_model#4", ANSWER)]


def stored(content: Any) -> str:
    return codec.Encoder().attributes({"content": content})


def steps_counted(engine: Engine, run_id: str) -> int:
    with engine.database.read() as session:
        ((found,),) = session.rows("SELECT step_count FROM flowengine_run WHERE id = %s", (run_id,))
    return int(found)
