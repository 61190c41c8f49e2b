"""The server of warm commands: imports once, and forks for each command."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import random
import selectors
import signal
import socket
import sys
import types
import warnings
from pathlib import Path
from typing import Any

_IMPORTS = (
    "flowengine.cli",
    "flowengine.cli.run_view",
    "flowengine.assembly",
    "celery.worker.strategy",
    "celery.backends.cache",
)
_IMPORTS_OF_CELERY = (
    "celery.__main__",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.bin.beat",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.beat",
    "celery.concurrency.prefork",
    "celery.events.state",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.worker",
    "flowengine.assembly.plugin",
    "kombu.transport.redis",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
)


class Forked(Exception):
    """Raised in the forked process: the stack of the server unwinds, and the command begins."""

    def __init__(self, request: dict[str, Any], streams: list[int]) -> None:
        self.request, self.streams = request, streams


class Server:
    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._ended, self._end = os.pipe()
        os.set_blocking(self._end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Fork for each client until standard input is closed."""
        for stream in (self._listener, self._ended, 0):
            self._selector.register(stream, selectors.EVENT_READ)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._ended:
                    os.read(self._ended, 4096)
                    self._reap()
                elif key.fileobj == 0:
                    for pid in self._children:
                        os.kill(pid, signal.SIGKILL)
                    os.unlink(self._listener.getsockname())
                    return
                else:  # the client was killed
                    self._kill(key.fileobj)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        head, streams, _, _ = socket.recv_fds(connection, 4, 3)
        body = b""
        while len(body) < int.from_bytes(head, "big"):
            body += connection.recv(65536)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for each in (connection, self._listener, *self._children.values()):
                each.close()
            os.close(self._ended)
            os.close(self._end)
            raise Forked(json.loads(body), streams)
        for stream in streams:
            os.close(stream)
        connection.sendall(pid.to_bytes(4, "big"))
        self._children[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = self._children.pop(pid)
            if connection in self._selector.get_map():  # otherwise the client was killed
                self._selector.unregister(connection)
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                connection.sendall(code.to_bytes(4, "big", signed=True))
            connection.close()

    def _kill(self, connection: Any) -> None:
        self._selector.unregister(connection)
        pid = next(pid for pid, each in self._children.items() if each is connection)
        os.kill(pid, signal.SIGKILL)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Take over everything that makes a process the client's."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    with contextlib.suppress(PermissionError):  # a group of another session
        os.setpgid(0, request["group"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    path = request["environ"].get("PYTHONPATH", "")
    sys.path[:0] = [entry for entry in path.split(os.pathsep) if entry]
    random.seed()
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(number, "wb", closefd=False)
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", line_buffering=True))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")


def execute(command: str, words: list[str]) -> None:
    """Run `flowengine …`, `celery …`, `python [-W error] FILE …` or `python -c CODE …`."""
    if command == "flowengine":
        sys.argv = [command, *words]
        from flowengine.cli import main

        main()
        return
    if command == "celery":
        sys.argv, sys.path[:0] = [command, *words], [os.getcwd()]
        from celery.__main__ import main as celery

        sys.exit(celery())  # type: ignore[func-returns-value]
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        words = words[2:]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv, sys.path[:0] = ["-c", *words[2:]], [""]
        code = compile(words[1], "<string>", "exec")
    else:
        file = Path(words[0]).absolute()
        sys.argv, sys.path[:0] = words, [str(file.parent)]
        module.__file__ = words[0]
        code = compile(file.read_bytes(), words[0], "exec")
    exec(code, vars(module))


def main() -> None:
    is_celery = sys.argv[2:] == ["celery"]
    for name in (*_IMPORTS, *(_IMPORTS_OF_CELERY if is_celery else ())):
        importlib.import_module(name)
    root = str(Path(__file__).parent.parent.parent)
    sys.path[:] = [entry for entry in sys.path if entry not in ("", root)]
    gc.freeze()  # a collection in a forked process would copy every page
    Server(sys.argv[1]).serve()


if __name__ == "__main__":
    try:
        main()
    except Forked as forked:
        request, streams = forked.request, forked.streams
    else:
        request, streams = {}, []
    if request:
        # Outside of the handler, and at the end of the main module: the interpreter finalizes as
        # after every other program, with its threads and exit handlers.
        become(request, streams)
        execute(request["argv"][0], request["argv"][1:])
