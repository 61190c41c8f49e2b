"""Measures how long it takes until the step of a killed worker is claimed again.

The main process of a Celery worker dies by SIGKILL in the middle of a step; the clock stops when
another worker has started the step. Two workers with two pool children each, a beat, Redis and
PostgreSQL, with the default settings. The killed worker is restarted before the next kill.

    PYTHONPATH=. python benchmarks/kills.py [number of kills]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.acceptance.chaos import server_deaths
from tests.servers import PostgresServer, RedisServer

TARGET = 3.0  #: seconds, median


def measure(number: int, directory: Path) -> float:
    postgres, redis = PostgresServer(), RedisServer()
    try:
        with server_deaths.fleet(postgres, redis, directory) as fleet:
            found = []
            for kill in range(number):
                found.append(server_deaths.seconds_until_claimed_again(fleet, f"kill{kill}"))
                print(f"kill {kill + 1:3}: {found[-1]:6.2f} s", flush=True)
    finally:
        redis.stop()
        postgres.stop()
    print(f"median {median(found):.2f} s   slowest {max(found):.2f} s   (target: {TARGET:g} s)")
    return median(found)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(measure(count, Path(scratch) / "fleet") > TARGET)
