"""RabbitMQ with PostgreSQL, and Redis with SQLite, behave like Redis with PostgreSQL.

On RabbitMQ there is no Redis at all: results go by `rpc://`, which refuses chords, so every
join is counted in SQL. On SQLite the workers of one machine share a file.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from pytest_celery import (
    CELERY_RABBITMQ_BROKER,
    CELERY_REDIS_BACKEND,
    CELERY_REDIS_BROKER,
    CeleryBackendCluster,
    CeleryTestBroker,
    CeleryTestSetup,
)

from flowengine.dispatch.publisher import Publisher
from tests.acceptance.celery import graphs
from tests.acceptance.celery.attack import ARGUMENTS, ATTACKED, attack
from tests.acceptance.celery.conftest import QUICK_START, SOON, MakeFleet
from tests.acceptance.celery.forger import RabbitQueues
from tests.acceptance.celery.mixed_load import run_under_kills, start_mixed, wait_and_check
from tests.acceptance.celery.rows import check_runs, wait_for
from tests.celery_nodes import Fleet, LocalRabbit, LocalWorker, until
from tests.proxy import Proxy
from tests.servers import RabbitServer

FANOUT = 16  #: the default of `wakeup_fanout`
RABBIT, SQLITE = "rabbitmq and postgresql", "redis and sqlite"


@pytest.fixture(scope="module", params=[RABBIT, SQLITE])
def combination(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def module_fleet(
    combination: str,
    make_fleet: MakeFleet,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    if combination == RABBIT:
        rabbit = LocalRabbit(request.getfixturevalue("shared_rabbit"))
        fleet = make_fleet(broker=rabbit, backend=None)
    else:
        file = tmp_path_factory.mktemp("store") / "flow.db"
        fleet = make_fleet(database_url=f"sqlite:///{file}")
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, wait=False)
    fleet.add_beat()
    yield fleet
    fleet.close()  # before the next combination, not at the end of the module: memory


# --- the plugin's nodes of a combination ---


@pytest.fixture
def default_rabbitmq_broker(shared_rabbit: RabbitServer) -> LocalRabbit:
    return LocalRabbit(shared_rabbit)


@pytest.fixture
def celery_broker(combination: str, request: pytest.FixtureRequest) -> Iterator[CeleryTestBroker]:
    node = CELERY_RABBITMQ_BROKER if combination == RABBIT else CELERY_REDIS_BROKER
    broker: CeleryTestBroker = request.getfixturevalue(node)
    yield broker
    broker.teardown()


@pytest.fixture
def celery_backend_cluster(
    combination: str, request: pytest.FixtureRequest
) -> Iterator[CeleryBackendCluster | None]:
    if combination == RABBIT:
        yield None
        return
    cluster = CeleryBackendCluster(request.getfixturevalue(CELERY_REDIS_BACKEND))
    yield cluster
    cluster.teardown()


# --- undisturbed ---


def test_one_tick_waits_in_a_queue_that_nobody_consumes(fleet: Fleet) -> None:
    tick, publisher = fleet.app.tasks["flowengine.watchdog"], Publisher(fleet.app)

    def waiting() -> int:
        return publisher.queue_length("nobody")

    assert tick.apply_async(queue="nobody") is not None
    until(waiting, "the first tick")
    for _ in range(5):
        assert tick.apply_async(queue="nobody") is None
    assert waiting() == 1


def test_all_runs_complete_and_record_every_step_once(
    fleet: Fleet, celery_setup: CeleryTestSetup
) -> None:
    assert celery_setup.ready(ping=False, control=True), "workers answer by remote control"
    counters = wait_and_check(fleet, start_mixed(fleet, 12))
    assert (counters.lost, counters.failed) == (0, 0)
    traced = {int(path.name.rpartition("-")[2]) for path in fleet.traces.glob("executions-*")}
    assert all(traced & set(worker.children()) for worker in fleet.workers), "each ran some"


def test_a_wide_loop_is_joined_with_and_without_chords(fleet: Fleet, combination: str) -> None:
    width = 120
    headers = fleet.count_logged("Task flowengine.work")
    run = fleet.start(graphs.wide, numbers=list(range(width)))
    wait_for(fleet.engine, [run], 60)
    counters = check_runs(fleet.engine, {run.id: sum(n * n for n in range(width))}, width + 1)
    assert (counters.lost, counters.failed) == (0, 0)
    if combination == RABBIT:
        assert fleet.count_logged("Task flowengine.work") == headers, "rpc:// refuses chords"
        assert fleet.count_logged("wake-up not sent") == 0
    else:  # wake-ups of earlier runs may have been ahead of it in the queue
        until(lambda: fleet.count_logged("Task flowengine.work") > headers, "a chord's header")


@pytest.mark.chaos
def test_two_hundred_runs_complete(fleet: Fleet) -> None:
    counters = wait_and_check(fleet, start_mixed(fleet, 200), seconds=600)
    assert (counters.lost, counters.failed) == (0, 0)


# --- while workers or the broker hang ---


def test_runs_that_no_worker_serves_leave_a_bounded_number_of_wakeups(fleet: Fleet) -> None:
    # A process that stops inside a transaction keeps the lock of an SQLite file, and every start
    # would wait for it in vain: so stop them while this process has the lock.
    with fleet.engine.database.write():
        for node in fleet.nodes:
            node.freeze()
    try:
        runs = []
        for n in range(60):
            runs.append(fleet.start(graphs.squared, n=n))
            fleet.engine.notifier.flush()  # one wake-up each, as from sixty processes
        with fleet.app.connection_for_read() as connection:
            waiting = connection.default_channel.queue_declare("wide", passive=True).message_count
    finally:
        for node in fleet.nodes:
            node.thaw()
    assert 0 < waiting <= 2 * FANOUT
    assert [run.result(timeout=30) for run in runs] == [n * n for n in range(60)]


def test_a_start_returns_while_the_broker_hangs(fleet: Fleet) -> None:
    server = fleet.broker.server
    fleet.start(graphs.squared, n=0).result(timeout=30)  # the client is connected
    server.freeze()
    try:
        began = time.monotonic()
        runs = [fleet.start(graphs.squared, n=n) for n in range(4)]
        assert time.monotonic() - began < SOON
    finally:
        server.thaw()
    assert [run.result(timeout=30) for run in runs] == [0, 1, 4, 9]


# --- while processes are killed ---


def test_kills_at_random_moments_lose_no_run_and_record_no_result_twice(
    fleet: Fleet, chaos_seed: int, combination: str
) -> None:
    print(f"\n{combination}:", end="")
    run_under_kills(fleet, chaos_seed, 20, ["child", "worker", "child", "beat"], longest=0.4)


@pytest.mark.chaos
def test_two_hundred_runs_under_many_kills(fleet: Fleet, chaos_seed: int, combination: str) -> None:
    print(f"\n{combination}:", end="")
    plan = [*["child"] * 40, *["worker"] * 12, "beat"]
    run_under_kills(fleet, chaos_seed, 200, plan, longest=1.5)


@pytest.mark.chaos
def test_runs_complete_when_the_broker_restarts_without_its_queues(
    fleet: Fleet, combination: str
) -> None:
    runs = start_mixed(fleet, 40)
    fleet.broker.server.restart()
    counters = wait_and_check(fleet, {**runs, **start_mixed(fleet, 5)}, seconds=120)
    assert (counters.lost, counters.failed) == (0, 0)
    assert all(worker.is_alive() for worker in fleet.workers)


# --- while a worker ends ---


@pytest.fixture
def proxy(fleet: Fleet) -> Iterator[Proxy]:
    with Proxy(fleet.broker.port) as proxy:
        yield proxy


@pytest.fixture
def last_worker(fleet: Fleet, proxy: Proxy) -> Iterator[LocalWorker]:
    """The only worker that runs. It reaches its broker through the proxy."""
    for worker in fleet.workers:
        worker.process.kill()
    url = fleet.broker.url.replace(f":{fleet.broker.port}/", f":{proxy.port}/")
    last = fleet.add_worker("last", *QUICK_START, FLOWENGINE_BROKER_URL=url)
    yield last
    fleet.workers.remove(last)
    last.stop()


@pytest.mark.chaos
def test_a_worker_ends_although_it_loses_its_broker_meanwhile(
    fleet: Fleet, proxy: Proxy, last_worker: LocalWorker
) -> None:
    fleet.start(graphs.held, name="last")
    until(lambda: fleet.begun("last"), "a running step")
    last_worker.process.kill("SIGQUIT")
    proxy.refuse()
    time.sleep(2.5)  # Celery sends an event to its broker every two seconds
    fleet.let_go("last")
    last_worker.process.wait(15)


@pytest.mark.chaos
def test_every_shutdown_ends_whenever_connections_are_cut(
    fleet: Fleet, proxy: Proxy, last_worker: LocalWorker, chaos_seed: int
) -> None:
    draw = random.Random(chaos_seed)
    for number in range(8):
        name = f"cut-{number}"
        last_worker.start()
        runs = [fleet.start(graphs.held, name=name) for _ in range(2)]
        until(lambda name=name: fleet.begun(name), "a running step")
        acts = [
            proxy.refuse,
            last_worker.terminate,
            lambda: last_worker.process.kill("SIGQUIT"),
            lambda name=name: fleet.let_go(name),
        ]
        draw.shuffle(acts)
        for act in acts:
            act()
            time.sleep(draw.choice([0, 0.05, 0.5, 2]))
        last_worker.process.wait(60)
        proxy.accept()
        last_worker.start()
        wait_for(fleet.engine, runs, 60)
        last_worker.process.kill()


# --- forged messages; on Redis: test_forged_messages ---


#: The configuration of a worker that reaches its broker by TLS.
TLS = """
import ssl

broker_use_ssl = {{
    "ca_certs": "{authority}",
    "cert_reqs": ssl.CERT_REQUIRED,
    "server_hostname": "localhost",
}}
"""


@pytest.fixture(scope="module")
def attacked_on_rabbit(make_fleet: MakeFleet, shared_rabbit: RabbitServer) -> Fleet:
    """A fleet whose worker reaches its broker by TLS."""
    assert shared_rabbit.certificates
    fleet = make_fleet(broker=LocalRabbit(shared_rabbit), backend=None, **ATTACKED)
    tls = TLS.format(authority=shared_rabbit.certificates.authority)
    fleet.add_worker(
        "only",
        *ARGUMENTS,
        content={"celeryconfig.py": tls.encode()},
        FLOWENGINE_BROKER_URL=shared_rabbit.tls_url,
    )
    return fleet


def test_forged_messages_on_rabbitmq_run_no_step_and_end_no_worker(
    attacked_on_rabbit: Fleet, chaos_seed: int
) -> None:
    with closing(RabbitQueues(attacked_on_rabbit.broker.url)) as queues:
        attack(attacked_on_rabbit, queues, chaos_seed, 400)


@pytest.mark.chaos
def test_ten_thousand_forged_messages_on_rabbitmq_run_no_step(
    attacked_on_rabbit: Fleet, chaos_seed: int
) -> None:
    with closing(RabbitQueues(attacked_on_rabbit.broker.url)) as queues:
        attack(attacked_on_rabbit, queues, chaos_seed, 10_000)
