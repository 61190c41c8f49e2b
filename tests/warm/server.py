"""The server of warm commands: imports once, and forks for each command."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import random
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import Any, NoReturn

#: Modules that a command would import, most of them when it begins to work.
_IMPORTS = (
    "celery.__main__",
    "celery.app.amqp",
    "celery.app.control",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.cache",
    "celery.backends.redis",
    "celery.beat",
    "celery.bin.beat",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.events.state",
    "celery.loaders.app",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.control",
    "celery.worker.strategy",
    "celery.worker.worker",
    "flowengine.assembly",
    "flowengine.assembly.plugin",
    "flowengine.authoring.unordered",
    "flowengine.authoring.validation",
    "flowengine.cli",
    "flowengine.cli.database",
    "flowengine.cli.progress",
    "flowengine.cli.run_command",
    "flowengine.cli.run_view",
    "flowengine.cli.targets",
    "flowengine.store.sqlite",
    "kombu.asynchronous.semaphore",
    "kombu.transport.memory",
    "kombu.transport.redis",
    "psycopg",
    "rich.live",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "sqlite3",
)


class Forked(Exception):
    """Raised in the forked process: the stack of the server unwinds, and the command begins."""

    def __init__(self, request: dict[str, Any], streams: list[int]) -> None:
        self.request, self.streams = request, streams


class Server:
    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{path}.new")
        self._listener.listen(64)
        os.rename(f"{path}.new", path)  # clients come as soon as it is there
        self._directory = os.path.dirname(path)
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._ended, self._end = os.pipe()
        os.set_blocking(self._end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Fork for each client until standard input is closed; then remove the directory."""
        for stream in (self._listener, self._ended, 0):
            self._selector.register(stream, selectors.EVENT_READ)
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
                    shutil.rmtree(self._directory)
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
    """Run `flowengine …`, `celery …` or `python …`: with a file, `-c CODE`, `-m MODULE`."""
    if command == "flowengine":
        sys.argv = [command, *words]
        from flowengine.cli import main

        main()
        return
    if command == "celery":
        sys.argv, sys.path[:0] = [command, *words], [os.getcwd()]
        from celery.__main__ import main as celery

        sys.exit(celery())  # type: ignore[func-returns-value]
    if words[0] == "-W":
        warnings._setoption(words[1])  # type: ignore[attr-defined]
        words = words[2:]
    if words[0] == "-m":
        sys.argv, sys.path[:0] = words[1:], [os.getcwd()]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
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


def execute_to_the_end(argv: list[str]) -> int:
    """Execute a command and return its exit code."""
    try:
        execute(argv[0], argv[1:])
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        sys.excepthook(type(interrupt), interrupt, interrupt.__traceback__)
        return 128 + signal.SIGINT
    except Exception as problem:
        sys.excepthook(type(problem), problem, problem.__traceback__)
        return 1
    return 0


def end(code: int) -> NoReturn:
    """End as the interpreter does: threads, exit handlers, a last collection.

    The modules of the server stay: taking them down would write to each of the pages that the
    process shares with the server, which takes longer than most commands.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # only objects of the command: those of the server are frozen
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, by the command or by its reader
            stream.flush()
    os._exit(code)


def main() -> None:
    for name in _IMPORTS:
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
    if request:  # outside of the handler: a traceback of the command does not show the fork
        become(request, streams)
        end(execute_to_the_end(request["argv"]))
