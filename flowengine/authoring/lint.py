"""Find code that a trace would silently misinterpret.

A symbol raises when Python asks for its value. Some code never asks: Python itself
evaluates ``x is None``, a clock returns the time of the trace, and a ``try`` around a
step ends before the step runs. This linter finds such code in the syntax tree. It
estimates which names hold symbols: parameters, results of calls, and values derived
from either.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from flowengine.authoring.source_names import (
    UNKNOWN,
    FunctionTree,
    SourceNames,
    arguments_of,
    source_tree,
)
from flowengine.errors import Problem, UntraceableCode

_AS_INPUT = "read it in an event facet, or pass it to .start(...) as an input"
_CURES = {
    "reads the clock": f"write flowengine.now(), {_AS_INPUT}",
    "makes an id": f"write flowengine.uuid(), {_AS_INPUT}",
}
#: built-in functions that inspect the symbol itself, and so never raise
_INTROSPECTION = frozenset(["isinstance", "hasattr", "callable", "type", "id", "repr", "ascii"])
_BRANCHES = frozenset(["flowengine.authoring.branches.when", "flowengine.when"])


def lint(fn: Callable[..., Any]) -> None:
    """Raise UntraceableCode with all findings; skip a function without source."""
    function = inspect.unwrap(fn)
    tree = source_tree(function)
    if tree is None:
        return
    findings = _FunctionLinter(function, tree).findings()
    if findings:
        file = inspect.getsourcefile(function) or "?"
        raise UntraceableCode(
            f"{function.__module__}.{function.__qualname__}",
            [Problem(f"{file}:{line}", what) for line, what in findings],
        )


class _FunctionLinter(SourceNames):
    """Lints the source of one function, with the names visible to it."""

    def __init__(self, function: Callable[..., Any], tree: FunctionTree) -> None:
        super().__init__(function, tree)
        self.symbols = {arg.arg for arg in arguments_of(tree.args)}
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
            case ast.Call(func, args) if (name := self.dotted(func)) in _INTROSPECTION:
                if any(self._symbolic(arg) for arg in args):
                    yield f"`{name}` inspects the symbol, not the value of the run"
            case ast.Call(func, args, keywords) if self.dotted(func) in _BRANCHES:
                yield from self._eager_branches(args, keywords)
            case ast.Call(func) if self.dotted(func) == "time.sleep":
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
            if isinstance(branch, ast.Call) and hasattr(self.resolved(branch.func), "step_name"):
                yield (
                    f"`{ast.unparse(branch.func)}` would run whichever branch `when` takes: write "
                    "`lambda: …`, or call it on an earlier line"
                )

    def _nondeterminism(self, node: ast.expr) -> Iterator[str]:
        dotted, what = self.nondeterminism(node)
        if what:
            yield (
                f"`{dotted}` {what} when the body is traced, once for all runs: "
                f"{_CURES.get(what, _AS_INPUT)}"
            )

    def _propagate_symbols(self) -> None:
        # foreach and attempt pass symbols to nested lambdas and functions.
        for node in self.nodes:
            if isinstance(node, ast.Lambda | ast.FunctionDef):
                self.symbols |= {arg.arg for arg in arguments_of(node.args)}
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
        target = self.resolved(func)
        if target is UNKNOWN:
            root = self.dotted(func).partition(".")[0]
            return root not in sys.stdlib_module_names
        module = str(getattr(target, "__module__", None) or "").partition(".")[0]
        return not (
            isinstance(target, type)
            or inspect.isbuiltin(target)
            or module in sys.stdlib_module_names
        )


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
