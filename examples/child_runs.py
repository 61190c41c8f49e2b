"""Start child runs from a workflow, and let a facet choose the workflow to continue with.

    python examples/child_runs.py

Each report is a run of its own, which continues even if the run that started it fails. Python
code chooses the workflow for each document at run time.
"""

from flowengine import event_facet, foreach, workflow


@event_facet
def pages_of(document: str) -> int:
    return len(document)


@event_facet
def translated(document: str, page: int) -> str:
    return f"{document}[{page}] in English"


@event_facet
def joined(pages: list[str]) -> str:
    return ", ".join(pages)


@workflow
def short_way(document: str) -> str:
    return translated(document, 0)


@workflow
def long_way(document: str, pages: list[int]) -> str:
    return joined(foreach(pages, lambda page: translated(document, page)))


@event_facet
def translate(document: str) -> str:
    """Return the call of a workflow: its result becomes the result of this step."""
    pages = len(document)
    if pages < 3:
        return short_way.call(document)
    return long_way.call(document, list(range(pages)))


@workflow
def report(document: str) -> int:
    return pages_of(document)


@workflow
def archive(documents: list[str]) -> list[str]:
    foreach(documents, lambda document: report.start(document).id)  # not waited for
    return foreach(documents, lambda document: translate(document))


@workflow
def counted(documents: list[str]) -> list[int]:
    return foreach(documents, lambda document: report.start(document).result())


if __name__ == "__main__":
    for line in archive.start(["no", "yes"]).result(timeout=60):
        print(line)
    print(f"pages: {counted.start(['no', 'yes']).result(timeout=60)}")
