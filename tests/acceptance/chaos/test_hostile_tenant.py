"""An ordinary tenant is served beside one whose programs are as expensive as the limits allow.

`make bench-tenants` measures how long its runs take. A failure is repeated by its seed:
`make test-chaos ARGS="--chaos-seed 7"`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.chaos import two_tenants
from tests.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.chaos


def test_an_ordinary_tenant_is_served_beside_a_hostile_one(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path, chaos_seed: int
) -> None:
    with two_tenants.fleet(postgres, redis_server, tmp_path / "fleet") as fleet:
        with two_tenants.hostile_tenant(fleet, chaos_seed) as hostile:
            beside = two_tenants.ordinary_runs(fleet, 40)
            print(f"\nseed {chaos_seed}: {two_tenants.last_line(hostile)}")
            print(f"runs of the ordinary tenant: up to {max(beside):.2f} s")
            assert hostile.status == "running"
        assert all(node.is_alive() for node in fleet.nodes)
