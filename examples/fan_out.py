"""Look at many things at once and join what was found.

    python examples/fan_out.py

Each item is a pipeline of its own: its second step does not wait for another item's first.
The join gets the results in the order of the items, whichever was ready first.
"""

import random
import time

from flowengine import event_facet, foreach, workflow


@event_facet(task_list="sensors")
def measure(station: int) -> float:
    time.sleep(random.uniform(0, 0.02))
    return 10 + station % 7


@event_facet
def to_fahrenheit(celsius: float) -> float:
    return celsius * 9 / 5 + 32


@event_facet
def summarise(readings: list[float], stations: list[int]) -> dict[str, int | float]:
    warmest = max(range(len(readings)), key=readings.__getitem__)
    return {
        "stations": len(readings),
        "mean": round(sum(readings) / len(readings), 2),
        "warmest": stations[warmest],
    }


@workflow
def survey(stations: list[int]) -> dict[str, int | float]:
    readings = foreach(stations, lambda station: to_fahrenheit(measure(station)))
    return summarise(readings, stations)


if __name__ == "__main__":
    run = survey.start(list(range(60)))
    print(f"run {run.id}: {run.result(timeout=120)}")
