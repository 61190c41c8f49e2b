"""Runs over the wire: started once by a key, read with their steps and program."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event as sql_event

from flowengine.engine import Engine
from flowengine.program import write_program
from flowengine.store import steps
from tests.integration.engines import one, side_by_side, watched
from tests.integration.sdk.pollers import WAIT
from tests.integration.wire.clients import Client

PROGRAM = write_program(one())
AFL = """
namespace t {
  event facet Work(x: Long) => (y: Long)
  workflow Flow(x: Long) => (y: Long) andThen {
    work = Work(x = $.x)
    yield Flow(y = work.y)
  }
}
"""


@pytest.mark.parametrize("given", [{"program": PROGRAM}, {"afl": AFL}])
def test_a_run_is_started_once_by_its_key_and_read(
    engine: Engine, client: Client, given: dict[str, Any]
) -> None:
    wanted = {"workflow": "t.Flow", "inputs": {"x": 7}, "key": "order-7", **given}
    run_ids = {client.post("/v1/runs", **wanted)["run_id"] for _ in range(2)}
    (run_id,) = run_ids
    run = client.get(f"/v1/runs/{run_id}")
    assert (run["state"], run["key"], run["outputs"]) == ("RUNNING", "order-7", None)
    client.register()
    (task,) = client.claim()
    assert client.report(task, "continue", result={"y": 8})[0] == 200
    assert engine.run(run_id).result(timeout=WAIT) == {"y": 8}
    run = client.get(f"/v1/runs/{run_id}")
    assert (run["state"], run["outputs"]) == ("COMPLETED", {"y": 8})
    found = client.get(f"/v1/runs/{run_id}/steps")["steps"]
    (work,) = [step for step in found if step["facet"] == "t.Work"]
    assert (work["arguments"], work["result"], work["tries"]) == ({"x": 7}, {"y": 8}, 1)


def test_the_steps_of_a_run_are_read_by_pages(engine: Engine, client: Client) -> None:
    run = engine.start(one(), "t.Flow", {"x": 1})
    whole = client.get(f"/v1/runs/{run.id}/steps")
    pages: list[Any] = []
    after: str | None = ""
    while after is not None:
        page = client.get(f"/v1/runs/{run.id}/steps?limit=1&after={after}")
        pages += page["steps"]
        after = page["next"]
    assert pages == whole["steps"]
    assert len(pages) > 1
    for query in ("limit=x", "limit=-1", "limit=1001", "after=7", "after=1-x-2", "after=1-2-"):
        assert client.refused("GET", f"/v1/runs/{run.id}/steps?{query}") == (400, "bad_query")


def test_a_page_reads_its_own_steps_whatever_number_the_run_has(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    step_from = steps.step_from
    monkeypatch.setattr(steps, "step_from", lambda row: read.append(row) or step_from(row))
    statements: list[str] = []
    sql_event.listen(
        engine.database.engine,
        "before_cursor_execute",
        lambda _c, _cursor, text, *_: statements.append(text),
    )
    counts = []
    for names in ("ab", "abcdefghijklmnopqrstuvwxyz"):
        run = engine.start(side_by_side(*names), "t.Flow", {})
        read.clear()
        statements.clear()
        with watched(engine, lambda text, _: statements.append(text)):
            first = client.get(f"/v1/runs/{run.id}/steps?limit=2")
            client.get(f"/v1/runs/{run.id}/steps?limit=2&after={first['next']}")
        assert len(read) <= 6  # a page, and one step that shows that there are more
        # Statements of the server's own threads are not about steps.
        counts.append(len([text for text in statements if "flowengine_step" in text]))
    assert counts == [2, 2]


def test_a_program_is_read_and_started_by_its_hash(engine: Engine, client: Client) -> None:
    run = engine.start(one(), "t.Flow", {"x": 1})
    found = client.get(f"/v1/runs/{run.id}/program")
    digest = found["program_hash"]
    assert client.get(f"/v1/programs/{digest}") == found
    again = client.post("/v1/runs", workflow="t.Flow", inputs={"x": 2}, program_hash=digest)
    assert client.get(f"/v1/runs/{again['run_id']}/program") == found
    assert client.refused("GET", f"/v1/programs/{'0' * 32}") == (404, "unknown_program")


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        ({"afl": AFL, "workflow": "t.Other"}, 422, "refused_program"),
        ({"afl": "namespace {", "workflow": "t.Flow"}, 422, "refused_program"),
        ({"program": {"type": "Nonsense"}, "workflow": "t.Flow"}, 422, "refused_program"),
        ({"afl": AFL, "workflow": "t.Flow", "inputs": {"x": "text"}}, 422, "refused_inputs"),
        ({"afl": AFL, "workflow": "t.Flow", "inputs": {}}, 422, "refused_inputs"),
        ({"workflow": "t.Flow"}, 400, "bad_request"),
        ({"afl": AFL, "program": PROGRAM, "workflow": "t.Flow"}, 400, "bad_request"),
        ({"program_hash": "0" * 32, "workflow": "t.Flow"}, 404, "unknown_program"),
    ],
)
def test_a_start_that_is_wrong_says_why(
    client: Client, document: dict[str, Any], status: int, code: str
) -> None:
    assert client.refused("POST", "/v1/runs", document) == (status, code)


def test_an_unknown_run_is_not_found(client: Client) -> None:
    for run_id in ("0" * 32, "x", "%00", "..%2f"):
        assert client.refused("GET", f"/v1/runs/{run_id}") == (404, "unknown_run")


def test_a_run_that_was_cancelled_is_not_cancelled_by_an_answer(
    engine: Engine, client: Client
) -> None:
    run = engine.start(one(), "t.Flow", {"x": 1})
    client.post(f"/v1/runs/{run.id}/cancel")
    assert client.get(f"/v1/runs/{run.id}")["state"] == "CANCELLED"
    refused = client.refused("POST", f"/v1/runs/{run.id}/send", {"name": "a"})
    assert refused == (409, "action_refused")
