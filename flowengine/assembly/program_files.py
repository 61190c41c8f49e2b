"""Load a program from its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flowengine.afl import link_files, read_text
from flowengine.authoring import event_facet_named, register_program
from flowengine.errors import ProgramError
from flowengine.program import Program, parse_program
from flowengine.program.json_reader import read_json
from flowengine.program.limits import program_too_large
from flowengine.program.nodes import Declaration, EventOptions, FacetDeclaration, Namespace
from flowengine.settings import Settings

AFL_TEXT = (".afl", ".ffl")
PROGRAM_JSON = ".json"


def load_program(
    path: str | Path | Sequence[str | Path], *, settings: Settings | None = None
) -> Program:
    """Load and link a program: AFL text (``.afl``, ``.ffl``) or program JSON (``.json``).

    The declarations of several files are one program, whatever their order.

    AFL has no syntax for task lists, retries and timeouts. They come from the
    ``@event_facet`` functions of this process with the names of the program's event facets,
    so import those first. Options in the program take precedence. Script blocks are accepted if
    the setting `scripts` is on; without `settings` they are read from the environment.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise ProgramError("a program needs a file; none is given")
    settings = settings or Settings.from_environment()
    parts = [_read(path, settings.max_program_bytes) for path in paths]
    program = link_files(parts, allow_scripts=settings.scripts)
    loaded = Program(tuple(_with_options(declared) for declared in program.declarations))
    source = "json" if Path(paths[0]).suffix == PROGRAM_JSON else "afl"
    register_program(loaded, source, ", ".join(str(path) for path in paths))
    return loaded


def _read(path: str | Path, most: int) -> tuple[Program, str | None]:
    """Return what a file declares, and the name of its text."""
    file = Path(path)
    if file.is_file() and file.stat().st_size > most:
        raise program_too_large(file.stat().st_size, most)
    if file.suffix in AFL_TEXT:
        return parse_program(read_text(file.read_bytes(), str(path))), str(path)
    if file.suffix == PROGRAM_JSON:
        return parse_program(read_json(file.read_bytes(), str(file))), None
    raise ProgramError(
        f"{path} is neither AFL text ({', '.join(AFL_TEXT)}) nor program JSON "
        f"({PROGRAM_JSON}); rename it"
    )


def _with_options(declared: Declaration, namespace: str = "") -> Declaration:
    name = f"{namespace}.{declared.name}" if namespace else declared.name
    if isinstance(declared, Namespace):
        inner = tuple(_with_options(inner, name) for inner in declared.declarations)
        return replace(declared, declarations=inner)
    if isinstance(declared, FacetDeclaration) and declared.options == EventOptions():
        code = event_facet_named(name)
        return declared if code is None else replace(declared, options=code.options)
    return declared
