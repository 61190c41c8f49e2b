"""The keeper: runs one command for a worker, and ends it when the worker dies.

A program of its own, without imports of the package: it starts in some milliseconds. It becomes
two processes, because either may be killed. The outer one waits for the inner one, which is its
child and the parent of the command. The kernel gives orphans to the nearest of them that lives,
and that one kills them: the inner one when the outer one is gone, the outer one when the inner
one is.

    python -I -S keeper.py CONTROL STATUS LOCK PATH GRACE COMMAND...

CONTROL, STATUS and LOCK are file descriptors. The worker holds the other end of the control pipe.
A byte in it asks for the end of the command: SIGTERM, and after a grace period SIGKILL. When it
closes, the worker was killed, and the next try may begin: the command is killed at once. It also
is if somebody writes to the file PATH, that LOCK holds locked until the last process of the
command has ended. Reports are lines of JSON: `{"pid": …}`, then `{"exit_code": …, "signal": …}`;
or `{"error": …}` if the command cannot be started.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import signal
import sys
import time
from contextlib import suppress

_PDEATHSIG, _SUBREAPER = 1, 36  # of prctl(2)
_ROUNDS = 100  # of killing processes that start others meanwhile
_LOOK = 0.1  # seconds between two looks at the file and at the outer keeper


def main(control: int, status: int, lock: int, path: str, grace: str, *command: str) -> None:
    for descriptor in (control, status, lock):
        os.set_inheritable(descriptor, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # given to all processes of a service that stops
    outer = os.getpid()
    _prctl(_SUBREAPER, 1)  # processes that leave the group become children of this one
    inner = os.fork()
    if inner == 0:
        os.setsid()  # a signal to the group of the outer one is not for it
        _prctl(_SUBREAPER, 1)  # a fork does not inherit it
        _keep(outer, control, status, lock, float(grace), list(command))
        os._exit(0)  # nothing is buffered: the interpreter need not be taken down
    os.close(control)
    os.waitpid(inner, 0)
    _kill_children()
    with suppress(OSError):
        os.unlink(path)
    os._exit(0)


def _keep(
    outer: int, control: int, status: int, lock: int, grace: float, command: list[str]
) -> None:
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    pid = _started(command, status)
    if pid is None:
        return
    _report(status, pid=pid)
    ended = _wait(pid, outer, control, woken, lock, grace)
    _signal_group(pid, signal.SIGKILL)
    _kill_children()
    if os.getppid() == outer:
        code = os.waitstatus_to_exitcode(ended)
        name = signal.Signals(-code).name if code < 0 else ""
        _report(status, exit_code=max(code, 0), signal=name)


def _started(command: list[str], status: int) -> int | None:
    """Start the command in a session of its own; report why it cannot be started."""
    read, write = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _become(command, write)
    os.close(write)
    problem = os.read(read, 1000).decode()
    if not problem:
        return pid
    os.waitpid(pid, 0)
    _report(status, error=problem)
    return None


def _become(command: list[str], write: int) -> None:
    try:
        os.setsid()
        _prctl(_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as problem:
        os.write(write, str(problem.strerror).encode())
    finally:
        os._exit(127)


def _wait(pid: int, outer: int, control: int, woken: int, lock: int, grace: float) -> int:
    """Wait for the end of the command, and end it when that is asked for."""
    watched, kills_at = [control, woken], math.inf
    while True:
        ready = select.select(watched, [], [], _LOOK)[0]
        if woken in ready:
            os.read(woken, 1000)
        while True:
            try:
                found, ended = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if found == pid:
                return ended
            if found == 0:
                break
        if control in ready and os.read(control, 100):
            _signal_group(pid, signal.SIGTERM)
            kills_at = time.monotonic() + grace
        elif control in ready:
            watched, kills_at = [woken], 0.0
        if os.getppid() != outer or os.fstat(lock).st_size:
            kills_at = 0.0
        if time.monotonic() >= kills_at:
            _signal_group(pid, signal.SIGKILL)


def _kill_children() -> None:
    """Kill the processes that the command has left, and that the kernel gave to this one."""
    for _ in range(_ROUNDS):
        left = _children()
        if not left:
            return
        for child in left:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:  # not Linux
        return []


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):  # not Linux: the control pipe is all there is
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _report(status: int, **report: object) -> None:
    with suppress(OSError):  # the worker is dead
        os.write(status, json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
