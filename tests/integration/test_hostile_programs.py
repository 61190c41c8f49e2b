"""Values and schemas of a program end its run, whatever they are; they reach nothing outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from flowengine.engine import Engine
from flowengine.errors import InvalidInputs, InvalidProgram, ValueRefused
from flowengine.evaluator import RunState
from flowengine.evaluator.triggers import Succeeded
from flowengine.program import linker
from flowengine.store.claims import WorkerIdentity
from tests.builders import block, event, of, program, schema, step, to, workflow
from tests.integration.engines import opened


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


@pytest.fixture
def requests() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and the paths that were asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def with_schema(of_field: Any) -> dict[str, Any]:
    """A workflow whose event returns a value of the schema, and makes an instance with it."""
    field = {"name": "y", "type": "Json", "schema": of_field}
    return program(
        schema("Shape", [field]),
        event("Work", [{"name": "x", "type": "Json"}], [field]),
        workflow(
            "W",
            "",
            "out",
            block(
                step("a", "Work", x=1),
                step("shape", "Shape", y=of("a.y")),
                yields=[to("W", out=of("shape.y"))],
            ),
        ),
        workflow("Takes", [{**field, "name": "x"}], "", block()),
    )


def started_before(
    engine: Engine, document: Any, patch: pytest.MonkeyPatch, name: str = "W", **inputs: Any
) -> Any:
    """Start a run as a version did that did not check schemas."""
    with patch.context() as earlier:
        earlier.setattr(linker, "broken_schemas", lambda _: [])
        return engine.start(document, name, inputs)


def answer(engine: Engine, value: Any) -> None:
    (task,) = engine.claim(["Work"], "default", WorkerIdentity(), most=1)
    # As by code of the facet: the result of a poller is validated by the schema at once.
    assert engine.report(task, Succeeded({"y": value}, is_from_code=True))


BROKEN: dict[str, Any] = {
    "type": {"type": "banana"},
    "pattern": {"pattern": "("},
    "endless": {"$ref": "#"},
    "http": {"$ref": "http://127.0.0.1:9/x"},
    "file": {"$ref": "file:///etc/passwd"},
    "keyword": {"multipleOf": 0},
    "number": {"minimum": "3"},
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_schema_is_refused_at_the_start(engine: Engine, broken: Any) -> None:
    with pytest.raises(InvalidProgram, match="the schema is refused"):
        engine.start(with_schema(broken), "W", {})


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_run_of_an_earlier_version_with_a_broken_schema_ends(
    engine: Engine, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started_before(engine, with_schema(broken), monkeypatch)
    answer(engine, "a" if "pattern" in broken else 5)
    info = engine.get(run.id)
    assert (info.state, info.error and info.error["type"]) == (RunState.FAILED, "TypeMismatch")
    assert info.error is not None
    assert info.error["path"] == "W.shape"


def test_no_reference_of_a_schema_is_fetched(
    engine: Engine, requests: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, asked = requests
    document = with_schema({"$ref": f"{address}/schema.json"})
    with pytest.raises(InvalidProgram, match="nothing is fetched"):
        engine.start(document, "Takes", {"x": 1})
    with pytest.raises(InvalidInputs, match="cannot be applied"):
        started_before(engine, document, monkeypatch, "Takes", x=1)
    run = started_before(engine, document, monkeypatch)
    (waiting,) = [s for s in engine.steps(run.id) if s.facet == "Work"]
    with pytest.raises(ValueRefused, match="cannot be applied"):
        engine.continue_step(waiting.id, {"y": 1})
    answer(engine, 1)
    assert engine.get(run.id).state == RunState.FAILED
    assert asked == []


def test_a_pattern_takes_linear_time_and_fails_its_step(engine: Engine) -> None:
    run = engine.start(with_schema({"pattern": "^(a+)+$"}), "W", {})
    began = time.process_time()
    answer(engine, "a" * 500_000 + "!")
    assert time.process_time() - began < 5
    info = engine.get(run.id)
    assert info.error is not None
    assert info.error["type"] == "TypeMismatch"
    assert "does not match" in info.error["message"]
    assert len(info.error["message"]) < 1_000


def test_an_input_that_its_pattern_refuses_is_refused_at_once(engine: Engine) -> None:
    with pytest.raises(InvalidInputs, match="does not match"):
        engine.start(with_schema({"pattern": "^(a+)+$"}), "Takes", {"x": "a" * 100_000 + "!"})
