"""The form of cdktr's documents, rewritten to ours; places stay those of the text.

There ``cron`` and ``start_time`` are keys of the document, and the work of a task is a tagged map:
``config: !Subprocess {cmd: …, args: […]}`` or ``config: !UvPython {script_path: …}``.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowengine.documents.problems import Problems
from flowengine.documents.yaml_nodes import ListNode, MapNode, Node, Scalar, walk

_SUBPROCESS, _UV_PYTHON = "!Subprocess", "!UvPython"
_DIRECTORY = "working_directory"
_COMMAND_KEYS = ("cmd", "args", _DIRECTORY)
_UV_KEYS = {
    "script_path": "script",
    "packages": "packages",
    "is_uv_project": "project",
    _DIRECTORY: "directory",
    "uv_path": "uv",
}
_SCHEDULE_KEYS = {"cron": "cron", "start_time": "start"}


def in_our_form(root: Node, problems: Problems) -> Node:
    """Return a document in our form; report tags that no form has."""
    if isinstance(root, MapNode):
        root = MapNode(tuple(_document(root, problems)), root.place, root.tag)
    for node in walk(root):
        if node.tag:
            what = (
                f"unknown tag `{node.tag}`; known are {_SUBPROCESS} and {_UV_PYTHON}, of `config`"
            )
            problems.add(node.place, what)
    return root


def _document(root: MapNode, problems: Problems) -> Iterator[tuple[Scalar, Node]]:
    times: list[tuple[Scalar, Node]] = []
    for key, value in root.entries:
        if key.text in _SCHEDULE_KEYS:
            times.append((_renamed(key, _SCHEDULE_KEYS[key.text]), value))
        elif key.text == "tasks" and isinstance(value, MapNode):
            tasks = tuple((name, _task(task, problems)) for name, task in value.entries)
            yield key, MapNode(tasks, value.place, value.tag)
        else:
            yield key, value
    if not times:
        return
    if root.key("schedule") is not None:
        what = "`schedule` is given, too: write the times there"
        for key, _ in times:
            problems.add(key.place, what)
    elif any(key.text == "cron" for key, _ in times):
        yield _renamed(times[0][0], "schedule"), MapNode(tuple(times), times[0][0].place)
    # A start time alone starts nothing there, too.


def _task(task: Node, problems: Problems) -> Node:
    if not isinstance(task, MapNode):
        return task
    entries: list[tuple[Scalar, Node]] = []
    for key, value in task.entries:
        if key.text == "config" and isinstance(value, MapNode) and value.tag == _SUBPROCESS:
            entries.append((_renamed(key, "run"), _command(value, problems)))
            if (directory := value.get(_DIRECTORY)) is not None:
                entries.append((_renamed(key, "directory"), _literal(directory)))
        elif key.text == "config" and isinstance(value, MapNode) and value.tag == _UV_PYTHON:
            renamed = tuple(
                (
                    _renamed(name, _UV_KEYS[name.text]) if name.text in _UV_KEYS else name,
                    _literal(each),
                )
                for name, each in value.entries
            )
            entries.append((_renamed(key, "uv"), MapNode(renamed, value.place)))
        elif key.text == "config":
            what = f"`config` needs a tag, {_SUBPROCESS} or {_UV_PYTHON}, and a map"
            problems.add(key.place, what)
            entries.append((_renamed(key, "description"), Scalar("", "", key.place)))
        else:
            entries.append((key, value))
    return MapNode(tuple(entries), task.place, task.tag)


def _command(config: MapNode, problems: Problems) -> Node:
    """Return the list of a command: its program, and its arguments."""
    program, arguments = config.get("cmd"), config.get("args")
    for key, _ in config.entries:
        if key.text not in _COMMAND_KEYS:
            hint = problems.near(key.text, _COMMAND_KEYS)
            problems.add(key.place, f"unknown key `{key.text}` of {_SUBPROCESS}{hint}")
    if not isinstance(program, Scalar) or not program.text:
        problems.add(config.place, f"{_SUBPROCESS} needs `cmd`, the name of a program")
        program = Scalar("true", "true", config.place)
    if arguments is not None and not isinstance(arguments, ListNode):
        problems.add(arguments.place, "`args` must be a list")
        arguments = None
    items = (program, *(arguments.items if arguments else ()))
    return ListNode(tuple(_literal(item) for item in items), config.place)


def _literal(node: Node) -> Node:
    """Return a value without expressions: this form has none, and `${HOME}` is plain text."""
    if isinstance(node, ListNode):
        return ListNode(tuple(_literal(item) for item in node.items), node.place, node.tag)
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        return node
    text = node.text.replace("${", "$${")
    return Scalar(text, text, node.place, node.tag, node.source)


def _renamed(key: Scalar, name: str) -> Scalar:
    return Scalar(name, name, key.place)
