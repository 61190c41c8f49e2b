"""Runs to record: how each is brought to the middle of its life, and how any is finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowengine.engine import Run
from flowengine.testing import Flow
from tests.histories import workflows

_TURNS = 200  #: of worker and watchdog; far more than any run needs


def finish(flow: Flow, run: Run[Any]) -> None:
    """Run everything, let time pass and let the watchdog look, until the run has ended."""
    for _ in range(_TURNS):
        flow.settle()
        flow.watchdog()
        if run.info().is_final:
            return
        flow.clock.advance(seconds=5)


def work(flow: Flow, count: int) -> None:
    """Run `count` tasks."""
    worker = flow.worker("inline")
    for _ in range(count):
        task = worker.claim_next()
        assert task is not None
        worker.work_on(task)


def _chain(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.chain, 1)
    work(flow, 2)
    return run


def _join(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.fan_out, 1)
    work(flow, 5)
    return run


def _facts(flow: Flow) -> Run[Any]:
    """A foreach that is not expanded to its end: the rest waits as a fact in the inbox."""
    items = {"items": list(range(workflows.ITEMS))}
    workflow = workflows.long_foreach
    with flow.database.write() as session:
        connection = session.connection
        run = flow.engine.start(workflow.program(), workflow.name, items, connection=connection)
        connection.info.clear()  # whatever would be done after the commit is not
    return run


def _recovery(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.recovery, 7)
    work(flow, 2)  # the branch that was chosen, and the step that fails
    return run


def _failure(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.failure, 7)
    flow.worker("inline").work_on(flow.worker("inline").claim(run, "refuse"))
    return run


def _children(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.parent, 1)
    work(flow, 3)  # both children are started, and one has made a step
    return run


def _retry(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.retried, 1)
    flow.settle()
    return run


def _parked(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.guarded, 1)
    flow.settle()
    flow.clock.advance(seconds=1)
    flow.settle()  # the second try is due, and its circuit is open
    return run


def _dead_server(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.fan_out, 2)
    worker = flow.worker("dead")
    for number in (0, 1, 2):
        worker.claim(run, f"foreach[{number}].add")
    worker.die()
    return run


def _large(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.large, "x")
    work(flow, 1)
    return run


def _afl(flow: Flow) -> Run[Any]:
    """A program of AFL text, with a mixin."""
    run = flow.engine.start(workflows.BAKERY, "histories.Bakery", {"sizes": [3, 5, 8]})
    work(flow, 2)
    return run


def _limited(flow: Flow) -> Run[Any]:
    """One task was running on a server that died, and two wait for the slot that it has."""
    run = flow.start(workflows.limited, 1)
    worker = flow.worker("dead")
    worker.claim_next()
    worker.die()
    return run


def _timer(flow: Flow) -> Run[Any]:
    run = flow.start(workflows.patient, 1)
    flow.settle()
    return run


def _function(flow: Flow) -> Run[Any]:
    """A durable function that sleeps, behind calls that have ended and one that has failed."""
    run = flow.start(workflows.research, 5)
    flow.settle()
    return run


def _functions(flow: Flow) -> Run[Any]:
    """Durable functions as steps of a graph, between two of their calls."""
    run = flow.start(workflows.surveys, [1, 2])
    work(flow, 4)
    return run


def _agent(flow: Flow) -> Run[Any]:
    """A step that waits for the turn of an agent, which waits for a tool."""
    run = flow.start(workflows.asked, "add 1 and 2")
    work(flow, 2)  # the message is sent, and the model has answered
    return run


#: Each starts a run and stops in the middle of it.
MIDDLES: dict[str, Callable[[Flow], Run[Any]]] = {
    "afl-mixin": _afl,
    "agent-turn": _agent,
    "chain": _chain,
    "child-runs": _children,
    "dead-server": _dead_server,
    "failed-step": _failure,
    "function": _function,
    "functions-in-graph": _functions,
    "fan-out-join": _join,
    "foreach-facts": _facts,
    "large-payload": _large,
    "limited": _limited,
    "parked-task": _parked,
    "recovery": _recovery,
    "retry-due": _retry,
    "timer": _timer,
}
