"""The script runner: executes a script block in a process of its own, with a map in and out.

The process leads a new session, has an empty environment, and has limits for time, CPU, memory,
open files and processes; it cannot write files or import, and has few built-in functions. At the
end of the script its whole process group is killed. These limits contain accidents. They are no
sandbox: an author of programs can run code, so scripts are off unless a setting turns them on.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from flowengine.authoring import offer_standard
from flowengine.errors import ScriptFailed
from flowengine.program.standard import SCRIPT, SCRIPT_FACET
from flowengine.settings import Settings

#: The code of the process. It sets the limits before it compiles the script. The alarm ends it if
#: the worker dies first. Without a limit of processes it could start some that outlive it.
_RUNNER = """
import json, resource, signal, sys
limits, wall, code, params = json.load(sys.stdin)
for name, limit in limits.items():
    number = getattr(resource, 'RLIMIT_' + name)
    most = resource.getrlimit(number)[1]
    most = sys.maxsize if most == resource.RLIM_INFINITY else most
    # Of the CPU time, the soft limit ends the process with a signal that names the cause.
    hard = min(limit + (name == 'CPU'), most)
    resource.setrlimit(number, (min(limit, hard), hard))
signal.setitimer(signal.ITIMER_REAL, wall)
names = '''abs all any bool dict divmod enumerate filter float frozenset int isinstance len list
map max min pow range repr reversed round set sorted str sum tuple zip Exception ArithmeticError
IndexError KeyError LookupError TypeError ValueError ZeroDivisionError'''.split()
allowed = {name: getattr(__builtins__, name) for name in names}
try:
    result = {}
    names = {'__builtins__': allowed, 'params': params, 'result': result}
    exec(compile(code, 'script', 'exec'), names)
    answer = json.dumps({'result': result}, allow_nan=False)
except MemoryError:
    answer = json.dumps({'error': 'it used too much memory'})
except BaseException as problem:
    answer = json.dumps({'error': (type(problem).__name__ + ': ' + str(problem))[:2000]})
sys.stdout.write(answer)
"""
_GRACE = 1.0  # seconds after which the process ends itself if its worker has died
_EXIT_SECONDS = 1.0  # for which the exit status of a process without an answer is awaited


def run_script(code: str, params: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the map that the script fills, or raise `ScriptFailed`."""
    seconds = settings.script_seconds
    limits = {
        "CPU": max(1, math.ceil(settings.script_cpu_seconds)),
        "AS": settings.script_bytes,
        "NOFILE": settings.script_open_files,
        "FSIZE": 0,
        "CORE": 0,
        "NPROC": 0,
    }
    question = json.dumps([limits, seconds + _GRACE, code, params])
    most = settings.max_value_bytes + 1024
    with _process(question) as process:
        answer = _read(process, time.monotonic() + seconds, most)
        if answer is None:
            raise ScriptFailed(
                f"the script took longer than {seconds:g} seconds (setting script_seconds)"
            )
        if len(answer) > most:
            raise ScriptFailed(
                f"the script's results have more than {settings.max_value_bytes:,} bytes (setting "
                "max_value_bytes)"
            )
        try:
            found = json.loads(answer)
            result, error = found.get("result"), found.get("error")
        except (ValueError, AttributeError, RecursionError):
            raise ScriptFailed(_ending(process.pid)) from None
    if error is not None:
        raise ScriptFailed(f"the script failed: {error}")
    if not isinstance(result, dict):
        raise ScriptFailed("the script's result is not a map")
    return result


@contextmanager
def _process(question: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process; at the end kill everything in its session's process group."""
    # A file, not a pipe: writing to a process that does not read would block.
    with tempfile.TemporaryFile() as file:
        file.write(question.encode())
        file.seek(0)
        # Isolated, without site packages, environment and working directory of the worker.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _RUNNER],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Before `wait`: until then nobody else can have the number of its group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()
        process.wait()


def _read(process: subprocess.Popen[bytes], deadline: float, most: int) -> bytes | None:
    """Return the output, of little more than `most` bytes at most; None after the deadline."""
    assert process.stdout is not None
    answer = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(answer) <= most:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            if not (part := os.read(process.stdout.fileno(), 65_536)):
                break
            answer += part
    return bytes(answer)


def _ending(pid: int) -> str:
    """Say how a process ended that left no answer, without taking its exit status."""
    deadline = time.monotonic() + _EXIT_SECONDS
    ended = None
    while ended is None and time.monotonic() < deadline:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            time.sleep(0.005)
    if ended is None:
        return "the script's process closed its output and left no answer"
    if ended.si_code == os.CLD_EXITED:
        return f"the script's process ended with {ended.si_status}"
    name = signal.Signals(ended.si_status).name
    cures = {
        "SIGXCPU": " (it used more CPU time than the setting script_cpu_seconds allows)",
        "SIGKILL": " (for instance by the kernel, for its CPU time or its memory)",
    }
    return f"the script's process was ended by {name}{cures.get(name, '')}"


def offer_scripts(settings: Settings) -> None:
    """Have the workers of this process run scripts, if the setting is on."""
    if not settings.scripts:
        return

    def script(code: str, params: dict[str, Any]) -> dict[str, Any]:
        return run_script(code, params, settings)

    offer_standard(SCRIPT, script, SCRIPT_FACET.options)
