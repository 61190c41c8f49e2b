"""The end of a try as the columns of its task."""

from __future__ import annotations

from flowengine.evaluator import TaskState
from flowengine.evaluator.activation_reports import to_json
from flowengine.evaluator.triggers import (
    ActivationEnded,
    Delegated,
    Failed,
    Lost,
    Outcome,
    Succeeded,
)
from flowengine.store import codec
from flowengine.store.commit_rows import Ending

ACTIVATED = "activated"  #: the outcome of a task whose result is the report of an activation


def ending_of(outcome: Outcome, encoder: codec.Encoder) -> Ending:
    """Return the end of a try; its large values are among the payloads of the encoder."""
    match outcome:
        case Delegated(run_id):
            return Ending(TaskState.IGNORED, "handed", codec.dump({"run": run_id}), None)
        case Succeeded(result):
            written = encoder.attributes(result) or "{}"
            return Ending(TaskState.COMPLETED, "succeeded", written, None)
        case ActivationEnded():
            report = codec.dump_value(to_json(outcome))
            return Ending(TaskState.COMPLETED, ACTIVATED, report, None)
        case Failed(error, retry):
            how = "failed" if retry else "final"
            return Ending(TaskState.FAILED, how, None, codec.dump_value(error))
        case Lost(reason):
            error = {"type": "WorkerLost", "message": reason}
            return Ending(TaskState.FAILED, "lost", None, codec.dump_value(error))
