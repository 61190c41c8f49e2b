"""Programs of workflows.

`nodes` holds a program as frozen values, `parser` and `serializer` convert its JSON, `linker`
makes a `Plan` of it, in which every name is resolved.
"""

from flowengine.program.linker import link_program
from flowengine.program.nodes import Program
from flowengine.program.parser import parse_program
from flowengine.program.plan import Plan
from flowengine.program.serializer import program_hash, program_text, write_program

__all__ = [
    "Plan",
    "Program",
    "link_program",
    "parse_program",
    "program_hash",
    "program_text",
    "write_program",
]
