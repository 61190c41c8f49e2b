"""`flowengine check --replay` holds code that is about to be deployed against stored functions."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowengine import event_facet, sleep, uuid, workflow
from flowengine.authoring import registry
from flowengine.cli import main
from flowengine.engine.function_replays import FunctionReplays, ReplayedFunction
from flowengine.testing import Flow

asked: list[str] = []


@event_facet(name="replay_check.ask")
def ask(question: str) -> str:
    asked.append(question)
    return f"{question}!"


@event_facet(name="replay_check.tell")
def tell(text: str) -> str:
    return text


async def before(question: str) -> str:
    answer = await ask(f"{question} {uuid()}")
    await sleep(60)
    return await ask(answer)


async def with_a_line_more(question: str) -> str:
    answer = await ask(f"{question} {uuid()}")
    await sleep(60)
    return (await ask(answer)).upper()


async def with_other_arguments(question: str) -> str:
    answer = await ask(f"{question}, please")
    await sleep(60)
    return await ask(answer)


async def with_another_call(question: str) -> str:
    answer = await tell(f"{question} {uuid()}")
    await sleep(60)
    return await ask(answer)


async def with_a_call_more(question: str) -> str:
    answer = await ask(f"{question} {uuid()}")
    await sleep(60)
    return await tell(await ask(answer))


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    asked.clear()
    with Flow(store_url=f"sqlite:///{tmp_path}/flow.db") as flow:
        yield flow


def replayed(flow: Flow, body: Any, *, recent: int = 100) -> list[ReplayedFunction]:
    flow_of_today = workflow(name=f"replay_check.{body.__name__}")(body)
    replays = FunctionReplays(flow.database)
    return list(replays.replay(lambda _: flow_of_today.activation.durable, recent=recent))


@pytest.fixture
def stored(flow: Flow) -> Flow:
    """A run that sleeps, and one that has ended."""
    talk = workflow(name="replay_check.talk")(before)
    flow.run(talk, "why")
    flow.start(talk, "how")
    flow.settle()
    return flow


def test_code_that_fits_is_replayed_without_effects(stored: Flow) -> None:
    made = list(asked)
    found = replayed(stored, before)
    assert [(one.is_open, one.calls) for one in found] == [(True, 2), (False, 3)]
    assert not any(one.problem or one.warning for one in found)
    assert asked == made
    assert len(replayed(stored, before, recent=0)) == 1


def test_another_call_diverges_in_open_and_in_ended_runs(stored: Flow) -> None:
    found = replayed(stored, with_another_call)
    assert len(found) == 2
    for one in found:
        assert "at call 0: the record has replay_check.ask, the code calls replay_check.tell" in (
            one.problem
        )


def test_other_arguments_are_a_warning(stored: Flow) -> None:
    for one in replayed(stored, with_other_arguments):
        assert not one.problem
        assert "call 0 of replay_check.ask" in one.warning
        assert "has other arguments than its record" in one.warning


def test_an_ended_function_that_would_go_on_or_end_otherwise_is_a_problem(stored: Flow) -> None:
    open_one, ended = replayed(stored, with_a_call_more)
    assert open_one.problem == ""
    assert ended.problem == "has ended after 3 calls, and the code calls replay_check.tell then"
    open_one, ended = replayed(stored, with_a_line_more)
    assert (open_one.problem, ended.problem) == ("", "has another result with this code")


def test_open_functions_without_code_are_a_problem_and_ended_ones_are_not(stored: Flow) -> None:
    (found,) = FunctionReplays(stored.database).replay(lambda _: None, recent=10)
    assert found.is_open
    assert f"{found.facet} has no code here, and this run is open: keep that" in found.problem


MODULE = """
from flowengine import event_facet, sleep, workflow

@event_facet(name="replay_shop.ask")
def ask(question: str) -> str:
    return question

@workflow(name="replay_shop.talk")
async def talk(question: str) -> str:
    await ask.acall(question)
    await sleep(60)
    return await ask.acall("again")
"""


def check(folder: Path, *options: str) -> Result:
    """Run the command on a module of the folder as it is now."""
    sys.modules.pop("replay_shop", None)
    for names in (registry._event_facets, registry._workflows):
        for name in [name for name in names if name.startswith("replay_shop")]:
            del names[name]
    registry.note_change()
    url = f"sqlite:///{folder}/flow.db"
    arguments = ["check", str(folder / "replay_shop.py"), *options]
    environment = {**os.environ, "FLOWENGINE_DATABASE_URL": url}
    return CliRunner().invoke(main, arguments, env=environment)


def test_the_command_says_which_runs_do_not_fit(flow: Flow, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "replay_shop"}
    exec(MODULE, names)
    run = flow.start(names["talk"], "why")
    flow.settle()
    file = tmp_path / "replay_shop.py"
    file.write_text(MODULE)
    done = check(tmp_path, "--replay")
    assert done.exit_code == 0, done.output
    assert "✓ replay_shop.talk@1: 1 open, 0 ended replayed, all fit" in done.output
    file.write_text(MODULE.replace("await ask.acall(question)\n    ", ""))
    assert check(tmp_path).exit_code == 0
    done = check(tmp_path, "--replay")
    assert done.exit_code == 1
    assert f"✗ run {run.id[:8]} talk.talk: replay_shop.talk@1 diverges from its record" in (
        done.output
    )
    assert "replay_shop.talk@1: 1 open, 0 ended replayed, 1 does not fit" in done.output
    done = check(tmp_path, "--replay", "--json")
    (found,) = json.loads(done.output)["replayed"]
    assert found["run_id"] == run.id
    assert "the record has replay_shop.ask" in found["problem"]


def test_the_history_names_activations(flow: Flow, tmp_path: Path) -> None:
    run = flow.start(workflow(name="replay_check.told")(before), "why")
    flow.settle()
    url = f"sqlite:///{tmp_path}/flow.db"
    environment = {**os.environ, "FLOWENGINE_DATABASE_URL": url}
    done = CliRunner().invoke(main, ["history", run.id], env=environment)
    assert "told.told: activation 1\n" in done.output
    assert "◔ told.told  waits for its calls\n" in done.output
