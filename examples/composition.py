"""Compose workflows: nested steps, and a workflow that calls itself.

    python examples/composition.py

The engine evaluates the bodies of `@facet` and `@workflow`. A workflow called as a step is part
of its caller's run: one tree, one result.
"""

from flowengine import attempt, event_facet, facet, foreach, when, workflow

FOLDERS = {
    "/": ["/music/", "/notes.txt"],
    "/music/": ["/music/a.ogg", "/music/live/", "/music/b.ogg"],
    "/music/live/": ["/music/live/c.ogg"],
}


@event_facet
def entries(folder: str) -> list[str]:
    return FOLDERS[folder]


@event_facet
def size(file: str) -> int:
    return len(file)


@event_facet
def is_folder(path: str) -> bool:
    return path.endswith("/")


@event_facet
def total(sizes: list[int]) -> int:
    return sum(sizes)


@facet
def measured(path: str) -> int:
    """Return the size of a file, or of all files in a folder."""
    return when(is_folder(path), lambda: usage(path), otherwise=lambda: size(path))


@workflow
def usage(folder: str) -> int:
    """Call itself for each subfolder; a folder without subfolders ends the recursion."""
    return total(foreach(entries(folder), lambda path: measured(path)))


@workflow
def compare(one: str, other: str) -> str:
    sizes = [attempt(lambda: usage(one), catch=lambda error: 0), usage(other)]
    return when(sizes[0] > sizes[1], one, otherwise=other)


if __name__ == "__main__":
    print(f"usage of /: {usage.start('/').result(timeout=60)}")
    print(f"larger: {compare.start('/music/live/', '/music/').result(timeout=60)}")
    print(f"larger: {compare.start('/nowhere/', '/music/').result(timeout=60)}")
