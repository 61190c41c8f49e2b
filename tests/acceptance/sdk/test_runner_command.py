"""`flowengine runner` as a process: it starts workflows by name, and ends by a signal."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowengine.cli import main
from flowengine.cli.runner_command import OPTIONS
from flowengine.sdk import RunnerConfig
from tests.celery_nodes import GuardedProcess, clean_environment
from tests.celery_nodes.fleet import until
from tests.integration.engines import opened

HANDLERS = """
from flowengine import event_facet, workflow
from flowengine.sdk import ToolRegistry

tools = ToolRegistry()
more = ToolRegistry()

@tools.register("billing.Pay")
def pay(payload):
    return {"receipt": f"receipt for {payload['customer']}"}

@event_facet(name="handlers.double")
def double(n: int) -> int:
    return 2 * n

@workflow(name="handlers.twice")
def twice(n: int) -> int:
    return double(n)
"""
ORDER = """
namespace billing {
  event facet Pay(customer: String) => (receipt: String)
  workflow Order(customer: String) => (receipt: String) andThen {
    payment = Pay(customer = $.customer)
    yield Order(receipt = payment.receipt)
  }
}
"""


def url_of(directory: Path) -> str:
    return f"sqlite:///{directory}/flow.db"


def environment(url: str, directory: Path) -> dict[str, str]:
    return {
        **clean_environment(),
        "FLOWENGINE_DATABASE_URL": url,
        "FLOWENGINE_SPOOL_DIRECTORY": str(directory / "spool"),
    }


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "order.afl").write_text(ORDER)
    return tmp_path


@pytest.fixture
def service(directory: Path) -> Iterator[GuardedProcess]:
    files = [str(directory / "handlers.py:tools"), str(directory / "order.afl")]
    process = GuardedProcess(
        [sys.executable, "-m", "flowengine", "runner", *files, "--http-port", "0"],
        name="runner",
        directory=directory / "runner",
        environment=environment(url_of(directory), directory),
        ready_prompt="works on list",
    )
    process.start()
    yield process
    process.stop()


def test_a_runner_starts_workflows_by_name_and_ends_by_a_signal(
    directory: Path, service: GuardedProcess
) -> None:
    with opened(url_of(directory)) as engine:
        order = engine.enqueue_execute("billing.Order", {"customer": "ada"})
        twice = engine.enqueue_execute("handlers.twice", {"n": 4})
        assert order.result(60).result(60) == {"receipt": "receipt for ada"}
        assert twice.result(60).outputs(60) == {"result": 8}
        address = next(w for w in service.recent_log().split() if w.startswith("http://"))
        with urllib.request.urlopen(address, timeout=20) as answer:
            status = json.load(answer)
        assert status["state"] == "running"
        assert {"billing.Pay", "handlers.double", "flowengine.execute"} <= set(status["handlers"])
        service.send(signal.SIGTERM)
        until(lambda: "has stopped" in service.recent_log(), "the end of the runner")
        with engine.database.read() as session:
            assert session.servers.alive() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["handlers.py"], "a runner has one ToolRegistry, and these were found"),
        (["handlers.py:nothing"], "handlers.py has no ToolRegistry 'nothing'; it has: handlers.py"),
        (["nothing.afl"], "there is no file nothing.afl"),
        (["--http-port", "70000"], "http_port is 70000 in the configuration"),
    ],
)
def test_a_runner_that_cannot_start_says_why(
    directory: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "handlers", raising=False)
    ended = CliRunner().invoke(main, ["runner", *arguments])
    assert ended.exit_code == 1
    assert message in ended.output


def test_the_options_are_the_fields_of_the_configuration() -> None:
    config = RunnerConfig()
    shown = {name: default for name, default, _ in OPTIONS}
    assert shown.keys() | {"topics"} == vars(config).keys()
    assert shown == {name: getattr(config, name) for name in shown} | {"server_name": ""}
