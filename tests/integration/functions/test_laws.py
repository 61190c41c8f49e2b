"""Laws of durable functions: random bodies, calls in place or with tasks, deaths anywhere.

Random choices decide for each call whether it is made in place, for each activation whether its
coroutine is kept, run ahead or replayed, and for each commit whether the process dies before or
after it.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator, Sequence
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
        self.deaths, self.share, self.keeps, self.is_dead = 0, 0.0, 1.0, False
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
            self.is_dead = True
        if self.is_dead:  # nothing reaches the database any more
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
        for _ in range(2):  # functions that are claimed together are interleaved
            worker._sizing.count(follows.activation.name, 1e-6)
        self.work.worker = worker

    def works(self, runs: int) -> int:
        """Work on one task; on all that are claimed together, if there are several runs."""
        alone = runs == 1 or self.choices.random() < 0.2
        return (alone and self.work.worker.poll("default", 1)) or self.work.worker.drain("default")

    def recover(self, runs: Sequence[Run[Any]]) -> None:
        """Report the tasks of a dead process as lost, as the watchdog does."""
        self.is_dead = False
        for run in runs:
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


def finish(work: Worked, runs: Sequence[Run[Any]], fate: Fate) -> None:
    for _ in range(500):
        if all(run.info().is_final for run in runs):
            return
        try:
            while fate.works(len(runs)):
                if fate.choices.random() > fate.keeps:
                    work.worker._tries.kept_functions.clear()
            work.clock.now += fate.choices.randint(1, 3_000)
            work.pass_time(0)
        except Death:
            fate.recover(runs)
    raise AssertionError(f"not all end: {[run.info() for run in runs]}")


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


def law(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, scripts: Sequence[Any], seed: int | None
) -> list[Run[Any]]:
    """Run a function for each script, all at once; return their runs."""
    fate = Fate(shared, seed)
    fate.new_process()
    with monkeypatch.context() as patched:

        def commits(place: Any, name: str) -> None:
            real = getattr(place, name)

            def committed(*given: Any, **options: Any) -> Any:
                with fate.around():
                    return real(*given, **options)

            patched.setattr(place, name, committed)

        commits(Calls, "insert")
        for name in ("report_many", "release_held", "park"):
            commits(shared.engine, name)
        runs = [shared.start(follows, script) for script in scripts]
        finish(shared, runs, fate)
    for run in runs:
        check_replay(shared, run)
    return runs


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
    law(shared, monkeypatch, [script], seed)


@pytest.mark.chaos
@settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=scripts, seed=st.integers(0, 2**32))
def test_many_strict_replays_give_the_recorded_outcomes(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, script: Any, seed: int
) -> None:
    law(shared, monkeypatch, [script], seed)


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
    (undisturbed,), (run,) = (law(shared, monkeypatch, [script], given) for given in (None, seed))
    assert outcome(shared, run) == outcome(shared, undisturbed)


@pytest.mark.chaos
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=scripts_without_races, seed=st.integers(0, 2**32))
def test_many_functions_without_races_end_as_if_nothing_had_happened(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, script: Any, seed: int
) -> None:
    (undisturbed,), (run,) = (law(shared, monkeypatch, [script], given) for given in (None, seed))
    assert outcome(shared, run) == outcome(shared, undisturbed)


def check_together(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, together: Sequence[Any], seed: int
) -> None:
    undisturbed = [law(shared, monkeypatch, [script], None)[0] for script in together]
    runs = law(shared, monkeypatch, together, seed)
    assert [outcome(shared, run) for run in runs] == [outcome(shared, run) for run in undisturbed]


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(together=st.lists(scripts_without_races, min_size=2, max_size=4), seed=st.integers(0, 2**32))
def test_functions_that_are_interleaved_end_as_each_would_alone(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, together: Sequence[Any], seed: int
) -> None:
    check_together(shared, monkeypatch, together, seed)


@pytest.mark.chaos
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(together=st.lists(scripts_without_races, min_size=2, max_size=6), seed=st.integers(0, 2**32))
def test_many_functions_that_are_interleaved_end_as_each_would_alone(
    shared: Worked, monkeypatch: pytest.MonkeyPatch, together: Sequence[Any], seed: int
) -> None:
    check_together(shared, monkeypatch, together, seed)
