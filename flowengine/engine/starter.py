"""Start runs: what the first evaluation decides is written together with the run itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowengine.engine import staging
from flowengine.engine.program_cache import Programs
from flowengine.engine.staging import CachedRun, Commit
from flowengine.errors import InvalidInputs
from flowengine.evaluator import Missing, RunView, Snapshot, Step
from flowengine.evaluator.records import Waiter, derived_id
from flowengine.evaluator.triggers import Started
from flowengine.program import Plan
from flowengine.program.inputs import check_inputs
from flowengine.program.nodes import Json
from flowengine.store import codec, commit_writer, runs
from flowengine.store.commits import CommitRows, RunHeader
from flowengine.store.executors import Executor


@dataclass(frozen=True)
class Order:
    """A run to be started, its inputs checked."""

    digest: str
    text: str  #: of the program
    plan: Plan
    workflow: str
    inputs: dict[str, Json]
    key: str | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    tenant: str = ""
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    parent: Parent | None = None


@dataclass(frozen=True)
class Parent:
    """The step that a run was started by."""

    run_id: str
    step_id: str
    step_key: str
    root_run_id: str
    waits: bool  #: for the end of the run, which is the step's result


_MOST_URGENT = 1_000_000_000


def child_run_id(step_id: str) -> str:
    """The id of the run that a step starts: it has one, whoever starts it, and how often."""
    return derived_id(step_id, "run")


def order(
    prepared: tuple[str, str, Plan],
    workflow: str,
    inputs: Mapping[str, Json],
    limit: int,
    *,
    key: str | None,
    **options: Any,
) -> Order:
    """Check a start; raises what is wrong with it before anything is written."""
    digest, text, plan = prepared
    facet = plan.workflow(workflow)
    codec.check_names(f"the input of {facet.name}", inputs)
    for name, value in inputs.items():
        codec.check_value(f"input {name!r} of {facet.name}", value, limit)
    given = {name: codec.plain(value) for name, value in inputs.items()}
    check_inputs(facet, given)
    made = Order(digest, text, plan, facet.name, given, key, **options)
    if problems := list(_unsound(made)):
        raise InvalidInputs(facet.name, problems)
    return made


def _unsound(made: Order) -> Iterator[str]:
    """What of a start no database keeps."""
    if made.key is not None and (not 0 < len(made.key) <= 255 or "\0" in made.key):
        yield "the key must have 1 to 255 characters, and no NUL among them"
    if len(made.tenant) > 64 or "\0" in made.tenant:
        yield "the tenant must have 64 characters at most, and no NUL among them"
    if abs(made.priority) > _MOST_URGENT:
        yield f"the priority must be between {-_MOST_URGENT:,} and {_MOST_URGENT:,}"


def start(executor: Executor, orders: list[Order], programs: Programs, now: int) -> list[Commit]:
    """Insert runs and what they begin with, in one commit; of a used key the earlier run."""
    rows = CommitRows()
    commits: dict[str, Commit] = {}
    for an_order in orders:
        programs.save(executor, an_order.digest, an_order.text, now)
        commits[an_order.run_id] = _begin(an_order, rows, now)
    written = commit_writer.write(executor, rows)
    found = []
    for an_order in orders:
        if an_order.run_id in written:
            found.append(commits[an_order.run_id])
        elif an_order.key is None:
            found.append(Commit(an_order.run_id))  # inserted before, and nobody had told us
        else:
            earlier = runs.with_key(executor, an_order.tenant, an_order.workflow, an_order.key)
            found.append(Commit(earlier))
    return found


def _head(an_order: Order) -> RunHeader:
    view = RunView(an_order.run_id, an_order.workflow, an_order.digest, priority=an_order.priority)
    parent = an_order.parent
    if parent is not None and parent.waits:
        view.waiter = Waiter(parent.run_id, parent.step_id, parent.step_key)
    return RunHeader(view, 0, 0)


class _NoRows(dict[str, Step | None]):
    """The rows of a run that has none yet: whichever is asked for, it is known not to be there."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> None:
        return None


def _begin(an_order: Order, rows: CommitRows, now: int) -> Commit:
    """Evaluate a run for the first time, and make its row what comes of that."""
    known = CachedRun(_head(an_order), Snapshot(_NoRows()))
    decision = staging.decide(an_order.plan, known, [Started(an_order.inputs)], now)
    assert not isinstance(decision, Missing)  # it lacks nothing where there is nothing
    commit = staging.put(decision, rows, now)
    parent = an_order.parent
    row = rows.runs.pop()
    row = {name: value for name, value in row.items() if name not in ("was", "reports")}
    rows.new_runs.append(
        {
            "id": row.pop("run_id"),
            **row,
            "tenant": an_order.tenant,
            "workflow": an_order.workflow,
            "program_hash": an_order.digest,
            "priority": an_order.priority,
            "labels": codec.dump(dict(an_order.labels)) if an_order.labels else None,
            "idempotency_key": an_order.key,
            "root_run_id": parent.root_run_id if parent else an_order.run_id,
            "parent_run_id": parent.run_id if parent else None,
            "parent_step_id": parent.step_id if parent else None,
            "waiting_step_key": parent.step_key if parent and parent.waits else None,
            "created": now,
        }
    )
    return commit
