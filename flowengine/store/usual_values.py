"""The values that columns of a commit's rows usually have.

They are constants of the statements: to pass them costs more than to compare them.
"""

from __future__ import annotations

from flowengine.store.agent_rows import TurnUpdate

Usual = dict[str, str | int | None]  #: by column


def _usual(*absent: str, **values: str | int) -> Usual:
    return {**values, **dict.fromkeys(absent)}


#: Columns that hold these values in nearly every row: a third of the values of a step's commit.
_COUNTS = {"waiting": 0, "remaining": 0, "item_count": 0, "next_index": 0}
USUAL = {
    "runs": _usual("outputs", "error", "error_type", "alarm", "finished", generation=0),
    "new_steps": _usual(
        *("returns", "error", "failure", "yields", "digest", "heard"),
        generation=0,
        activation=0,
        **_COUNTS,
    ),
    "steps": _usual("params", "error", "failure", "yields", "heard", activation=0, **_COUNTS),
    "new_tasks": _usual(
        *("error", "timeout_ms", "limit_key", "join_id", "limits", "queue"),
        data_type="",
        losses=0,
        runs_once=False,
        tenant="",
    ),
    # A step of a turn that goes on changes its counters alone.
    "turns": _usual(*TurnUpdate._fields[4:]),
}
#: Those of calls that durable functions have made in place.
USUAL_CALLS = _usual("error", "failure", "yields", generation=0, activation=0, **_COUNTS)
