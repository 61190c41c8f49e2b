"""Answers that come before a step waits for them, and answers that no step will wait for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from flowengine import concat, event_facet, wait_for, workflow
from flowengine.cli import main
from flowengine.errors import AnswerRefused
from flowengine.testing import Flow, replay


class Approval(BaseModel):
    granted: bool


@event_facet(name="early.prepare")
def prepare() -> str:
    return "draft"


@workflow(name="early.one")
def one() -> bool:
    return wait_for("approval", Approval, after=prepare()).granted


@workflow(name="early.two_types")
def two_types() -> str:
    size = wait_for("size", int, after=prepare())
    return wait_for("size", str, after=size)


@workflow(name="early.computed")
def computed(customer: str) -> bool:
    return wait_for(concat("approval:", customer), Approval, after=prepare()).granted


@workflow(name="early.silent")
def silent() -> str:
    return prepare()


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def test_an_early_answer_that_fits_no_step_is_refused_and_the_right_one_taken(flow: Flow) -> None:
    run = flow.start(one)
    with pytest.raises(AnswerRefused, match="granted"):
        run.send("approval", {"granted": "maybe"})
    run.send("approval", {"granted": True})
    flow.settle()
    assert run.result(timeout=0) is True


def test_a_kept_answer_that_does_not_fit_its_step_is_reported_and_can_be_replaced(
    flow: Flow,
) -> None:
    run = flow.start(two_types)
    run.send("size", "large", actor="eva")
    flow.settle()
    acts = [act for entry in run.history() for act in entry.interventions]
    assert [(act.kind, act.subject, act.actor) for act in acts] == [("answer", "size", "eva")] * 2
    assert acts[0].refused is None
    assert acts[1].reason == "kept until two_types.wait_for began"
    assert "integer" in (acts[1].refused or "")
    run.send("size", 5)
    run.send("size", "large")
    assert run.result(timeout=0) == "large"
    replay(flow.engine.export(run.id)).check()


def test_an_answer_with_a_name_that_the_program_does_not_have_is_refused(flow: Flow) -> None:
    run = flow.start(one)
    with pytest.raises(AnswerRefused) as caught:
        run.send("aproval", {"granted": True})
    assert caught.value.reason == (
        "no step of its program waits for 'aproval': it waits for 'approval'; "
        "did you mean 'approval'?"
    )
    with pytest.raises(AnswerRefused, match="or for any other answer"):
        flow.start(silent).send("approval", {"granted": True})


def test_a_computed_name_may_be_any_and_its_type_is_checked(flow: Flow) -> None:
    run = flow.start(computed, "ada")
    with pytest.raises(AnswerRefused, match="granted"):
        run.send("approval:ada", {"granted": "maybe"})
    assert flow.engine.send(run.id, "approval:ada", {"granted": True}) is False
    flow.settle()
    assert run.result(timeout=0) is True


def test_send_says_whether_a_step_has_taken_the_answer(flow: Flow) -> None:
    run = flow.start(two_types)
    flow.settle()
    assert flow.engine.send(run.id, "size", 5) is True


def test_the_command_says_that_an_answer_is_kept_and_refuses_a_wrong_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flow.db"
    environment = {"FLOWENGINE_DATABASE_URL": url, "COLUMNS": "300"}
    with Flow(store_url=url) as flow:
        run = flow.start(one)
        wrong = CliRunner().invoke(main, ["send", run.id, "aproval", "{}"], env=environment)
        assert wrong.exit_code != 0
        assert "did you mean 'approval'?" in wrong.output
        answer = ["send", run.id, "approval", '{"granted": true}']
        kept = CliRunner().invoke(main, answer, env=environment)
        assert kept.exit_code == 0
        assert "approval is kept until a step waits for it" in kept.output
        flow.settle()
        assert run.result(timeout=0) is True
