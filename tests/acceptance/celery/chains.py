"""A workflow that takes long to trace: in a module of its own, which few workers import."""

from __future__ import annotations

from flowengine import workflow
from tests.acceptance.celery.graphs import touch


@workflow
def long_chain(n: int) -> int:
    for _ in range(400):
        n = touch(n)
    return n
