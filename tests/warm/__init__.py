"""Commands in processes that are forked from a server which has imported the package.

Each is a process of its own: its arguments, directory, environment, streams, group and exit code.
It is spared the seconds of processor time that importing SQLAlchemy, Celery and the package takes.
That the installed commands work is shown by the README, whose commands are run as they are.
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
#: Pools that replace parts of Python before anything else is imported.
_COLD = ("gevent", "eventlet")


@contextmanager
def warm_commands(directory: Path) -> Iterator[Path]:
    """Yield a directory with `flowengine`, `celery` and `python` for the front of a PATH."""
    socket = directory / "socket"
    for name in ("flowengine", "celery", "python"):
        command = directory / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join(_client(socket))} {name} "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    server = _start(socket)
    try:
        yield directory
    finally:
        _end(server)


def warm_celery(command: Sequence[str]) -> list[str] | None:
    """Return a command that does the same as this `python -m celery`; None: another command.

    Its process id is written by itself into the file WARM_PID_FILE: the client has another one.
    """
    if list(command[:3]) != [sys.executable, "-m", "celery"]:
        return None
    if any(word in part for part in command for word in _COLD):
        return None
    return [*_client(_celery_socket()), "celery", *command[3:]]


@functools.cache
def _celery_socket() -> Path:
    """Start the server of this process, which ends with it."""
    directory = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(_end, _start(directory / "socket"), directory)
    return directory / "socket"


def _end(server: subprocess.Popen[bytes], directory: Path | None = None) -> None:
    assert server.stdin
    server.stdin.close()
    server.wait(30)
    if directory:
        shutil.rmtree(directory)


def _client(socket: Path) -> list[str]:
    return [sys.executable, "-I", "-S", str(_HERE / "client.py"), str(socket)]


def _start(socket: Path) -> subprocess.Popen[bytes]:
    log = socket.parent / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.warm.server", str(socket)],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,  # it ends when this process does
            stdout=subprocess.PIPE,
            stderr=out,
        )
    assert server.stdout
    with server.stdout:
        is_ready = server.stdout.readline() == b"ready\n"
    if not is_ready:
        _end(server)
        raise AssertionError(log.read_text())
    return server
