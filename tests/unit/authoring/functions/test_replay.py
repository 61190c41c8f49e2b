"""Replay: a new activation reaches the same place from the record, or says where it differs."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

import pytest

from flowengine import event_facet
from flowengine.authoring.functions import (
    Activation,
    ActivationLimits,
    Divergence,
    acall,
    changed,
    gather,
    now,
    random,
    sleep,
    step,
    uuid,
)
from flowengine.program.function_calls import (
    NO_RECORD,
    CallEnd,
    CallKind,
    FunctionRecord,
    Progress,
    RecordedCall,
)
from tests.unit.authoring.functions.recorded import START, Recorded, as_function

ERROR = {"type": "ValueError", "message": "no", "path": "f.ship", "bases": ["Exception"]}


@event_facet
def charge(order: str) -> int:
    return len(order)


@event_facet
def ship(order: str) -> str:
    return order


async def shop(order: str) -> str:
    cents = await acall(charge, order)
    where = await acall(ship, f"{order} for {cents}")
    return f"{where} sent"


def answer(call: Any) -> Any:
    if call.facet.endswith("charge"):
        return 7
    return None if call.kind is CallKind.WAIT else call.arguments["order"]


def test_calls_are_numbered_and_say_which_ends_were_heard_before_them() -> None:
    run = Recorded(shop, order="tea")
    assert [(c.number, c.heard, c.arguments) for c in run.calls] == [(0, (), {"order": "tea"})]
    run.end(0, 7)
    assert (run.calls[1].number, run.calls[1].heard) == (1, (0,))
    assert run.calls[1].arguments == {"order": "tea for 7"}
    assert run.end(1, "tea").ended.result == "tea sent"  # type: ignore[union-attr]
    assert run.progress.heard == (1,)


def test_a_replay_reaches_the_same_place_and_makes_no_recorded_call() -> None:
    run = Recorded(shop, order="tea")
    assert run.drop_and_replay() == Progress()
    run.end(0, 7)
    assert run.drop_and_replay() == Progress()
    end = run.end(1, "tea")
    assert run.activate().advance() == end


def test_a_replay_goes_on_behind_its_record() -> None:
    run = Recorded(shop, order="tea")
    run.activation.drop()
    run.ends.append(CallEnd(0, START + 5, 7))
    with run.activate() as other:
        [call] = other.advance().calls
    assert (call.number, call.heard) == (1, (0,))


def test_another_facet_under_a_number_diverges_with_call_facet_and_line() -> None:
    async def other_shop(order: str) -> str:
        await acall(ship, order)
        return "never"

    run = Recorded(shop, order="tea")
    with pytest.raises(Divergence) as caught:
        run.activate(other_shop, strict=False).advance()
    problem = caught.value
    assert (problem.number, problem.recorded, problem.called) == (0, charge.name, ship.name)
    line = other_shop.__code__.co_firstlineno + 1
    assert problem.line == f"{__file__}:{line}"
    assert re.search("diverges from its record at call 0: .*charge.* calls .*ship", str(problem))
    assert "changed(" in str(problem)


def test_code_that_catches_everything_cannot_hide_a_divergence() -> None:
    async def hiding(order: str) -> str:
        while True:
            with contextlib.suppress(BaseException):
                await acall(ship, order)

    run = Recorded(shop, order="tea")
    with pytest.raises(Divergence):
        run.activate(hiding, strict=False).advance()


@pytest.mark.parametrize("waits", [True, False])
def test_no_call_where_the_record_has_one_diverges(waits: bool) -> None:
    async def shorter(order: str) -> str:
        await acall(charge, order)
        if waits:
            await asyncio.Event().wait()
        return "done"

    run = Recorded(shop, order="tea")
    run.end(0, 7)
    with pytest.raises(Divergence) as caught:
        run.activate(shorter, strict=False).advance()
    assert (caught.value.number, caught.value.recorded) == (1, ship.name)
    assert "makes no call" in str(caught.value)


def test_other_arguments_leave_the_record_and_warn_once() -> None:
    async def other_words(order: str) -> str:
        cents = await acall(charge, order)
        where = await acall(ship, f"{order}: {cents}")
        await acall(ship, "again")
        return f"{where} sent"

    run = Recorded(shop, order="tea")
    run.end(0, 7)
    run.ends.append(CallEnd(1, START + 9, "tea"))
    progress = run.activate(other_words, strict=False).advance()
    assert progress.warning is not None
    assert progress.warning.number == 1
    line = other_words.__code__.co_firstlineno + 2
    assert f"test_replay.py:{line}) has other arguments" in str(progress.warning)
    assert [call.number for call in progress.calls] == [2]
    with pytest.raises(Divergence, match="gives it other arguments"):
        run.activate(other_words, strict=True).advance()


def test_code_that_waits_for_less_replays_unless_it_is_strict() -> None:
    async def in_turn() -> int:
        return await acall(charge, "a") + await acall(charge, "b")

    async def together() -> int:
        return sum(await asyncio.gather(acall(charge, "a"), acall(charge, "b")))

    run = Recorded(in_turn)
    run.end(0, 1)
    with run.activate(together, strict=False) as new:
        assert new.advance() == Progress()
        assert new.advance([CallEnd(1, START, 2)]).ended.result == 3  # type: ignore[union-attr]
    with pytest.raises(Divergence, match="after the ends"):
        run.activate(together, strict=True).advance()


def test_an_end_of_a_call_that_was_not_made_is_refused() -> None:
    run = Recorded(shop, order="tea")
    with pytest.raises(ValueError, match="call 5 has ended"):
        run.activation.advance([CallEnd(5, START)])
    broken = FunctionRecord((RecordedCall(charge.name, ""), RecordedCall(ship.name, "", (0,))))
    with pytest.raises(ValueError, match="no end of call 0"):
        Activation(
            run.function, {"order": "tea"}, step_id="s", started=START, record=broken
        ).advance()


def test_ends_that_were_heard_or_are_cancelled_change_nothing() -> None:
    async def race() -> int:
        tasks = [asyncio.create_task(acall(charge, text)) for text in "abc"]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return await acall(charge, str(sum([await task for task in done])))

    run = Recorded(race)
    run.end(1, 5)
    assert run.cancelled == {0, 2}
    late = run.end(2, 9)
    assert (late.calls, late.heard, late.cancelled) == ((), (), ())
    assert run.activation.advance([run.ends[0]]) == late
    assert run.calls[3].heard == (1,)
    assert run.drop_and_replay() == late
    assert run.end(3, 6).ended.result == 6  # type: ignore[union-attr]


def test_a_call_that_is_cancelled_at_once_still_has_its_number() -> None:
    async def body() -> int:
        task = asyncio.create_task(acall(ship, "x"))
        await asyncio.sleep(0)
        task.cancel()
        return await acall(charge, "y")

    run = Recorded(body)
    assert (run.facets, run.cancelled) == (["ship", "charge"], {0})


def test_the_end_of_the_function_cancels_its_open_calls() -> None:
    async def body() -> int:
        background = asyncio.create_task(acall(ship, "x"))
        await acall(charge, "y")
        return len(background.get_name())

    run = Recorded(body)
    assert run.end(0, 1).cancelled == (1,)
    assert run.activate().advance().cancelled == ()  # the record says so


def test_an_added_random_changes_no_later_uuid() -> None:
    async def before() -> list[str]:
        await acall(charge, "a")
        return [str(uuid()), str(uuid()), str(await acall(ship, "b")), str(uuid())]

    async def after() -> list[str]:
        random()
        await acall(charge, "a")
        assert 0 <= random() < 1
        assert random() != random()
        return [str(uuid()), str(uuid()), str(await acall(ship, "b")), str(uuid())]

    run = Recorded(before)
    run.end_all(answer)
    ids = {run.result[0], run.result[1], run.result[3]}
    assert len(ids) == 3
    assert run.activate(after).advance().ended == run.progress.ended
    other = Activation(as_function(before), {}, step_id="another", started=START)
    other.advance()
    other.advance([CallEnd(0, START, 7)])
    ended = other.advance([CallEnd(1, START, "b")]).ended
    assert ids.isdisjoint(ended.result)  # type: ignore[union-attr]


def test_now_is_the_recorded_end_of_what_was_last_heard() -> None:
    async def body() -> list[float]:
        times = [now()]
        await acall(charge, "a")
        times.append(now())
        times.append(await sleep(60))
        return [time.timestamp() - START / 1000 for time in times]

    run = Recorded(body)
    run.end(0, 1, after=10)
    run.drop_and_replay()
    assert run.calls[1].due == START + 70_000
    run.end(1, after=61)
    assert run.result == [0, 10, 71]


def test_a_change_is_not_taken_by_a_run_that_has_passed_by() -> None:
    async def old(order: str) -> str:
        for _ in range(3):
            order = str(await acall(charge, order))
        return order

    async def new(order: str) -> str:
        for _ in range(3):
            order = str(await acall(ship if changed("by-ship") else charge, order))
        return order

    run = Recorded(old, order="x")
    run.end(0, 1)
    with run.activate(new) as activation:
        assert activation.advance() == Progress()
        [third] = activation.advance([CallEnd(1, START, 2)]).calls
        assert third.facet == charge.name  # the first answer stands

    fresh = Recorded(new, order="x")
    assert fresh.calls[0].changes == ("by-ship",)
    fresh.end(0, "1")
    assert fresh.calls[1].changes == ()
    fresh.drop_and_replay()
    fresh.end_all(answer)
    assert fresh.facets == ["ship"] * 3


def test_a_change_behind_the_record_is_taken_and_recorded_with_the_next_call() -> None:
    async def new(order: str) -> str:
        cents = await acall(charge, order)
        if changed("insured"):
            await acall(charge, "insurance")
        return await acall(ship, f"{order} for {cents}")

    run = Recorded(shop, order="tea")
    run.ends.append(CallEnd(0, START, 7))
    run.activation.drop()
    run.function = as_function(new)
    run.drop_and_replay()
    assert (run.facets, run.calls[1].changes) == (["charge", "charge"], ("insured",))
    run.end(1, 2)
    assert run.drop_and_replay() == Progress()


def test_a_plain_function_is_a_step_with_its_code() -> None:
    def halve(n: int) -> float:
        return n / 2

    async def body() -> float:
        return await step(halve, 9)

    run = Recorded(body)
    assert (run.calls[0].kind, run.calls[0].arguments) == (CallKind.STEP, {"n": 9})
    assert run.calls[0].facet.endswith("<locals>.halve")
    assert run.activation.code_of(0).run({"n": 9}) == {"result": 4.5}
    assert run.end(0, 4.5).ended.result == 4.5  # type: ignore[union-attr]


def test_options_name_and_deadline_of_a_call_are_recorded() -> None:
    async def body() -> str:
        facet = ship.named("parcel").within(90).with_options(timeout=5)
        return await acall(facet, "x")

    [call] = Recorded(body).calls
    assert (call.name, call.deadline, call.options.timeout) == ("parcel", 90.0, 5.0)


def test_a_function_has_a_limit_of_calls_that_a_record_may_exceed() -> None:
    async def body() -> int:
        total = 0
        for _ in range(6):
            total += await acall(charge, "x")
        return total

    run = Recorded(body)
    for number in range(5):
        run.end(number, 1)
    inputs: Any = {"step_id": "step", "started": START}
    record = FunctionRecord(tuple(c.recorded() for c in run.calls), tuple(run.ends))
    few = ActivationLimits(max_calls=3)
    with Activation(run.function, {}, record=record, limits=few, **inputs) as replayed:
        assert replayed.advance() == Progress()
    limited = Activation(run.function, {}, limits=few, **inputs)
    limited.advance()
    error = limited.advance(CallEnd(n, START, 1) for n in range(3)).ended.error  # type: ignore[union-attr]
    assert "has made 3 calls, the limit of one function" in error["message"]


def test_a_timer_beyond_the_limit_of_calls_ends_the_function() -> None:
    async def body() -> int:
        async with asyncio.timeout(5):
            return await acall(charge, "x")

    limits = ActivationLimits(max_calls=1)
    activation = Activation(as_function(body), {}, step_id="s", started=START, limits=limits)
    ended = activation.advance().ended
    assert "the limit of one function" in ended.error["message"]  # type: ignore[union-attr]


def test_gather_of_different_facets_is_recovered_elsewhere_in_the_order_of_its_ends() -> None:
    async def body() -> list[Any]:
        async def chain(first: Any, second: Any, text: str) -> list[Any]:
            return [await acall(first, text), await acall(second, text)]

        return await gather(chain(charge, ship, "a"), chain(ship, charge, "b"))

    run = Recorded(body)
    run.end(1, "b")  # the second begins its second call first
    run.end(0, 1)
    assert run.facets == ["charge", "ship", "charge", "ship"]
    assert [call.heard for call in run.calls] == [(), (), (1,), (0,)]
    run.drop_and_replay()
    run.end(3, "a")
    run.drop_and_replay()
    run.end(2, 1)
    assert run.result == [[1, "a"], ["b", 1]]


def test_a_failed_child_fails_alike_when_it_is_replayed() -> None:
    async def body() -> str:
        try:
            await acall(ship, "x")
        except ValueError as problem:
            return str(await acall(ship, str(problem)))
        return "no error"

    run = Recorded(body)
    run.end(0, error=ERROR)
    assert run.calls[1].arguments == {"order": "no"}
    assert run.drop_and_replay() == Progress()
    run.end(1, "done")
    assert run.result == "done"


def test_a_new_call_with_an_argument_above_the_limit_of_a_value_is_refused() -> None:
    async def body() -> int:
        return await acall(charge, "x" * 100)

    def advanced(most: int, record: FunctionRecord = NO_RECORD) -> Progress:
        limits, at = ActivationLimits(max_value_bytes=most), {"step_id": "s", "started": START}
        with Activation(as_function(body), {}, record=record, limits=limits, **at) as activation:  # type: ignore[arg-type]
            return activation.advance()

    made = advanced(102)
    assert len(made.calls) == 1
    ended = advanced(101).ended
    assert ended is not None
    assert ended.error is not None
    assert "test_replay.py" in ended.error["message"]
    assert "charge takes 102 bytes as JSON, the limit is 101" in ended.error["message"]
    # A recorded one stands, whatever the limit is now.
    assert advanced(101, FunctionRecord((made.calls[0].recorded(),))) == Progress()
