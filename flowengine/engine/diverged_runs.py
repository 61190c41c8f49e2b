"""Runs with a durable function whose code did not fit its record, and that wait for fitting code.

Their activations are due again a minute later. After a deploy of other code they need not wait so
long.
"""

from __future__ import annotations

from flowengine.engine.engine import Engine
from flowengine.evaluator.functions import DIVERGED


def try_diverged_again(engine: Engine) -> None:
    """Make the activations of diverged runs due now, and remove the alarms of these runs.

    Code that does not fit sets the alarm again.
    """
    with engine.database.read() as session:
        if not session.recovery.alarms(DIVERGED):
            return
    with engine.database.write() as session:
        run_ids = sorted(session.recovery.alarms(DIVERGED))
        due = session.recovery.make_activations_due(run_ids, session.now())
        session.recovery.set_alarms(dict.fromkeys(run_ids))
    engine.notifier.notify(due)
