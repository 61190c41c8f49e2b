"""A command in a process of its own: both streams are read at once, and it dies with its try."""

from __future__ import annotations

import json
import math
import os
import select
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from flowengine.errors import CommandFailed, GiveUp
from flowengine.library.command_files import CommandFile, kill_marked

_KEEPER = str(Path(__file__).with_name("keeper.py"))
_CHUNK = 65_536
_DRAIN = 1.0  #: seconds for which streams are read after the keeper has ended
_END = 5.0  #: seconds for the end of keepers that kill
_LOOK = 0.2  #: seconds between two looks at the cancel token
Tell = Callable[[str, bytes], None]  #: of a stream, and a piece of it; an empty one is its end
STDOUT_BYTES = 65_536  #: the end of the standard output that is kept
STDERR_BYTES = 4_096  #: the end of the standard error that an error quotes


@dataclass(frozen=True, slots=True)
class Command:
    argv: Sequence[str]
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str | None = None


@dataclass(slots=True)
class Ended:
    """How a command has ended, and the end of its streams."""

    exit_code: int = 0
    signal: str = ""
    stdout: bytes = b""
    stderr: bytes = b""


def execute(
    command: Command,
    *,
    is_cancelled: Callable[[], bool] = lambda: False,
    grace: float = 5.0,
    tell: Tell = lambda _stream, _piece: None,
    file: CommandFile | None = None,
) -> Ended:
    """Run a command to the end of all its processes. Raises GiveUp if it cannot be started.

    `tell` gets what it writes to "stdout" and "stderr", as it is written. Once `is_cancelled`
    returns True the command is ended: SIGTERM, after `grace` seconds SIGKILL. By its `file` the
    next try of its step finds it.
    """
    if file is None:
        with CommandFile(_directory()) as own:
            return execute(command, is_cancelled=is_cancelled, grace=grace, tell=tell, file=own)
    control_read, control = os.pipe()
    status, status_write = os.pipe()
    passed = (control_read, status_write, file.descriptor)
    keeper = [sys.executable, "-I", "-S", _KEEPER, *map(str, passed), str(file.path), f"{grace}"]
    mark, _, name = file.mark.partition("=")
    try:
        try:
            process = subprocess.Popen(
                [*keeper, *command.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**_inherited(), **command.environment, mark: name},
                cwd=command.directory,
                pass_fds=passed,
                start_new_session=True,  # signals of the worker's terminal are not for it
            )
        except (OSError, ValueError) as problem:
            raise GiveUp(f"{_shown(command)} cannot be started: {problem}") from problem
        finally:
            os.close(control_read)
            os.close(status_write)
        kept = _Kept(process, command, control, status, tell, file)
        control = -1
        with process:
            try:
                return kept.read(is_cancelled)
            finally:
                kept.end()
    finally:
        if control >= 0:
            os.close(control)
        os.close(status)


class _Kept:
    """A command and its keeper."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        command: Command,
        control: int,
        status: int,
        tell: Tell,
        file: CommandFile,
    ) -> None:
        self._process, self._command, self._tell = process, command, tell
        self._control, self._status, self._file = control, status, file
        self._is_asked = False  # to end
        self._hears = True  # a keeper has the status pipe open
        self._pid: int | None = None
        self._reports: dict[str, Any] = {}
        self._unread = b""

    def read(self, is_cancelled: Callable[[], bool]) -> Ended:
        process, ended = self._process, Ended()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, "stdout")
            selector.register(process.stderr, selectors.EVENT_READ, "stderr")
            selector.register(self._status, selectors.EVENT_READ, "status")
            left = memoryview(self._command.stdin)
            if left:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
            else:
                process.stdin.close()
            ends = math.inf
            # A process that has escaped the keeper, which was killed, may hold the streams open.
            while selector.get_map() and time.monotonic() < ends:
                for key, _ in selector.select(_LOOK):
                    if key.data == "stdin":
                        left = self._write(left)
                        if not left:
                            selector.unregister(process.stdin)
                            process.stdin.close()
                    elif key.data == "status":
                        if not self._hear():
                            selector.unregister(self._status)
                            self._kill_left()
                            ends = time.monotonic() + _DRAIN
                    elif not self._keep(ended, key.data, key.fd):
                        selector.unregister(key.fileobj)
                if not self._is_asked and is_cancelled():
                    self._is_asked = True
                    with suppress(BrokenPipeError):
                        os.write(self._control, b"e")
        return self._result(ended)

    def _write(self, left: memoryview) -> memoryview:
        assert self._process.stdin is not None
        try:
            return left[os.write(self._process.stdin.fileno(), left[:_CHUNK]) :]
        except BlockingIOError:
            return left
        except BrokenPipeError:
            return left[:0]  # the command reads no more

    def _keep(self, ended: Ended, stream: str, descriptor: int) -> bool:
        """Keep the end of a stream; False: it was closed."""
        piece = os.read(descriptor, _CHUNK)
        self._tell(stream, piece)
        if stream == "stdout":
            ended.stdout = (ended.stdout + piece)[-STDOUT_BYTES:]
        else:
            ended.stderr = (ended.stderr + piece)[-STDERR_BYTES:]
        return bool(piece)

    def _hear(self) -> bool:
        """Read a report of the keepers; False: both have ended, or were killed."""
        piece = os.read(self._status, _CHUNK)
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in lines:
            self._reports |= json.loads(line)
        self._pid = self._reports.get("pid")
        self._hears = bool(piece)
        return self._hears

    def _result(self, ended: Ended) -> Ended:
        if "error" in self._reports:
            raise GiveUp(f"{_shown(self._command)} cannot be started: {self._reports['error']}")
        if "exit_code" not in self._reports:
            raise CommandFailed(_shown(self._command), "its keeper was killed", "")
        ended.exit_code, ended.signal = self._reports["exit_code"], self._reports["signal"]
        return ended

    def end(self) -> None:
        """End the command, whatever has happened: nothing of it may outlive its try."""
        os.close(self._control)  # kills it, if it lives
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            _close(stream)
        ends = time.monotonic() + _END
        while self._hears and (left := ends - time.monotonic()) > 0:
            if select.select([self._status], [], [], left)[0] and not self._hear():
                self._kill_left()
        if self._hears:  # the kernel holds a process; the file keeps the next try from beginning
            self._file.is_alive = True
            self._process.kill()

    def _kill_left(self) -> None:
        """Kill the processes of a command whose keepers were killed."""
        if "exit_code" in self._reports or "error" in self._reports:
            return
        if self._pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        self._file.is_alive = not kill_marked(self._file.mark)


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with suppress(OSError):
            stream.close()


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"flowengine-commands-{os.getuid()}"


def _inherited() -> dict[str, str]:
    """Return the environment of the worker without the engine's variables: some are secret."""
    own = "FLOWENGINE_"  # keys, tokens, and addresses with passwords; later ones, too
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def _shown(command: Command) -> str:
    return f"command {command.argv[0]!r}" if command.argv else "an empty command"
