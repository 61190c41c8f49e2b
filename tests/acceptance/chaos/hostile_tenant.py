"""A process of the hostile tenant: it keeps expensive runs in progress, until it is killed.

A process of its own, because an application of another tenant does not share its interpreter.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from random import Random

from flowengine.errors import FlowengineError
from tests.acceptance.chaos import hostile_programs
from tests.celery_nodes.fleet import client_of

AT_A_TIME = 20
READY = f"{AT_A_TIME} hostile runs in progress"


def main(seed: int) -> None:
    _, engine = client_of(os.environ)
    lots, begun = Random(seed), set[str]()
    counts: Counter[str] = Counter()
    while True:
        states = {run_id: engine.get(run_id).state for run_id in begun}
        counts.update(state for state in states.values() if state != "RUNNING")
        begun = {run_id for run_id, state in states.items() if state == "RUNNING"}
        while len(begun) < AT_A_TIME:
            kind, (program, workflow, inputs) = hostile_programs.draw(lots)
            counts[kind] += 1
            try:
                run = engine.start(program, workflow, inputs, tenant="hostile")
            except FlowengineError as refusal:
                counts[type(refusal).__name__] += 1
            else:
                begun.add(run.id)
        print(f"{READY}: {dict(sorted(counts.items()))}", flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main(int(sys.argv[1]))
