"""The lines that `flowengine run` and `resume` print when their output is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from flowengine import event_facet, workflow
from flowengine.cli.progress import watch
from flowengine.testing import Flow


@event_facet
def double(n: int) -> int:
    return 2 * n


@workflow
def doubled(n: int) -> int:
    return double(n)


def lines(flow: Flow, run_id: str, since: int) -> list[str]:
    out = io.StringIO()
    watch(flow.engine.run(run_id), Console(file=out, width=100, color_system=None), since=since)
    return [line.strip().partition(" ✓ ")[2] for line in out.getvalue().splitlines()]


def test_the_steps_of_a_run_that_ended_before_it_was_watched_are_printed() -> None:
    with Flow() as flow:
        run = flow.start(doubled, n=4)
        flow.clock.now += 1
        flow.settle()
        assert lines(flow, run.id, 0) == ["doubled.double  complete", "doubled  complete"]


def test_steps_that_ended_before_the_command_began_are_not_printed() -> None:
    with Flow() as flow:
        run = flow.start(doubled, n=4)
        flow.clock.now += 1
        flow.settle()
        later = max(step.updated for step in flow.engine.steps(run.id))
        assert lines(flow, run.id, later) == []
