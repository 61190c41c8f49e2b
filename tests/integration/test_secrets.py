"""Secrets are stored encrypted, reach the facets, and are shown nowhere."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from celery import Celery
from click.testing import CliRunner
from pydantic import BaseModel, Field, SecretBytes, SecretStr, field_serializer
from pydantic import Secret as AnySecret

from flowengine import (
    AuthoringError,
    InvalidInputs,
    RunFailed,
    Secret,
    event_facet,
    secret_keys,
    workflow,
)
from flowengine.assembly import EngineLauncher, FlowEngine
from flowengine.authoring import set_launcher_source
from flowengine.authoring.annotations import Annotation, json_value
from flowengine.cli import main
from flowengine.errors import InvalidSetting, NotJson, SecretRefused, SecretUnreadable, ValueRefused
from flowengine.evaluator import StepState, TaskDefinition
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Succeeded
from flowengine.program.validator import schema_misfit
from flowengine.secret_keys import (
    HIDDEN,
    VARIABLE,
    count_stored,
    set_secret_key_source,
    without_secrets,
)
from flowengine.settings import Settings
from flowengine.tasks.flower_events import StepEvents
from flowengine.testing import Flow
from flowengine.web.pages import shown_values
from tests.builders import block, given, log, namespace, program
from tests.builders import workflow as declared_workflow
from tests.integration.engines import dump

cryptography = pytest.importorskip("cryptography", reason="the extra `secrets` is not installed")

PLAIN = "hunter2-tr0ub4dor"
OLD, NEW = "old-" * 8, "new-" * 8


class Account(BaseModel):
    user: str
    password: SecretStr
    pins: list[AnySecret[int]] = []


class Revealing(BaseModel):
    password: SecretStr

    @field_serializer("password", when_used="json")
    def reveal(self, password: SecretStr) -> str:
        return password.get_secret_value()


@dataclasses.dataclass
class Login:
    account: Account
    raw: SecretBytes | None = None


class Tree(BaseModel):
    secret: SecretStr
    below: list[Tree] = []


class Loose(BaseModel):
    password: SecretStr
    other: Any = None


ACCOUNT = Account(user="ada", password=SecretStr(PLAIN), pins=[AnySecret[int](42)])
VALUES: list[tuple[Any, Any, int]] = [
    (Secret, Secret(PLAIN), 1),
    (SecretStr, SecretStr(PLAIN), 1),
    (SecretStr, SecretStr(""), 1),
    (SecretBytes, SecretBytes(b"\xff" + PLAIN.encode()), 1),
    (AnySecret[int], AnySecret[int](42), 1),
    (SecretStr | None, SecretStr(PLAIN), 1),
    (SecretStr | None, None, 0),
    (list[Secret], [Secret(PLAIN), Secret("b")], 2),
    (dict[str, SecretStr], {"a": SecretStr(PLAIN)}, 1),
    (Account, ACCOUNT, 2),
    (Login, Login(ACCOUNT, SecretBytes(PLAIN.encode())), 3),
    (Revealing, Revealing(password=SecretStr(PLAIN)), 1),
    (Tree, Tree(secret=SecretStr(PLAIN), below=[Tree(secret=SecretStr("b"))]), 2),
    (AnySecret[Account], AnySecret[Account](ACCOUNT), 1),
    (AnySecret[bytes], AnySecret[bytes](b"\xff"), 1),
    (Annotated[SecretStr, Field(min_length=8)], SecretStr(PLAIN), 1),
    (SecretStr | int, SecretStr(PLAIN), 1),
    (SecretStr | int, 5, 0),
    (tuple[str, SecretStr], (PLAIN[:1], SecretStr(PLAIN)), 1),
]


@pytest.fixture
def keys() -> Iterator[None]:
    outer = set_secret_key_source(lambda: OLD)
    yield
    set_secret_key_source(outer)


@pytest.mark.parametrize(("hint", "value", "count"), VALUES, ids=map(str, range(len(VALUES))))
@pytest.mark.parametrize("mode", ["validation", "serialization"])
@pytest.mark.usefixtures("keys")
def test_a_secret_comes_back_and_is_stored_encrypted(
    hint: Any, value: Any, count: int, mode: Any
) -> None:
    annotation = Annotation.of(hint, mode)
    stored = json.loads(json.dumps(annotation.write(value, "a value", "value")))
    assert PLAIN not in json.dumps(stored)
    assert count_stored(stored) == count
    assert annotation.schema is not None
    assert schema_misfit(annotation.schema, stored) == ""
    assert annotation.read(stored) == value
    assert json.dumps(without_secrets(stored)).count(HIDDEN) == count


def test_a_secret_without_a_key_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for hint, value, count in VALUES:
        if count:
            with pytest.raises(SecretRefused, match=f"set {VARIABLE} .openssl rand") as refused:
                Annotation.of(hint, "serialization").write(value, "a value", "value")
            assert PLAIN not in str(refused.value)
    assert Annotation.of(SecretStr | None, "serialization").write(None, "a value", "value") is None


@pytest.mark.usefixtures("keys")
def test_a_secret_that_no_annotation_names_is_refused() -> None:
    with pytest.raises(NotJson, match="annotate it with this type"):
        json_value({"a": Secret(PLAIN)}, "a value")
    loose = Loose(password=SecretStr(PLAIN), other=SecretStr(PLAIN))
    with pytest.raises(NotJson, match="Secret without an annotation"):
        Annotation.of(Loose, "serialization").write(loose, "a value", "value")
    with pytest.raises(NotJson, match="Secret"):
        Annotation.of(dict[str, Any], "serialization").write({"a": Secret(PLAIN)}, "a value", "v")
    stored = json_value({"of": ACCOUNT}, "a value")
    assert count_stored(stored) == 2, "a model has the annotations of its fields"


def test_keys_are_replaced_without_losing_secrets() -> None:
    annotation = Annotation.of(Secret, "validation")
    outer = set_secret_key_source(lambda: OLD)
    try:
        stored = annotation.write(PLAIN, "a value", "value")
        set_secret_key_source(lambda: f"{NEW},{OLD}")
        assert annotation.read(stored) == Secret(PLAIN)
        newer = annotation.write(PLAIN, "a value", "value")
        set_secret_key_source(lambda: NEW)
        assert annotation.read(newer) == Secret(PLAIN)
        with pytest.raises(SecretUnreadable, match="keep a replaced key"):
            annotation.read(stored)
        set_secret_key_source(lambda: "")
        with pytest.raises(SecretUnreadable, match=f"set {VARIABLE}"):
            annotation.read(stored)
    finally:
        set_secret_key_source(outer)


def test_short_keys_are_refused_and_keys_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = set_secret_key_source(None)
    try:
        monkeypatch.setenv(VARIABLE, OLD)
        assert Secret(PLAIN).encrypted()
        monkeypatch.setenv(VARIABLE, "short")
        with pytest.raises(InvalidSetting):
            Secret(PLAIN).encrypted()
    finally:
        set_secret_key_source(outer)
    with pytest.raises(InvalidSetting, match=f"{VARIABLE}.*at least 32 characters") as refused:
        Settings.from_environment({VARIABLE: f"{OLD},short"})
    assert "short" not in str(refused.value)
    assert OLD not in repr(Settings.from_environment({VARIABLE: OLD}))


# --- in a run ---


@event_facet(name="secrets.login")
def login(account: Account, token: Secret) -> Secret:
    assert token.get_secret_value() == PLAIN
    return Secret(f"{account.password.get_secret_value()}!")


@event_facet(name="secrets.fail")
def fail(token: Secret) -> int:
    raise ValueError(f"cannot log in with {token}")


@event_facet(name="secrets.check")
def check(session: Secret) -> bool:
    return session.get_secret_value() == f"{PLAIN}!"


@workflow(name="secrets.visit")
def visit(account: Account, token: Secret) -> Secret:
    session = login(account, token)
    check(session)
    return session


@workflow(name="secrets.failing")
def failing(token: Secret) -> int:
    return fail(token)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url, settings=Settings(secret_keys=OLD)) as flow:
        yield flow


def test_secrets_travel_through_a_run_and_are_stored_nowhere(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        run = flow.start(visit, ACCOUNT, Secret(PLAIN))
        flow.settle()
        assert run.result(timeout=0) == Secret(f"{PLAIN}!")
        failed = flow.start(failing, Secret(PLAIN))
        flow.settle()
        with pytest.raises(RunFailed, match="cannot log in with \\*\\*\\*") as refused:
            failed.result(timeout=0)
    steps = {step.path: step for step in run.steps()}
    assert without_secrets(steps["visit.login"].params) == {
        "account": {"user": "ada", "password": HIDDEN, "pins": [HIDDEN]},
        "token": HIDDEN,
    }
    shown = [caplog.text, str(refused.value), repr(run.info()), repr(run.steps()), repr(ACCOUNT)]
    assert PLAIN not in "".join((str(dump(flow.engine)), *shown))


def test_an_answer_and_a_message_give_secrets_encrypted(flow: Flow) -> None:
    run = flow.start(visit, ACCOUNT, Secret(PLAIN))
    (waiting,) = [step for step in run.steps() if step.state == StepState.EVENT_TRANSMIT]
    for answer in (PLAIN, {"result": PLAIN}, {"result": {"$secret": 1}}):
        with pytest.raises(ValueRefused, match="the value is not shown") as refused:
            flow.engine.continue_step(waiting.id, answer)
        assert PLAIN not in str(refused.value)
    flow.engine.continue_step(waiting.id, {"result": Secret(f"{PLAIN}!").encrypted()})
    flow.settle()
    assert run.result(timeout=0) == Secret(f"{PLAIN}!")

    launcher = EngineLauncher(flow.engine)
    account: Any = {"user": "ada", "password": PLAIN, "pins": [42]}
    launcher.start_named(visit.name, {"account": account, "token": PLAIN}, "plain")
    sealed = {**account, "password": Secret(PLAIN).encrypted()}
    token = Secret(PLAIN).encrypted()
    launcher.start_named(visit.name, {"account": sealed, "token": token}, "sealed")
    flow.settle()
    assert {run.state for run in flow.engine.list()} == {RunState.COMPLETED}
    with pytest.raises(InvalidInputs) as invalid:
        launcher.start_named(visit.name, {"account": {"password": PLAIN}, "token": PLAIN}, "bad")
    assert PLAIN not in str(invalid.value)
    assert PLAIN not in str(dump(flow.engine))


def test_a_poller_that_reports_a_plain_secret_is_refused(flow: Flow) -> None:
    run = flow.start(visit, ACCOUNT, Secret(PLAIN))
    flow.engine.report(flow.worker("w").claim(run, "login"), Succeeded({"result": PLAIN}))
    with pytest.raises(RunFailed, match="the value is not shown"):
        run.result(timeout=0)
    assert PLAIN not in str(dump(flow.engine))


def test_an_invalid_argument_is_not_shown(flow: Flow) -> None:
    with pytest.raises(InvalidInputs, match="which is not shown") as refused:
        visit.start({"user": "ada", "password": PLAIN, "pins": PLAIN}, Secret(PLAIN))  # type: ignore[arg-type]
    assert PLAIN not in str(refused.value)


def test_a_program_has_no_secrets() -> None:
    @event_facet(name="secrets.fixed")
    def fixed(token: SecretStr = SecretStr(PLAIN)) -> int:  # noqa: B008
        return 1

    with pytest.raises(AuthoringError, match="pass it as an input") as refused:
        fixed.definition.signature  # noqa: B018
    assert PLAIN not in str(refused.value)

    @workflow(name="secrets.coded")
    def coded() -> int:
        return fail(Secret(PLAIN))

    with pytest.raises(AuthoringError, match="pass it as an input") as refused:
        coded.program()
    assert PLAIN not in str(refused.value)


# --- where values are shown ---


def test_commands_and_pages_show_asterisks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flow.db"
    with Flow(store_url=url, settings=Settings(secret_keys=OLD)) as flow:
        run = flow.start(visit, ACCOUNT, Secret(PLAIN))
        flow.settle()
        with flow.database.read() as session:
            info, inputs = shown_values(session, run.id, None)
        assert info.outputs == {"result": HIDDEN}
        assert inputs["token"] == HIDDEN
    for command in (["show", run.id], ["show", run.id, "--json"], ["list", "--json"]):
        environment = {"FLOWENGINE_DATABASE_URL": url, "COLUMNS": "400"}
        shown = CliRunner().invoke(main, command, env=environment).output
        assert HIDDEN in shown
        assert "$secret" not in shown


def test_flower_and_the_log_show_asterisks(
    flow: Flow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(StepEvents, "_send", lambda self, *_, **fields: sent.append(fields))
    stored = Secret(PLAIN).encrypted()
    task = TaskDefinition("t", "f", "", "run", "", "s")
    events = StepEvents(Celery("events", set_as_current=False), "w@host", 5)
    events.show(task, Succeeded({"result": [stored]}), 0.1)
    assert sent[-1]["result"] == f"['{HIDDEN}']"
    logged = declared_workflow("Flow", "x", "", block(log(given=given("x"))))
    with caplog.at_level(logging.INFO, logger="flowengine"):
        flow.engine.start(program(namespace("t", logged)), "Flow", {"x": stored})
    assert HIDDEN in caplog.text
    assert "$secret" not in caplog.text


# --- keys ---


def test_the_keys_of_a_celery_app_are_used_and_not_shown(tmp_path: Path) -> None:
    app = Celery("secrets", broker="memory://", set_as_current=False)
    app.conf.flowengine_database_url = f"sqlite:///{tmp_path}/flow.db"
    app.conf.flowengine_secret_keys = NEW
    launcher, source = set_launcher_source(None), set_secret_key_source(None)
    try:
        FlowEngine(app)
        stored = Secret(PLAIN).encrypted()
        assert NEW not in app.conf.humanize(), "`celery inspect conf` shows it"
        set_secret_key_source(lambda: NEW)
        assert Annotation.of(Secret, "validation").read(stored) == Secret(PLAIN)
    finally:
        set_launcher_source(launcher)
        set_secret_key_source(source)


@pytest.mark.usefixtures("keys")
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    secret_keys._ciphers.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(SecretRefused, match=r"pip install 'flowengine\[secrets\]'"):
        Secret(PLAIN).encrypted()


def test_import_flowengine_does_not_import_the_package() -> None:
    code = "import sys, flowengine; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
