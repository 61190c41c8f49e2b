"""`flowengine agents turns turn`, as a person types them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pydantic import SecretStr

from flowengine import agent, event_facet
from flowengine.cli import main
from flowengine.cli.agent_commands import _HEAD_STATES, _TURN_STATES
from flowengine.models import Answer, Chunk, ModelRequest, StopReason
from flowengine.models.messages import Text, Usage
from flowengine.settings import Settings
from flowengine.store.agent_lists import TURN_STATES
from flowengine.store.database import system_clock
from flowengine.testing import Flow
from flowengine.turns.states import HeadState
from tests.integration.agents_seen.clerks import call_once, clerk, greeter
from tests.integration.test_operations_commands import runner

Command = Callable[..., Result]


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    with Flow(store_url=f"sqlite:///{tmp_path}/flow.db") as flow:
        yield flow


@pytest.fixture
def command(tmp_path: Path) -> Command:
    environment = {"FLOWENGINE_DATABASE_URL": f"sqlite:///{tmp_path}/flow.db", "COLUMNS": "200"}

    def invoke(*arguments: str, code: int = 0) -> Result:
        done = runner().invoke(main, list(arguments), env=environment)
        assert done.exit_code == code, done.output + done.stderr
        return done

    return invoke


def settle(flow: Flow) -> None:
    """Run what a command has made due: its process has the clock of the system."""
    flow.clock.now = max(flow.clock.now, system_clock()) + 1
    flow.settle()


def suspended(flow: Flow, name: str = "ada", project: str = "") -> Any:
    """A turn that waits for a person."""
    turn = clerk.at(name, project=project).send("The kettle leaks")
    flow.settle()
    return turn


def test_choices_are_the_states_of_agents_and_turns() -> None:
    assert set(_HEAD_STATES) == set(HeadState.ALL)
    assert set(_TURN_STATES) == set(TURN_STATES)


def test_agents_shows_the_turn_and_the_person_that_it_waits_for(
    flow: Flow, command: Command
) -> None:
    turn = suspended(flow)
    greeter.at("bob", project="acme").send("you")
    flow.settle()
    shown = command("agents").output
    assert [line.split()[:2] for line in shown.splitlines()] == [
        *(["project", "agent"], ["ada", "suspended"], ["acme", "bob"])
    ]
    assert turn.id[:8] in shown
    assert "a person: refund, call" in shown
    (only,) = json.loads(command("agents", "--json", "--state", "suspended").output)
    assert (only["agent"], only["turn"]) == ("ada", turn.id)
    assert "ada" not in command("agents", "--project", "acme").output


def test_turns_are_listed_newest_first_and_continued(flow: Flow, command: Command) -> None:
    turns = []
    for n in range(5):
        turns.append(greeter.at("bob").send(str(n)).id)
        flow.clock.advance(seconds=1)
    suspended(flow)
    found: list[str] = []
    more: list[str] = []
    while True:
        done = command("turns", "--agent", "bob", "--json", "--limit", "2", *more)
        found += [turn["id"] for turn in json.loads(done.stdout)]
        if not done.stderr:
            break
        more = done.stderr.split()[:2]
    assert found == turns[::-1]


@pytest.mark.parametrize(
    ("state", "agents"),
    [("active", ["ada"]), ("queued", ["ada"]), ("success", ["bob"]), ("finished", ["bob"])],
)
def test_turns_are_filtered_by_state(
    flow: Flow, command: Command, state: str, agents: list[str]
) -> None:
    greeter.at("bob").send("you")
    suspended(flow)
    clerk.at("ada").send("Another one")
    found = json.loads(command("turns", "--state", state, "--json").output)
    assert [turn["agent"] for turn in found] == agents


def test_turn_show_draws_steps_calls_and_the_deliverable(flow: Flow, command: Command) -> None:
    turn = suspended(flow)
    shown = command("turn", "show", turn.id[:8]).output
    assert "task Settle this: The kettle leaks" in shown
    assert 'search({"query": "kettle"})  success · run ' in shown
    assert 'refund({"cents": 4200})  waits for a person: call ' in shown
    assert "waits for a person: refund, call " in shown
    said = command("turn", "approve", turn.id[:8], "refund", "--actor", "eva").output
    assert said.endswith("begins\n")
    settle(flow)
    shown = command("turn", "show", turn.id).output
    assert "approved by eva" in shown
    assert '"refunded 4200"' in shown
    assert 'deliverable {"fields": [{"name": "approve", "value": true}' in shown
    whole = json.loads(command("turn", "show", turn.id, "--json").output)
    assert (whole["status"], whole["tokens"], len(whole["steps_made"])) == ("success", 30, 2)
    assert [call["tool"] for call in whole["calls"] if call["run_id"]] == ["search", "refund"]


def test_turn_show_has_the_answer_that_the_model_is_giving(
    flow: Flow, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowengine.agents.drafts._INTERVAL", 0.0)
    shown: list[str] = []

    class Talker:
        provider = model = "talker"

        def stream(self, request: ModelRequest) -> Iterator[Chunk | Answer]:
            yield Chunk("text", "Good mor")
            shown.append(command("turn", "show", "slow").output)
            yield Answer((Text("Good morning"),), StopReason.END, Usage(1, 1), "talker")

    @agent(model=Talker(), name="tests.slow_talker")
    def talker(text: str) -> str:
        """You talk slowly."""
        return text

    turn = talker.at("slow").send("hello")
    assert flow.run_turn(turn) == "Good morning"
    assert "so far, piece 1: Good mor" in shown[0]
    assert "so far" not in command("turn", "show", "slow").output


def test_a_turn_is_found_by_its_agent(flow: Flow, command: Command) -> None:
    waiting, queued = suspended(flow), clerk.at("ada").send("Another one")
    assert json.loads(command("turn", "show", "ada", "--json").output)["id"] == waiting.id
    waiting.stop()
    queued.stop()
    assert json.loads(command("turn", "show", "ada", "--json").output)["id"] == queued.id
    suspended(flow, project="acme")
    assert "several turn ids" in command("turn", "show", "ada", code=1).stderr
    assert command("turn", "show", "ada", "--project", "acme").output


def test_turn_approve_takes_other_arguments(flow: Flow, command: Command) -> None:
    turn = suspended(flow)
    command("turn", "approve", turn.id, "refund", "--arguments", '{"cents": 100}')
    settle(flow)
    assert turn.result(timeout=0).reason == "refunded 100"


def test_turn_reject_tells_the_model_the_reason(flow: Flow, command: Command) -> None:
    turn = suspended(flow)
    said = command("turn", "reject", turn.id, "refund", "--reason", "too much", "--actor", "eva")
    assert said.output.endswith("is rejected\n")
    settle(flow)
    assert "eva has rejected the call: too much" in turn.result(timeout=0).reason


def test_turn_stop_ends_a_turn_and_keeps_the_reason(flow: Flow, command: Command) -> None:
    turn = suspended(flow)
    said = command("turn", "stop", turn.id, "--reason", "the customer left").output
    assert said == f"turn {turn.id[:8]} is canceled\n"
    assert "stopped: the customer left" in command("turns").output


def test_turn_cancel_keeps_a_queued_turn_from_running(flow: Flow, command: Command) -> None:
    first, second = suspended(flow), clerk.at("ada").send("Another one")
    assert command("turn", "cancel", second.id).output == f"turn {second.id[:8]} is canceled\n"
    refused = command("turn", "cancel", first.id, code=1).stderr
    assert "has begun: `flowengine turn stop`" in refused
    assert first.info().finished is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "ffff"), "there is no turn 'ffff'"),
        (("stop", "ffff"), "there is no turn 'ffff'"),
        (("approve", "{turn}", "nothing"), "has no call 'nothing'; people decide about: refund"),
        (("approve", "{turn}", "search"), "has no call 'search'"),
    ],
)
def test_unknown_turns_and_calls_are_named(
    flow: Flow, command: Command, arguments: tuple[str, ...], message: str
) -> None:
    turn = suspended(flow)
    given = [text.format(turn=turn.id) for text in arguments]
    assert message in command("turn", *given, code=1).stderr


def test_arguments_that_are_no_json_object_are_refused(flow: Flow, command: Command) -> None:
    turn = suspended(flow)
    for text in ("{", "[1]"):
        command("turn", "approve", turn.id, "refund", "--arguments", text, code=2)


def test_runs_of_turns_are_listed_only_on_request(flow: Flow, command: Command) -> None:
    suspended(flow)
    assert command("list").output == "no runs\n"
    runs = json.loads(command("list", "--agents", "--json").output)
    assert {run["workflow"] for run in runs} == {
        *("clerks.clerk__model__call", "clerks.search__call")
    }
    named = json.loads(command("list", "--workflow", "clerks.search__call", "--json").output)
    assert len(named) == 1, "a filter that names them asks for them"
    assert json.loads(command("list", "--id", named[0]["id"], "--json").output) == named


@event_facet(name="clerks.login")
def login() -> SecretStr:
    """Log in."""
    return SecretStr("s3cr3t-word")


@agent(model=call_once("login"), tools=[login], name="clerks.user")
def user() -> str:
    """You log in."""
    return "Log in."


def test_secrets_of_a_turn_are_not_shown(tmp_path: Path, command: Command) -> None:
    keys = Settings(secret_keys=base64.b64encode(bytes(32)).decode())
    with Flow(store_url=f"sqlite:///{tmp_path}/flow.db", settings=keys) as flow:
        turn = user.send()
        flow.settle()
        assert turn.info().steps
        for shown in (("turn", "show", turn.id), ("turn", "show", turn.id, "--json"), ("turns",)):
            assert "s3cr3t-word" not in command(*shown).output


def test_control_characters_of_a_model_do_not_reach_the_terminal(
    flow: Flow, command: Command
) -> None:
    turn = greeter.at("\x1b[31mred").send("\x1b[2J")
    flow.settle()
    for shown in (("agents",), ("turns",), ("turn", "show", turn.id)):
        assert "\x1b" not in command(*shown).output
