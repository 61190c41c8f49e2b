"""The Workflows page in a real, unmodified Flower."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from flowengine import Retry, RunFailed, event_facet, foreach, workflow
from flowengine.settings import Settings
from flowengine.store.codec import use_payload_codec
from flowengine.testing import Flow
from tests.celery_nodes.fleet import PYTHONPATH
from tests.servers import GuardedServer, new_directory
from tests.warm import warm


@event_facet
def fetch(page: int) -> int:
    return page


@event_facet
def read(page: int) -> int:
    if page in (7, 277):
        raise ValueError(f"page {page} is <b>torn</b> & wet")
    return page


@workflow(name="library.survey")
def survey(pages: list[int]) -> list[int]:
    return foreach(pages, lambda page: read(fetch(page)))


@event_facet(retry=Retry(attempts=2, first_wait=1))
def charge(order: int) -> int:
    print("charging <b>torn</b>", order)
    raise ConnectionError("refused <script>alert('card')</script>")


@event_facet
def ship(order: int) -> int:
    return order


@workflow(name="shop.checkout")
def checkout(order: int) -> int:
    return ship(charge(order))


@event_facet(task_list="gpu")
def train(epochs: int) -> int:
    return epochs


@workflow(name="lab.learning")
def learning(epochs: int) -> int:
    return train(epochs)


@workflow(name="lab.series")
def series(order: int) -> int:
    return delivery.start(order).result()


@workflow(name="shop.delivery")
def delivery(order: int) -> int:
    return ship(order)


class Runs(NamedTuple):
    """A database with one run of each kind."""

    url: str
    completed: str
    failed: str
    wide: str
    waiting: str
    parent: str
    child: str


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    url = f"sqlite:///{tmp_path_factory.mktemp('runs')}/flow.db"
    with Flow(store_url=url) as flow:
        parent = flow.start(series, 1)
        flow.clock.advance(seconds=1)
        flow.settle()
        (child,) = flow.engine.list(workflow=delivery.name)
        flow.clock.advance(seconds=1)
        options = survey.options(key="<i>morning</i>", labels={"team": "<u>data</u>"})
        completed = options.start([1, 2]).id
        flow.settle()
        flow.clock.advance(seconds=1)
        failed = flow.start(checkout, 1)
        flow.settle()
        flow.clock.advance(seconds=5)
        flow.settle()
        wide = flow.start(survey, list(range(300)))
        flow.settle()
        flow.worker("inline").die()
        flow.clock.advance(seconds=1)
        waiting = flow.start(learning, 4).id
        flow.watchdog()
        for run in (failed, wide):
            with pytest.raises(RunFailed):
                run.result(timeout=0)
        return Runs(url, completed, failed.id, wide.id, waiting, parent.id, child.id)


class Answer(NamedTuple):
    status: int
    text: str
    headers: Mapping[str, str] = MappingProxyType({})

    def json(self) -> Any:
        return json.loads(self.text)


class Flower:
    """A running Flower."""

    def __init__(
        self,
        app: str,
        database_url: str,
        *options: str,
        files: Mapping[str, str] | None = None,
        **environment: str,
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self.directory = new_directory("flower")
        for name, text in (files or {}).items():
            (self.directory / name).write_text(text)
        variables = {
            "PYTHONPATH": f"{self.directory}:{PYTHONPATH}",
            "FLOWENGINE_DATABASE_URL": database_url,
            "FLOWENGINE_BROKER_URL": "memory://",
            **environment,
        }
        port = self.url.rpartition(":")[2]
        self._server = GuardedServer(
            [
                *("env", *(f"{name}={value}" for name, value in variables.items())),
                *warm(
                    "celery", "-A", app, "flower", "--address=127.0.0.1", f"--port={port}", *options
                ),
            ],
            directory=self.directory,
            stop_signal="TERM",
        )
        self._server.wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.get("/").status)  # any status: it answers
        except OSError:
            return False

    def get(self, path: str, *, login: str | None = None) -> Answer:
        request = urllib.request.Request(self.url + path)
        if login:
            request.add_header(
                "Authorization", f"Basic {base64.b64encode(login.encode()).decode()}"
            )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Answer(answer.status, answer.read().decode(), answer.headers)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return Answer(refusal.code, refusal.read().decode(), refusal.headers)

    def stop(self) -> str:
        """Stop Flower and return its output."""
        self._server.stop()
        return self._server._last_words


@contextmanager
def running(app: str, database_url: str, *options: str, **environment: Any) -> Iterator[Flower]:
    flower = Flower(app, database_url, *options, **environment)
    try:
        yield flower
    finally:
        flower.stop()


@pytest.fixture(scope="module")
def flower(runs: Runs) -> Iterator[Flower]:
    with running("flowengine", runs.url, FLOWER_UNAUTHENTICATED_API="true") as flower:
        yield flower


def rows_of(page: str) -> list[str]:
    return [row for row in page.partition("<tbody>")[2].split("<tr") if "flow-id" in row]


def in_order(runs: Runs) -> list[str]:
    """The runs, newest first."""
    ours = runs.waiting, runs.wide, runs.failed, runs.completed, runs.child, runs.parent
    return list(ours)


def test_a_run_without_its_key_leaves_the_list_and_the_api_readable(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra `secrets` is not installed")
    url, keys = f"sqlite:///{tmp_path}/flow.db", "old=" + "11" * 32
    codec = "flowengine.payload_codecs:AesGcmCodec"
    with Flow(store_url=url) as flow:
        completed = flow.start(survey, [1]).id
        flow.settle()
        flow.clock.advance(seconds=1)
    try:
        with Flow(store_url=url, settings=Settings(payload_codec=codec, payload_keys=keys)) as flow:
            flow.clock.advance(seconds=10)
            failed = flow.start(survey, [7]).id
            flow.settle()
    finally:
        use_payload_codec(None)
    environment = {
        "FLOWER_UNAUTHENTICATED_API": "true",
        "FLOWENGINE_PAYLOAD_CODEC": codec,
        "FLOWENGINE_PAYLOAD_KEYS": "new=" + "22" * 32,
    }
    with running("flowengine", url, **environment) as flower:
        for path in ("/workflows", "/workflows?state=FAILED", f"/workflows/{failed}"):
            answer = flower.get(path)
            assert answer.status == 200, answer.text
            assert "the key &#x27;old&#x27;, which this process does not have" in answer.text
            assert failed in answer.text
        assert completed in flower.get("/workflows").text
        listed = flower.get("/api/workflows").json()["runs"]
        assert [(one["id"], one["state"]) for one in listed] == [
            (failed, "FAILED"),
            (completed, "COMPLETED"),
        ]
        assert "the key 'old'" in listed[0]["error"]["message"]
        assert flower.get(f"/api/workflows/{failed}").status == 200
    environment["FLOWENGINE_PAYLOAD_KEYS"] += f",{keys}"
    with running("flowengine", url, **environment) as flower:
        assert "page 7 is &lt;b&gt;torn" in flower.get(f"/workflows/{failed}").text


# --- the list ---


def test_every_page_of_flower_links_to_the_workflows(flower: Flower) -> None:
    for path in ("/", "/tasks", "/workflows"):
        answer = flower.get(path)
        assert answer.status == 200
        assert 'href="/workflows"' in answer.text
        assert answer.text.count(">Workflows</a>") == 1


def test_the_list_shows_the_newest_runs_first_with_state_and_progress(
    flower: Flower, runs: Runs
) -> None:
    rows = rows_of(flower.get("/workflows").text)
    assert [next(run for run in runs[1:] if run in row) for row in rows] == in_order(runs)
    waiting, wide, failed, completed, *_ = rows
    assert "RUNNING" in waiting
    assert "0 of at least 1" in waiting
    assert "waits for a worker of task list &#x27;gpu&#x27;" in waiting
    assert "FAILED" in wide
    assert "601 of 601" in wide
    assert "FAILED" in failed
    assert "checkout.charge: ConnectionError" in failed
    assert "COMPLETED" in completed
    assert "library.survey" in completed


def test_pages_and_api_are_in_no_cache_and_in_no_page_of_another_site(
    flower: Flower, runs: Runs
) -> None:
    paths = ("", f"/{runs.failed}", "/no-such-run")
    for path in [*(f"/workflows{path}" for path in paths), "/api/workflows", "/agents"]:
        headers = flower.get(path).headers
        assert headers["Cache-Control"] == "no-store", path
        assert "frame-ancestors 'self'" in headers["Content-Security-Policy"], path
        assert headers["X-Content-Type-Options"] == "nosniff", path


def test_the_list_is_filtered_by_state_and_by_workflow(flower: Flower, runs: Runs) -> None:
    def shown(query: str) -> set[str]:
        rows = rows_of(flower.get(f"/workflows?{query}").text)
        return {run for run in runs[1:] if any(run in row for row in rows)}

    assert shown("state=FAILED") == {runs.failed, runs.wide}
    assert shown("state=running") == {runs.waiting}
    assert shown("workflow=library.survey") == {runs.completed, runs.wide}
    assert shown("workflow=SURV") == {runs.completed, runs.wide}, "a part of the name will do"
    assert shown("workflow=survey&state=COMPLETED") == {runs.completed}
    assert shown("workflow=%25") == set(), "what it means in SQL does not matter"
    assert "No such runs." in flower.get("/workflows?workflow=nobody").text


def test_pagination_lists_every_run_once(flower: Flower, runs: Runs) -> None:
    seen, query = [], ""
    while True:
        page = flower.get(f"/api/workflows?limit=1{query}").json()
        seen += [run["id"] for run in page["runs"]]
        if page["before"] is None:
            break
        query = f"&before={page['before']}"
    assert seen == in_order(runs)
    assert f"before={runs.wide}" in flower.get("/workflows?limit=2").text


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/workflows/nope", 404, "There is no run &#x27;nope&#x27; in this database."),
        ("/workflows/%3Cscript%3E", 404, "There is no run &#x27;&lt;script&gt;&#x27;"),
        ("/workflows?before=nope", 404, "There is no run &#x27;nope&#x27;"),
        ("/workflows?state=DONE", 400, "unknown state &#x27;DONE&#x27;"),
        ("/workflows?limit=many", 400, "limit=&#x27;many&#x27; is not a number from 1 to 500"),
        ("/workflows?limit=0", 400, "is not a number"),
        ("/workflows?limit=00000000100000000000", 400, "is not a number from 1 to 500"),
        ("/workflows?limit=" + "9" * 5_000, 400, "limit must have 255 characters at most"),
        ("/api/workflows/nope", 404, "\"There is no run 'nope' in this database.\""),
        ("/api/workflows?state=DONE", 400, '"error"'),
    ],
)
def test_an_invalid_request_gets_its_status_and_an_error(
    flower: Flower, path: str, status: int, says: str
) -> None:
    answer = flower.get(path)
    assert answer.status == status
    assert says in answer.text


# --- one run ---


def test_a_run_shows_its_inputs_outputs_and_steps(flower: Flower, runs: Runs) -> None:
    answer = flower.get(f"/workflows/{runs.completed}")
    assert answer.status == 200
    assert "COMPLETED" in answer.text
    assert "{&quot;pages&quot;: [1, 2]}" in answer.text
    assert "{&quot;result&quot;: [1, 2]}" in answer.text
    for path in ("survey", "survey.foreach", "survey.foreach[1]", "survey.foreach[1].read"):
        assert f'title="{path}"' in answer.text
    assert "data-final" in answer.text, "it is not fetched again"


def test_a_failed_run_shows_the_step_the_error_and_the_tries(flower: Flower, runs: Runs) -> None:
    page = flower.get(f"/workflows/{runs.failed}").text
    assert "checkout.charge: ConnectionError: refused" in page
    assert "try 2 of 2" in page
    assert "try 1 ConnectionError: refused &lt;script&gt;" in page, "of the try before"
    assert "raise ConnectionError" in page, "with the traceback"
    assert "because of checkout.charge" in page
    assert "checkout.charge stdout: charging &lt;b&gt;torn&lt;/b&gt; 1" in page, "with its log"
    assert "checkout.charge try 2 stdout: charging" in page


def test_a_waiting_run_is_polled_and_shows_the_reason(flower: Flower, runs: Runs) -> None:
    page = flower.get(f"/workflows/{runs.waiting}").text
    assert '<div id="workflow-run"' in page
    assert "data-final>" not in page
    assert "0 of at least 1 ended" in page
    assert "waits for a worker" in page
    assert "of gpu" in page


def test_a_step_links_to_its_child_run_and_the_child_to_its_parent(
    flower: Flower, runs: Runs
) -> None:
    assert f'href="/workflows/{runs.child}">run {runs.child[:8]}</a>' in (
        flower.get(f"/workflows/{runs.parent}").text
    )
    assert f'href="/workflows/{runs.parent}">run {runs.parent[:8]}</a>' in (
        flower.get(f"/workflows/{runs.child}").text
    )
    assert flower.get(f"/api/workflows/{runs.child}").json()["parent"] == runs.parent
    steps = flower.get(f"/api/workflows/{runs.parent}").json()["steps"]
    assert [step["child_run"] for step in steps if step["child_run"]] == [runs.child]


def test_a_wide_foreach_shows_its_first_and_its_failed_items(flower: Flower, runs: Runs) -> None:
    page = flower.get(f"/workflows/{runs.wide}").text
    shown = [n for n in range(300) if f'title="survey.foreach[{n}]"' in page]
    assert shown == [*range(50), 277]
    assert "249 more items: 249 complete" in page
    assert "page 277 is" in page
    output = flower.get(f"/api/workflows/{runs.wide}").json()
    assert output["items_not_listed"] == 249
    assert (output["steps_ended"], output["steps_so_far"]) == (601, 601)


def test_values_of_a_run_are_escaped_in_html(flower: Flower, runs: Runs) -> None:
    pages = [
        flower.get("/workflows").text,
        flower.get("/workflows?workflow=%22%3E%3Cscript%3Ealert('card')").text,
        *(flower.get(f"/workflows/{run}").text for run in runs[1:]),
    ]
    for page in pages:
        for written in ("<script>alert", "<b>torn", "<i>morning", "<u>data", '">&lt;script'):
            assert written not in page
    assert "&lt;i&gt;morning&lt;/i&gt;" in pages[0]
    assert "team=&lt;u&gt;data&lt;/u&gt;" in "".join(pages)


def test_the_api_returns_the_same_data(flower: Flower, runs: Runs) -> None:
    listed = {run["id"]: run for run in flower.get("/api/workflows").json()["runs"]}
    assert set(listed) == set(runs[1:])
    assert listed[runs.completed]["key"] == "<i>morning</i>"
    assert (listed[runs.completed]["steps_ended"], listed[runs.completed]["steps"]) == (5, 5)
    output = flower.get(f"/api/workflows/{runs.failed}").json()
    assert output["inputs"] == {"order": 1}
    steps = {step["path"]: step for step in output["steps"]}
    assert steps["checkout.charge"]["tries"] == 2
    assert steps["checkout.ship"]["error"]["path"] == "checkout.charge"


# --- integration with Flower ---


def test_the_login_of_flower_protects_the_pages_and_the_api(runs: Runs) -> None:
    paths = (
        *("/workflows", f"/workflows/{runs.completed}", "/workflows/nope"),
        *("/api/workflows", f"/api/workflows/{runs.completed}"),
    )
    with running("flowengine", runs.url, "--basic_auth=user:pw") as flower:
        for path in paths:
            assert flower.get(path).status == 401
            assert flower.get(path, login="user:wrong").status == 401
            known = flower.get(path, login="user:pw")
            assert known.status == (404 if path.endswith("nope") else 200)


def test_the_page_works_with_any_app_and_under_a_prefix(runs: Runs) -> None:
    own = """
from celery import Celery
from flowengine.assembly import FlowEngine
app = Celery("own", broker="memory://")
FlowEngine(app)
"""
    with running("own", runs.url, "--url_prefix=ops", files={"own.py": own}) as flower:
        listed = flower.get("/ops/workflows").text
        assert f'href="/ops/workflows/{runs.failed}"' in listed
        assert flower.get(f"/ops/workflows/{runs.failed}").status == 200
        closed = flower.get("/ops/api/workflows")
        assert closed.status == 401, "as all of Flower's API, without a login"


def test_a_page_shows_all_times_in_the_zone_of_the_app_and_names_it(
    runs: Runs, flower: Flower
) -> None:
    own = """
from celery import Celery
from flowengine.assembly import FlowEngine
app = Celery("own", broker="memory://", timezone="Asia/Tokyo")
FlowEngine(app)
"""
    with running("own", runs.url, files={"own.py": own}) as abroad:
        for page, times in (("/workflows", 6), (f"/workflows/{runs.completed}", 2)):
            shown = re.findall(r"\d\d:\d\d:\d\d (\w+)", abroad.get(page).text)
            assert len(shown) >= times
            assert set(shown) == {"JST"}
    assert " UTC" in flower.get(f"/workflows/{runs.completed}").text


def test_a_missing_database_is_reported_and_not_created(tmp_path: Path) -> None:
    with running("flowengine", f"sqlite:///{tmp_path}/none.db") as flower:
        answer = flower.get("/workflows")
        assert answer.status == 503
        assert "there is no database" in answer.text
        assert flower.get("/tasks").status == 200
    assert not (tmp_path / "none.db").exists()


def test_an_unsupported_flower_starts_without_the_page(runs: Runs) -> None:
    unknown = '__import__("flower").__version__ = "3.1.4"\n'
    flower = Flower("flowengine", runs.url, files={"celeryconfig.py": unknown})
    try:
        assert flower.get("/").status == 200
        assert "Workflows" not in flower.get("/").text
        assert flower.get("/workflows").status == 404
    finally:
        output = flower.stop()
    assert output.count("the Workflows page is not installed in Flower") == 1
    assert "installed in Flower: it supports Flower 2.x, this is Flower 3.1.4" in output


def in_a_process(code: str, *arguments: str, is_warm: bool = True) -> str:
    python = warm("python") if is_warm else [sys.executable]
    done = subprocess.run(
        [*python, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "FLOWENGINE_DATABASE_URL": "sqlite://"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("del urls.handlers", "this Flower has no list flower.urls.handlers"),
        ("urls.settings = None", "this Flower has no dict flower.urls.settings"),
        ("urls.settings['template_loader'] = 1", "already replaces Flower's templates"),
        ("urls.settings['template_path'] = '/nowhere'", "No such file"),
        ("del flower.views.BaseHandler", "BaseHandler"),
    ],
)
def test_a_flower_with_other_internals_is_not_modified(change: str, says: str) -> None:
    output = in_a_process(
        f"""
import flower, flower.views, flower.api
from flower import urls
{change}
before = str(vars(urls))
from flowengine.web import install
assert install() is False
assert str(vars(urls)) == before
"""
    )
    assert output.startswith("the Workflows page is not installed in Flower: ")
    assert says in output
    assert output.count("\n") == 1


def test_install_is_idempotent() -> None:
    output = in_a_process(
        """
from flower import urls
from flowengine.web import install
before = len(urls.handlers)
assert install() and install()
from flowengine.web.pages import HANDLERS
assert len(urls.handlers) == before + len(HANDLERS) == before + 21
"""
    )
    assert output == ""


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_no_other_process_loads_the_page(command: str) -> None:
    in_a_process(
        """
import sys
import flowengine.celery
for name in ("flower", "tornado", "flowengine.web"):
    assert name not in sys.modules, name
""",
        command,
        is_warm=False,  # Celery's command loads Flower's, and the warm server has loaded Celery's
    )
