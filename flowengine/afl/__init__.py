"""AFL text as a front end: what AFL's own compiler reads becomes the same program.

`parsing` drives the grammar, `reading` makes program JSON of it, `expecting` and `hints` say
what is wrong with a text, `places` where a problem of the program stands in it.
"""

from flowengine.afl.compiler import checked, compile_text
from flowengine.afl.parser import read_text

__all__ = ["checked", "compile_text", "read_text"]
