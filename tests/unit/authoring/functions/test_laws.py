"""The law of durable functions: nobody sees whether a coroutine was kept or replayed.

Random functions get random ends in a random order. Undisturbed, one activation hears all of them.
Disturbed, activations are dropped at random moments and replayed from the record, also when a part
of the last calls was not recorded, or the end before them. Both make the same calls.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowengine.program.function_calls import CallEnd, FunctionCall, Progress
from tests.unit.authoring.functions.random_functions import follow, scripts
from tests.unit.authoring.functions.recorded import Recorded

MOST_ENDS = 120
REFUSED = {"type": "Refused", "message": "refused", "path": "f.x", "bases": ["ValueError"]}


@dataclass(frozen=True)
class Move:
    """The next end, and the disturbance before or after it."""

    which: int  #: of the open calls
    fails: bool
    seconds: int
    is_dropped: bool  #: before it
    is_lost: bool  #: the end and everything behind it was not recorded
    recorded: int | None  #: number of the calls behind it that were recorded
    is_late: bool  #: an end of a cancelled call comes before it


moves = st.builds(
    Move,
    which=st.integers(0, 7),
    fails=st.integers(0, 3).map(lambda n: n == 0),
    seconds=st.integers(0, 4),
    is_dropped=st.booleans(),
    is_lost=st.integers(0, 2).map(lambda n: n == 0),
    recorded=st.none() | st.integers(0, 2),
    is_late=st.booleans(),
)


def played(script: Any, drawn: list[Move], *, is_disturbed: bool) -> Recorded:
    run = Recorded(follow, script=script)
    for at in range(MOST_ENDS):
        if run.progress.ended is not None:
            break
        move = drawn[at % len(drawn)]
        if is_disturbed and move.is_dropped:
            replayed_alike(run)
        if is_disturbed and move.is_late and run.cancelled:
            late = CallEnd(min(run.cancelled), run.at + 10**6, 5)
            assert run.activation.advance([late]).calls == ()
        open_calls = run.open
        call = open_calls[move.which % len(open_calls)]
        end_call(run, call, move)
        if is_disturbed and move.is_lost:
            lose_last_end(run)
            end_call(run, call, move)
        if is_disturbed and move.recorded is not None:
            lose_calls(run, move.recorded)
    return run


def end_call(run: Recorded, call: FunctionCall, move: Move) -> None:
    run.before = len(run.calls), set(run.cancelled), run.at  # type: ignore[attr-defined]
    if move.fails and not call.facet.startswith("flowengine."):
        run.end(call.number, error=REFUSED, after=move.seconds)
    else:
        result = 3 if call.facet.endswith("alpha") else f"{call.arguments}"
        run.end(call.number, result, after=move.seconds)


def replayed_alike(run: Recorded) -> None:
    heard = run.progress.heard
    progress = run.drop_and_replay()
    assert progress == Progress(heard=heard)


def lose_last_end(run: Recorded) -> None:
    count, run.cancelled, run.at = run.before  # type: ignore[attr-defined]
    del run.calls[count:]
    run.ends.pop()
    run.drop_and_replay()


def lose_calls(run: Recorded, recorded: int) -> None:
    """Forget calls that were made together behind the first ones: they are made again."""
    count = run.before[0]  # type: ignore[attr-defined]
    lost = run.calls[count + recorded :]
    if lost and run.progress.ended is None:
        del run.calls[count + recorded :]
        run.cancelled -= {call.number for call in lost}
        assert list(run.drop_and_replay().calls) == lost


def check_law(script: Any, drawn: list[Move]) -> None:
    calm = played(script, drawn, is_disturbed=False)
    disturbed = played(script, drawn, is_disturbed=True)
    assert disturbed.calls == calm.calls
    assert disturbed.ends == calm.ends
    assert disturbed.cancelled == calm.cancelled
    assert disturbed.progress.heard == calm.progress.heard
    assert disturbed.progress.ended == calm.progress.ended
    with calm.activate(strict=True) as strict:
        progress = strict.advance()
    assert progress == Progress(heard=calm.progress.heard, ended=calm.progress.ended)
    for run in (calm, disturbed):
        run.activation.drop()


as_json = scripts.map(lambda script: _lists(script))


def _lists(value: Any) -> Any:
    return [_lists(one) for one in value] if isinstance(value, list | tuple) else value


@given(as_json, st.lists(moves, min_size=1, max_size=8))
def test_a_disturbed_function_makes_the_calls_of_an_undisturbed_one(
    script: Any, drawn: list[Move]
) -> None:
    check_law(script, drawn)


@pytest.mark.chaos
@settings(max_examples=int(os.environ.get("FUNCTIONS_DRAWN", "3000")))
@given(as_json, st.lists(moves, min_size=1, max_size=20))
def test_many_disturbed_functions_make_the_calls_of_undisturbed_ones(
    script: Any, drawn: list[Move]
) -> None:
    check_law(script, drawn)
