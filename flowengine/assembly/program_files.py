"""Load a program from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from flowengine.afl import compile_text
from flowengine.authoring import event_facet_named
from flowengine.errors import InvalidProgram, Problem, ProgramError
from flowengine.program import Program, link_program, parse_program
from flowengine.program.nodes import Declaration, EventOptions, FacetDeclaration, Namespace
from flowengine.settings import Settings

AFL_TEXT = (".afl", ".ffl")
PROGRAM_JSON = ".json"


def load_program(path: str | Path, *, settings: Settings | None = None) -> Program:
    """Load and link a program: AFL text (``.afl``, ``.ffl``) or program JSON (``.json``).

    AFL has no syntax for task lists, retries and timeouts. They come from the
    ``@event_facet`` functions of this process with the names of the program's event facets,
    so import those first. Options in the program take precedence. Script blocks are accepted if
    the setting `scripts` is on; without `settings` they are read from the environment.
    """
    file = Path(path)
    allow_scripts = (settings or Settings.from_environment()).scripts
    if file.suffix in AFL_TEXT:
        program = compile_text(file.read_bytes(), str(path), allow_scripts=allow_scripts)
    elif file.suffix == PROGRAM_JSON:
        program = _from_json(file, allow_scripts)
    else:
        raise ProgramError(
            f"{path} is neither AFL text ({', '.join(AFL_TEXT)}) nor program JSON "
            f"({PROGRAM_JSON}); rename it"
        )
    return Program(tuple(_with_options(declared) for declared in program.declarations))


def _from_json(file: Path, allow_scripts: bool) -> Program:
    try:
        document = json.loads(file.read_bytes())
    except ValueError as problem:
        raise InvalidProgram([Problem(str(file), f"is not JSON: {problem}")]) from None
    except RecursionError:
        raise InvalidProgram([Problem(str(file), "is nested too deeply")]) from None
    program = parse_program(document)
    link_program(program, allow_scripts=allow_scripts)
    return program


def _with_options(declared: Declaration, namespace: str = "") -> Declaration:
    name = f"{namespace}.{declared.name}" if namespace else declared.name
    if isinstance(declared, Namespace):
        inner = tuple(_with_options(inner, name) for inner in declared.declarations)
        return replace(declared, declarations=inner)
    if isinstance(declared, FacetDeclaration) and declared.options == EventOptions():
        code = event_facet_named(name)
        return declared if code is None else replace(declared, options=code.options)
    return declared
