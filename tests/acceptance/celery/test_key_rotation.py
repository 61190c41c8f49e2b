"""A fleet under load and kills gets a new key in place of the old one, as the guide says.

First all processes read the new key, then they write it, then the stored values are encrypted anew
by a process that is killed again and again. Then the old key is taken away.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.engine.payload_keys import PayloadKeys
from flowengine.payload_codecs import codec_of
from flowengine.settings import Settings
from flowengine.store.codec import use_payload_codec
from flowengine.testing import replay
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.celery.mixed_load import Killer, start_mixed, wait_and_check
from tests.acceptance.celery.rows import ended
from tests.celery_nodes import Fleet, until
from tests.celery_nodes.containers import LocalNode

pytest.importorskip("cryptography", reason="the extra `secrets` is not installed")

OLD, NEW = "2026=" + "11" * 32, "2027=" + "22" * 32
AES = "flowengine.payload_codecs:AesGcmCodec"
KEYS = "FLOWENGINE_PAYLOAD_KEYS"


@pytest.fixture(autouse=True)
def no_codec_behind() -> Iterator[None]:
    yield
    use_payload_codec(None)


def read_and_write_with(keys: str) -> None:
    """Give the client, which is this process, these keys."""
    use_payload_codec(codec_of(Settings(payload_codec=AES, payload_keys=keys)))


def restart(node: LocalNode, keys: str) -> None:
    node.terminate()
    node.wait(60)
    node.process.environment[KEYS] = keys
    node.start(wait=False)


def rotate(fleet: Fleet, killer: Killer, keys: str, runs: dict[str, Any]) -> None:
    """Restart the nodes one after the other, while runs are started and pool children killed."""
    for node in fleet.nodes:
        restart(node, keys)
        runs |= start_mixed(fleet, 1)
        killer.kill("child")
        node.wait_until_ready()
    read_and_write_with(keys)
    fleet.environment[KEYS] = keys
    runs |= start_mixed(fleet, 1)


def values_of(fleet: Fleet) -> dict[str, int]:
    found: dict[str, int] = {}
    for use in PayloadKeys(fleet.engine.database).in_use():
        for key, values in use.values.items():
            found[key] = found.get(key, 0) + values
    return found


def reencrypting(fleet: Fleet, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flowengine", "keys", "reencrypt", "--batch", "5"],
        cwd=directory,
        env=fleet.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.chaos  # nine restarts of processes
def test_a_key_is_replaced_under_load_and_kills_and_nothing_is_lost_or_waits(
    make_fleet: MakeFleet, tmp_path: Path, chaos_seed: int
) -> None:
    fleet = make_fleet(**{"FLOWENGINE_PAYLOAD_CODEC": AES, KEYS: OLD})
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, wait=False)
    fleet.add_beat()
    fleet.heal()
    killer = Killer(fleet, chaos_seed)
    runs = start_mixed(fleet, 6)
    handles = [fleet.engine.run(run_id) for run_id in runs]
    until(lambda: ended(fleet.engine, handles) >= 2, "the first of the runs", seconds=120)
    assert values_of(fleet).keys() == {"2026"}

    rotate(fleet, killer, f"{OLD},{NEW}", runs)
    rotate(fleet, killer, f"{NEW},{OLD}", runs)
    assert values_of(fleet).keys() == {"2026", "2027"}

    lots, cut = random.Random(chaos_seed), 0
    for _ in range(3):
        left = values_of(fleet).get("2026", 0)
        process = reencrypting(fleet, tmp_path)
        goal = left - lots.randint(0, left // 8)
        until(lambda goal=goal: values_of(fleet).get("2026", 0) <= goal, "some values", seconds=60)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        cut += process.returncode == -signal.SIGKILL and "2026" in values_of(fleet)
        killer.kill("child")
        runs |= start_mixed(fleet, 1)
    assert cut, "no process was killed in the middle of its work"
    process = reencrypting(fleet, tmp_path)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert "values in" in told
    counters = wait_and_check(fleet, runs, 120)
    assert counters.failed == 0
    assert values_of(fleet).keys() == {"2027"}

    rotate(fleet, killer, NEW, runs)
    counters = wait_and_check(fleet, runs, 120)
    assert counters.failed == 0
    for run_id in list(runs)[::4]:
        replay(fleet.engine.export(run_id)).check()
    assert not fleet.count_logged("cannot be read")
    assert not fleet.count_logged("cannot be evaluated")
