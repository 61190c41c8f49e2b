"""Commands as event facets: `run`, `sh` and `uv`.

An author of programs who may call them can run code on the workers, so workers offer them only if
the setting `commands` is on.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowengine.authoring import EventFacet
from flowengine.authoring.decorators import defined_event_facet
from flowengine.authoring.registry import register_event_facet
from flowengine.engine.handles import executing
from flowengine.errors import CommandFailed, GiveUp
from flowengine.library.command_files import CommandFile, end_left
from flowengine.library.processes import Command, Ended, execute
from flowengine.log_context import StepLog
from flowengine.program.commands import RUN, SH, UV
from flowengine.settings import Settings
from flowengine.step_logs.capture import add_lines
from flowengine.step_logs.lines import STDERR, STDOUT
from flowengine.worker.step_context import current_step

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_OUTPUT = 1_048_576  # bytes of the file with the named outputs
#: Of the environment that a command gets beside that of its worker.
OUTPUT_FILE = "FLOWENGINE_OUTPUT"


@dataclass
class CommandResult:
    """The end of a command that has succeeded."""

    exit_code: int
    stdout: str  #: the last 64 KiB
    output: dict[str, Any] = field(default_factory=dict)  #: by name, as the command has written it
    signal: str = ""  #: none: a command that a signal ended has failed


def _run(
    command: list[str],
    stdin: str = "",
    env: dict[str, str] | None = None,
    directory: str = "",
) -> CommandResult:
    """Run a command: a program and its arguments, without a shell."""
    if not all(isinstance(part, str) for part in command) or not "".join(command[:1]):
        raise GiveUp(
            "a command is a list of texts: a program, which is not empty, and its arguments"
        )
    return _executed(command, stdin, env or {}, directory)


def _sh(
    script: str, values: dict[str, str] | None = None, stdin: str = "", directory: str = ""
) -> CommandResult:
    """Run a text with the shell. Values are variables of its environment: "$name"."""
    return _executed(["sh", "-c", script], stdin, values or {}, directory)


def _uv(
    script: str,
    packages: list[str] | None = None,
    args: list[str] | None = None,
    stdin: str = "",
    directory: str = "",
    env: dict[str, str] | None = None,
    project: bool = False,
    program: str = "uv",
) -> CommandResult:
    """Run a Python script with uv, in an environment that has these packages.

    With `project` it is that of the project of uv in the directory, and has its packages.
    """
    wanted = [part for package in packages or [] for part in ("--with", package)]
    place = [] if project else ["--no-project"]
    command = [program, "run", *place, *wanted, "--", script, *(args or [])]
    return _executed(command, stdin, env or {}, directory)


def _executed(
    command: Sequence[str], stdin: str, environment: Mapping[str, str], directory: str
) -> CommandResult:
    if not command[0]:
        raise GiveUp("the program of a command is empty")
    for name, value in environment.items():
        if not _NAME.fullmatch(name) or "\0" in str(value):
            raise GiveUp(f"{name!r} is no name of a variable, or its value has a NUL")
    step = current_step()
    with tempfile.TemporaryDirectory(prefix="flowengine-command-") as scratch:
        output = Path(scratch) / "output"
        own = {
            "FLOWENGINE_RUN": step.run_id,
            "FLOWENGINE_STEP": step.path,
            "FLOWENGINE_TRY": str(step.try_number),
            "FLOWENGINE_IDEMPOTENCY_KEY": step.idempotency_key,
            OUTPUT_FILE: str(output),
        }
        given = {name: str(value) for name, value in environment.items()}
        asked = Command(command, stdin.encode(), {**given, **own}, directory or None)
        token, tell = step.cancel_token, _LoggedStreams(step.log()).tell
        with CommandFile(_directory(), step.idempotency_key, step.attempt) as file:
            file.end_earlier(step.path, step.heartbeat)
            ended = execute(asked, is_cancelled=token.is_set, tell=tell, file=file)
        token.check()
        if ended.exit_code or ended.signal:
            raise _failure(command[0], ended)
        return CommandResult(ended.exit_code, _text(ended.stdout), _outputs(output))


def _directory(settings: Settings | None = None) -> Path:
    """Return the directory of the files of running commands."""
    if settings is None:
        inside = executing.get()
        assert inside is not None  # a step is current
        settings = inside[0].settings
    return Path(settings.spool_directory) / "commands"


class _LoggedStreams:
    """Both streams of a command, line by line in the log of its try."""

    def __init__(self, log: StepLog | None) -> None:
        self._log = log
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder(errors="replace") for name in (STDOUT, STDERR)}

    def tell(self, stream: str, piece: bytes) -> None:
        if self._log is not None:
            text = self._decoders[stream].decode(piece, final=not piece)
            add_lines(self._log, stream, text)


def _failure(program: str, ended: Ended) -> CommandFailed:
    how = f"was ended by {ended.signal}" if ended.signal else f"ended with {ended.exit_code}"
    return CommandFailed(f"command {program!r}", how, _text(ended.stderr).strip())


def _outputs(file: Path) -> dict[str, Any]:
    """Return the named outputs of a command: lines like ROWS=[1, 2].

    Another try would write the same, so every problem of them fails the step.
    """
    found: dict[str, Any] = {}
    for number, line in enumerate(_content(file).split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"line {number} of ${OUTPUT_FILE}"
        text, separator, value = line.partition(b"=")
        name = text.decode(errors="replace")
        if not separator or not _NAME.fullmatch(name):
            raise GiveUp(f"{where} is not NAME=JSON: {_text(line[:80])!r}")
        try:
            found[name] = json.loads(value.decode())
            # Python also reads NaN, numbers beyond its floats, and halves of surrogate pairs.
            json.dumps(found[name], allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as problem:
            raise GiveUp(f"{where}: the value of {name} is no JSON: {problem}") from problem
    return found


def _content(file: Path) -> bytes:
    """Read a file that the command may have replaced: by a pipe, that would block, or a device."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return b""
    except OSError as problem:
        raise GiveUp(f"the file ${OUTPUT_FILE} cannot be read: {problem.strerror}") from problem
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise GiveUp(f"${OUTPUT_FILE} is not a regular file: append lines to it")
        with open(descriptor, "rb", closefd=False) as opened:
            content = opened.read(_MOST_OUTPUT + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MOST_OUTPUT:
        raise GiveUp(f"the file ${OUTPUT_FILE} has more than {_MOST_OUTPUT:,} bytes")
    return content


def _text(content: bytes) -> str:
    return content.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


run = defined_event_facet(_run, RUN)
sh = defined_event_facet(_sh, SH)
uv = defined_event_facet(_uv, UV)
COMMANDS: tuple[EventFacet[..., Any], ...] = (run, sh, uv)


def offer_commands(settings: Settings) -> None:
    """Have the workers of this process run commands, if the setting is on."""
    if settings.commands and os.name == "posix":
        end_left_commands(settings)
        for facet in COMMANDS:
            register_event_facet(facet)


def end_left_commands(settings: Settings) -> None:
    """Kill the processes that killed workers and keepers have left on this machine."""
    if settings.commands and os.name == "posix":
        end_left(_directory(settings))
