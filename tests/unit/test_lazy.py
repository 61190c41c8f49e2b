"""Values that are computed when they are first read."""

from __future__ import annotations

import os
import signal
import threading
import warnings

from flowengine.lazy import lazy


class Page:
    def __init__(self, size: int) -> None:
        self.size, self.times = size, 0
        self.is_computed, self.may_end = threading.Event(), threading.Event()

    @lazy
    def weight(self) -> int:
        """Twice the size."""
        self.times += 1
        self.is_computed.set()
        if self.size > 1:
            assert self.may_end.wait(10)
        return 2 * self.size


def test_a_value_is_computed_once() -> None:
    page = Page(1)
    assert (page.weight, page.weight, page.times) == (2, 2, 1)
    assert Page.weight.__doc__ == "Twice the size."


def test_a_child_does_not_wait_for_a_thread_that_computed_when_the_process_forked() -> None:
    slow = Page(2)
    thread = threading.Thread(target=lambda: slow.weight)
    thread.start()
    assert slow.is_computed.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that a fork leaves behind
        child = os.fork()
    if child == 0:
        signal.alarm(5)
        os._exit(Page(1).weight)
    slow.may_end.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
