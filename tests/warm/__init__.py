"""Commands in processes that are forked from a server which has imported the package.

Each is a process of its own: its arguments, directory, environment, streams, group and exit code.
It is spared the seconds of processor time that importing SQLAlchemy, Celery and the package takes.
That the installed commands work is shown by the README, whose commands are run as they are.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
#: Pools that replace parts of Python before anything else is imported.
_COLD = ("gevent", "eventlet")
#: The socket of the server that the processes of one run of pytest share. Processes of tests do
#: not inherit variables that begin like this one.
_SHARED = "PYTEST_WARM_SOCKET"


def warm(name: str, *arguments: str | Path) -> list[str]:
    """Return a command that does the same as `flowengine`, `celery` or `python` with arguments.

    A signal to its process reaches the forked one, except SIGKILL and SIGSTOP: see `WarmProcess`.
    """
    return [*_client(_server_socket()), name, *map(str, arguments)]


def warm_form(command: Sequence[str]) -> list[str] | None:
    """Return a command that does the same as this command of Python; None: another command.

    Its process id is written by itself into the file WARM_PID_FILE: the client has another one.
    """
    if command[0] != sys.executable or any(word in part for part in command for word in _COLD):
        return None
    if list(command[1:3]) == ["-m", "celery"]:
        return warm("celery", *command[3:])
    return warm("python", *command[1:])


def warm_commands(directory: Path) -> Path:
    """Return the directory with `flowengine`, `celery` and `python` for the front of a PATH."""
    for name in ("flowengine", "celery", "python"):
        command = directory / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join(warm(name))} "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return directory


class WarmProcess:
    """A process of Python with pipes to its standard input and output."""

    def __init__(self, *arguments: str, environment: Mapping[str, str]) -> None:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "pid")
            self._client = subprocess.Popen(
                warm("python", *arguments),
                env={**environment, "WARM_PID_FILE": str(file)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            while not file.exists():
                assert self._client.poll() is None, "the client has ended"
                time.sleep(0.005)
            self.pid = int(file.read_text())
        assert self._client.stdin
        assert self._client.stdout
        self.stdin, self.stdout = self._client.stdin, self._client.stdout

    def kill(self) -> None:
        """Kill it, and wait for its end: the client ends after it."""
        with contextlib.suppress(ProcessLookupError):
            if self._client.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float | None = None) -> int:
        return self._client.wait(timeout)


def share_server() -> None:
    """Start a server for this process and those that it starts; it ends with this one."""
    os.environ[_SHARED] = str(_start())


@functools.cache
def _server_socket() -> Path:
    """Return the socket of the server, which is there when the server has imported everything."""
    socket = Path(os.environ[_SHARED]) if _SHARED in os.environ else _start()
    ends = time.monotonic() + 120
    while not socket.exists():
        assert time.monotonic() < ends, (socket.parent / "log").read_text()
        time.sleep(0.01)
    return socket


def _client(socket: Path) -> list[str]:
    return [sys.executable, "-I", "-S", str(_HERE / "client.py"), str(socket)]


def _start() -> Path:
    """Start a server, which ends with this process."""
    socket = Path(tempfile.mkdtemp(prefix="warm-"), "socket")
    with (socket.parent / "log").open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.warm.server", str(socket)],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,  # it ends when this process does
            stdout=out,
            stderr=out,
        )
    atexit.register(_end, server)
    return socket


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin
    server.stdin.close()
    server.wait(30)
