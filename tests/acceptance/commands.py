"""The command line in processes of the fork server.

That the installed command works is shown by the documents, whose lines are run by a shell.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fork_server import context


@dataclass(frozen=True, slots=True)
class Output:
    returncode: int
    stdout: str
    stderr: str


def flowengine(
    words: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Output:
    """Run the command; warnings are errors."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        child = context.Process(
            target=_command,
            args=([*words], str(directory), {**os.environ, **(environment or {})}, out, err),
        )
        child.start()
        child.join(timeout=120)
        if child.exitcode is None:
            child.kill()
            raise TimeoutError(f"flowengine {' '.join(words)} hangs:\n{err.read_text()}")
        return Output(child.exitcode, out.read_text(), err.read_text())


def _command(
    words: list[str], directory: str, environment: dict[str, str], out: Path, err: Path
) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = ["flowengine", *words]
    warnings.resetwarnings()
    warnings.simplefilter("error")
    from flowengine.cli import main

    try:
        main()
    finally:
        # A child of multiprocessing ends without what every other process does at its end.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
