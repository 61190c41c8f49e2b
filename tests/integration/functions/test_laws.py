"""Laws of durable functions: random bodies, calls in place or with tasks, deaths anywhere.

Random choices decide for each call whether it is made in place, for each activation whether its
coroutine is kept, run ahead or replayed, and for each commit whether the process dies before or
after it.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from flowengine import workflow
from flowengine.authoring import event_facet_names
from flowengine.authoring.functions import Activation
from flowengine.engine import Run
from flowengine.evaluator.call_statements import prefix_of_call
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.triggers import Lost
from flowengine.program.function_calls import CallKind, FunctionCall
from flowengine.store.calls import Calls
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from tests.integration.functions.workers import IN_PLACE, Worked, worked
from tests.unit.authoring.functions.random_functions import follow, scripts, scripts_without_races


@workflow
async def follows(script: list[Any]) -> Any:
    return await follow(script)


class Death(BaseException):
    """The process ends here."""


class Fate:
    """Chooses what happens to one run at random; without a seed nothing disturbs it."""

    def __init__(self, work: Worked, seed: int | None) -> None:
        self.work, self.choices = work, random.Random(seed or 0)
        self.deaths, self.share, self.keeps = 0, 0.0, 1.0
        if seed is not None:
            self.deaths = self.choices.choice([0, 1, 2, 3])
            self.share = self.choices.choice([0.0, 0.3, 1.0])  #: of calls that are made in place
            self.keeps = self.choices.choice([0.0, 0.5, 1.0])  #: of activations that are kept

    def leading(self, calls: list[FunctionCall], served: object) -> int:
        """Return how many of the first calls are made in place."""
        events = itertools.takewhile(lambda call: call.kind is CallKind.EVENT, calls)
        drawn = itertools.takewhile(lambda _: self.choices.random() < self.share, events)
        return len(list(drawn))

    def may_die(self) -> None:
        if self.deaths and self.choices.random() < 0.1:
            self.deaths -= 1
            raise Death

    @contextmanager
    def around(self) -> Iterator[None]:
        """A commit, before or after which the process may die."""
        self.may_die()
        yield
        self.may_die()

    def new_process(self) -> None:
        worker = TaskWorker(self.work.engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        policy: Any = worker._tries._activations._policy
        policy.leading = self.leading
        self.work.worker = worker

    def recover(self, run: Run[Any]) -> None:
        """Report the tasks of a dead process as lost, as the watchdog does."""
        for task in self.work.engine.tasks(run.id):
            if task.state == "running":
                self.work.engine.end_try(run.id, task.uuid, task.lease, Lost("killed"))
        self.new_process()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, file_with_schema: Path) -> Iterator[Worked]:
    directory = tmp_path_factory.mktemp("laws")
    shutil.copy(file_with_schema, directory / "flow.db")
    with worked(f"sqlite:///{directory}/flow.db", directory, **IN_PLACE) as work:
        yield work


def finish(work: Worked, run: Run[Any], fate: Fate) -> None:
    for _ in range(500):
        if run.info().is_final:
            return
        try:
            while work.worker.poll("default", 1) or work.worker.drain("default"):
                if fate.choices.random() > fate.keeps:
                    work.worker._tries.kept_functions.clear()
            work.clock.now += fate.choices.randint(1, 3_000)
            work.pass_time(0)
        except Death:
            fate.recover(run)
    raise AssertionError(f"the run does not end: {run.info()}")


def check_replay(work: Worked, run: Run[Any]) -> None:
    """A strict replay of the record gives the recorded outcome; no number is there twice."""
    with work.engine.database.read() as session:
        steps = session.steps.of_run(run.id)
        (step,) = [one for one in steps if one.facet_name == "flows@1" or one.activation]
        stored = session.calls.record(run.id, step.key, step.path)
    assert stored is not None
    calls = [one for one in steps if one.object_type == ObjectType.FUNCTION_CALL]
    assert sorted(call.index for call in calls) == list(range(len(calls)))
    assert len({prefix_of_call(call.key) for call in calls}) <= 1
    assert all(call.is_final for call in calls)
    activation = Activation(
        follows.activation.durable,
        step.params,
        step_id=f"{run.id}:{step.key}",
        started=step.created,
        record=stored.record,
        strict=True,
    )
    with activation:
        ended = activation.advance().ended
    assert ended is not None
    if step.state == StepState.COMPLETE:
        assert ended.result == step.returns["result"]
    else:
        assert ended.error is not None
        assert (step.error or {})["type"] == ended.error["type"]


def law(shared: Worked, monkeypatch: pytest.MonkeyPatch, script: Any, seed: int | None) -> Run[Any]:
    fate = Fate(shared, seed)
    insert, report = Calls.insert, shared.engine.report_many
    fate.new_process()
    with monkeypatch.context() as patched:

        def inserted(calls: Calls, *given: Any) -> bool:
            with fate.around():
                return insert(calls, *given)

        def reported(*given: Any, **options: Any) -> Any:
            with fate.around():
                return report(*given, **options)

        patched.setattr(Calls, "insert", inserted)
        patched.setattr(shared.engine, "report_many", reported)
        run = shared.start(follows, script)
        finish(shared, run, fate)
    check_replay(shared, run)
    return run


def outcome(work: Worked, run: Run[Any]) -> tuple[Any, ...]:
    """Return the end of a run, and the calls that its function has made, in any order."""
    info = run.info()
    with work.engine.database.read() as session:
        steps = session.steps.of_run(run.id)
    calls = [one for one in steps if one.object_type == ObjectType.FUNCTION_CALL]
    error = {name: (info.error or {}).get(name) for name in ("type", "message")}
    made = sorted((call.facet_name, call.digest, call.state) for call in calls)
    return info.state, info.outputs, error, made


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(script=scripts, seed=st.integers(0, 2**32))
@example(script=["race", [["alpha", 1], ["beta", 2]]], seed=1)
def test_a_strict_replay_gives_the_recorded_outcome(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, script: Any, seed: int
) -> None:
    law(shared, monkeypatch, script, seed)


@pytest.mark.chaos
@settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=scripts, seed=st.integers(0, 2**32))
def test_many_strict_replays_give_the_recorded_outcomes(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, script: Any, seed: int
) -> None:
    law(shared, monkeypatch, script, seed)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(script=scripts_without_races, seed=st.integers(0, 2**32))
def test_a_function_without_races_ends_as_if_nothing_had_happened(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, script: Any, seed: int
) -> None:
    undisturbed, run = (law(shared, monkeypatch, script, given) for given in (None, seed))
    assert outcome(shared, run) == outcome(shared, undisturbed)


@pytest.mark.chaos
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=scripts_without_races, seed=st.integers(0, 2**32))
def test_many_functions_without_races_end_as_if_nothing_had_happened(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, script: Any, seed: int
) -> None:
    undisturbed, run = (law(shared, monkeypatch, script, given) for given in (None, seed))
    assert outcome(shared, run) == outcome(shared, undisturbed)
