"""Compile AFL text: read it, and settle its names."""

from __future__ import annotations

from flowengine.afl.parser import read_text
from flowengine.afl.source_positions import located
from flowengine.errors import InvalidProgram
from flowengine.program import Program, link_program, parse_program
from flowengine.program.nodes import Json


def compile_text(text: str | bytes, file: str = "") -> Program:
    """Return the program that a text says, checked and ready to be started.

    `file` is what errors call the text. Raises InvalidText for what is not AFL, and
    InvalidProgram with all that is wrong with the program, each with line and column.
    """
    return checked(read_text(text, file), file)


def checked(document: Json, file: str = "") -> Program:
    """Return the program of a text that was read, or raise InvalidProgram."""
    program = parse_program(document)
    try:
        link_program(program)
    except InvalidProgram as problems:
        raise located(problems, program, file) from None
    return program
