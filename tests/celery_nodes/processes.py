"""A process with the interface of a Docker container that cannot outlive this one."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.warm import warm_form

#: Seconds until a process that has not logged its ready prompt is taken to be broken.
TIMEOUT = 240.0

# `read` returns when the pipe is closed, which the kernel does too when pytest is killed. The
# guard leads a process group of its own, so signal 0 ends everything that was started in it.
_GUARD = """
pid_file=$1
shift
exec 3<&0
"$@" 3<&- </dev/null &
server=$!
echo "$server" >"$pid_file.new"
mv "$pid_file.new" "$pid_file"
{ read -r _ <&3; kill -s KILL 0; } &
reader=$!
exec 3<&-
wait "$server"
code=$?
kill "$reader" 2>/dev/null
exit "$code"
"""


class ProcessDidNotStart(Exception):
    """A process ended, or was not ready in time; its log says why."""

    def __init__(self, name: str, log: str) -> None:
        super().__init__(name, log)
        self.name, self.log = name, log

    def __str__(self) -> str:
        return f"{self.name} did not start:\n{self.log or '(it logged nothing)'}"


class GuardedProcess:
    """A command that can be restarted, in one directory and with one log.

    The attributes and methods are those of `docker.models.containers.Container` that
    pytest-celery and pytest-docker-tools use.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        directory: Path,
        environment: Mapping[str, str],
        ready_prompt: str | None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.name = name
        self.directory = directory
        self.environment = dict(environment)
        self._command = list(command)
        self._ready_prompt = ready_prompt
        self._log = directory / "log"
        self._pid_file = directory / "pid"
        self._read_from = 0
        self._is_expected = False  # whether the test has ended it
        self._guard: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._log.touch()

    # --- the interface of a container ---

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "Config": {
                "Env": [f"{key}={value}" for key, value in self.environment.items()],
                "Hostname": "localhost",
            },
            "HostConfig": {"PortBindings": None},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        if self._guard is None:
            return "created"
        return "running" if self._guard.poll() is None else "exited"

    def reload(self) -> None:
        """Nothing is cached here."""

    def logs(self) -> bytes:
        return self._log.read_bytes()

    def exec_run(self, command: str | Sequence[str]) -> tuple[int, bytes]:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        done = subprocess.run(
            words, cwd=self.directory, env=self.environment, capture_output=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    # --- life and death ---

    def start(self, *, wait: bool = True) -> None:
        """Start it, or do nothing when it runs."""
        if self.status == "running":
            return
        if self._guard is not None:
            code = self.wait()
            if not self._is_expected:
                print(f"{self.name} had ended by itself ({code}): ...{self.recent_log()[-2000:]}")
        self._is_expected = False
        self._pid_file.unlink(missing_ok=True)
        self._read_from = self._log.stat().st_size
        command, pid_file, environment = self._command, self._pid_file, self.environment
        if forked := warm_form(command):
            command, pid_file = forked, self.directory / "client"
            environment = {**environment, "WARM_PID_FILE": str(self._pid_file)}
        with self._log.open("ab") as log:
            self._guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "guard", str(pid_file), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=environment,
                process_group=0,
            )
        self._wait_for_pid()
        if wait:
            self.wait_until_ready()

    def _wait_for_pid(self) -> None:
        """Wait until it can be sent a signal, or has ended."""
        deadline = time.monotonic() + TIMEOUT
        while not self._pid_file.exists() and self._guard and self._guard.poll() is None:
            if time.monotonic() > deadline:
                self.stop()
                raise ProcessDidNotStart(f"{self.name} (no process id)", self.recent_log())
            time.sleep(0.01)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not self.is_ready():
            if self.status != "running" or time.monotonic() > deadline:
                code = None if self._guard is None else self._guard.poll()
                self.stop()
                raise ProcessDidNotStart(f"{self.name} (exit code {code})", self.recent_log())
            time.sleep(0.02)

    def is_ready(self) -> bool:
        prompt = self._ready_prompt
        return self._pid_file.exists() and (prompt is None or prompt in self.recent_log())

    def recent_log(self) -> str:
        """Its log since its last start."""
        with self._log.open("rb") as log:
            log.seek(self._read_from)
            return log.read().decode(errors="replace")

    @property
    def pid(self) -> int:
        """The process itself, not its guard."""
        return int(self._pid_file.read_text())

    def children(self) -> list[int]:
        """The processes that it has forked, the oldest first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.pid).children(recursive=True)
            return [child.pid for child in sorted(found, key=lambda child: child.pid)]
        return []

    def send(self, number: int) -> None:
        """Send the process a signal."""
        with contextlib.suppress(ProcessLookupError):
            psutil.Process(self.pid).send_signal(number) if self.status == "running" else None

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal, as `docker kill`; after SIGKILL wait for the end."""
        number = _signal_number(signal)
        self._is_expected = True
        self.send(number)
        if number == _KILL:
            self.wait()

    def freeze(self) -> None:
        """Suspend it and its children (SIGSTOP), and wait until they have stopped."""
        pids = (self.pid, *self.children())
        for pid in pids:
            _send(pid, "SIGSTOP")
        ends = time.monotonic() + TIMEOUT
        while not all(_has_stopped(pid) for pid in pids):
            assert time.monotonic() < ends, f"{self.name} does not stop"
            time.sleep(0.005)

    def thaw(self) -> None:
        for pid in (self.pid, *self.children()):
            _send(pid, "SIGCONT")

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Wait for its end; return the exit code, as a shell gives it."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        code = self._guard.wait(timeout)
        self._guard.stdin.close()
        return code

    def restart(self, timeout: float = 10) -> None:
        """Send SIGTERM, kill it when it does not end in time, and start it again."""
        if self.status == "running":
            self.kill("SIGTERM")
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.stop()
        self.start()

    def stop(self) -> None:
        """Kill it and everything that it started. Idempotent."""
        if self._guard is None:
            return
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(TIMEOUT)


_KILL = int(signal.SIGKILL)


def _signal_number(name: str | int | None) -> int:
    if name is None:
        return _KILL
    return int(name) if isinstance(name, int) else int(signal.Signals[name])


def _send(pid: int, name: str) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).send_signal(signal.Signals[name])


def _has_stopped(pid: int) -> bool:
    """Whether it is suspended, or has ended."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
