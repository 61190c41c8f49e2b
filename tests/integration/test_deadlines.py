"""Deadlines of steps, of blocks and of runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from flowengine import (
    DeadlineExceeded,
    Retry,
    attempt,
    concat,
    event_facet,
    facet,
    foreach,
    sleep,
    wait_for,
    workflow,
)
from flowengine.afl import compile_text
from flowengine.errors import AuthoringError, InvalidInputs, InvalidProgram, RunFailed
from flowengine.evaluator.triggers import Succeeded
from flowengine.program import parse_program
from flowengine.program.serializer import write_program
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow, replay

CALLS: list[str] = []


@event_facet(retry=Retry(attempts=100, first_wait=10, factor=1))
def refused(x: int) -> int:
    raise ConnectionError("refused")


@event_facet
def note(what: str) -> str:
    CALLS.append(what)
    return what


@facet
def slow(x: int) -> int:
    return wait_for(concat("slow", x), int)


@workflow
def in_time(x: int) -> str:
    return note.within(60)("quick")


@workflow
def tries_for_a_minute(x: int) -> int:
    return refused.within(timedelta(minutes=1))(x)


@workflow
def asks_for_a_minute() -> int:
    return wait_for_an_hour.within(60)()


@facet
def wait_for_an_hour() -> int:
    slept = sleep(3600)
    answer = attempt(lambda: wait_for("answer", int), catch=lambda error: 0)
    return slow.after(slept)(answer)


@workflow
def goes_on() -> str:
    return attempt(
        lambda: note(foreach([1, 2, 3], lambda x: slow(x), deadline=60)[0]),
        catch={DeadlineExceeded: lambda error: note(error.message)},
        always=lambda: note("always"),
    )


@workflow
def cleans_up() -> int:
    return attempt(
        lambda: attempt(lambda: slow(1), always=lambda: note("inner")),
        catch={DeadlineExceeded: lambda error: 7},
        deadline=30,
    )


@workflow
def asking(what: str) -> str:
    return wait_for("answer", str)


@event_facet
def delegated(what: str) -> str:
    return asking.call(what)


@event_facet
def closed(what: str) -> str:
    return asking.call(what)


@facet
def two_parts(what: str) -> str:
    return attempt(lambda: delegated(what), always=lambda: closed(what))


@workflow
def delegates() -> str:
    beside = delegated.named("beside")("beside")
    return concat(two_parts.within(60)("inside"), beside)


@workflow
def delegates_one() -> str:
    return delegated.within(60)("alone")


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    CALLS.clear()
    with Flow(store_url=database_url) as flow:
        yield flow


def let_pass(flow: Flow, seconds: float) -> None:
    flow.clock.advance(seconds=seconds)
    flow.watchdog()
    flow.settle()


def timers(flow: Flow, run_id: str) -> int:
    with flow.database.read() as session:
        return len(session.recovery.timers(run_id))


def test_a_step_that_ends_in_time_leaves_no_timer(flow: Flow) -> None:
    run = flow.start(in_time, 1)
    flow.settle()
    assert run.result(timeout=0) == "quick"
    assert timers(flow, run.id) == 0


def test_a_deadline_ends_the_tries_of_a_step(flow: Flow) -> None:
    run = flow.start(tries_for_a_minute, 1)
    flow.settle()
    for _ in range(6):
        assert run.state == "RUNNING"
        let_pass(flow, 10)
    with pytest.raises(RunFailed, match=r"DeadlineExceeded: it has not ended within 60 s"):
        run.result(timeout=0)
    assert {task.state for task in flow.engine.tasks(run.id)} <= {"failed", "canceled"}


def test_a_late_report_of_a_step_whose_deadline_has_passed_changes_nothing(flow: Flow) -> None:
    run = flow.engine.start(compile_text(AFL), "shop.Order", {"n": 1})
    (task,) = flow.engine.claim(["shop.Pack"], "default", WorkerIdentity(), most=1)
    let_pass(flow, 60)
    assert run.state == "FAILED"
    assert not flow.engine.report(task, Succeeded({"box": "late"}))
    assert run.state == "FAILED"


def test_a_deadline_of_a_facet_cancels_everything_below_it(flow: Flow) -> None:
    run = flow.start(asks_for_a_minute)
    flow.settle()
    let_pass(flow, 59)
    assert run.state == "RUNNING"
    let_pass(flow, 1)
    with pytest.raises(RunFailed, match=r"DeadlineExceeded: it has not ended within 60 s"):
        run.result(timeout=0)
    states = {step.path: step.state for step in run.steps()}
    below = [state for path, state in states.items() if ".wait_for_an_hour." in path]
    assert below
    assert {state.rpartition(".")[2] for state in below} <= {"Cancelled", "Skipped"}
    assert timers(flow, run.id) == 0


def test_an_attempt_catches_the_deadline_of_its_body(flow: Flow) -> None:
    run = flow.start(goes_on)
    flow.settle()
    let_pass(flow, 60)
    assert run.result(timeout=0) == "it has not ended within 60 s"
    assert CALLS == ["it has not ended within 60 s", "always"]


def test_always_blocks_below_a_deadline_run(flow: Flow) -> None:
    run = flow.start(cleans_up)
    flow.settle()
    let_pass(flow, 30)
    assert run.result(timeout=0) == 7
    assert CALLS == ["inner"]


def test_a_run_that_has_not_ended_at_its_deadline_fails(flow: Flow) -> None:
    run = goes_on.options(deadline=timedelta(seconds=20)).start()
    flow.settle()
    let_pass(flow, 19)
    assert run.state == "RUNNING"
    let_pass(flow, 1)
    with pytest.raises(RunFailed, match="DeadlineExceeded: its deadline has passed"):
        run.result(timeout=0)
    assert run.state == "FAILED"
    assert CALLS == ["always"]
    assert timers(flow, run.id) == 0


def test_a_run_that_ends_before_its_deadline_leaves_no_timer(flow: Flow) -> None:
    run = flow.engine.start(in_time.program(), in_time.name, {"x": 1}, deadline=60)
    flow.settle()
    assert run.result(timeout=0) == "quick"
    assert timers(flow, run.id) == 0
    let_pass(flow, 120)
    assert run.state == "COMPLETED"


AFL = """
namespace shop {
  event facet Pack(n: Long) => (box: String)
  workflow Order(n: Long) => (box: String) andThen {
    packed = Pack(n = $.n) with Deadline(minutes = 1)
    yield Order(box = packed.box)
  }
}
"""


# --- of the runs of a workflow ---


@workflow(deadline=timedelta(minutes=1))
def asks_in_time() -> int:
    return wait_for("answer", int)


@event_facet
def delegates_in_time(x: int) -> int:
    return asks_in_time.call()


@workflow
def has_such_a_child(x: int) -> int:
    return delegates_in_time(x)


@workflow
def calls_it(x: int) -> int:
    return asks_in_time()


AFL_RUN = """
namespace shop {
  event facet Pack(n: Long) => (box: String)
  workflow Order(n: Long) => (box: String) with Deadline(minutes = 1) andThen {
    packed = Pack(n = $.n)
    yield Order(box = packed.box)
  }
}
"""


def test_the_runs_of_a_workflow_have_its_deadline(flow: Flow) -> None:
    run, other = flow.start(asks_in_time), asks_in_time.options(deadline=3600).start()
    child, called = flow.start(has_such_a_child, 1), flow.start(calls_it, 1)
    flow.settle()
    let_pass(flow, 61)
    with pytest.raises(RunFailed, match="its deadline has passed"):
        run.result(timeout=0)
    assert other.state == "RUNNING"  # the start has given another
    assert child.state == "FAILED"
    assert called.state == "RUNNING"  # it is a step here, and no run
    fork = run.fork()
    assert (fork.state, timers(flow, fork.id)) == ("RUNNING", 1)
    let_pass(flow, 61)
    assert fork.state == "FAILED"


def test_the_deadline_of_a_workflow_is_part_of_its_program(flow: Flow) -> None:
    stored = parse_program(write_program(asks_in_time.program()))
    run = flow.engine.start(stored, asks_in_time.name, {})
    order = flow.engine.start(compile_text(AFL_RUN), "shop.Order", {"n": 1})
    let_pass(flow, 61)
    assert (run.state, order.state) == ("FAILED", "FAILED")
    with pytest.raises(InvalidProgram, match="'seconds' of Deadline must be a constant"):
        compile_text(AFL_RUN.replace("minutes = 1", "seconds = $.n"))
    with pytest.raises(AuthoringError, match="greater than 0"):
        workflow(deadline=0)(lambda: 1)
    with pytest.raises(AuthoringError, match="there is no option 'deadline'"):
        facet(deadline=1)(lambda: 1)  # type: ignore[call-overload]


# --- mistakes ---


def test_a_program_that_declares_a_facet_of_that_name_keeps_it() -> None:
    declared = "event facet Deadline(day: String) => (n: Long)\n  event facet Pack"
    text = AFL.replace("event facet Pack", declared, 1)
    with pytest.raises(InvalidProgram, match="'minutes'"):
        compile_text(text)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("weeks = 1", "has no parameter 'weeks'"),
        ("minutes = $.n", "must be a constant number"),
        ("seconds = 0", "must be greater than 0"),
        ("days = 99999999", "may be"),
    ],
)
def test_an_unusable_deadline_is_refused_with_its_place(given: str, problem: str) -> None:
    with pytest.raises(InvalidProgram, match="step 'packed'") as refused:
        compile_text(AFL.replace("minutes = 1", given))
    assert problem in str(refused.value)


def test_a_deadline_that_is_no_time_is_refused(flow: Flow) -> None:
    with pytest.raises(AuthoringError, match="number of seconds or a timedelta"):
        note.within("soon")  # type: ignore[arg-type]
    with pytest.raises(AuthoringError, match="greater than 0"):
        note.within(0)
    with pytest.raises(InvalidInputs, match="the deadline must be a number of seconds above 0"):
        flow.engine.start(in_time.program(), in_time.name, {"x": 1}, deadline=-1)


# --- child runs ---


def child_states(flow: Flow, parent: str) -> dict[str, str]:
    """The states of the child runs, by the paths of the steps that started them."""
    with flow.database.read() as session:
        text = (
            "SELECT s.path, r.state FROM flowengine_run r JOIN flowengine_step s "
            "ON s.id = r.parent_step_id WHERE r.parent_run_id = %s"
        )
        return dict(session.rows(text, (parent,)))


def test_the_deadline_of_a_facet_cancels_the_child_runs_below_it(flow: Flow) -> None:
    run = flow.start(delegates)
    flow.settle()
    let_pass(flow, 61)
    inside = "delegates.two_parts"
    states = child_states(flow, run.id)
    assert states.pop("delegates.beside") == "RUNNING"
    assert states.pop(f"{inside}.attempt.delegated") == "CANCELLED"
    assert list(states.values()) == ["RUNNING"]  # an always block runs to its end
    for info in flow.engine.list(state="RUNNING", workflow=asking.name):
        flow.engine.send(info.id, "answer", "yes")
    flow.settle()
    with pytest.raises(RunFailed, match=r"two_parts: DeadlineExceeded"):
        run.result(timeout=0)


def test_the_deadline_of_a_step_cancels_its_child_run(flow: Flow) -> None:
    run = flow.start(delegates_one)
    flow.settle()
    let_pass(flow, 61)
    assert run.state == "FAILED"
    (child,) = flow.engine.list(workflow=asking.name)
    assert child.state == "CANCELLED"
    assert child.error is not None
    assert "delegates_one.delegated" in child.error["message"]
    assert "its deadline has passed" in child.error["message"]


def test_a_run_whose_step_was_too_late_can_be_replayed(flow: Flow) -> None:
    run = flow.start(delegates_one)
    flow.settle()
    let_pass(flow, 61)
    done = replay(flow.engine.export(run.id)).check()
    assert done.state == "FAILED"
