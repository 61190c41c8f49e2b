"""Look back at a run: its history, an export, and a replay of it.

    python examples/history.py

A replay evaluates the recorded inputs again. In a test it tells whether a new version of the engine
would decide the same for a run of production.
"""

import json
from pathlib import Path

from flowengine import Retry, default_engine, event_facet, workflow
from flowengine.testing import replay

weather = ["storm", "sun"]


@event_facet(retry=Retry(attempts=3, first_wait=0.05))
def sail(miles: int) -> str:
    if len(weather) > 1:
        raise ConnectionError(weather.pop(0))
    return f"{miles} miles, {weather[0]}"


@workflow
def trip(miles: int) -> str:
    return sail(miles)


if __name__ == "__main__":
    run = trip.start(12)
    print(run.result(timeout=60))
    for entry in default_engine().history(run.id):
        ended = [f"{t.path}: try {t.number} {t.outcome}" for t in entry.tries]
        print(entry.revision, entry.state, *ended)
    file = Path("trip.json")
    file.write_text(json.dumps(default_engine().export(run.id)))
    print("the same decisions:", replay(file).check().state)
    print(
        "runs that failed with a storm:", len(default_engine().list(error_type="ConnectionError"))
    )
