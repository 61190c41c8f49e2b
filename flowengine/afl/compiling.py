"""Compile AFL text: read it, and settle its names."""

from __future__ import annotations

from flowengine.afl.parsing import read_text
from flowengine.afl.places import located
from flowengine.errors import InvalidProgram
from flowengine.program import Program, link_program, parse_program


def compile_text(text: str, file: str = "") -> Program:
    """Return the program that a text says, checked and ready to be started.

    `file` is what errors call the text. Raises InvalidText for what is not AFL, and
    InvalidProgram with all that is wrong with the program, each with line and column.
    """
    program = parse_program(read_text(text, file))
    try:
        link_program(program)
    except InvalidProgram as problems:
        raise located(problems, program, file) from None
    return program
