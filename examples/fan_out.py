"""Process many items in parallel and join the results.

    python examples/fan_out.py

Each item is a separate pipeline: its second step does not wait for the first step of other
items. The join gets the results in item order.
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
