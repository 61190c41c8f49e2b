"""No engine at all: the time that the computation itself takes."""

from __future__ import annotations

from benchmarks.contenders.driver import Driver, serve
from benchmarks.workloads import LIGHT, LONG, fib


class Pure(Driver):
    def light(self, size: int) -> int:
        return sum(fib(LIGHT) for _ in range(size))

    def long(self, size: int) -> int:
        return sum(fib(LONG) for _ in range(size))


if __name__ == "__main__":
    serve(Pure())
