"""Give a decorated function the name that stored runs will know it by.

A qualified name is ``namespace.name``. Stored programs, tasks and results refer
to it for as long as a run lives, so it must not depend on how a file was
started: ``python quickstart.py``, ``python -m quickstart`` and ``import
quickstart`` give equal names, and so equal program hashes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from flowengine.errors import AuthoringError
from flowengine.program.standard import STANDARD

# A child of multiprocessing's spawn runs the main file once more, as `__mp_main__`.
_MAIN = frozenset(["__main__", "__mp_main__"])


def namespace_of(fn: Callable[..., Any]) -> str:
    """The name of the function's module, as an importer of its file would write it."""
    function = inspect.unwrap(fn)
    module = getattr(function, "__module__", None) or "__main__"
    if module not in _MAIN:
        return str(module)
    return main_namespace(_module_globals(function, module))


def main_namespace(names: Mapping[str, Any]) -> str:
    """What to call the main module whose global names are given."""
    spec = names.get("__spec__")
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    file = names.get("__file__")
    return PurePath(file).stem if file else "__main__"


def qualified_name(fn: Callable[..., Any], given: str | None) -> str:
    """The name an author gave, or the one that follows from where the function stands."""
    if given is not None:
        return _completed(fn, given, "name")
    qualname = getattr(fn, "__qualname__", None) or "<unnamed>"
    if not qualname.isidentifier():
        kind = "a local function" if "<locals>" in qualname else "no plain module-level function"
        raise AuthoringError(
            f"{qualname} is {kind}, and nothing in its module is called by that name: a stored "
            'run could not find it again; give it one with name="…"'
        )
    return f"{namespace_of(fn)}.{qualname}"


def qualified_alias(fn: Callable[..., Any], given: str) -> str:
    """A further name the same function answers to."""
    return _completed(fn, given, "alias")


def is_step_name(name: object) -> bool:
    """Whether a step path can show the name: it has no dots, brackets or blanks."""
    return isinstance(name, str) and name.isidentifier()


def _completed(fn: Callable[..., Any], given: object, what: str) -> str:
    if not isinstance(given, str) or not all(part.isidentifier() for part in given.split(".")):
        raise AuthoringError(f"the {what} {given!r} is not made of identifiers and dots")
    whole = given if "." in given else f"{namespace_of(fn)}.{given}"
    if whole in STANDARD:
        raise AuthoringError(f"the {what} {whole!r} belongs to {whole.rpartition('.')[2]}(...)")
    return whole


def _module_globals(function: Callable[..., Any], module: str) -> Mapping[str, Any]:
    # The function's own globals come first: while multiprocessing runs the main file
    # again, `sys.modules["__main__"]` is still its bootstrap.
    names: Mapping[str, Any] | None = getattr(function, "__globals__", None)
    return names if names is not None else vars(sys.modules[module])
