"""One value that cannot be read breaks one row: without its key, or damaged in the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import text

from flowengine import Retry, event_facet, wait_for, workflow
from flowengine.agents.views import agent_page, card_text, turn_page, turn_view
from flowengine.cli import main
from flowengine.engine import hooks
from flowengine.errors import EarlierRunFailed, PayloadUnreadable, RunFailed
from flowengine.settings import Settings
from flowengine.store import codec
from flowengine.store.codec import use_payload_codec
from flowengine.testing import Flow
from tests.integration.agents_seen.clerks import greeter
from tests.integration.test_hooks import KEYS, Receiver, delivered, receiving
from tests.integration.test_operations_commands import runner

pytest.importorskip("cryptography", reason="the extra `secrets` is not installed")

OLD, NEW = "old=" + "11" * 32, "new=" + "22" * 32
AES = "flowengine.payload_codecs:AesGcmCodec"
WORD = "zebra-crossing"
CURE = "the key 'old', which this process does not have: add it to FLOWENGINE_PAYLOAD_KEYS"


@event_facet(name="unreadable.work", retry=Retry(attempts=2, first_wait=1))
def work(text: str) -> str:
    print(f"working on {text}")
    if text.startswith("fail"):
        raise ValueError(f"refused {text}")
    return text


@workflow(name="unreadable.flow")
def flow_(text: str) -> str:
    return work(text)


@workflow(name="unreadable.asks")
def asks() -> str:
    return wait_for("word", str)


def settings(keys: str) -> Settings:
    return Settings(payload_codec=AES, payload_keys=keys)


@pytest.fixture(autouse=True)
def no_codec_behind() -> Iterator[None]:
    yield
    use_payload_codec(None)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


class Rows:
    """A run of each kind under the old key, and one that completed under the new one."""

    def __init__(self, url: str) -> None:
        with Flow(store_url=url, settings=settings(OLD)) as flow:
            self.failed = flow_.options(key="f").start(f"fail {WORD}").id
            self.done = flow.start(flow_, WORD).id
            self.large = flow.start(flow_, WORD * 2_000).id
            self.asking = flow.start(asks).id
            for _ in range(3):
                flow.settle()
                flow.clock.advance(seconds=2)
            turn = greeter.at("ada").send(f"Hello {WORD}")
            flow.settle()
            self.turn = turn.id
        with Flow(store_url=url, settings=settings(f"{NEW},{OLD}")) as flow:
            self.new = flow.start(flow_, "new").id
            flow.settle()

    @property
    def old(self) -> list[str]:
        return [self.failed, self.done, self.large, self.asking]


def test_a_list_shows_every_run_although_one_cannot_be_read(database_url: str) -> None:
    rows = Rows(database_url)
    with Flow(store_url=database_url, settings=settings(NEW)) as flow:
        listed = {info.id: info for info in flow.engine.list()}
        assert set(listed) == {rows.new, *rows.old}
        assert listed[rows.new].outputs == {"result": "new"}
        assert [listed[run].state for run in rows.old] == [
            *("FAILED", "COMPLETED", "COMPLETED", "RUNNING")
        ]
        failed = listed[rows.failed]
        assert failed.finished
        assert failed.error_text is not None
        assert failed.error_text.startswith("flow: ValueError: a stored value cannot be read: ")
        for shown in (failed.error_text, listed[rows.done].outputs, listed[rows.large].outputs):
            assert CURE in str(shown)
        waits = listed[rows.asking].waits_for
        assert waits is not None
        assert (waits.kind, waits.subject) == ("answer", "word")
        assert rows.failed in {one.id for one in flow.engine.list(error_type="ValueError")}
        assert CURE in str(flow.engine.find(rows.failed[:12]).error_text)


def test_a_program_never_takes_a_placeholder_for_a_result(database_url: str) -> None:
    rows = Rows(database_url)
    with Flow(store_url=database_url, settings=settings(NEW)) as flow:
        for run in (rows.done, rows.large):
            with pytest.raises(PayloadUnreadable, match="the key 'old'"):
                flow.engine.run(run).result(timeout=0)
            with pytest.raises(PayloadUnreadable, match="the key 'old'"):
                flow.engine.get(run).as_result()
        with pytest.raises(RunFailed, match="the key 'old'"):
            flow.engine.run(rows.failed).result(timeout=0)
        with pytest.raises(EarlierRunFailed, match="the key 'old'"):
            flow_.options(key="f", if_failed="raise").start("again")


def test_steps_events_tries_history_and_logs_have_placeholders(database_url: str) -> None:
    rows = Rows(database_url)
    with Flow(store_url=database_url, settings=settings(NEW)) as flow:
        engine = flow.engine
        step = next(s for s in engine.steps(rows.failed) if s.path == "flow.work")
        assert (step.path, step.state, step.tries) == ("flow.work", "state.statement.Error", 2)
        assert CURE in str(step.params)
        assert step.error is not None
        assert CURE in step.error["message"]
        assert [CURE in str(one.error) for one in step.all_tries] == [True, True]
        assert CURE in step.failed_tries[0].message
        page, _ = engine.queries.steps_page(rows.large, limit=10)
        assert sum(CURE in str(one.returns) for one in page) == 2
        assert [CURE in str(one.payload) for one in engine.events(rows.done)] == [True]
        assert [CURE in str(one.data) for one in engine.tasks(rows.done)] == [True]
        assert engine.history(rows.failed)
        assert [change.state for change in engine.events(rows.done, after=0)]
        (line,) = engine.logs(rows.done)
        assert "1 line of this log: a stored value cannot be read" in line.text
        assert CURE in line.text


def test_agents_and_turns_are_listed_with_placeholders(database_url: str) -> None:
    rows = Rows(database_url)
    settings_ = settings(NEW)
    with (
        Flow(store_url=database_url, settings=settings_) as flow,
        flow.database.read() as session,
    ):
        assert [one.agent for one in agent_page(session, None, None, None, 10).agents] == ["ada"]
        (turn,) = turn_page(session, None, None, None, None, 10).turns
        assert turn.id == rows.turn
        cards = turn_view(session, turn).cards
        assert cards
        assert all(CURE in card_text(card) for card in cards)


def test_a_damaged_value_breaks_one_row(database_url: str) -> None:
    """Not decodable, no JSON, and JSON of another kind."""
    rows = Rows(database_url)
    damages = ["!AAAA", "!", "{not json", "[1, 2]", '"text"', "{}"]
    for damage in damages:
        with Flow(store_url=database_url, settings=settings(f"{NEW},{OLD}")) as flow:
            with flow.database.write() as session:
                for statement in (
                    "UPDATE flowengine_run SET error = :damage WHERE id = :failed",
                    "UPDATE flowengine_run SET outputs = :damage WHERE id = :done",
                    "UPDATE flowengine_step SET params = :damage, error = :damage "
                    "WHERE run_id = :failed",
                    "UPDATE flowengine_task SET error = :damage WHERE run_id = :failed",
                ):
                    values: dict[str, Any] = {"damage": damage, **vars(rows)}
                    names = [name for name in values if f":{name}" in statement]
                    session.connection.execute(
                        text(statement), {name: values[name] for name in names}
                    )
            listed = {info.id: info for info in flow.engine.list()}
            assert set(listed) == {rows.new, *rows.old}
            assert "a stored value cannot be read" in str(listed[rows.failed].error_text), damage
            assert listed[rows.asking].waits_for is not None
            step = next(s for s in flow.engine.steps(rows.failed) if s.path == "flow.work")
            assert "cannot be read" in str(step.error), damage


def test_outcomes_that_cannot_be_read_do_not_keep_those_behind_them(
    database_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_BATCH", 2)

    def hooked(keys: str) -> Settings:
        address = {"webhook_url": receiver.url, "webhook_keys": KEYS, "webhook_timeout": 0.3}
        return replace(settings(keys), **address)  # type: ignore[arg-type]

    with Flow(store_url=database_url, settings=hooked(OLD)) as flow:
        failed = {flow.start(flow_, "fail").id for _ in range(3)}
        for _ in range(3):
            flow.settle()
            flow.clock.advance(seconds=2)
    with Flow(store_url=database_url, settings=hooked(NEW)) as flow:
        flow.clock.advance(minutes=1)
        done = flow.start(flow_, "new")
        flow.settle()
        while flow.engine.hooks.deliver():
            pass
        assert {body["run_id"] for body in receiver.bodies} == {done.id}
    with Flow(store_url=database_url, settings=hooked(f"{NEW},{OLD}")) as flow:
        delivered(flow)
        assert {body["run_id"] for body in receiver.bodies} == {done.id, *failed}
        assert "refused fail" in str([body["outcomes"] for body in receiver.bodies])


def invoke(url: str, *arguments: str, keys: str = NEW) -> Result:
    environment = {
        "FLOWENGINE_DATABASE_URL": url,
        "FLOWENGINE_PAYLOAD_CODEC": AES,
        "FLOWENGINE_PAYLOAD_KEYS": keys,
        "COLUMNS": "250",
    }
    done = runner().invoke(main, list(arguments), env=environment)
    assert done.exit_code == 0, done.output + done.stderr
    return done


def test_the_commands_show_all_rows_without_a_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flow.db"
    rows = Rows(url)
    use_payload_codec(None)
    for arguments in (("list",), ("list", "--json"), ("list", "--state", "failed")):
        shown = invoke(url, *arguments).output
        assert rows.failed[:8] in shown
        assert CURE in " ".join(shown.split())
    listed = json.loads(invoke(url, "list", "--json").output)
    assert {one["id"] for one in listed} == {rows.new, *rows.old}
    for run in rows.old:
        shown = invoke(url, "show", run).output
        assert invoke(url, "show", run, "--json").output
        if run != rows.asking:
            assert "the key 'old'" in shown
        invoke(url, "history", run)
        invoke(url, "events", run)
        invoke(url, "logs", run)
    invoke(url, "agents")
    invoke(url, "turns")
    assert "the key 'old'" in invoke(url, "turn", "show", rows.turn).output


def test_without_a_codec_the_list_is_shown(database_url: str) -> None:
    rows = Rows(database_url)
    use_payload_codec(None)
    with Flow(store_url=database_url) as flow:
        assert codec.use_payload_codec(None) is None
        shown = {info.id: info.error_text for info in flow.engine.list()}
    assert set(shown) == {rows.new, *rows.old}
    assert "set FLOWENGINE_PAYLOAD_CODEC" in str(shown[rows.failed])


@pytest.mark.each_database
@pytest.mark.parametrize("damage", ["", "{not json", '{"text":{"$payload":"gone"}}'])
def test_a_task_that_cannot_be_read_does_not_keep_those_beside_it(
    database_url: str, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """Neither of its batch, nor those behind it; a worker with its key takes it."""
    with Flow(store_url=database_url, settings=settings(OLD)) as flow:
        flow.worker("inline").die()
        old = flow.start(flow_, "old").id
        if damage:
            with flow.database.write() as session:
                session.connection.execute(
                    text("UPDATE flowengine_step SET params = :damage WHERE run_id = :run"),
                    {"damage": damage, "run": old},
                )
    with Flow(store_url=database_url, settings=settings(f"{NEW}" if not damage else OLD)) as flow:
        others = [flow.start(flow_, f"new {n}") for n in range(3)]
        for _ in range(3):
            flow.settle()
            flow.clock.advance(seconds=2)
        assert [run.result(timeout=0) for run in others] == [f"new {n}" for n in range(3)]
        assert flow.engine.list(id_prefix=old)[0].state == "RUNNING"
    (line, *_) = [one for one in caplog.records if getattr(one, "action", "") == "task_unreadable"]
    assert f"of run {old}" in line.getMessage()
    if not damage:
        assert CURE in line.getMessage()
        with Flow(store_url=database_url, settings=settings(f"{NEW},{OLD}")) as flow:
            flow.clock.advance(seconds=30)
            flow.settle()
            assert flow.engine.run(old).result(timeout=0) == "old"
