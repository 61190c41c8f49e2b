"""Steps that wait for a time, or for an answer from outside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from flowengine import event_facet, sleep, sleep_until, wait_for, when, workflow
from flowengine.afl import compile_text
from flowengine.errors import AnswerRefused, InvalidProgram, RunFailed
from flowengine.program import write_program
from flowengine.testing import Flow


class Approval(BaseModel):
    granted: bool
    note: str = ""


@event_facet
def sign(customer: str) -> str:
    return f"signed for {customer}"


@workflow
def naps(seconds: float) -> str:
    slept = sleep(seconds)
    return sign.after(slept)("ada")


@workflow
def alarm(at: datetime) -> datetime:
    return sleep_until(at)


@workflow
def onboarding(customer: str) -> str:
    answer = wait_for("approval", Approval, timeout=timedelta(days=3))
    return when(answer.granted, lambda: sign(customer), otherwise="declined")


@pytest.fixture
def flow(database_url: str):
    with Flow(store_url=database_url) as flow:
        yield flow


def test_a_step_sleeps_without_a_task(flow: Flow) -> None:
    run = flow.start(naps, 3600.0)
    assert flow.settle() == 0
    assert flow.engine.tasks(run.id) == []
    flow.clock.advance(seconds=3599)
    flow.watchdog()
    assert flow.settle() == 0
    flow.clock.advance(seconds=1)
    flow.watchdog()
    assert flow.settle() == 1
    assert run.result(timeout=0) == "signed for ada"


def test_a_sleep_ends_in_a_test_at_once(flow: Flow) -> None:
    assert flow.run(naps, 86_400.0) == "signed for ada"
    at = datetime(2031, 5, 1, 9, tzinfo=UTC)
    assert flow.run(alarm, at) >= at


def test_a_time_that_has_passed_does_not_wait(flow: Flow) -> None:
    run = flow.start(alarm, datetime(2001, 1, 1, tzinfo=UTC))
    assert run.info().is_final


def test_an_answer_ends_the_step_that_waits_for_it(flow: Flow) -> None:
    run = flow.start(onboarding, "ada")
    assert flow.settle() == 0
    run.send("approval", Approval(granted=True), actor="eva")
    flow.settle()
    assert run.result(timeout=0) == "signed for ada"


def test_a_second_answer_is_refused_and_says_who_answered(flow: Flow) -> None:
    run = flow.start(onboarding, "ada")
    run.send("approval", Approval(granted=True), actor="eva")
    with pytest.raises(AnswerRefused, match="'approval' was answered by eva at 20"):
        run.send("approval", Approval(granted=False))
    flow.settle()
    assert run.result(timeout=0) == "signed for ada"
    with pytest.raises(AnswerRefused, match="the run has ended"):
        run.send("approval", Approval(granted=False))


def test_an_answer_of_a_wrong_type_is_refused_and_the_step_waits_on(flow: Flow) -> None:
    run = flow.start(onboarding, "ada")
    with pytest.raises(AnswerRefused, match="granted"):
        run.send("approval", {"note": "yes"})
    run.send("approval", {"granted": False})
    assert run.result(timeout=0) == "declined"


def test_nobody_answers(flow: Flow) -> None:
    with pytest.raises(RunFailed, match="nobody answered 'approval' within 259200 s"):
        flow.run(onboarding, "ada")


@event_facet
def prepare() -> str:
    return "draft"


def test_an_early_answer_is_kept(flow: Flow) -> None:
    run = flow.start(late_wait)
    run.send("approval", Approval(granted=True), actor="eva")
    with pytest.raises(AnswerRefused, match="has an answer of eva"):
        run.send("approval", Approval(granted=False))
    flow.settle()
    assert run.result(timeout=0) is True


@workflow
def late_wait() -> bool:
    draft = prepare()
    return wait_for("approval", Approval, after=draft).granted


@workflow
def cool_down(customer: str) -> str:
    answer = wait_for("approval", Approval)
    rested = sleep(timedelta(hours=1)).after(answer)
    return sign.after(rested)(customer)


def test_a_sleep_begins_after_the_step_that_it_comes_after(flow: Flow) -> None:
    run = flow.start(cool_down, "ada")
    flow.clock.advance(seconds=7200)
    flow.watchdog()
    run.send("approval", Approval(granted=True))
    flow.clock.advance(seconds=3599)
    flow.watchdog()
    assert flow.settle() == 0
    flow.clock.advance(seconds=1)
    flow.watchdog()
    flow.settle()
    assert run.result(timeout=0) == "signed for ada"


def test_a_sleep_that_waits_for_its_own_result_is_refused(flow: Flow) -> None:
    with pytest.raises(InvalidProgram, match="each other"):
        flow.start(circle)


@workflow
def circle() -> str:
    rested = sleep(1)
    signed = sign.after(rested)("ada")
    rested.after(signed)
    return signed


def test_a_body_with_sleeps_is_plain_python_outside_a_run() -> None:
    assert sleep(0).after("anything").tzinfo is UTC
    assert sleep_until(datetime(2001, 1, 1)).year > 2001


AFL = """
namespace shop {
  workflow Onboarding(customer: String) => (granted: Boolean, woke: String) andThen {
    answer = flowengine.wait_for(name = "approval:" ++ $.customer, timeout = 259200)
    rest = flowengine.sleep(seconds = 3600) after answer
    until = flowengine.sleep_until(until = "2031-01-01T00:00:00Z") after rest
    yield Onboarding(granted = answer.result.granted, woke = until.result)
  }
}
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_program_in_afl_text_or_json_waits_too(flow: Flow, form: str) -> None:
    program = compile_text(AFL)
    written = program if form == "text" else write_program(program)
    run = flow.engine.start(written, "shop.Onboarding", {"customer": "ada"})
    run.send("approval:ada", {"granted": True}, actor="eva")
    flow.clock.advance(seconds=3600)
    flow.watchdog()
    assert run.state == "RUNNING"
    flow.clock.now = round(datetime(2031, 1, 1, tzinfo=UTC).timestamp() * 1000)
    flow.watchdog()
    assert run.result(timeout=0) == {"granted": True, "woke": "2031-01-01T00:00:00.000Z"}


def test_a_wait_with_an_unknown_argument_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="has no parameter 'second'"):
        compile_text(AFL.replace("seconds", "second"))


def test_only_qualified_names_call_the_facets_that_wait() -> None:
    with pytest.raises(InvalidProgram, match="unknown facet 'sleep'"):
        compile_text(AFL.replace("flowengine.sleep(", "sleep("))
