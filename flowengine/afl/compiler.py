"""Compile AFL text: parse it and resolve its names."""

from __future__ import annotations

from flowengine.afl.parser import read_text
from flowengine.afl.source_positions import with_positions
from flowengine.errors import InvalidProgram
from flowengine.program import Program, link_program, parse_program
from flowengine.program.nodes import Json


def compile_text(text: str | bytes, file: str = "") -> Program:
    """Compile a text to a linked program.

    `file` names the text in errors. Raises InvalidText for a syntax error, and
    InvalidProgram with all problems of the program, each with line and column.
    """
    return checked(read_text(text, file), file)


def checked(document: Json, file: str = "") -> Program:
    """Link program JSON parsed from a text; raises InvalidProgram."""
    program = parse_program(document)
    try:
        link_program(program)
    except InvalidProgram as problems:
        raise with_positions(problems, program, file) from None
    return program
