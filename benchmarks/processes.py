"""Processes that cannot outlive the one that started them.

Between us and the process stands a small shell, the *guard*, at the other end of a pipe. The
kernel closes the pipe however we end, and the guard then kills the group it leads. Nothing
outside the standard library is imported: contenders use this in environments of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

#: Seconds after which a process that was stopped counts as broken.
TIMEOUT = 30.0

#: The directory that holds `benchmarks` and `flowengine`.
ROOT = Path(__file__).resolve().parent.parent

# Descriptor 3 is the pipe: `read` returns when it is closed. A job in the background would get
# /dev/null as its input, hence the copy of it as 4.
_GUARD = """
exec 4<&0
"$@" <&4 3<&- 4<&- &
server=$!
{ read -r _ <&3; kill -s KILL 0; } 4<&- &
reader=$!
exec 3<&- 4<&- </dev/null
wait "$server"
code=$?
kill "$reader" 2>/dev/null
exit "$code"
"""

#: Variables that a contender must not inherit: they would be invisible settings.
_SETTINGS = ("FLOWENGINE_", "CELERY", "DBOS", "PREFECT_", "PYWORKFLOW", "PG")


def clean_environment(**more: str) -> dict[str, str]:
    """Our environment without anybody's settings, and with `benchmarks` on Python's path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    path = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
    return {**kept, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", **more}


class GuardedProcess:
    """A process, its input and output pipes, and the file that takes its errors."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str],
        log: Path,
        talks: bool = False,
    ) -> None:
        """Start it. One that `talks` has pipes; another one's output goes to the log."""
        self.log = log
        reading, self._hold = os.pipe()
        # The guard finds the pipe at descriptor 3, whatever number it has here.
        guard = f"exec 3<&{reading}{f' {reading}<&-' if reading != 3 else ''}\n{_GUARD}"
        with log.open("ab") as errors:
            self._guard = subprocess.Popen(
                ["bash", "-c", guard, "guard", *command],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else errors,
                stderr=errors,
                cwd=directory,
                env=dict(environment),
                pass_fds=[reading],
                start_new_session=True,
            )
        os.close(reading)

    @property
    def pid(self) -> int:
        """The guard's; the process is its child."""
        return self._guard.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self._guard.stdin is not None
        return self._guard.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._guard.stdout is not None
        return self._guard.stdout

    @property
    def is_running(self) -> bool:
        return self._guard.poll() is None

    def last_words(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def stop(self) -> None:
        """End it and everything in its group, at once. Stopping twice is once."""
        if self._hold < 0:
            return
        os.close(self._hold)
        self._hold = -1
        self._guard.wait(TIMEOUT)
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()


def python(*arguments: str) -> list[str]:
    """A command for the interpreter that runs us."""
    return [sys.executable, *arguments]
