"""Qualified names of decorated functions, as stored in runs.

A qualified name is ``namespace.name``. Stored programs and tasks refer to it, so it
must not depend on how a file is started: ``python quickstart.py``,
``python -m quickstart`` and ``import quickstart`` give equal names and program hashes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from flowengine.errors import AuthoringError
from flowengine.program.standard import STANDARD

# A child of multiprocessing's spawn runs the main file again, as `__mp_main__`.
_MAIN = frozenset(["__main__", "__mp_main__"])


def namespace_of(fn: Callable[..., Any]) -> str:
    """Return the name of the function's module, as an import statement names it."""
    function = inspect.unwrap(fn)
    module = getattr(function, "__module__", None) or "__main__"
    if module not in _MAIN:
        return str(module)
    return main_namespace(_module_globals(function, module))


def main_namespace(names: Mapping[str, Any]) -> str:
    """Return the namespace of a main module, from its global names."""
    spec = names.get("__spec__")
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    file = names.get("__file__")
    return PurePath(file).stem if file else "__main__"


def qualified_name(fn: Callable[..., Any], given: str | None) -> str:
    """Return the given name, or the name derived from the function's module."""
    if given is not None:
        return _qualified(fn, given, "name")
    qualname = getattr(fn, "__qualname__", None) or "<unnamed>"
    if not qualname.isidentifier():
        kind = "a local function" if "<locals>" in qualname else "not a plain module-level function"
        raise AuthoringError(
            f"{qualname} is {kind}: a stored run cannot find it again by that name; "
            'give it a name with name="…"'
        )
    return f"{namespace_of(fn)}.{qualname}"


def qualified_alias(fn: Callable[..., Any], given: str) -> str:
    """Return a further qualified name of the function."""
    return _qualified(fn, given, "alias")


def is_step_name(name: object) -> bool:
    """Whether the name is valid in a step path: no dots, brackets or blanks."""
    return isinstance(name, str) and name.isidentifier()


def _qualified(fn: Callable[..., Any], given: object, what: str) -> str:
    if not isinstance(given, str) or not all(part.isidentifier() for part in given.split(".")):
        raise AuthoringError(f"the {what} {given!r} is not a dotted sequence of identifiers")
    whole = given if "." in given else f"{namespace_of(fn)}.{given}"
    if whole in STANDARD:
        reserved = whole.rpartition(".")[2]
        raise AuthoringError(f"the {what} {whole!r} is reserved for {reserved}(...)")
    return whole


def _module_globals(function: Callable[..., Any], module: str) -> Mapping[str, Any]:
    # Prefer the function's globals: while multiprocessing runs the main file again,
    # `sys.modules["__main__"]` is its bootstrap module.
    names: Mapping[str, Any] | None = getattr(function, "__globals__", None)
    return names if names is not None else vars(sys.modules[module])
