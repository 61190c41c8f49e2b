"""The source of a function, and the things that the names in it mean."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeAlias

FunctionTree: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
UNKNOWN = object()

_NONDETERMINISTIC = {
    "reads the clock": [
        *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.localtime"),
        *("time.perf_counter", "time.perf_counter_ns", "time.gmtime", "time.ctime"),
        *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
        "datetime.date.today",
    ],
    "makes an id": ["uuid.uuid1", "uuid.uuid4"],
    "draws a random value": ["random", "secrets", "os.urandom", "posix.urandom"],
    "reads the environment": ["os.environ", "os.getenv"],
}
_NONDETERMINISM = {dotted: what for what, names in _NONDETERMINISTIC.items() for dotted in names}


def source_tree(function: Callable[..., Any]) -> FunctionTree | None:
    """Return the syntax tree of a function; None if it has no source."""
    try:
        lines, first = inspect.getsourcelines(function)
        # A local function is indented. An `if` in front of it, unlike dedenting, keeps
        # the text inside its strings.
        indented = lines[0][:1].isspace()
        tree = ast.parse("if True:\n" * indented + "".join(lines))
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    ast.increment_lineno(tree, first - 1 - indented)
    first_def = next((n for n in ast.walk(tree) if isinstance(n, FunctionTree)), None)
    return first_def if first_def and first_def.name == function.__name__ else None


class SourceNames:
    """The source of one function, with the names visible to it."""

    def __init__(self, function: Callable[..., Any], tree: FunctionTree) -> None:
        self.nodes = [node for statement in tree.body for node in ast.walk(statement)]
        self.visible = _visible_names(function)
        self.imported = dict(self._imports())
        self.local = {arg.arg for arg in arguments_of(tree.args)} | {
            node.id
            for node in self.nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }

    def nondeterminism(self, node: ast.expr) -> tuple[str, str]:
        """Return the name that an expression reads, and what that does that differs in each run."""
        dotted = self.dotted(node)
        # A module's bare name reads nothing; `random.choice` does.
        for name in (dotted, dotted.partition(".")[0] if "." in dotted else ""):
            if name in _NONDETERMINISM and not (name == dotted and name in sys.stdlib_module_names):
                return dotted, _NONDETERMINISM[name]
        return dotted, ""

    def resolved(self, node: ast.expr) -> Any:
        """Return the value of a name, an attribute of a module or a class; else UNKNOWN."""
        match node:
            case ast.Name(name) if name not in self.local:
                return self.visible.get(name, UNKNOWN)
            case ast.Attribute(value, attribute):
                owner = self.resolved(value)
                # Only modules and classes: an attribute of another object may run code.
                if isinstance(owner, ModuleType | type):
                    return getattr(owner, attribute, UNKNOWN)
        return UNKNOWN

    def dotted(self, node: ast.expr) -> str:
        """Return the qualified name of an expression's target; empty if unknown."""
        match node:
            case ast.Name(name) if name in self.imported:
                return self.imported[name]
            case ast.Name(name) if name not in self.local and name in self.visible:
                return _full_name(self.visible[name], name)
            case ast.Attribute(value, attribute):
                owner = self.dotted(value)
                return f"{owner}.{attribute}" if owner else ""
        return ""

    def _imports(self) -> Iterator[tuple[str, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    yield alias.asname or root, alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _visible_names(function: Any) -> Mapping[str, Any]:
    names = {**vars(builtins), **function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            names[name] = UNKNOWN  # a cell that is assigned later
    return names


def _full_name(value: Any, name: str) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    kind, owner = type(value), getattr(value, "__self__", None)
    if (kind.__module__, kind.__name__) == ("os", "_Environ"):
        return "os.environ"
    # `from random import choice` imports a method of a hidden generator.
    if owner is not None and type(owner).__module__ == "random":
        return f"random.{value.__name__}"
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{value.__name__}"
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module == "builtins" and qualname:
        return str(qualname)
    return f"{module}.{qualname}" if module and qualname else name


def arguments_of(arguments: ast.arguments) -> list[ast.arg]:
    starred = [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]
