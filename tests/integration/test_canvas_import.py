"""A canvas of Celery as a run: the same results, the errors of its steps, and old code's handle."""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from celery import VERSION, Celery, Signature, chain, chord, current_app, group, shared_task
from celery import exceptions as celery_errors
from celery.result import AsyncResult, allow_join_result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowengine import RunFailed, durable, event_facet, workflow
from flowengine.assembly import FlowEngine
from flowengine.authoring import set_launcher_source, set_task_list_source
from flowengine.engine.watchdog import Watchdog
from flowengine.errors import AuthoringError, CanvasRefused, DeadlineExceeded, DoesNotFit
from flowengine.evaluator.states import RunState
from flowengine.program.serializer import program_hash, program_text
from flowengine.settings import Settings
from flowengine.tasks.canvas_results import DurableResult
from flowengine.testing import Flow
from tests.celery_nodes import until
from tests.examples_drawn import AT_RANDOM

SEEN: list[Any] = []

app = Celery("canvas", broker="redis://127.0.0.1:1/0", set_as_current=False)
app.conf.update(task_always_eager=True, result_backend="cache+memory://")


class Declined(Exception):
    pass


class TakesTwo(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)


@app.task(name="canvas.first")
def first(n: int) -> int:
    return n


@app.task(name="canvas.after")
def after(before: Any, n: int = 0) -> Any:
    return [n, before]


@app.task(name="canvas.wrapped")
def wrapped(before: Any) -> Any:
    return {"of": before}


@app.task(name="canvas.add")
def add(x: int, y: int) -> int:
    SEEN.append((x, y))
    return x + y


@app.task(name="canvas.total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="canvas.decline")
def decline(amount: int) -> int:
    raise Declined(f"no money for {amount}")


@app.task(name="canvas.decline_oddly")
def decline_oddly(amount: int) -> int:
    raise TakesTwo(amount, "no money")


@app.task(name="canvas.say")
def say(text: str) -> str:
    return text


@app.task(name="canvas.look_up")
def look_up(item: str) -> int:
    return {"kettle": 2}[item]


@app.task(name="canvas.note")
def note(*, what: str) -> None:
    SEEN.append(what)


@app.task(bind=True, name="canvas.report")
def report(self: Any, request: Any, exc: Exception, traceback: Any, to: str = "ops") -> None:
    SEEN.append((type(exc), str(exc), request.task, str(traceback), to))


@app.task(name="canvas.old_report")
def old_report(task_id: str) -> None: ...


@app.task(name="canvas.plain")
def plain(n: int) -> int:
    return n


@app.task(name="canvas.kind")
def kind(x, when: datetime.date | None = None):  # type: ignore[no-untyped-def]
    return [type(x).__name__, type(when).__name__]


for task in (first, after, wrapped, add, total, say, note, look_up, kind):
    event_facet(task)
for task in (decline, decline_oddly, report, old_report):
    event_facet(task)


@pytest.fixture(autouse=True, scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("canvas")
    before, lists = set_launcher_source(None), set_task_list_source(None)
    options = Settings(
        database_url=f"sqlite:///{directory}/flow.db",
        spool_directory=str(directory / "spool"),
        watchdog_interval=0.05,
    )
    plugin = FlowEngine(app, settings=options)
    # Empty groups and pickled handles name no app: without this they have that of an earlier test.
    outer = current_app._get_current_object()
    app.set_current()
    yield
    outer.set_current()
    plugin.engine.close()
    set_launcher_source(before)
    set_task_list_source(lists)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def digest(signature: Signature) -> str:
    return program_hash(durable(signature).program())


def result_of(canvas: Signature) -> Any:
    return durable(canvas).start().get(timeout=30)


# --- the same results as Celery ---


def test_each_task_of_a_chain_gets_the_result_before_it() -> None:
    assert result_of(chain(add.s(1, 2), after.s(3), wrapped.s())) == {"of": [3, 3]}
    assert result_of(chain(add.s(1, 2), after.si(7, n=8))) == [8, 7]


def test_a_chord_gets_the_results_of_its_header_in_order() -> None:
    header = [add.s(n, n) for n in range(5)]
    assert result_of(chord(header, after.s(1))) == [1, [0, 2, 4, 6, 8]]
    assert result_of(group(header) | total.s()) == 20
    assert result_of(chord([], after.s(1))) == [1, []]


def test_maps_starmaps_and_chunks_are_loops() -> None:
    assert result_of(first.map([1, 2])) == [1, 2]
    assert result_of(add.starmap([(1, 2), (3, 4)])) == [3, 7]
    assert result_of(add.chunks([(1, 2), (3, 4), (5, 6)], 2)) == [[3, 7], [11]]
    sent = json.loads(json.dumps(group(first.map([1, 2]), add.starmap([(1, 2)]))))
    assert result_of(app.signature(sent)) == [[1, 2], [3]]


def test_an_empty_composition_is_a_run_with_an_empty_list() -> None:
    for canvas in (group([]), first.map([]), add.starmap([]), add.chunks([], 10)):
        assert result_of(canvas) == []
    assert result_of(group(first.map([]), first.map([]))) == [[], []]
    assert result_of(chain(first.map([]), wrapped.s())) == {"of": []}
    assert durable(group([])).name.startswith("canvas.nothing_")
    with pytest.raises(CanvasRefused, match=r"task .canvas\.plain. is not a step"):
        durable(plain.map([]))


def test_a_chain_of_a_group_of_one_has_the_result_that_a_worker_of_celery_gives() -> None:
    # A message makes a task of the group; only `apply()`, in place, keeps it: [6].
    assert result_of(chain(group(first.s(6)))) == 6
    assert result_of(group(first.s(6))) == [6]


def test_an_immutable_task_waits_for_the_one_before_it() -> None:
    handle = durable(chain(add.s(1, 2), first.si(4), group(add.si(1, 1), add.si(2, 2)))).start()
    assert handle.get(timeout=30) == [2, 4]
    steps = [step for step in handle.run.steps() if step.facet in ("canvas.add", "canvas.first")]
    (before,) = (step for step in steps if step.facet == "canvas.add" and "[" not in step.path)
    (order,) = (step for step in steps if step.facet == "canvas.first")
    members = [step for step in steps if "[" in step.path]
    assert before.updated <= order.created
    assert [member.created >= order.updated for member in members] == [True, True]


NUMBERS = st.integers(0, 9)


def parts(*, is_first: bool) -> st.SearchStrategy[Signature]:
    """Canvases; the first part of one gets no result."""
    if is_first:
        leaves: Any = st.one_of(NUMBERS.map(first.s), NUMBERS.map(first.si))
    else:
        leaves = st.one_of(
            NUMBERS.map(after.s), st.just(None).map(lambda _: wrapped.s()), NUMBERS.map(first.si)
        )
    return leaves  # type: ignore[no-any-return]


def composed(depth: int, *, is_first: bool) -> st.SearchStrategy[Signature]:
    leaf = parts(is_first=is_first)
    if depth == 0:
        return leaf
    inner = st.deferred(lambda: composed(depth - 1, is_first=is_first))
    later = st.deferred(lambda: composed(depth - 1, is_first=False))
    members = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        leaf,
        st.tuples(inner, st.lists(later, min_size=1, max_size=3)).map(
            lambda drawn: chain(drawn[0], *drawn[1])
        ),
        members.map(group),
        st.tuples(members, later).map(lambda drawn: chord(drawn[0], drawn[1])),
    )


@pytest.mark.skipif(
    VERSION < (5, 7), reason="earlier versions reverse groups in headers and lose a result in place"
)
@settings(max_examples=200 if AT_RANDOM else 40, suppress_health_check=list(HealthCheck))
@given(canvas=composed(3, is_first=True))
def test_a_run_has_the_result_that_celery_has_in_place(canvas: Signature) -> None:
    imported = durable(canvas)
    with allow_join_result():
        expected = canvas.apply().get()
    assert imported.start().get(timeout=30) == expected


@settings(max_examples=200 if AT_RANDOM else 40, suppress_health_check=list(HealthCheck))
@given(canvas=composed(3, is_first=True))
def test_a_canvas_that_was_sent_as_json_is_the_same(canvas: Signature) -> None:
    sent = app.signature(json.loads(json.dumps(canvas)))
    assert durable(sent).inputs == durable(canvas).inputs
    assert durable(sent).workflow is durable(canvas).workflow


# --- one shape, one program ---


def test_canvases_of_one_shape_have_one_program_with_other_inputs() -> None:
    def order(customer: int, prices: list[int]) -> Signature:
        each = [add.s(price, 0) for price in prices]
        return chain(chord(each, total.s()), after.s(customer))

    few, many = durable(order(1, [1, 2])), durable(order(2, list(range(1, 50))))
    assert digest(order(1, [1, 2])) == digest(order(2, list(range(1, 50))))
    assert few.workflow is many.workflow, "traced once"
    assert few.name == many.name
    assert few.inputs == {"add_items": [[1, 0], [2, 0]], "after_n": 1}
    few.start(), many.start()
    assert digest(order(1, [1])) == digest(order(1, [1, 2]))
    assert digest(order(1, [1, 2]).set(countdown=5)) != digest(order(1, [1, 2]))


def test_a_group_of_a_thousand_is_one_loop() -> None:
    canvas = durable(group(add.s(n, 1) for n in range(1_000)))
    assert len(json.dumps(canvas.inputs)) > 5_000
    small = durable(group(add.s(n, 1) for n in range(2)))
    assert program_hash(canvas.program()) == program_hash(small.program())
    handle = canvas.start()
    assert handle.get(timeout=60) == list(range(1, 1_001))


def test_a_group_of_several_kinds_has_a_loop_for_each_run_of_one_kind() -> None:
    members = [*(add.s(n, n) for n in range(100)), first.s(7), *(first.si(n) for n in range(3))]
    canvas = durable(group(members))
    assert set(canvas.inputs) == {"add_items", "first_items"}
    assert canvas.start().get(timeout=30) == [*(2 * n for n in range(100)), 7, 0, 1, 2]


def test_a_workflow_has_the_name_that_it_is_given() -> None:
    handle = durable(chain(add.s(1, 2), after.s(3)), name="shop.ordered").start()
    assert handle.run.info().workflow == "shop.ordered"
    assert durable(chain(add.s(1, 2), after.s(3))).name.startswith("canvas.add_to_after_")


# --- options ---


def test_a_countdown_is_a_durable_sleep_behind_the_task_before_it(database_url: str) -> None:
    canvas = durable(chain(add.s(1, 2), after.s(3).set(countdown=3600)))
    with Flow(store_url=database_url) as flow:
        run = flow.start(canvas.workflow, **canvas.inputs)
        began = flow.clock()
        flow.settle()
        assert run.state == RunState.RUNNING
        assert flow.run(canvas.workflow, **canvas.inputs) == [3, 3]
        assert flow.clock() - began >= 3_600_000
        assert run.result(timeout=0) == [3, 3]
        steps = {step.path.partition(".")[2]: step for step in run.steps()}
    assert steps["sleep"].params["seconds"] == 3600
    assert steps["sleep"].created >= steps["add"].updated
    assert durable(add.s(1, 2).set(countdown=3600)).start().state == "PENDING"


def test_an_eta_is_a_sleep_until_then_and_delays_the_header_of_a_chord() -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    handle = durable(chord([add.s(1, 2), add.s(3, 4)], total.s())).apply_async(eta=soon)
    slept = [step for step in handle.run.steps() if step.path.endswith(".sleep_until")]
    assert [step.params["until"] for step in slept] == [soon.isoformat()] * 2
    assert not SEEN


def test_the_expiry_of_a_canvas_is_the_deadline_of_its_run(database_url: str) -> None:
    canvas = durable(chain(add.s(1, 2), after.s(3).set(countdown=60, expires=30)))
    with Flow(store_url=database_url) as flow:
        assert flow.run(canvas.workflow, **canvas.inputs) == [3, 3]
    assert "Deadline" in program_text(canvas.program())
    late = durable(chain(add.s(1, 2).set(countdown=60), after.s(1))).apply_async(expires=0.01)
    recovery = Watchdog(app.flowengine.engine)
    until(lambda: (recovery.tick(), late.ready())[1], "the deadline of the run")
    with pytest.raises(DeadlineExceeded):
        late.get(timeout=0)


HOUR = datetime.timedelta(hours=1)


@pytest.mark.parametrize(
    "expires", [-5, 0, -HOUR, datetime.datetime.now(datetime.UTC) - HOUR, "2020-05-01T12:00:00"]
)
def test_a_canvas_that_has_expired_is_not_started(expires: Any) -> None:
    canvas = durable(chain(add.s(1, 2), after.s(3)).set(expires=expires))
    with pytest.raises(CanvasRefused, match=r"canvas: option 'expires': it has expired"):
        canvas.start()
    with pytest.raises(CanvasRefused, match=r"give it a later time"):
        durable(add.s(1, 2)).apply_async(expires=expires)
    assert not SEEN


def test_a_moment_of_expiry_is_compared_with_the_time_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock(datetime.datetime):
        ahead = datetime.timedelta()

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime.now(tz) + cls.ahead

    moment = datetime.datetime.now(datetime.UTC) + HOUR
    canvas = durable(add.s(1, 2).set(expires=moment))
    assert canvas.start().get(timeout=30) == 3
    clock = SimpleNamespace(datetime=Clock, UTC=datetime.UTC)
    monkeypatch.setattr("flowengine.assembly.durable_canvas.datetime", clock)
    Clock.ahead = 2 * HOUR
    with pytest.raises(CanvasRefused, match="it has expired"):
        canvas.start()


def test_a_task_id_is_the_key_of_the_run_and_the_id_of_its_handle() -> None:
    handle = durable(chain(add.s(1, 2), after.s(3))).apply_async(task_id="order-17")
    again = durable(chain(add.s(1, 2), after.s(3).set(task_id="order-17"))).start()
    assert handle.id == again.id == "order-17"
    assert handle.run.id == again.run.id
    assert handle.run.info().key == "order-17"
    assert SEEN == [(1, 2)], "it was run once"


def test_the_priority_of_a_canvas_is_that_of_its_run_and_higher_is_first() -> None:
    handle = durable(chain(add.s(1, 2), after.s(3))).apply_async(priority=9)
    assert handle.run.info().priority == -9, "9 is the lowest priority in Redis"
    assert durable(add.s(1, 2)).start(priority=4).run.info().priority == 4


def test_links_get_the_result_and_their_failure_is_no_failure_of_the_canvas() -> None:
    linked = add.s(1, 2)
    linked.link(add.s(10))
    linked.link(decline.s())
    linked.link(note.si(what="linked"))
    assert result_of(chain(linked, after.s(4))) == [4, 3]
    assert sorted(map(str, SEEN)) == ["(1, 2)", "(3, 10)", "linked"]


# --- failures ---


def test_an_errback_sees_the_failure_and_the_run_fails_with_the_error_of_the_step() -> None:
    canvas = chain(add.s(1, 2), decline.s(), after.s(1)).on_error(report.s(to="eva"))
    handle = durable(canvas).start()
    with pytest.raises(Declined, match="no money for 3") as caught:
        handle.get(timeout=30)
    assert type(caught.value) is Declined
    cause = caught.value.__cause__
    assert isinstance(cause, RunFailed)
    assert cause.path.endswith(".attempt.decline")
    assert SEEN[1:] == [
        (Declined, "no money for 3", cause.path, f"{cause.path}: Declined: no money for 3", "eva")
    ]
    assert handle.run.state == RunState.FAILED


def test_each_member_of_a_group_has_its_own_errback() -> None:
    members = [decline.s(n).on_error(note.si(what=f"errback {n}")) for n in range(3)]
    canvas = durable(group(members))
    assert list(canvas.inputs) == ["decline_items"], "one loop, with the constants of the errbacks"
    with pytest.raises(Declined):
        canvas.start().get(timeout=30)
    assert sorted(SEEN) == ["errback 0", "errback 1", "errback 2"]


def test_an_immutable_errback_gets_its_own_arguments() -> None:
    canvas = decline.s(5).on_error(note.si(what="declined"))
    with pytest.raises(Declined):
        result_of(canvas)
    assert SEEN == ["declined"]


def test_an_errback_that_fails_changes_no_error() -> None:
    with pytest.raises(Declined, match="for 5"):
        result_of(decline.s(5).on_error(decline.si(6)))


def test_the_errback_of_a_chords_body_is_for_its_header_too() -> None:
    canvas = chord([add.s(1, 2), decline.s(1)], total.s().on_error(note.si(what="body")))
    with pytest.raises(Declined):
        result_of(canvas)
    assert SEEN[1:] == ["body"]


def test_an_error_with_other_arguments_keeps_its_class_and_text() -> None:
    with pytest.raises(TakesTwo) as caught:
        result_of(decline_oddly.s(5))
    assert str(caught.value) == "(5, 'no money')"
    assert "no money" in repr(caught.value)
    with pytest.raises(DoesNotFit, match="'n' should be int, was 'no number'"):
        result_of(chain(say.s("no number"), first.s()))
    with pytest.raises(KeyError) as missing:
        result_of(look_up.s("cup"))
    assert repr(missing.value) == "KeyError('cup')"


# --- the handle in code that expects an AsyncResult ---


def old_code(result: object) -> dict[str, Any]:
    """Old code: it knows a result backend and a task's id."""
    assert isinstance(result, AsyncResult)
    seen = {name: getattr(result, name) for name in ("id", "state", "status", "traceback")}
    seen |= {name: getattr(result, name)() for name in ("ready", "successful", "failed")}
    return {**seen, "result": result.result, "info": result.info}


def test_old_code_reads_a_finished_canvas_as_an_async_result() -> None:
    handle = durable(chain(add.s(1, 2), after.s(3))).delay()
    assert old_code(handle) == {
        "id": handle.id,
        "state": "SUCCESS",
        "status": "SUCCESS",
        "traceback": None,
        "ready": True,
        "successful": True,
        "failed": False,
        "result": [3, 3],
        "info": [3, 3],
    }
    assert handle.get(timeout=1, interval=0.1) == [3, 3]
    assert handle.date_done is not None
    assert [str(handle), hash(handle)] == [handle.id, hash(handle.id)]
    assert handle.run.info().id == handle.id


def test_old_code_reads_a_failed_canvas_as_an_async_result() -> None:
    handle = durable(decline.s(5)).delay()
    seen = old_code(handle)
    assert (seen["state"], seen["failed"], seen["ready"]) == ("FAILURE", True, True)
    assert isinstance(seen["result"], Declined)
    assert "raise Declined" in seen["traceback"]
    assert repr(handle.get(propagate=False)) == "Declined('no money for 5')"


def test_old_code_waits_for_a_canvas_and_times_out_as_in_celery() -> None:
    handle = durable(add.s(1, 2).set(countdown=3600)).delay()
    seen = old_code(handle)
    assert (seen["state"], seen["ready"], seen["result"]) == ("PENDING", False, None)
    with pytest.raises(celery_errors.TimeoutError, match="has not ended after"):
        handle.get(timeout=0.01)
    handle.revoke(terminate=True)
    assert handle.state == "REVOKED"
    with pytest.raises(celery_errors.TaskRevokedError, match="revoked by its AsyncResult"):
        handle.get(timeout=1)


def test_a_result_is_found_again_by_its_id_in_any_process() -> None:
    handle = durable(add.s(1, 2)).apply_async(task_id="sum-3")
    for found in (
        DurableResult("sum-3", app=app),
        DurableResult(handle.run.id, app=app),
        pickle.loads(pickle.dumps(handle)),
    ):
        assert (found.get(timeout=1), found.successful()) == (3, True)
    unknown = DurableResult("never", app=app)
    assert (unknown.state, unknown.result) == ("PENDING", None)
    exists = handle.backend.task_result_exists
    assert (exists("sum-3"), unknown.backend.task_result_exists("never")) == (True, False)


# --- refusals ---


def test_one_error_lists_everything_that_cannot_be_carried() -> None:
    stamped = add.s(4)
    stamped.stamp(customer="eva")
    canvas = chain(
        add.s(1, 2).set(queue="io", priority=3),
        group(plain.s(), plain.s(), add.s(1, 2, 3)),
        total.s().on_error(old_report.s()),
        after.s(object()).set(task_id="inner"),
        stamped,
        after.s().set(expires=datetime.datetime.now(datetime.UTC), soft_time_limit=3),
    )
    with pytest.raises(CanvasRefused) as refused:
        durable(canvas)
    whole = str(refused.value)
    assert whole.startswith("the canvas cannot be imported, 10 problems:\n  - canvas.chain[0]")
    for expected in (
        "chain[0] (canvas.add): option 'queue' is not carried over: give it to "
        "event_facet(add, task_list='io')",
        "option 'priority' is not carried over: set it on the whole canvas",
        "header[0] (canvas.plain) and 1 more: task 'canvas.plain' is not a step: write "
        "`event_facet(plain)`",
        "header[2] (canvas.add): 4 positional values were given, it takes 2 (the first argument is "
        "the result before it)",
        "body.chain[1] (canvas.after): 'n' should be int, was <object",
        "errback 'canvas.old_report' takes the id of a message",
        "option 'task_id' is not carried over: a step has no id of its own",
        "stamp 'customer' has no counterpart",
        "option 'expires': the time at which a step expires is not known before the run",
        "declare it where the task is: @app.task(soft_time_limit=3)",
    ):
        assert expected in whole


@pytest.mark.parametrize("given", ["tomorrow", "5", datetime.date(2031, 5, 1), [1], object()])
@pytest.mark.parametrize("option", ["eta", "expires"])
def test_a_moment_that_is_none_is_refused(option: str, given: Any) -> None:
    with pytest.raises(CanvasRefused, match=rf"option '{option}' is .*, which is no moment: give"):
        durable(add.s(1, 2).set(**{option: given}))


def test_a_countdown_and_a_priority_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(CanvasRefused, match=r"'countdown' is datetime.*: give it a number of sec"):
        durable(add.s(1, 2).set(countdown=HOUR))
    with pytest.raises(CanvasRefused, match="'priority' is 'high': give it a whole number"):
        durable(add.s(1, 2).set(priority="high"))


def nested(task: Signature, times: int, option: str = "") -> Any:
    """Return the message of a group in a group in a group, or of a task with a link with a link."""
    message = json.loads(json.dumps(task))
    outer = json.loads(json.dumps(task if option else group([task])))
    for _ in range(times):
        part = {"options": {option: [message]}} if option else {"kwargs": {"tasks": [message]}}
        message = {**outer, **part}
    return message


@pytest.mark.parametrize("option", ["link", "link_error"])
def test_links_that_are_nested_too_deeply_are_refused(option: str) -> None:
    with pytest.raises(CanvasRefused, match="its parts are nested more than 100 deep: write a wor"):
        durable(app.signature(nested(wrapped.s(1), 300, option)))


def test_groups_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(CanvasRefused, match="its parts are nested more than 100 deep: write a wor"):
        durable(Signature(nested(first.s(1), 200)))
    assert result_of(app.signature(nested(first.s(1), 50))) == [1]


def test_a_long_chain_of_groups_is_no_deep_canvas() -> None:
    stages = [each for n in range(30) for each in (group(first.si(n), first.si(n)), total.s())]
    assert result_of(chain(*stages)) == 58


TYPED = [
    datetime.datetime(2031, 5, 1, 12),
    datetime.date(2031, 5, 1),
    datetime.time(12),
    Decimal("1.50"),
    UUID(int=5),
]


@pytest.mark.parametrize("value", TYPED, ids=lambda value: type(value).__name__)
def test_a_constant_that_would_become_text_is_refused_with_its_cure(value: Any) -> None:
    name = f"{type(value).__module__}.{type(value).__name__}"
    for constant in (value, [value], {"a": (value,)}):
        with pytest.raises(CanvasRefused) as refused:
            durable(kind.s(constant))
        assert f"'x' has a {name}, which the task would get as text" in str(refused.value)
        assert f"annotate the parameter where the task is, as in `x: {name}`" in str(refused.value)
    with pytest.raises(CanvasRefused, match="as in `x:"):
        durable(kind.map([value]))


def test_a_constant_of_an_annotated_parameter_keeps_its_type() -> None:
    assert result_of(kind.s("x", datetime.date(2031, 5, 1))) == ["str", "date"]
    assert result_of(kind.s("2031-05-01")) == ["str", "NoneType"]


def test_arguments_named_like_parts_of_a_canvas_are_arguments() -> None:
    sent = app.signature(json.loads(json.dumps(after.s(5, n=2))))
    assert result_of(sent) == [2, 5]
    assert result_of(Signature("canvas.note", kwargs={"what": "tasks"}, app=app)) is None
    with pytest.raises(CanvasRefused, match="'tasks' is unknown"):
        durable(Signature("canvas.note", kwargs={"tasks": 5, "what": "x"}))


def test_a_task_that_the_app_does_not_have_is_refused() -> None:
    @event_facet(name="elsewhere.step")
    def step() -> None: ...

    with pytest.raises(CanvasRefused, match=r"'elsewhere.step' is not registered on the Celery"):
        durable(Signature("elsewhere.step", app=app))


def test_an_event_facet_of_the_tasks_name_that_is_not_made_of_it_is_refused() -> None:
    @app.task(name="canvas.taken")
    def taken(n: int) -> int:
        return n

    @event_facet(name="canvas.taken")
    def other(n: int) -> int:
        return -n

    for canvas in (taken.s(1), taken.map([1]), first.s(1).on_error(taken.si(1))):
        with pytest.raises(CanvasRefused, match=r"'canvas.taken' was not made of the task of that"):
            durable(canvas)


def test_the_shared_task_of_another_app_is_the_same_task() -> None:
    @shared_task(name="canvas.shared", autoretry_for=(KeyError,))
    def shared(n: int) -> int:
        return n

    event_facet(shared)
    assert result_of(Signature("canvas.shared", (5,), app=app)) == 5


def test_only_signatures_are_durable() -> None:
    with pytest.raises(AuthoringError, match="for a function write @workflow"):
        durable(add)


def test_a_partial_canvas_gets_the_rest_of_its_arguments_when_it_is_started() -> None:
    partial = durable(chain(add.s(5), after.s(1)))
    assert partial.delay(2).get(timeout=30) == [1, 7]
    with pytest.raises(CanvasRefused, match=r"'y' .* is missing"):
        partial.start()


def test_all_first_tasks_of_a_partial_canvas_get_its_arguments() -> None:
    assert durable(group(add.s(1), add.s(2))).delay(5).get(timeout=30) == [6, 7]
    assert durable(chord([add.s(1), add.si(1, 1)], total.s())).delay(5).get(timeout=30) == 8
    assert durable(chain(group(add.s(1), add.s(2)), total.s())).delay(y=5).get(timeout=30) == 13
    frozen = chord([add.s(1), add.s(2)], total.s())
    frozen.tasks = group(frozen.tasks)
    assert durable(frozen).delay(5).get(timeout=30) == 13


def test_a_link_of_a_group_is_refused_as_in_celery() -> None:
    with pytest.raises(CanvasRefused, match=r"a group carries no link.*link its tasks, or a chord"):
        durable(group(add.s(1, 2), add.s(3, 4))).apply_async(link=total.s())
    with pytest.raises(CanvasRefused, match="the chain is empty"):
        durable(chain())


def test_a_step_continues_with_a_canvas_as_a_task_replaces_itself() -> None:
    @event_facet(name="canvas.spread")
    def spread(n: int) -> Any:
        canvas = durable(chord([add.s(n, each) for each in range(n)], total.s()))
        return canvas.workflow.call(**canvas.inputs)

    @workflow(name="canvas.spreading")
    def spreading(n: int) -> Any:
        return spread(n)

    assert spreading.start(3).result(timeout=30) == 3 + 4 + 5


def test_a_canvas_is_not_started_inside_a_workflow() -> None:
    @workflow(name="canvas.outer")
    def outer() -> None:
        durable(add.s(1, 2)).start()

    with pytest.raises(AuthoringError, match="cannot be started inside a workflow"):
        outer.program()
