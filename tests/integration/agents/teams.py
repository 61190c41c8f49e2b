"""A join of agents for tests, an agent that leads it, and what its tasks have come to."""

from __future__ import annotations

from typing import Any

from flowengine import workflow
from flowengine.agents import JoinResult, JoinTask, TurnHandle, agent, fork_join
from flowengine.authoring import Retry
from flowengine.engine import Run
from flowengine.models.messages import Text
from flowengine.program.nodes import Json
from tests.integration.agents.clerks import Office, calls, clerk, judge, model

team = fork_join(clerk, judge, name="tests.team", deadline_seconds=100)


@agent(model=model, tools=[team], retry=Retry(attempts=1))
def lead(task: str) -> str:
    """You lead the others."""
    return task


@workflow
def ask_team(tasks: list[JoinTask]) -> JoinResult:
    return team(tasks, fail_fast=True)


def new(text: str, ref: str = "clerk") -> JoinTask:
    return JoinTask(instruction=text, target_ref=ref)


def asking(*tasks: JoinTask, **options: Json) -> Any:
    return calls("team", tasks=[task.model_dump() for task in tasks], **options)


def turns_of(desk: Office, run_id: str) -> list[TurnHandle[Any]]:
    found = desk.rows(
        "SELECT agent_turn_id FROM flowengine_agent_turn WHERE waiting_run_id = %s "
        "ORDER BY enqueued_at, agent_turn_id",
        run_id,
    )
    return [desk.agents.handle("", turn_id) for (turn_id,) in found]


def ended(desk: Office, run: Run[JoinResult]) -> JoinResult:
    desk.work()
    desk.check(*turns_of(desk, run.id))
    return run.result(timeout=5)


def statuses(result: JoinResult) -> list[str]:
    return [result.status, *(each.status for each in result.results)]


def texts(request: Any) -> list[str]:
    return ["".join(p.text for p in m.content if isinstance(p, Text)) for m in request.messages]
