"""A Celery task that becomes a step keeps its behaviour, or says what it loses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, SoftTimeLimitExceeded

from flowengine import RunFailed, event_facet, workflow
from flowengine.errors import AuthoringError, CeleryTaskWarning
from flowengine.program.event_options import Rate
from flowengine.store.recovery_queries import HeldTask
from flowengine.tasks.lost_tries import send_end
from flowengine.testing import Flow
from flowengine.worker.pool_children import TryEnd

app = Celery("steps", broker="memory://", set_as_current=False)
SEEN: list[Any] = []


class Bank(Exception):
    pass


class Hooked(Task):  # type: ignore[misc]
    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        SEEN.append(("before", args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        SEEN.append("called")
        return super().__call__(*args, **kwargs)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        SEEN.append(("success", retval))

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        SEEN.append(("failure", repr(exc)))

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        SEEN.append(("retry", repr(exc)))


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


def run(flow: Flow, task: Any, *args: Any, **options: Any) -> Any:
    """Run a workflow of one step that is the task, to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CeleryTaskWarning)
        step = event_facet(**options)(task) if options else event_facet(task)

    @workflow(name=f"one.{task.name}")
    def one(given: list[Any]) -> Any:
        return step(*[given[n] for n in range(len(args))])

    return flow.run(one, list(args))


def task(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    given = {"name": f"steps.t{len(app.tasks)}", "shared": False, **options}

    def make(fn: Callable[..., Any]) -> Any:
        with warnings.catch_warnings():  # of attributes that Celery 5.7 deprecates
            warnings.simplefilter("ignore", PendingDeprecationWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            made = app.task(**given)(fn)
            assert made.name  # evaluates the lazy task
            return made

    return make if fn is None else make(fn)


# --- retries ---


def test_self_retry_waits_its_countdown_without_autoretry_for() -> None:
    @task(bind=True, max_retries=4)
    def charge(self: Any) -> str:
        SEEN.append(self.request.retries)
        if self.request.retries < 4:
            raise self.retry(exc=Bank("busy"), countdown=7)
        return "paid"

    with Flow() as flow:
        before = flow.clock.now
        assert run(flow, charge) == "paid"
        assert flow.clock.now - before == 28_000
    assert SEEN == [0, 1, 2, 3, 4]


def test_self_retry_without_a_countdown_waits_the_delay_of_the_task() -> None:
    @task(bind=True, max_retries=1, default_retry_delay=11)
    def charge(self: Any) -> str:
        return "paid" if self.request.retries else self.retry()

    with Flow() as flow:
        before = flow.clock.now
        assert run(flow, charge) == "paid"
        assert flow.clock.now - before == 11_000


def test_retries_that_are_used_up_end_with_the_error_of_the_task() -> None:
    @task(bind=True, max_retries=1)
    def charge(self: Any) -> None:
        SEEN.append("try")
        self.retry(exc=Bank("busy"), countdown=1)

    @task(bind=True, max_retries=1)
    def without_an_error(self: Any) -> None:
        self.retry(countdown=1)

    with Flow() as flow:
        with pytest.raises(RunFailed, match="Bank: busy"):
            run(flow, charge)
        assert SEEN == ["try", "try"]
        with pytest.raises(RunFailed, match=MaxRetriesExceededError.__name__):
            run(flow, without_an_error)


def test_an_error_without_a_retry_of_the_task_fails_at_once() -> None:
    @task(bind=True, max_retries=5)
    def charge(self: Any) -> None:
        SEEN.append("try")
        raise Bank("closed")

    with Flow() as flow, pytest.raises(RunFailed, match="Bank: closed"):
        run(flow, charge)
    assert SEEN == ["try"]


def test_a_policy_of_the_facet_decides_when_the_task_names_no_countdown() -> None:
    from flowengine import Retry

    @task(bind=True, autoretry_for=(Bank,), retry_backoff=30, max_retries=1)
    def charge(self: Any) -> str:
        SEEN.append("try")
        if len(SEEN) < 4:
            raise Bank("busy")
        return "paid"

    with Flow() as flow:
        before = flow.clock.now
        assert run(flow, charge, retry=Retry(attempts=4, first_wait=2, factor=1)) == "paid"
        assert flow.clock.now - before == 6_000


def test_other_arguments_for_a_retry_are_refused() -> None:
    @task(bind=True)
    def charge(self: Any, cents: int) -> None:
        self.retry(args=(cents + 1,), queue="slow")

    with Flow() as flow, pytest.raises(RunFailed, match=r"self.retry\(queue=…, args=…\)"):
        run(flow, charge, 3)


# --- the request ---


def test_the_id_of_the_request_is_the_same_for_all_tries_of_a_step() -> None:
    @task(bind=True, max_retries=2, queue="payments")
    def charge(self: Any) -> list[Any]:
        SEEN.append(self.request.id)
        if self.request.retries < 2:
            self.retry(countdown=1)
        given = self.request
        assert given.headers["flowengine-run"] == given.root_id == given.parent_id
        assert given.args == [] or given.args == ()
        return [given.called_directly, given.is_eager, given.delivery_info["routing_key"]]

    with Flow() as flow:
        assert run(flow, charge) == [False, False, "payments"]
    assert len(SEEN) == 3
    assert len(set(SEEN)) == 1
    assert SEEN[0]


def test_a_lost_try_is_a_redelivery() -> None:
    @task(bind=True)
    def charge(self: Any) -> bool:
        return bool(self.request.delivery_info["redelivered"])

    step = event_facet(charge)

    @workflow(name="one.lost")
    def one() -> bool:
        return step()

    with Flow() as flow:
        lost = flow.start(one)
        worker = flow.worker("a")
        worker.claim(lost, charge.name.rpartition(".")[2])
        worker.die()
        flow.clock.advance(minutes=2)
        flow.watchdog()
        flow.settle()
        assert lost.result() is True


# --- hooks and signals ---


@contextmanager
def heard() -> Iterator[list[Any]]:
    found: list[Any] = []
    names = ("task_prerun", "task_postrun", "task_success", "task_failure", "task_retry")
    handlers = []
    for name in names:

        def handler(sender: Any, *, _name: str = name, **more: Any) -> None:
            if _name == "task_failure":
                assert more["traceback"] is not None
            found.append((_name, sender.name))

        handlers.append((name, handler))
        getattr(signals, name).connect(handler, weak=False)
    try:
        yield found
    finally:
        for name, handler in handlers:
            getattr(signals, name).disconnect(handler)


def test_signals_have_the_task_as_sender() -> None:
    @task(name="steps.signalled", bind=True, max_retries=1)
    def charge(self: Any) -> None:
        if not self.request.retries:
            self.retry(countdown=1)
        raise Bank("closed")

    with Flow() as flow, heard() as found, pytest.raises(RunFailed):
        run(flow, charge)
    assert found == [
        (name, "steps.signalled")
        for name in (
            *("task_prerun", "task_retry", "task_postrun"),
            *("task_prerun", "task_failure", "task_postrun"),
        )
    ]


def test_hooks_of_the_base_class_are_called() -> None:
    @task(base=Hooked, bind=True, max_retries=1)
    def charge(self: Any, cents: int) -> str:
        if not self.request.retries:
            self.retry(exc=Bank("busy"), countdown=1)
        return f"{cents} paid"

    @task(base=Hooked)
    def fail(cents: int) -> None:
        raise Bank(str(cents))

    with Flow() as flow:
        assert run(flow, charge, 5) == "5 paid"
        called = [("before", (5,), {}), "called"]
        assert [*called, ("retry", "Bank('busy')"), *called, ("success", "5 paid")] == SEEN
        SEEN.clear()
        with pytest.raises(RunFailed, match="Bank: 6"):
            run(flow, fail, 6)
        assert SEEN == [("before", (6,), {}), "called", ("failure", "Bank('6')")]


def test_a_task_that_is_called_by_its_own_step_is_plain_python() -> None:
    @task(bind=True)
    def outer(self: Any, n: int) -> list[Any]:
        return [self.request.id is not None, inner(n)]

    @task
    def inner(n: int) -> int:
        return n + 1

    event_facet(inner)
    with Flow() as flow:
        assert run(flow, outer, 1) == [True, 2]


# --- refusals ---


def test_replace_is_refused_before_anything_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    @task
    def other() -> None: ...

    @task(bind=True)
    def charge(self: Any) -> Any:
        return self.replace(other.si())

    monkeypatch.setattr(app, "send_task", lambda *_, **__: SEEN.append("published"))
    monkeypatch.setattr(type(other), "apply_async", lambda *_, **__: SEEN.append("published"))
    with Flow() as flow, pytest.raises(RunFailed, match=r"called self\.replace, and nothing was"):
        run(flow, charge)
    assert SEEN == []


@pytest.mark.parametrize("raised", [Ignore(), Reject("no", requeue=False)])
def test_a_task_without_an_outcome_fails_its_step(raised: Exception) -> None:
    @task(bind=True, max_retries=5)
    def charge(self: Any) -> None:
        raise raised

    with Flow() as flow, pytest.raises(RunFailed, match=f"raised {type(raised).__name__}"):
        run(flow, charge)


def test_a_rejected_try_is_tried_again_when_it_is_requeued() -> None:
    @task(bind=True)
    def charge(self: Any) -> str:
        if not self.request.retries:
            raise Reject("not now", requeue=True)
        return "paid"

    with Flow() as flow:
        assert run(flow, charge) == "paid"


def test_a_step_that_waited_longer_than_its_task_expires_is_revoked() -> None:
    @task(expires=60)
    def charge() -> str:
        return "paid"

    revoked: list[Any] = []

    def hear(sender: Any, expired: bool, **_: Any) -> None:
        revoked.append((sender.name, expired))

    signals.task_revoked.connect(hear)
    step = event_facet(charge)

    @workflow(name="one.expired")
    def one() -> str:
        return step()

    with Flow() as flow:
        late = flow.start(one)
        flow.clock.advance(seconds=61)
        flow.settle()
        with pytest.raises(RunFailed, match="it expired"):
            late.result()
        assert revoked == [(charge.name, True)]


# --- options ---


def test_options_with_a_counterpart_are_carried_over() -> None:
    @task(rate_limit="10/m", acks_late=True, priority=4, time_limit=30, soft_time_limit=20)
    def charge() -> None: ...

    with pytest.warns(CeleryTaskWarning, match="whole fleet"):
        options = event_facet(charge).options
    assert options.rate == (Rate(charge.name, 10, 60.0),)
    assert (options.on_loss, options.priority, options.timeout) == ("retry", 4, 30)


def test_a_soft_limit_alone_kills_nothing() -> None:
    @task(soft_time_limit=20)
    def charge() -> None: ...

    assert event_facet(charge).options.timeout is None


def test_errors_that_a_task_expects_are_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    @task(throws=(Bank,))
    def charge(known: bool) -> None:
        raise Bank("declined") if known else ValueError("a defect")

    with Flow() as flow, caplog.at_level("INFO", logger="flowengine"):
        for known in (True, False):
            with pytest.raises(RunFailed):
                run(flow, charge, known)
    levels = [r.levelname for r in caplog.records if getattr(r, "action", "") == "try_failed"]
    assert levels == ["INFO", "WARNING"]


def test_a_result_that_celery_would_drop_need_not_be_json() -> None:
    @task(ignore_result=True)
    def load() -> Any:
        return object()

    @task(ignore_result=True)
    def count() -> Any:
        return 3

    with Flow() as flow:
        assert run(flow, load) is None
        assert run(flow, count) == 3


def test_a_soft_limit_is_raised_in_the_code_of_the_task() -> None:
    import time

    @task(soft_time_limit=0.05)
    def charge() -> str:
        try:
            time.sleep(30)
        except SoftTimeLimitExceeded:
            return "refunded"
        return "paid"

    with Flow() as flow:
        assert run(flow, charge) == "refunded"


def test_a_soft_limit_that_meets_a_heartbeat_is_raised_in_the_code_of_the_task() -> None:
    import time

    @task(bind=True, soft_time_limit=0.05)
    def charge(self: Any) -> str:
        ends = time.monotonic() + 30
        try:
            while time.monotonic() < ends:
                self.update_state(meta={"at": time.monotonic()})
        except SoftTimeLimitExceeded:
            return "refunded"
        return "the limit was lost"

    with Flow() as flow:
        for _ in range(6):
            assert run(flow, charge) == "refunded"


def test_methods_of_tasks_are_replaced_once_however_many_tries_there_are() -> None:
    @task(bind=True)
    def charge(self: Any) -> int:
        return 1

    with Flow() as flow:
        for _ in range(30):
            assert run(flow, charge) == 1
    assert not hasattr(Task.retry.__wrapped__, "__wrapped__")
    assert "retry" not in vars(charge)


def test_a_retry_of_a_base_class_is_called() -> None:
    class Patient(Task):  # type: ignore[misc]
        def retry(self, *args: Any, **kwargs: Any) -> Any:
            return super().retry(*args, **{**kwargs, "countdown": 7})

    @task(base=Patient, bind=True)
    def charge(self: Any) -> str:
        return "paid" if self.request.retries else self.retry()

    with Flow() as flow:
        before = flow.clock.now
        assert run(flow, charge) == "paid"
        assert flow.clock.now - before == 7_000


def test_two_facets_of_one_task_have_their_own_policies() -> None:
    from flowengine import Retry

    @task(bind=True, default_retry_delay=180)
    def charge(self: Any) -> str:
        return "paid" if self.request.retries else self.retry(exc=Bank("busy"))

    with Flow() as flow:
        for _ in range(2):
            for options, wait in (
                ({"name": "steps.quick", "retry": Retry(attempts=3, first_wait=5)}, 5_000),
                ({"name": "steps.slow"}, 180_000),
            ):
                before = flow.clock.now
                assert run(flow, charge, **options) == "paid"
                assert flow.clock.now - before == wait


def test_a_failure_that_the_policy_of_the_facet_retries_is_told_as_a_retry() -> None:
    from flowengine import Retry

    @task(base=Hooked)
    def charge() -> str:
        SEEN.append("try")
        if SEEN.count("try") < 2:
            raise Bank("busy")
        return "paid"

    with Flow() as flow, heard() as found:
        assert run(flow, charge, retry=Retry(attempts=3, first_wait=1)) == "paid"
    assert [name for name, _ in found if name in ("task_retry", "task_failure")] == ["task_retry"]
    assert ("retry", "Bank('busy')") in SEEN
    assert not [one for one in SEEN if one[0] == "failure"]


def test_a_retry_that_the_policy_of_the_facet_does_not_grant_is_told_as_a_failure() -> None:
    from flowengine import Retry

    @task(base=Hooked, autoretry_for=(Bank,), max_retries=10)
    def charge() -> None:
        raise Bank("closed")

    with Flow() as flow, heard() as found, pytest.raises(RunFailed, match="Bank: closed"):
        run(flow, charge, retry=Retry(attempts=2, first_wait=1))
    ends = [name for name, _ in found if name in ("task_retry", "task_failure")]
    assert ends == ["task_retry", "task_failure"]
    assert ("failure", "Bank('closed')") in SEEN


def test_self_retry_of_another_error_than_autoretry_is_a_retry_with_an_own_policy() -> None:
    from flowengine import Retry

    @task(bind=True, autoretry_for=(Bank,))
    def charge(self: Any) -> str:
        return "paid" if self.request.retries else self.retry(exc=ValueError("odd"))

    with Flow() as flow:
        before = flow.clock.now
        assert run(flow, charge, retry=Retry(attempts=3, first_wait=4)) == "paid"
        assert flow.clock.now - before == 4_000


def test_an_exception_that_ends_the_process_is_a_failure_of_the_task() -> None:
    @task
    def leave() -> None:
        raise SystemExit(3)

    with Flow() as flow, heard() as found, pytest.raises(SystemExit):
        run(flow, leave)
    assert ("task_failure", leave.name) in found


def test_a_helper_of_a_task_may_ask_for_a_retry() -> None:
    from celery import current_task

    def ask_bank() -> str:
        return "paid" if current_task.request.retries else current_task.retry(countdown=1)

    @task
    def charge() -> str:
        return ask_bank()

    with Flow() as flow:
        assert run(flow, charge) == "paid"


@pytest.mark.parametrize(
    ("limit", "rate"),
    [
        ("10/m", (10, 60.0)),
        (5, (5, 1.0)),
        ("0.5/s", (1, 2.0)),
        ("1.5/m", (1, 40.0)),
        ("20000/m", (10_000, 30.0)),
        ("0", None),
    ],
)
def test_rate_limits_of_celery_are_rates(limit: Any, rate: tuple[int, float] | None) -> None:
    @task(rate_limit=limit)
    def charge() -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CeleryTaskWarning)
        found = event_facet(charge).options.rate
    assert found == (() if rate is None else (Rate(charge.name, *rate),))


def test_a_rate_limit_that_celery_has_not_is_refused_with_the_task() -> None:
    @task(rate_limit="10/d")
    def charge() -> None: ...

    with pytest.raises(AuthoringError, match=r"rate_limit='10/d' is no rate of Celery"):
        event_facet(charge)


def test_a_single_class_of_expected_errors_is_taken() -> None:
    @task(throws=Bank)
    def charge() -> None: ...

    assert event_facet(charge).expected == (Bank,)


def test_a_hard_limit_is_not_retried() -> None:
    @task(bind=True, max_retries=5, time_limit=2)
    def charge(self: Any) -> None: ...

    step = event_facet(charge)

    @workflow(name="one.limited")
    def one() -> Any:
        return step()

    with Flow() as flow:
        hung = flow.start(one)
        flow.worker("a").claim(hung, charge.name.rpartition(".")[2])
        flow.clock.advance(seconds=10)
        flow.watchdog()
        flow.settle()
        with pytest.raises(RunFailed, match="Timeout"):
            hung.result()


# --- findings ---


@task(bind=True, name="steps.careless", rate_limit="5/s")
def careless(self: Any, cents: int) -> Any:
    if self.request.chord:
        self.add_to_chord(careless.s(1))
    if cents < 0:
        self.retry(max_retries=9, queue="slow")
    return self.replace(careless.s(1))


def test_everything_that_is_lost_is_a_warning_at_its_line() -> None:
    with pytest.warns(CeleryTaskWarning) as found:
        event_facet(careless)
    first = careless.run.__func__.__code__.co_firstlineno
    told = {warning.lineno - first: str(warning.message) for warning in found}
    assert {warning.filename for warning in found} == {__file__}
    assert sorted(told) == [0, 2, 3, 5, 6]
    assert "rate_limit='5/s'" in told[0]
    assert "self.request.chord is None" in told[2]
    assert "self.replace fails the step" in told[6]


def test_everything_that_is_lost_is_an_error_with_strict() -> None:
    with pytest.raises(AuthoringError, match=r"steps.careless.*self\.add_to_chord.*self\.replace"):
        event_facet(strict=True)(careless)

    @task(bind=True, autoretry_for=(Bank,), max_retries=2)
    def sound(self: Any, cents: int) -> str:
        if cents:
            self.retry(max_retries=self.max_retries)
        self.retry(max_retries=None)
        return str(self.request.id)

    event_facet(strict=True)(sound)


def test_check_lists_what_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from flowengine.cli.commands import main

    (tmp_path / "lossy_shop.py").write_text(
        "from celery import Celery\n"
        "from flowengine import event_facet\n"
        "app = Celery('lossy', broker='memory://', set_as_current=False)\n"
        "@app.task(bind=True)\n"
        "def charge(self, cents):\n"
        "    return self.replace(charge.s(1))\n"
        "pay = event_facet(charge)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    lenient = CliRunner().invoke(main, ["check", "lossy_shop"])
    assert lenient.exit_code == 0, lenient.output
    assert "6 ! self.replace fails the step" in lenient.output
    assert "1 warning" in lenient.output
    assert CliRunner().invoke(main, ["check", "--strict", "lossy_shop"]).exit_code == 1


@pytest.mark.parametrize(
    ("end", "signal", "error"),
    [
        (TryEnd.LOST, "task_failure", "WorkerLostError"),
        (TryEnd.TIMED_OUT, "task_failure", "TimeLimitExceeded"),
        (TryEnd.CANCELED, "task_revoked", None),
    ],
)
def test_a_try_that_ended_with_its_pool_child_is_told_of_its_task(
    end: TryEnd, signal: str, error: str | None
) -> None:
    @task
    def charge() -> None: ...

    event_facet(charge)
    held = HeldTask("t", 1, "r", charge.name, "l", "w.charge", 500, "b", 7, False, "the-step")
    found: list[Any] = []

    def hear(sender: Any, **told: Any) -> None:
        given = told.get("exception")
        found.append((sender.name, given and type(given).__name__, told.get("task_id")))

    getattr(signals, signal).connect(hear)
    send_end(held, end)
    assert found == [(charge.name, error, "the-step" if error else None)]
