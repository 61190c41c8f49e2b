"""Commands in processes that are forked from a server which has imported the package.

Each is a process of its own: its arguments, directory, environment, streams and exit code.
It is spared the second of processor time that importing SQLAlchemy, Celery and the package takes.
That the installed commands work is shown by the README, whose commands are run as they are.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent


@contextmanager
def warm_commands(directory: Path) -> Iterator[Path]:
    """Yield a directory with `flowengine` and `python` for the front of a PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    socket = directory / "socket"
    client = [sys.executable, "-I", "-S", str(_HERE / "client.py"), str(socket)]
    for name in ("flowengine", "python"):
        command = directory / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join(client)} {name} "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    log = directory / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.warm.server", str(socket)],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,  # it ends when this process does
            stdout=subprocess.PIPE,
            stderr=out,
        )
    assert server.stdin
    assert server.stdout
    try:
        assert server.stdout.readline() == b"ready\n", log.read_text()
        yield directory
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait(30)
