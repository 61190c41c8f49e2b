"""The ready-made facets `run`, `sh` and `uv`, in a worker that offers commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowengine import Retry, workflow
from flowengine.assembly.embedded import Embedded
from flowengine.authoring import event_facet_names
from flowengine.errors import RunFailed
from flowengine.library import offer_commands, run, sh, uv
from flowengine.settings import Settings
from flowengine.testing import Flow
from tests.registries import empty_registry

STREAMS = ("stdout", "stderr")


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flow]:
    monkeypatch.chdir(tmp_path)  # it gets the spool directory
    with empty_registry():
        offer_commands(Settings(commands=True))
        with Flow() as made:
            yield made


def result_of(flow: Flow, definition: Any, *args: Any) -> Any:
    started = definition.start(*args)
    flow.settle()
    return started.result(timeout=5)


def test_a_command_is_a_step_with_output_and_named_results(flow: Flow) -> None:
    @workflow(name="commands.greet")
    def greet(name: str) -> Any:
        return run(["sh", "-c", 'echo "hello $0"; echo ROWS=[1,2] >> $FLOWENGINE_OUTPUT', name])

    found = result_of(flow, greet, "ada")
    ended = {"exit_code": 0, "signal": ""}
    assert found == {**ended, "stdout": "hello ada\n", "output": {"ROWS": [1, 2]}}


def test_a_command_knows_its_run_its_step_and_its_try(flow: Flow) -> None:
    @workflow(name="known")
    def known() -> Any:
        return sh(
            "echo $FLOWENGINE_RUN $FLOWENGINE_STEP $FLOWENGINE_TRY; [ -n "
            '"$FLOWENGINE_IDEMPOTENCY_KEY" ]'
        )

    started = known.start()
    flow.settle()
    run_id, path, number = started.result(timeout=5)["stdout"].split()
    assert (run_id, number) == (started.id, "1")
    assert path.startswith("known.")


def test_a_command_inherits_no_variable_of_the_engine(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", "postgresql://shop:secret@db/shop")
    monkeypatch.setenv("FLOWENGINE_SECRET_KEYS", "s" * 40)
    monkeypatch.setenv("SHOP_CITY", "Berlin")

    @workflow(name="bare")
    def bare() -> Any:
        return sh("env", {"FLOWENGINE_SCHEMA": "asked"})

    found = result_of(flow, bare)["stdout"]
    assert "SHOP_CITY=Berlin\n" in found
    assert "FLOWENGINE_SCHEMA=asked\n" in found
    assert "secret@db" not in found
    assert "FLOWENGINE_SECRET_KEYS" not in found


def test_both_streams_of_a_command_are_in_the_log_of_its_try_line_by_line(flow: Flow) -> None:
    @workflow(name="told")
    def told() -> Any:
        return sh(
            "for n in 1 2 3; do echo out $n; echo err $n >&2; done; "
            "printf '\\377\\303\\251 without a newline'; seq 30000 >&2"
        )

    started = told.start()
    flow.settle()
    assert started.result(timeout=5)["exit_code"] == 0
    lines = list(started.logs())
    texts = {name: [line.text for line in lines if line.stream == name] for name in STREAMS}
    assert texts["stdout"] == ["out 1", "out 2", "out 3", "\ufffdé without a newline"]
    assert texts["stderr"][:3] == ["err 1", "err 2", "err 3"]
    assert texts["stderr"][3:] == [str(number) for number in range(1, 30_001)]
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))


def test_values_of_a_shell_command_are_not_read_as_code(flow: Flow, tmp_path: Path) -> None:
    @workflow(name="commands.shown")
    def shown(value: str) -> Any:
        return sh('printf %s "$value"', {"value": value})

    evil = f'"; touch {tmp_path}/harm; echo "$(touch {tmp_path}/harm)'
    assert result_of(flow, shown, evil)["stdout"] == evil
    assert not (tmp_path / "harm").exists()


def test_a_command_that_fails_quotes_its_standard_error(flow: Flow) -> None:
    @workflow(name="commands.fails")
    def fails() -> Any:
        return sh("echo the disk is full >&2; exit 4")

    with pytest.raises(RunFailed, match="ended with 4; it wrote to its standard error: the disk"):
        result_of(flow, fails)
    (run,) = flow.engine.list()
    (told,) = [
        e["traceback"] for s in flow.engine.steps(run.id) if (e := s.error) and "traceback" in e
    ]
    # No frames: all of them would be those of flowengine.
    assert told.startswith("flowengine.errors.CommandFailed: command 'sh' ended with 4;")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo no equals sign", "line 1 of .FLOWENGINE_OUTPUT is not NAME=JSON"),
        ("echo; echo A B=1", "line 2 of .FLOWENGINE_OUTPUT is not NAME=JSON"),
        ("echo A=x", "line 1 of .FLOWENGINE_OUTPUT: the value of A is no JSON"),
        ("echo A=NaN", "value of A is no JSON"),
        ("echo A=[1e999]", "value of A is no JSON"),
        ("printf 'A=\"\\\\ud800\"'", "value of A is no JSON"),
        ("printf 'A=\"\\377\"'", "value of A is no JSON"),
        ("printf A=; head -c 100000 /dev/zero | tr '\\0' [", "value of A is no JSON"),
        ("printf A=1; head -c 1048574 /dev/zero", "has more than 1,048,576 bytes"),
        ("rm $FLOWENGINE_OUTPUT; mkfifo $FLOWENGINE_OUTPUT", "is not a regular file"),
        ("rm $FLOWENGINE_OUTPUT; mkdir $FLOWENGINE_OUTPUT", "is not a regular file"),
        ("rm $FLOWENGINE_OUTPUT; ln -s /dev/zero $FLOWENGINE_OUTPUT", "is not a regular file"),
        ("rm $FLOWENGINE_OUTPUT; ln -s $FLOWENGINE_OUTPUT $FLOWENGINE_OUTPUT", "cannot be read"),
    ],
)
def test_named_results_that_cannot_be_read_fail_the_step_at_once(
    flow: Flow, script: str, problem: str
) -> None:
    @workflow(name="commands.writes")
    def writes(script: str) -> Any:
        retried = sh.with_options(retry=Retry(attempts=3, first_wait=0.01))
        return retried('{ eval "$script"; } >> $FLOWENGINE_OUTPUT', {"script": script})

    with pytest.raises(RunFailed, match=problem) as error:
        result_of(flow, writes, script)
    assert "tries" not in str(error.value)


def test_the_value_of_a_named_result_may_have_any_character_of_json(flow: Flow) -> None:
    @workflow(name="commands.separators")
    def separators(value: str) -> Any:
        return sh('printf "A=%s\r\nB=1" "$value" >> $FLOWENGINE_OUTPUT', {"value": value})

    text = "a\u2028b\u2029c\x85d\x1ce"
    found = result_of(flow, separators, json.dumps(text, ensure_ascii=False))
    assert found["output"] == {"A": text, "B": 1}


@pytest.mark.parametrize("command", [[], [""], ["", "x"]])
def test_a_command_without_a_program_fails_at_once(flow: Flow, command: list[str]) -> None:
    @workflow(name="commands.empty")
    def empty(command: list[str]) -> Any:
        return run.with_options(retry=Retry(attempts=3, first_wait=0.01))(command)

    with pytest.raises(RunFailed, match=r"GiveUp: .*program") as error:
        result_of(flow, empty, command)
    assert "tries" not in str(error.value)


def test_an_unknown_program_fails_at_once(flow: Flow) -> None:
    @workflow(name="commands.lacking")
    def lacking() -> Any:
        return run(["no-such-program"])

    with pytest.raises(RunFailed, match="cannot be started: No such file or directory"):
        result_of(flow, lacking)


def test_uv_runs_a_script_with_packages(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "uv"  # it notes how it was called: packages would have to be downloaded
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    @workflow(name="commands.cleaned")
    def cleaned() -> Any:
        return uv("clean.py", ["polars"], ["--all"])

    said = result_of(flow, cleaned)["stdout"]
    assert said == "run --no-project --with polars -- clean.py --all\n"


def test_workers_offer_no_commands_unless_a_setting_says_so(tmp_path: Path) -> None:
    with empty_registry():
        for commands in (False, True):
            settings = Settings(
                database_url="sqlite://", commands=commands, spool_directory=str(tmp_path)
            )
            with closing(Embedded(settings)):
                assert ("command.run" in event_facet_names()) is commands
