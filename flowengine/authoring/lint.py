"""Find code that a trace would silently misinterpret.

A symbol raises when Python asks for its value. Some code never asks: Python itself
evaluates ``x is None``, a clock returns the time of the trace, and a ``try`` around a
step ends before the step runs. This linter finds such code in the syntax tree. It
estimates which names hold symbols: parameters, results of calls, and values derived
from either.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from flowengine.errors import Problem, UntraceableCode

_AS_INPUT = "read it in an event facet, or pass it to .start(...) as an input"
_CURES = {
    "reads the clock": f"write flowengine.now(), {_AS_INPUT}",
    "makes an id": f"write flowengine.uuid(), {_AS_INPUT}",
    "draws a random value": _AS_INPUT,
    "reads the environment": _AS_INPUT,
}
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
#: built-in functions that inspect the symbol itself, and so never raise
_INTROSPECTION = frozenset(["isinstance", "hasattr", "callable", "type", "id", "repr", "ascii"])
_BRANCHES = frozenset(["flowengine.authoring.branches.when", "flowengine.when"])
_UNKNOWN = object()


def lint(fn: Callable[..., Any]) -> None:
    """Raise UntraceableCode with all findings; skip a function without source."""
    function = inspect.unwrap(fn)
    tree = _source_tree(function)
    if tree is None:
        return
    findings = _FunctionLinter(function, tree).findings()
    if findings:
        file = inspect.getsourcefile(function) or "?"
        raise UntraceableCode(
            f"{function.__module__}.{function.__qualname__}",
            [Problem(f"{file}:{line}", what) for line, what in findings],
        )


def _source_tree(function: Callable[..., Any]) -> ast.FunctionDef | None:
    try:
        lines, first = inspect.getsourcelines(function)
        # A local function is indented. An `if` in front of it, unlike dedenting, keeps
        # the text inside its strings.
        indented = lines[0][:1].isspace()
        tree = ast.parse("if True:\n" * indented + "".join(lines))
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    ast.increment_lineno(tree, first - 1 - indented)
    first_def = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)
    return first_def if first_def and first_def.name == function.__name__ else None


class _FunctionLinter:
    """Lints the source of one function, with the names visible to it."""

    def __init__(self, function: Callable[..., Any], tree: ast.FunctionDef) -> None:
        self.nodes = [node for statement in tree.body for node in ast.walk(statement)]
        self.visible = _visible_names(function)
        self.imported = dict(self._imports())
        self.symbols = {arg.arg for arg in _arguments(tree.args)}
        self.local = self.symbols | {
            node.id
            for node in self.nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        self._propagate_symbols()

    def findings(self) -> list[tuple[int, str]]:
        """Return line and message of each finding, in source order."""
        findings = {
            (getattr(node, "lineno", 0), what) for node in self.nodes for what in self._check(node)
        }
        return sorted(findings)

    def _check(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Compare(left, ops, comparators) if any(
                isinstance(op, ast.Is | ast.IsNot) for op in ops
            ):
                if any(self._symbolic(side) for side in (left, *comparators)):
                    yield (
                        "`is` compares the symbol, never the value of the run: "
                        "write `==`, as in `== None`"
                    )
            case ast.Match(subject) if self._symbolic(subject):
                yield (
                    "`match` inspects the symbol, not the value of the run: "
                    "use when((condition, lambda: …), …, otherwise=lambda: …)"
                )
            case ast.Try(body) | ast.TryStar(body) if self._has_step_call(body):
                yield (
                    "`try` ends before the steps in it run: "
                    "use attempt(lambda: …, catch=lambda error: …, always=lambda: …)"
                )
            case ast.While():
                yield (
                    "`while` loops in the trace, not in the run: use foreach(items, lambda …), or "
                    "call the workflow recursively inside a lambda of when(…)"
                )
            case ast.AsyncFor() | ast.AsyncWith() | ast.Await():
                yield "a traced body awaits nothing: call facets without `await`"
            case ast.Call(func, args) if (name := self._dotted(func)) in _INTROSPECTION:
                if any(self._symbolic(arg) for arg in args):
                    yield f"`{name}` inspects the symbol, not the value of the run"
            case ast.Call(func, args, keywords) if self._dotted(func) in _BRANCHES:
                yield from self._eager_branches(args, keywords)
            case ast.Call(func) if self._dotted(func) == "time.sleep":
                yield "`time.sleep` delays the trace, not the run: sleep inside an event facet"
            case ast.FormattedValue(value, conversion) if conversion in (ord("r"), ord("a")):
                if self._symbolic(value):
                    yield "`!r` shows the symbol, not the value: join text with concat(…)"
            case ast.Name(ctx=ast.Load()) | ast.Attribute():
                yield from self._nondeterminism(node)

    def _eager_branches(self, args: list[ast.expr], keywords: list[ast.keyword]) -> Iterator[str]:
        branches = [*args[1:], *(word.value for word in keywords)]  # the first is a condition
        branches += [part for arg in args if isinstance(arg, ast.Tuple) for part in arg.elts[1:]]
        for branch in branches:
            if isinstance(branch, ast.Call) and hasattr(self._resolved(branch.func), "step_name"):
                yield (
                    f"`{ast.unparse(branch.func)}` would run whichever branch `when` takes: write "
                    "`lambda: …`, or call it on an earlier line"
                )

    def _nondeterminism(self, node: ast.expr) -> Iterator[str]:
        dotted = self._dotted(node)
        # A module's bare name reads nothing; `random.choice` does.
        for name in (dotted, dotted.partition(".")[0] if "." in dotted else ""):
            if name in _NONDETERMINISM and not (name == dotted and name in sys.stdlib_module_names):
                yield (
                    f"`{dotted}` {_NONDETERMINISM[name]} when the body is traced, "
                    f"once for all runs: {_CURES[_NONDETERMINISM[name]]}"
                )
                return

    def _propagate_symbols(self) -> None:
        # foreach and attempt pass symbols to nested lambdas and functions.
        for node in self.nodes:
            if isinstance(node, ast.Lambda | ast.FunctionDef):
                self.symbols |= {arg.arg for arg in _arguments(node.args)}
        self.local |= self.symbols
        size = -1
        while size != len(self.symbols):  # to a fixpoint: values derived from symbols
            size = len(self.symbols)
            for node in self.nodes:
                for target, value in _assignments(node):
                    if self._symbolic(value):
                        names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
                        self.symbols.update(names)

    def _symbolic(self, expression: ast.AST) -> bool:
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and node.id in self.symbols:
                return True
            if isinstance(node, ast.Call) and self._may_add_step(node.func):
                return True
        return False

    def _has_step_call(self, body: list[ast.stmt]) -> bool:
        nodes = [node for statement in body for node in ast.walk(statement)]
        return any(isinstance(node, ast.Call) and self._may_add_step(node.func) for node in nodes)

    def _may_add_step(self, func: ast.expr) -> bool:
        """Whether a call may append steps: all but classes, built-ins and the standard library."""
        target = self._resolved(func)
        if target is _UNKNOWN:
            root = self._dotted(func).partition(".")[0]
            return root not in sys.stdlib_module_names
        module = str(getattr(target, "__module__", None) or "").partition(".")[0]
        return not (
            isinstance(target, type)
            or inspect.isbuiltin(target)
            or module in sys.stdlib_module_names
        )

    def _resolved(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(name) if name not in self.local:
                return self.visible.get(name, _UNKNOWN)
            case ast.Attribute(value, attribute):
                owner = self._resolved(value)
                # Only modules and classes: an attribute of another object may run code.
                if isinstance(owner, ModuleType | type):
                    return getattr(owner, attribute, _UNKNOWN)
        return _UNKNOWN

    def _dotted(self, node: ast.expr) -> str:
        """Return the qualified name of an expression's target; empty if unknown."""
        match node:
            case ast.Name(name) if name in self.imported:
                return self.imported[name]
            case ast.Name(name) if name not in self.local and name in self.visible:
                return _full_name(self.visible[name], name)
            case ast.Attribute(value, attribute):
                owner = self._dotted(value)
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
            names[name] = _UNKNOWN  # a cell that is assigned later
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


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    starred = [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets, value):
            for target in targets:
                yield target, value
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield target, value
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target, value):
            yield target, value
        case ast.For(target, iterable) | ast.comprehension(target, iterable):
            yield target, iterable
