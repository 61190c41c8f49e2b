"""Measures how long the runs of a tenant take beside a hostile one, compared with alone.

The hostile tenant keeps twenty runs in progress, of random programs that are as expensive as the
limits allow. Both share two Celery workers with two pool children each, Redis and PostgreSQL.

    PYTHONPATH=. python benchmarks/tenants.py [seed]
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.acceptance.chaos import two_tenants
from tests.servers import PostgresServer, RedisServer

RUNS = 40
TARGET = 2.0  #: times as long as alone, at most


def measure(seed: int, directory: Path) -> float:
    postgres, redis = PostgresServer(), RedisServer()
    try:
        with two_tenants.fleet(postgres, redis, directory) as fleet:
            two_tenants.ordinary_runs(fleet, 5)  # the first runs load code and programs
            alone = two_tenants.ordinary_runs(fleet, RUNS)
            with two_tenants.hostile_tenant(fleet, seed) as hostile:
                beside = two_tenants.ordinary_runs(fleet, RUNS)
                print(two_tenants.last_line(hostile))
    finally:
        redis.stop()
        postgres.stop()
    ratio = median(beside) / median(alone)
    for name, seconds in (("alone", alone), ("beside", beside)):
        print(f"{name:7} median {median(seconds):6.2f} s   slowest {max(seconds):6.2f} s")
    print(f"seed {seed}: ratio {ratio:.2f} (target: at most {TARGET:g})")
    return ratio


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(1_000_000)
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(measure(number, Path(scratch) / "fleet") > TARGET)
