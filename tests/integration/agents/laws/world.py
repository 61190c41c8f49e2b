"""Agents on a real database, whose process may die at any commit; each commit is held to the laws.

The test decides everything: which task runs, when time passes, which wake-ups are lost, and before
or after which commit the process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, TypeAlias

from flowengine.agents import Budget, JoinTask, agent, fork_join, tool
from flowengine.authoring import Retry, event_facet
from flowengine.errors import FlowengineError, UnknownRun
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Outcome
from flowengine.turns.states import InboxState
from flowengine.worker.execution import execute_try
from tests.integration.agents.clerks import (
    Step,
    calls,
    measure,
    model,
    office,
    plan,
    refund,
    search,
    translator,
)
from tests.integration.agents.in_place import made_in_place, policy_of, without_haste
from tests.integration.agents.laws.rows import Commit, Rows, Told
from tests.integration.agents.laws.table import AFTER_RECOVERY, AT_REST, violations

Wakeups: TypeAlias = Literal["received", "lost", "doubled"]

#: The ways to a transaction that writes.
WAYS = ("write", "optimistic", "autocommit")
_NEVER: Any = {"max_losses": 10_000}


@event_facet(name="laws.look", effects=False)
def look(query: str = "kettle") -> str:
    """Look; nothing is changed by it."""
    return f"seen {query}"


@agent(model=model, tools=[search, look], name="laws.helper", retry=Retry(attempts=1), **_NEVER)
def helper(task: str) -> str:
    """You help."""
    return task


team = fork_join(helper, name="laws.team", deadline_seconds=100)


@agent(
    model=model,
    name="laws.chief",
    tools=[
        *(search, look, measure, translator, team),
        tool(search, name="hurried", timeout=30),
        tool(refund, approval=True),
        tool(refund, name="settle", ends_turn=True),
    ],
    budget=Budget(steps=4, seconds=3_000),
    retry=Retry(attempts=2, first_wait=1),
    **_NEVER,
)
def chief(task: str) -> str:
    """You lead."""
    return task


def _join(*tasks: JoinTask, fail_fast: bool = False) -> Step:
    return calls("team", tasks=[task.model_dump() for task in tasks], fail_fast=fail_fast)


def _new(text: str) -> JoinTask:
    return JoinTask(instruction=text, target_ref="helper")


#: By instruction, the answers of the model.
SCRIPTS: dict[str, list[Step]] = {
    "answer": ["done"],
    "search": [calls("search", "measure"), calls("search"), "done"],
    "hurry": [calls("hurried", "search"), "done"],
    "pay": [calls("refund", "search"), "done"],
    "settle": [calls("settle", "search"), "never"],
    "override": [calls("measure", query="terminate"), "never"],
    "child": [calls("translator"), "done"],
    "mistake": [calls("nothing"), "done"],
    "fail": [RuntimeError("no"), RuntimeError("no")],
    "read": [calls("look", "look"), calls("look"), calls("look", "search"), "done"],
    "long": [calls("search"), calls("search"), calls("search"), calls("search"), "never"],
    "join": [_join(_new("help"), _new("look")), "done"],
    "fail fast": [_join(_new("look"), _new("break"), fail_fast=True), "done"],
}
OF_HELPERS: dict[str, list[Step]] = {
    "help": ["helped"],
    "look": [calls("look"), calls("search"), "looked"],
    "break": [RuntimeError("no")],
    "translate hello": ["bonjour"],
}


class Killed(SystemExit):
    """The process is gone: nothing of it catches this."""


class World:
    """One office, and the rows after its last commit."""

    def __init__(self, url: str) -> None:
        self._stack = ExitStack()
        plan.reset({**SCRIPTS, **OF_HELPERS})
        self.desk = self._stack.enter_context(office(url))
        self._stack.enter_context(without_haste())
        names = [look.name, *(each.model_facet.name for each in (chief, helper))]
        self._policy = policy_of(names)
        self.agents, self.engine, self.clock = self.desk.agents, self.desk.engine, self.desk.clock
        self.told = Told(waits={"team": team.tool_timeout})
        self.told.max_depth = self.engine.settings.max_agent_depth
        self.wakeups: Wakeups = "received"
        self.dies: tuple[int, bool] | None = None  #: commits left; whether before the last
        self.commits = self.deaths = 0
        #: Violations of laws. They are not raised in the commit: a try, and a pass of recovery,
        #: catch the errors of one row.
        self.problems: list[str] = []
        self.held: list[tuple[TaskDefinition, Outcome, bool]] = []
        self._ring()
        self._unwatched = self.engine.database.autocommit
        for name in WAYS:
            self._watch(name)
        self.rows = Rows.read(self._unwatched)

    def close(self) -> None:
        for name in WAYS:
            delattr(self.engine.database, name)
        self._stack.close()

    # --- commits ---

    def _watch(self, name: str) -> None:
        """Hold the rows against the laws after each commit, and die at the one that is meant."""
        database: Any = self.engine.database
        opened = getattr(database, name)

        @contextmanager
        def writing(*args: Any, **kwargs: Any) -> Iterator[Any]:
            dies = self._dies_now()
            if dies is True and name != "write":  # its statements commit one by one
                raise Killed
            with opened(*args, **kwargs) as session:
                yield session
                if dies is True:
                    raise Killed
            self.check()
            if dies is False:
                raise Killed

        setattr(database, name, writing)

    def _dies_now(self) -> bool | None:
        """Whether the process dies before (True) or after (False) this commit."""
        if self.dies is None:
            return None
        left, before = self.dies
        self.dies = (left - 1, before) if left > 1 else None
        return before if left == 1 else None

    def check(self) -> None:
        self.commits += 1
        after = Rows.read(self._unwatched)
        commit = Commit(self.rows, after, self.clock.now, self.told)
        told, known = self.told, self.rows.turns
        told.removed |= known.keys() - after.turns.keys()
        told.order = [key for key in told.order if key in after.turns]
        told.order += [key for key in after.turns if key not in known]
        self.rows = after
        self.problems += violations(commit)

    def check_laws(self, table: Any) -> None:
        commit = Commit(self.rows, self.rows, self.clock.now, self.told)
        self.problems += violations(commit, table)

    # --- the process ---

    def act(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Act as the process; if it dies, its workers are gone, and nobody is told anything."""
        try:
            return act(*args, **kwargs)
        except Killed:
            self.deaths += 1
            for worker in self.desk.flow._workers.values():
                worker.die()
            self.desk.flow._workers.clear()
            self.held = [(task, outcome, True) for task, outcome, _ in self.held]
            return Killed

    def _ring(self) -> None:
        advance: Any = self.agents._advance

        def ring(keys: Any, continuation: Any = None) -> Any:
            if self.wakeups == "lost" and not self.desk._recovers:
                return []
            again = advance(keys, continuation) if self.wakeups == "doubled" else []
            return advance(keys, continuation) + again

        self.agents._advance = ring  # type: ignore[method-assign]

    # --- work ---

    def due_tasks(self, only: str = "") -> list[tuple[str, str]]:
        """The pending tasks that are due: their ids and lists, in an order without randomness.

        With `only`, those of facets whose names end so.
        """
        found = self.desk.rows(
            "SELECT uuid, task_list_name FROM flowengine_task WHERE state = 'pending' "
            "AND due <= %s AND name LIKE %s ORDER BY created, name, step_path, run_id, position",
            *(self.clock.now, f"%{only}"),
        )
        return [(uuid, name) for uuid, name in found]

    def claim(self, at: int, only: str = "") -> TaskDefinition | None:
        tasks = self.due_tasks(only)
        if not tasks:
            return None
        uuid, task_list = tasks[at % len(tasks)]
        worker = self.desk.flow.worker("at work")
        return self.engine.claim_one(uuid, task_list, worker._identity)

    def run(self, task: TaskDefinition, *, in_place: bool = False) -> Outcome:
        """Run a try; `in_place`: its worker has measured that the tools are quick."""
        within = made_in_place(self.engine, self._policy) if in_place else None
        beat = partial(self.engine.heartbeat, task)
        return execute_try(self.engine, task, beat, within=within)

    def report(self, task: TaskDefinition, outcome: Outcome) -> bool:
        """Report a try; False: it comes too late, and its run may be gone."""
        try:
            return self.engine.report(task, outcome)
        except UnknownRun:
            return False

    def tick(self, seconds: float) -> None:
        self.desk.tick(seconds)

    def recovered(self) -> None:
        """Hold the rows against the laws of recovery, after a whole pass."""
        self.check_laws(AFTER_RECOVERY)

    # --- the end ---

    def come_to_rest(self) -> None:
        """Let everything go on without faults until nothing is left to do."""
        self.wakeups, self.dies = "received", None
        for task, outcome, _ in self.held:
            self.report(task, outcome)
        self.held = []
        for _ in range(30):
            self.desk.work()
            if not self._decide_open_calls():
                rows = self.rows
                is_over = all(turn.finished_at for turn in rows.turns.values())
                if is_over and all(m.status in InboxState.FINAL for m in rows.messages.values()):
                    break
                self.tick(700)  # for messages that were put off
        self.check()
        self.check_laws(AT_REST)
        left = self.desk.rows("SELECT id FROM flowengine_run WHERE finished IS NULL")
        assert left == [], f"runs are left: {left}"

    def _decide_open_calls(self) -> bool:
        asked = [c for c in self.rows.calls.values() if c.approval == "asked"]
        asked = [call for call in asked if call.wait_status == "waiting"]
        for call in asked:
            key = (call.project_id, call.agent_turn_id, call.tool_call_id)
            try:
                self.agents.approve(*key, by="eva")
            except FlowengineError:
                continue  # a report from outside has ended it
        return bool(asked)
