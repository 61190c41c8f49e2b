"""The script runner: executes a script block in a process of its own, with a map in and out.

The process has limits for time and memory, cannot write files or import, and has few built-in
functions. These limits contain accidents. They are no sandbox: an author of programs can run code,
so scripts are off unless a setting turns them on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from flowengine.authoring import event_facet
from flowengine.errors import ScriptFailed
from flowengine.program.standard import SCRIPT, SCRIPT_LIST
from flowengine.settings import Settings

#: The code of the process. It sets the limits before it compiles the script.
_RUNNER = """
import json, resource, sys
seconds, size, code, params = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_AS, (size, size))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
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
    answer = json.dumps({'error': type(problem).__name__ + ': ' + str(problem)})
sys.stdout.write(answer)
"""


def run_script(code: str, params: dict[str, Any], *, seconds: float, size: int) -> dict[str, Any]:
    """Return the map that the script fills, or raise `ScriptFailed`."""
    question = json.dumps([max(1, round(seconds)), size, code, params])
    try:
        # Isolated, without site packages, environment and working directory of the worker.
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _RUNNER],
            input=question,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ScriptFailed(f"the script took longer than {seconds:g} seconds") from None
    if ended.returncode != 0 or not ended.stdout:
        raise ScriptFailed(f"the script's process ended with {ended.returncode}")
    answer = json.loads(ended.stdout)
    if "error" in answer:
        raise ScriptFailed(f"the script failed: {answer['error']}")
    found: dict[str, Any] = answer["result"]
    return found


def offer_scripts(settings: Settings) -> None:
    if not settings.scripts:
        return

    @event_facet(name=SCRIPT, task_list=SCRIPT_LIST)
    def script(code: str, params: dict[str, Any]) -> dict[str, Any]:
        return run_script(code, params, seconds=settings.script_seconds, size=settings.script_bytes)
