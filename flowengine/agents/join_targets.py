"""The agents that the tasks of a join are for, checked before any of them gets its task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowengine.engine.engine import Engine
from flowengine.errors import GiveUp, UnknownRun
from flowengine.program.nodes import Json
from flowengine.store import Session
from flowengine.store.agent_calls import AgentCall
from flowengine.turns.joins import Strategy
from flowengine.turns.records import Turn


class JoinTargets:
    """Finds the agents of one join, which a run is."""

    def __init__(
        self,
        engine: Engine,
        run_id: str,
        facets: Mapping[str, str],
        max_tasks: int,
        longest: float,
    ) -> None:
        self._engine, self._run_id, self._facets = engine, run_id, facets
        self._max_tasks, self._longest = max_tasks, longest

    def opened(self, tasks: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Json]]:
        """Return the tasks with their targets. Raises GiveUp with all problems.

        The edge that records the request is idempotent: the run is its key.
        """
        with self._engine.database.write() as session:
            project, parent = parent_of(session, self._run_id)
            ancestors = list(_ancestors(session, project, parent))
            problems = self._limits(tasks, seconds)
            found: list[dict[str, Json]] = []
            for index, task in enumerate(tasks[: self._max_tasks]):
                target = self._target(session, project, task, ancestors)
                if not isinstance(target, str):
                    target = self._with_box(session, project, task, target, parent)
                if isinstance(target, str):
                    problems.append(f"task {index}: {target}")
                else:
                    found.append({"task_index": index, **target})
            if problems:
                raise GiveUp("; ".join(problems))
            if parent is not None:
                now, agents = session.now(), session.agent_turns
                agents.add_edge(parent, "join", "request", self._run_id, now)
        return found

    def _limits(self, tasks: Sequence[Mapping[str, Any]], seconds: float) -> list[str]:
        problems = []
        if not 1 <= len(tasks) <= self._max_tasks:
            problems.append(f"a join has 1 to {self._max_tasks} tasks, not {len(tasks)}")
        if not 0 < seconds <= self._longest:
            problems.append(
                f"deadline_seconds is above 0 and at most {self._longest:g}, not {seconds:g}"
            )
        reused = [t["target_ref"] for t in tasks if t["target_strategy"] == Strategy.REUSE]
        problems += [
            f"agent {ref!r} is reused for two tasks, and works on one at a time; clone it"
            for ref in sorted({ref for ref in reused if reused.count(ref) > 1})
        ]
        return problems

    def _target(
        self, session: Session, project: str, task: Mapping[str, Any], ancestors: Sequence[Turn]
    ) -> dict[str, Json] | str:
        """Return the agent of a task, or the problem with it."""
        ref, strategy = task["target_ref"], task["target_strategy"]
        shorts = ", ".join(self._facets.values())
        if strategy == Strategy.NEW:
            facet = next((f for f, short in self._facets.items() if ref in (f, short)), None)
            if facet is None:
                return f"there is no agent {ref!r}, the agents of this join are: {shorts}"
            return self._opened(task, facet, "", "")
        facet = session.agent_joins.last_facet(project, ref)
        if facet is None:
            return f"agent {ref!r} has never had a task; take the agent_id of an earlier result"
        if facet not in self._facets:
            return f"agent {ref!r} is none of the agents of this join, which are: {shorts}"
        if strategy == Strategy.CLONE:
            return self._opened(task, facet, "", ref)
        if any(turn.agent == ref for turn in ancestors):
            return f"agent {ref!r} waits for this join, and the task would wait for the agent"
        return self._opened(task, facet, ref, "")

    @staticmethod
    def _opened(
        task: Mapping[str, Any], facet: str, agent_id: str, clone_of: str
    ) -> dict[str, Json]:
        about: dict[str, Json] = {"facet": facet, "agent_id": agent_id, "clone_of": clone_of}
        return {**about, "instruction": task["instruction"], "context_box_id": ""}

    def _with_box(
        self,
        session: Session,
        project: str,
        task: Mapping[str, Any],
        target: dict[str, Json],
        parent: Turn | None,
    ) -> dict[str, Json] | str:
        """Add the box that a task shows to its agent; only boxes of the asking turn may be shown.

        These are the boxes of the turn itself, and those of the turns that it has asked for.
        """
        box_id = task["context_box_id"]
        if not box_id:
            return target
        own = () if parent is None else (parent.context_box_id, parent.output_box_id)
        is_known = box_id in own or (
            parent is not None and session.agent_joins.is_box_of_child(project, parent.id, box_id)
        )
        if not is_known:
            return f"the box {box_id!r} is none of this turn or of the tasks it has given"
        return {**target, "context_box_id": box_id}


def answer_join(engine: Engine, run_id: str) -> None:
    """Record that a join has ended; idempotent."""
    with engine.database.write() as session:
        _, parent = parent_of(session, run_id)
        if parent is not None:
            session.agent_turns.add_edge(parent, "join", "response", run_id, session.now())


def parent_of(session: Session, run_id: str) -> tuple[str, Turn | None]:
    """Return the project of a run, and the turn whose tool's run is at its root."""
    run = session.runs.get(run_id)
    if run is None:
        raise UnknownRun(run_id)
    root = session.runs.header(run.root_run_id)
    if root is None or root.view.agent_call is None:
        return run.tenant, None
    call = AgentCall.read(root.view.agent_call)
    return run.tenant, session.agent_turns.get(root.view.tenant, call.turn_id)


def _ancestors(session: Session, project: str, turn: Turn | None) -> Iterator[Turn]:
    """Yield a turn and those that wait for it; their number is limited by the depth of a turn."""
    while turn is not None:
        yield turn
        above = turn.parent_turn_id
        turn = None if above is None else session.agent_turns.get(project, above)
