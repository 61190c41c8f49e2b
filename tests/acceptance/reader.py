"""A reader who copies a document into an empty directory and a shell, in the order of its text.

- A ``python`` block that begins with ``# file: name.py`` is written to that file, a ``yaml``
  block with such a line and an ``afl`` block that begins with ``// file: name.afl`` too.
- In a ``console`` block each line that begins with ``$ `` is a command. It must succeed and
  print the lines that follow it, in shape (see `transcripts`). A block marked
  ``console servers`` uses Redis at localhost:6379: the reader has a private one. The port
  8765 of a program is replaced by a free one.
- A comment at the end of a command says more:

  - ``# fails``: the exit code is not 0;
  - ``# your id``: the run that it names is the newest one here;
  - ``# kill it at "text"``: it is killed when it has printed the text;
  - ``# keeps running from "text"``: it goes on in another terminal once it has printed the
    text, until a later block starts another one;
  - ``# repeat until "text"``, perhaps ``or "text"``, also after ``# your id,``: it is repeated
    until it prints one of them.

Blocks of another kind, ``sh`` and ``text`` among them, are not run.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from tests.acceptance.transcripts import Step, blocks, difference, steps
from tests.celery_nodes.processes import GuardedProcess, ProcessDidNotStart
from tests.servers import free_port

_BIN = Path(sys.executable).parent
_TIME_LIMIT = 120.0  #: seconds for one command
_PAUSE = 0.5  #: seconds between two repetitions of a command
_FILE = re.compile(r"(?:#|//) file: (\S+)\n")
_EXPORT = re.compile(r"export (\w+)=(\S+)$")
_KILL = re.compile(r'# kill it at "(.+)"$')
_KEEP = re.compile(r'# keeps running from "(.+)"$')
_REPEAT = re.compile(r'\brepeat until "(.+?)"(?: or "(.+)")?$')
_YOURS = re.compile(r"# your id\b")


def shell_environment() -> dict[str, str]:
    """The reader's shell: the command is on the path, and nothing is configured."""
    own = ("FLOWENGINE_", "PYTEST_", "CELERY_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    return {
        **kept,
        "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        # Readers lack the plugins that our tests need, and one of them takes seconds to import.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "COLUMNS": "500",  # no line is wrapped, in the documents neither
    }


class Reader:
    """Follows one document in one directory."""

    def __init__(self, directory: Path, redis_url: str, commands: Path | None = None) -> None:
        self._directory = directory
        self._redis = redis_url.removeprefix("redis://").partition("/")[0]
        self._port = str(free_port())
        self._environment = shell_environment()
        if commands:  # of another directory than the installed ones
            self._environment["PATH"] = f"{commands}{os.pathsep}{self._environment['PATH']}"
        self._running: list[GuardedProcess] = []
        self._started = 0

    def follow(self, document: Path) -> list[str]:
        """Do what the document says; return what went otherwise."""
        problems = []
        try:
            for kind, text in blocks(document):
                text = text.replace("localhost:6379", self._redis).replace("8765", self._port)
                if file := _FILE.match(text):
                    path = self._directory / file[1]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
                elif kind.startswith("console"):
                    problems += self._run_block(text)
        finally:
            self._end_running()
        return problems

    def _run_block(self, text: str) -> list[str]:
        if any(_KEEP.search(step.command) for step in steps(text)):
            self._end_running()
        return [problem for step in steps(text) if (problem := self._run(step))]

    def _run(self, step: Step) -> str:
        """Run one command; say what is wrong with its end or its output, or nothing."""
        command = step.command
        if export := _EXPORT.match(command):
            self._environment[export[1]] = export[2]
            return ""
        if keep := _KEEP.search(command):
            return self._keep_running(step, keep[1])
        if kill := _KILL.search(command):
            return self._kill(step, kill[1])
        if repeat := _REPEAT.search(command):
            return self._repeat(step, [text for text in repeat.groups() if text])
        code, output = self._execute(command)
        if (code == 0) is command.endswith("# fails"):
            return f"$ {command}\nended with {code}\n{output}"
        return difference(step, output)

    def _execute(self, command: str) -> tuple[int, str]:
        if _YOURS.search(command):
            command = re.sub(r"\b[0-9a-f]{8}\b", self._newest_run(), command)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIME_LIMIT,
        )
        return done.returncode, done.stdout

    def _repeat(self, step: Step, texts: list[str]) -> str:
        deadline = time.monotonic() + _TIME_LIMIT
        while True:
            output = self._execute(step.command)[1]
            if any(text in output for text in texts):
                return difference(step, output)
            if time.monotonic() > deadline:
                return f"$ {step.command}\nnever printed {texts}\n{output}"
            time.sleep(_PAUSE)

    def _kill(self, step: Step, text: str) -> str:
        """Run one command and kill it, and all it started, as soon as it prints the text."""
        printed = ""
        with subprocess.Popen(
            ["bash", "-c", step.command],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as child:
            assert child.stdout
            for line in child.stdout:
                printed += line
                if text in line:
                    os.killpg(child.pid, signal.SIGKILL)
                    return difference(step, f"{printed}Killed\n")
        return f"$ {step.command}\nended with {child.returncode}, never printed {text!r}\n{printed}"

    def _keep_running(self, step: Step, text: str) -> str:
        self._started += 1
        process = GuardedProcess(
            ["bash", "-c", f"cd {self._directory} && exec env {step.command}"],
            name=step.command,
            directory=self._directory / f"terminal-{self._started}",
            environment=self._environment,
            ready_prompt=text,
        )
        self._running.append(process)
        try:
            process.start()
        except ProcessDidNotStart as problem:
            return str(problem)
        return difference(step, process.recent_log())

    def _end_running(self) -> None:
        while self._running:
            self._running.pop().stop()

    def _newest_run(self) -> str:
        with closing(sqlite3.connect(self._directory / "flowengine.db")) as database:
            newest = (
                "SELECT id FROM flowengine_run WHERE parent_run_id IS NULL "
                "ORDER BY created DESC LIMIT 1"
            )
            return str(database.execute(newest).fetchone()[0])[:8]
