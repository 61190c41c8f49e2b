"""Front end for AFL text: compiles to the same program as AFL's own compiler.

`parser` drives the grammar, `transformer` builds program JSON, `syntax_errors` explains syntax
errors, `compiler` resolves names and locates problems of the program in the text.
"""

from flowengine.afl.compiler import checked, compile_text, link_files, merged
from flowengine.afl.parser import read_expression, read_text

__all__ = ["checked", "compile_text", "link_files", "merged", "read_expression", "read_text"]
