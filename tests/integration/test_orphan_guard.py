"""The guard of pool children ends orphans also where the kernel does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import logging, os, pathlib, sys, time
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.orphan_guard import OrphanGuard

main, works = os.getpid(), pathlib.Path(sys.argv[1])
logging.basicConfig(format="%(message)s", stream=sys.stdout)
begun, begin = os.pipe()

def executes_message():
    print("asked", flush=True)
    return works.exists()

if os.fork() == 0:
    identity = WorkerIdentity("server", "boot", os.getpid())
    OrphanGuard(main, identity, lambda: None, executes_message).begin()
    print("guarded", flush=True)
    os.write(begin, b".")
    time.sleep(1000)
os.read(begun, 1)
"""


def orphan(works: Path) -> subprocess.Popen[str]:
    """Return a process that ends, and leaves a guarded child with its output."""
    command = [sys.executable, "-c", _SCRIPT, str(works)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_an_idle_child_ends_after_its_parent(tmp_path: Path) -> None:
    with orphan(tmp_path / "works") as parent:
        output, _ = parent.communicate(timeout=60)  # until the child has ended, too
    assert output.splitlines()[-1].endswith(
        f"its worker {parent.pid} was killed, and it runs nothing"
    )


def test_a_child_that_executes_a_message_is_not_ended(tmp_path: Path) -> None:
    works = tmp_path / "works"
    works.touch()
    with orphan(works) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "guarded\n"
        for _ in range(8):  # each second; an idle one is ended after three
            assert parent.stdout.readline() == "asked\n"
        works.unlink()
        assert "it runs nothing" in parent.communicate(timeout=60)[0]
