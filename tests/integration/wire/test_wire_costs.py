"""The cost of the wire protocol, counted: the statements of a poller, and a token now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowengine.sdk import AgentPoller
from flowengine.sdk.wire import access, claims, servers
from flowengine.sdk.wire.server import WireServer
from tests.integration.engines import one
from tests.integration.sdk.pollers import WAIT, until
from tests.integration.test_costs import WorkingSet, working
from tests.integration.wire.clients import Client
from tests.servers import PostgresServer


@pytest.fixture
def work(postgres: PostgresServer, with_schema: str, tmp_path: Path) -> Iterator[WorkingSet]:
    url = postgres.new_database(with_schema)
    with working(url, tmp_path) as work:
        yield work
    postgres.drop_database(url)


@pytest.fixture
def client(work: WorkingSet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    # The intervals of caches, without end: how long a machine takes must not change the counts.
    monkeypatch.setattr(access, "CACHED_SECONDS", 3_600.0)
    monkeypatch.setattr(servers, "_CACHED_SECONDS", 3_600.0)
    server = WireServer(work.engine, port=0)
    server._upkeep = threading.Thread()  # recovery has statements of its own
    server.start()
    token, _ = work.engine.tokens.create("node", ["claim"])
    client = Client(server.port, token)
    client.register()
    yield client
    server.stop()


def counted(work: WorkingSet, do: Callable[[], object]) -> dict[str, int]:
    work.runs = [work.engine.start(one(), "t.Flow", {"x": 1})]
    with work.counted() as statements:
        do()
    statements.pop("SELECT", None)  # the server's clock, read every five seconds
    return dict(statements)


def test_a_claim_and_a_report_need_the_statements_of_a_poller(
    work: WorkingSet, client: Client
) -> None:
    poller = AgentPoller(work.engine)
    poller.register("t.Work", lambda payload: {"y": payload["x"]})
    worker = poller._server._worker("p" * 32, poller._tools.table.find_in_place)

    def over_the_wire() -> None:
        (task,) = client.claim()
        assert client.report(task, "continue", result={"y": 1})[0] == 200

    for do in (over_the_wire, lambda: worker.poll("default", 1)):
        counted(work, do)  # caches are filled
    of_wire = counted(work, over_the_wire)
    of_poller = counted(work, lambda: worker.poll("default", 1))
    assert of_wire == of_poller


def test_a_token_and_its_server_are_read_once_in_some_seconds(
    work: WorkingSet, client: Client
) -> None:
    read: list[str] = []
    database = work.engine.database
    original = database.read

    def noticed() -> object:
        read.append("read")
        return original()

    database.read = noticed  # type: ignore[method-assign, assignment]
    for _ in range(5):
        assert client.claim() == []
    assert read == []


def test_waiting_claims_ask_once_for_a_wake_up(
    work: WorkingSet, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty agents wait for the same facet: a wake-up without a task costs one query."""
    asked: list[str] = []
    claim = work.engine.claim

    def noticed(*args: object, **options: object) -> object:
        asked.append("claim")
        return claim(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(work.engine, "claim", noticed)
    monkeypatch.setattr(claims.PollPace, "pause", lambda self, **_: 3_600.0)
    threads = [threading.Thread(target=lambda: client.claim(wait_seconds=WAIT)) for _ in range(20)]
    for thread in threads:
        thread.start()
    desk = work.engine.pollers._routers[0][0].__self__  # type: ignore[attr-defined]
    until(lambda: desk._waiting.total() == 20 and not desk._serving)
    before = len(asked)
    desk.wake("default", 1)
    until(lambda: len(asked) > before and not desk._serving)
    assert len(asked) == before + 1
    desk.wake("other", 1)
    for number in range(20):
        work.engine.start(one(), "t.Flow", {"x": number})
    desk.wake("default", 20)
    for thread in threads:
        thread.join(WAIT)
    # One for each task: a start may find no waiting claim, and the last one asks in vain.
    assert len(asked) <= before + 1 + 20 + 1
