"""The keeper: runs one command for a worker, and ends it when the worker dies.

A program of its own, without imports of the package: it starts in some milliseconds. The worker
holds the other end of the control pipe. When it closes, because the worker wants the command to
end or was killed, the keeper ends the command with all processes that it has started: SIGTERM,
and after a grace period SIGKILL. The kernel kills the command if the keeper is killed itself.

    python -I -S keeper.py CONTROL STATUS GRACE COMMAND...

CONTROL and STATUS are file descriptors. Reports are lines of JSON: `{"pid": …}`, then
`{"exit_code": …, "signal": …}`; or `{"error": …}` if the command cannot be started.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

_PDEATHSIG, _SUBREAPER = 1, 36  # of prctl(2)
_ROUNDS = 100  # of killing processes that start others meanwhile


def main(control: int, status: int, grace: float, command: list[str]) -> None:
    for descriptor in (control, status):
        os.set_inheritable(descriptor, False)
    _prctl(_SUBREAPER, 1)  # processes that leave the group become children of this one
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    pid = _started(command, status)
    if pid is None:
        return
    _report(status, pid=pid)
    ended = _wait(pid, control, woken, grace)
    _kill_all(pid)
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


def _wait(pid: int, control: int, woken: int, grace: float) -> int:
    """Wait for the end of the command; end it when the control pipe closes."""
    watched, kills_at = [control, woken], None
    while True:
        seconds = None if kills_at is None else max(kills_at - time.monotonic(), 0.0)
        ready = select.select(watched, [], [], seconds)[0]
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
        if control in ready and not os.read(control, 100):
            watched = [woken]
            kills_at = time.monotonic() + grace
            _signal_group(pid, signal.SIGTERM)
        if kills_at is not None and time.monotonic() >= kills_at:
            _signal_group(pid, signal.SIGKILL)
            kills_at = time.monotonic() + 1.0


def _kill_all(pid: int) -> None:
    """Kill the processes that the command has left: in its group, or given to this process."""
    _signal_group(pid, signal.SIGKILL)
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
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
