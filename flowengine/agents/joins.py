"""``fork_join``: tasks for several agents at the same time, as a workflow.

Each task is a step that waits for a turn, and completes with the outcome of the turn, whatever its
status is. A step that waits for the end of the join with a timeout is the deadline. Nothing here
is new to the engine, so a join survives what runs and turns survive.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from flowengine.agents.definitions import AgentFacet
from flowengine.agents.join_ends import DEADLINE_STEP, JoinEnds
from flowengine.agents.join_models import JoinOutcome, JoinResult, OpenJoin, OpenTask, Tasks
from flowengine.agents.join_targets import JoinTargets, answer_join
from flowengine.agents.profiles import Profile
from flowengine.agents.runtime import agents_of
from flowengine.agents.tools import is_time
from flowengine.agents.turn_call import TurnCall
from flowengine.authoring import EventFacet, Workflow, attempt, foreach, wait_for, when
from flowengine.authoring.decorators import EventFacetDecorator, workflow
from flowengine.authoring.registry import register_event_facet, register_workflow
from flowengine.authoring.scopes import current_scope
from flowengine.engine.engine import Engine
from flowengine.engine.handles import executing
from flowengine.errors import AnswerRefused, AuthoringError, GiveUp, WaitTimedOut
from flowengine.log_context import logged_step
from flowengine.program.nodes import Json
from flowengine.turns.joins import (
    DEADLINE_SECONDS,
    ENDS,
    GRACE_SECONDS,
    MAX_TASKS,
    Ended,
    join_status,
)

_ENDED = "join_ended"  #: the answer that the deadline waits for
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SHORT = 200  #: characters of an agent's docstring in the description of the tool


class ForkJoin(Workflow[..., JoinResult]):
    """A join: a workflow, and a tool of agents."""

    tool_timeout: float  #: seconds that an agent waits for it: longer than any of its deadlines

    def __call__(self, /, *args: Any, **kwargs: Any) -> JoinResult:
        """Join in a run of its own: the run is the identity of a join, and its end ends its turns.

        Otherwise two joins in one run would end each other's turns.
        """
        if current_scope() is None:
            return super().__call__(*args, **kwargs)
        return self.start(*args, **kwargs).result()


class _Member(EventFacet[..., Any]):
    """The step of one task: it waits for a turn."""

    agents: Mapping[str, AgentFacet[..., Any]]
    join: str

    def call(self, data: Mapping[str, Json]) -> TurnCall:
        task = OpenTask.model_validate(data["task"])
        member = self.agents.get(task.facet)
        if member is None:
            raise GiveUp(f"agent {task.facet!r} was removed from the join {self.join!r}")
        return TurnCall(
            *(self._profile(member), task.instruction, task.agent_id),
            clone_of=task.clone_of,
            context_box_id=task.context_box_id,
            join=self.join,
        )

    def written(self, returned: Any) -> Any:
        return returned

    @staticmethod
    @functools.cache
    def _profile(member: AgentFacet[..., Any]) -> Profile:
        # Made once: the id of a profile is the hash of all of it.
        return replace(member.profile, tells_outcome=True)


def fork_join(
    *agents: AgentFacet[..., Any],
    name: str | None = None,
    max_tasks: int = MAX_TASKS,
    deadline_seconds: float = DEADLINE_SECONDS,
    task_list: str = "default",
) -> ForkJoin:
    """Return a workflow that gives tasks to several agents, and waits for all of them.

    It is a tool for other agents, or a step of a workflow. Its tasks are for the given agents
    only. `deadline_seconds` is the default, and the most that a caller may ask for.
    """
    members = _members(agents)
    if not isinstance(max_tasks, int) or isinstance(max_tasks, bool) or not 1 <= max_tasks <= 1000:
        raise AuthoringError(f"fork_join takes max_tasks from 1 to 1000, not {max_tasks!r}")
    if not is_time(deadline_seconds):
        raise AuthoringError(
            f"fork_join takes deadline_seconds as a number above 0, not {deadline_seconds!r}"
        )
    name = _qualified(name, agents)
    if not isinstance(task_list, str) or not task_list:
        raise AuthoringError(f"fork_join takes the name of a task list, not {task_list!r}")
    steps = _Steps(name, members, max_tasks, deadline_seconds, task_list)
    plain = workflow(name=name)(_body(steps, deadline_seconds))
    join = ForkJoin(plain.definition)
    join.tool_timeout = deadline_seconds + GRACE_SECONDS
    register_workflow(join)
    return join


_known: dict[str, tuple[str, ...]] = {}  #: the agents of each join of this process, by its name


def _qualified(name: object, agents: tuple[AgentFacet[..., Any], ...]) -> str:
    """Return the whole name of a join, which no other join has."""
    if name is not None and (not isinstance(name, str) or not _NAME.fullmatch(name)):
        raise AuthoringError(
            f"fork_join takes a name of letters, digits, '_' and dots, not {name!r}"
        )
    short = name or "fork_join"
    whole = short if "." in short else f"{agents[0].name.rpartition('.')[0]}.{short}"
    names = tuple(each.name for each in agents)
    if _known.setdefault(whole, names) != names:
        raise AuthoringError(
            f"there is a join {whole!r} of other agents, {', '.join(_known[whole])}: give this one "
            'a name of its own with fork_join(…, name="…")'
        )
    return whole


def _members(agents: tuple[Any, ...]) -> dict[str, AgentFacet[..., Any]]:
    if not agents or not all(isinstance(each, AgentFacet) for each in agents):
        raise AuthoringError(
            f"fork_join takes agents, the functions that @agent decorates, not {agents!r:.200}"
        )
    members = {each.definition.short_name: each for each in agents}
    if len(members) < len(agents):
        shown = ", ".join(each.name for each in agents)
        raise AuthoringError(
            f"fork_join: two agents have the same short name, and tasks name agents by it: {shown}"
        )
    return members


def _body(steps: _Steps, deadline: float) -> Callable[..., JoinResult]:
    def fork_join(
        tasks: Tasks, fail_fast: bool = False, deadline_seconds: float = deadline
    ) -> JoinResult:
        opened = steps.open(tasks, deadline_seconds)
        attempt(
            lambda: wait_for(_ENDED, bool, timeout=opened.seconds),
            catch={WaitTimedOut: lambda error: steps.expire()},
            name=DEADLINE_STEP,
        )

        def ended(task: OpenTask) -> JoinOutcome:
            outcome = cast(
                JoinOutcome,
                attempt(
                    lambda: steps.member(task),
                    catch=lambda error: steps.refused(task, error.path, error.message),
                ),
            )
            when(fail_fast & (outcome.status != "success"), lambda: steps.cancel())
            return _indexed(task, outcome)

        results = foreach(opened.tasks, ended, name="tasks")
        # Composed here: the limit of a step's result would hold for all results together.
        return JoinResult.model_construct(status=steps.close(results, fail_fast), results=results)

    about = "\n".join(f"- {short}: {_about(each)}" for short, each in steps.members.items())
    fork_join.__doc__ = (
        "Give tasks to other agents at the same time, and wait for the results of all of them.\n"
        'target_strategy "new" starts a new agent, and target_ref is one of the agents below. '
        '"reuse" gives the task to an existing agent, which remembers its earlier tasks, and '
        '"clone" to a copy of one: target_ref is its agent_id, from the results of an earlier '
        "call. context_box_id, the output_box_id of an earlier call for the same message, shows "
        "the agent the cards of that task.\n"
        f"The agents:\n{about}"
    )
    fork_join.__module__ = next(iter(steps.members.values())).definition.fn.__module__
    return fork_join


def _about(member: AgentFacet[..., Any]) -> str:
    return (inspect.getdoc(member.definition.fn) or "")[:_SHORT].replace("\n", " ")


class _Steps:
    """The event facets of one join."""

    def __init__(
        self,
        name: str,
        members: dict[str, AgentFacet[..., Any]],
        max_tasks: int,
        deadline: float,
        task_list: str,
    ) -> None:
        self.name, self.members, self._list = name, members, task_list
        facets = {each.name: short for short, each in members.items()}

        def open_join(tasks: Tasks, seconds: float) -> OpenJoin:
            engine, run_id = _inside()
            targets = JoinTargets(engine, run_id, facets, max_tasks, deadline)
            found = targets.opened([task.model_dump() for task in tasks], seconds)
            return OpenJoin(tasks=[OpenTask(**task) for task in found], seconds=seconds)

        def member(task: OpenTask) -> JoinOutcome:
            raise AssertionError("its call returns a turn")

        def refused(task: OpenTask, path: str, message: str) -> JoinOutcome:
            return _refused(task, path, message)

        def expire() -> None:
            _end(expire_end)

        def cancel() -> None:
            _end(cancel_end)

        def close(results: list[JoinOutcome], fail_fast: bool) -> str:
            return _close(results, fail_fast)

        expire_end, cancel_end = ENDS
        self.open = self._facet(open_join, "__open")
        self.member = self._member(member)
        self.refused = self._facet(refused, "__refused")
        self.expire = self._facet(expire, expire_end)
        self.cancel = self._facet(cancel, cancel_end)
        self.close = self._facet(close, "__close")

    def _facet(self, fn: Callable[..., Any], end: str) -> Any:
        return EventFacetDecorator({"name": self.name + end, "task_list": self._list})(fn)

    def _member(self, fn: Callable[..., Any]) -> Any:
        plain = self._facet(fn, "__member")
        facet = _Member(plain.definition)
        facet.agents = {each.name: each for each in self.members.values()}
        facet.join = self.name
        register_event_facet(facet)
        return facet


def _inside() -> tuple[Engine, str]:
    inside = executing.get()
    assert inside is not None, "a worker calls it for a step"
    return inside[0], logged_step.get().run_id


def _end(end: str) -> None:
    engine, run_id = _inside()
    JoinEnds(agents_of(engine), engine).end(run_id, end)


def _indexed(task: OpenTask, outcome: JoinOutcome) -> JoinOutcome:
    """Return the outcome of a task with its place; while a body is traced, its fields are symbols.

    The index of `outcome` is not read: an outcome of an earlier version has none.
    """
    names = (name for name in JoinOutcome.model_fields if name != "task_index")
    fields = {name: getattr(outcome, name) for name in names}
    return JoinOutcome.model_construct(task_index=task.task_index, **fields)


def _refused(task: OpenTask, path: str, message: str) -> JoinOutcome:
    """Return the outcome of a task whose step failed, with its turn if it has got one."""
    engine, run_id = _inside()
    outcome = JoinOutcome(status="failed", error_code="refused", error=message)
    outcome.agent_id = task.agent_id
    turn = JoinEnds(agents_of(engine), engine).turn_of(run_id, path)
    if turn is not None:
        outcome.agent_id, outcome.agent_turn_id = turn.agent, turn.id
        outcome.output_box_id = turn.output_box_id
    return outcome


def _close(results: list[JoinOutcome], fail_fast: bool) -> str:
    engine, run_id = _inside()
    with suppress(AnswerRefused):  # the deadline has passed, or an earlier try has sent it
        engine.send(run_id, _ENDED, value=True)
    answer_join(engine, run_id)
    ended = [Ended(each.status, each.error_code) for each in results]
    return join_status(ended, fail_fast=fail_fast)
