"""Find code in the body of a durable function that a replay would not repeat.

The body is run again from its beginning, in another process, after a deploy. A clock, a random
number, a file or a global list may give another value there, so that the function diverges from
its record. There is no sandbox: this linter reads the source and warns in `flowengine check`. It
looks at the body alone, not at the functions that it calls.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from flowengine.authoring.current_function import REPLACEMENTS
from flowengine.authoring.source_names import UNKNOWN, FunctionTree, SourceNames, source_tree
from flowengine.program.nodes import Location

_IN_A_FACET = "do it in an event facet and await its call, or await step(fn, …)"
_AS_INPUT = "pass it as an input, or read it in an event facet or with step(fn, …)"
_CURES = {
    "reads the clock": "write now() of flowengine",
    "makes an id": "write uuid() of flowengine",
    "draws a random value": "write random() of flowengine, or draw it in an event facet",
    "reads the environment": _AS_INPUT,
}
_OUTSIDE = {
    "does input or output": (
        *("open", "_io", "input", "io", "socket", "ssl", "ftplib", "smtplib", "imaplib", "sqlite3"),
        *("http.client", "urllib.request", "urllib3", "requests", "httpx", "aiohttp", "aiofiles"),
        *("shutil", "tempfile", "psycopg", "redis", "sqlalchemy", "asyncio.open_connection"),
        *("os.listdir", "os.scandir", "os.walk", "os.stat", "os.remove", "os.mkdir", "os.makedirs"),
        *("os.read", "os.write", "os.open", "os.rename", "os.getcwd", "os.path.exists"),
        *("genericpath.exists", "posix.listdir", "posix.scandir", "posix.stat", "posix.remove"),
        *("posix.mkdir", "posix.read", "posix.write", "posix.open", "posix.rename", "posix.getcwd"),
    ),
    "starts a process": (
        *("subprocess", "multiprocessing", "os.system", "os.fork", "posix.system", "posix.fork"),
        *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
        *("asyncio.subprocess.create_subprocess_exec",),
        *("asyncio.subprocess.create_subprocess_shell",),
    ),
    "uses threads": (
        *("threading", "_thread", "concurrent.futures", "asyncio.to_thread"),
        "asyncio.threads.to_thread",
    ),
}
_EFFECTS = {name: what for what, names in _OUTSIDE.items() for name in names}
_BLOCKS = "blocks the worker and is in no record: write `await sleep(…)` of flowengine"
_SETS = frozenset({"set", "frozenset"})
_AWAITED = frozenset({"gather", "sleep", "sleep_until", "step", "wait_for"})
_CHANGES = frozenset(
    {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove"}
    | {"discard", "clear", "sort", "reverse", "appendleft", "popleft", "put", "put_nowait"}
)


def function_findings(fn: Callable[..., Any]) -> list[tuple[Location, str]]:
    """Return the lines of a durable function that may differ in a replay, in their order."""
    function = inspect.unwrap(fn)
    tree = source_tree(function)
    if tree is None:
        return []
    file = inspect.getsourcefile(function) or "?"
    found = _BodyLinter(function, tree).findings()
    return [(Location(line, file=file), what) for line, what in found]


class _BodyLinter(SourceNames):
    """Lints the body of one function."""

    def __init__(self, function: Callable[..., Any], tree: FunctionTree) -> None:
        super().__init__(function, tree)
        self._globals: dict[str, Any] = function.__globals__
        self._is_async = isinstance(tree, ast.AsyncFunctionDef)

    def findings(self) -> list[tuple[int, str]]:
        """Return line and message of each finding, in source order."""
        inner = {id(node.value) for node in self.nodes if isinstance(node, ast.Attribute)}
        return sorted(
            {
                (_line(node), what)
                for node in self.nodes
                if id(node) not in inner  # `time.time` is one finding, `time` is a part of it
                for what in self._check(node)
            }
        )

    def _check(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Global(names):
                yield (
                    f"`global {', '.join(names)}` is a value of this process, which no replay "
                    "has: keep it in a local variable"
                )
            case ast.For(iter=iterable) | ast.comprehension(iter=iterable):
                if self._is_set(iterable):
                    yield (
                        "the order of a set differs between processes: iterate over "
                        "sorted(…), or over a list"
                    )
            case ast.Expr(ast.Call(func)) if self._is_async and self._is_awaited(func):
                name = ast.unparse(func)
                yield f"`{name}` is called and never awaited: write `await {name}(…)`"
            case ast.Call(func) if construct := self._construct(func):
                yield (
                    f"`{construct}` makes steps of a traced workflow, and this function is run: "
                    f"write `{REPLACEMENTS[construct]}`"
                )
            case ast.Call(ast.Attribute(flow, "start" | "astart" | "start_many")) if self._is_facet(
                flow
            ):
                yield (
                    f"`{ast.unparse(flow)}` is started by each replay once more: await its call, "
                    "or start it in an event facet"
                )
            case ast.Call(ast.Attribute(ast.Name(name), method)) if method in _CHANGES:
                if self._is_mutable(name):
                    yield self._changed(name)
            case ast.Subscript(ast.Name(name), ctx=ast.Store() | ast.Del()):
                if self._is_mutable(name):
                    yield self._changed(name)
            case ast.Name(name, ctx=ast.Load()) if self._is_mutable(name) and not name.isupper():
                kind = type(self._globals[name]).__name__
                yield (
                    f"`{name}` is a global {kind}, which may change between replays: pass it as "
                    "an input, or write its name in capitals if it is constant"
                )
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                yield from self._outside(node)

    def _outside(self, node: ast.expr) -> Iterator[str]:
        dotted, what = self.nondeterminism(node)
        if what and not isinstance(self.resolved(node), type):
            yield f"`{dotted}` {what}, and a replay gets another value: {_CURES[what]}"
        elif dotted == "time.sleep":
            yield f"`time.sleep` {_BLOCKS}"
        elif did := self._effect(dotted):
            shown = dotted.removeprefix("_").removeprefix("io.")
            yield f"`{shown}` {did}, again in each replay: {_IN_A_FACET}"

    def _effect(self, dotted: str) -> str:
        parts = dotted.split(".")
        # Longest first: `os.path.exists` and `requests.get` are found, `os.path.join` is not.
        for end in range(len(parts), 0, -1):
            if found := _EFFECTS.get(".".join(parts[:end])):
                return found
        return ""

    def _is_set(self, iterable: ast.expr) -> bool:
        match iterable:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call(func):
                return self.dotted(func) in _SETS
        return False

    def _is_facet(self, node: ast.expr) -> bool:
        """Whether an expression is a decorated function, or one with other options."""
        match node:
            case ast.Call(ast.Attribute(inner, "named" | "within" | "with_options" | "options")):
                return self._is_facet(inner)
            case ast.Attribute(inner, "acall"):
                return self._is_facet(inner)
        return hasattr(self.resolved(node), "step_name")

    def _is_awaited(self, node: ast.expr) -> bool:
        """Whether the call of an expression is to be awaited."""
        module, _, name = self.dotted(node).rpartition(".")
        is_ours = name in _AWAITED and module.partition(".")[0] == "flowengine"
        return is_ours or self._is_facet(node)

    def _construct(self, node: ast.expr) -> str:
        module, _, name = self.dotted(node).rpartition(".")
        return name if name in REPLACEMENTS and module.partition(".")[0] == "flowengine" else ""

    def _is_mutable(self, name: str) -> bool:
        found = UNKNOWN if name in self.local else self._globals.get(name, UNKNOWN)
        return isinstance(found, list | dict | set | bytearray)

    def _changed(self, name: str) -> str:
        return (
            f"`{name}` is a global value, and each replay changes it once more: keep it in a "
            "local variable, or change it in an event facet"
        )


def _line(node: ast.AST) -> int:
    located = node.iter if isinstance(node, ast.comprehension) else node
    return int(getattr(located, "lineno", 0))
