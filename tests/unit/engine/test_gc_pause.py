"""The garbage collector waits while anybody evaluates, and no longer."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from flowengine.engine.gc_pause import gc_paused


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_on else gc.disable)()


def test_the_last_to_leave_turns_it_on_again_in_whatever_order_they_came() -> None:
    first, second, third = gc_paused(), gc_paused(), gc_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled(), "one is still inside"
    third.__enter__()
    second.__exit__(None, None, None)
    assert not gc.isenabled()
    third.__exit__(None, None, None)
    assert gc.isenabled()


def test_where_somebody_has_turned_it_off_it_stays_off() -> None:
    gc.disable()
    with gc_paused():
        pass
    assert not gc.isenabled()
