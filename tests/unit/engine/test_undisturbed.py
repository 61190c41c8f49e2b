"""The garbage collector waits, and comes back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from flowengine.engine.undisturbed import undisturbed


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    gc.enable()


def test_the_collector_is_off_meanwhile_and_on_again_whatever_happens() -> None:
    with undisturbed():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="broken"), undisturbed():
        raise ValueError("broken")
    assert gc.isenabled()


def test_a_collector_that_somebody_has_turned_off_stays_off() -> None:
    gc.disable()
    with undisturbed():
        pass
    assert not gc.isenabled()


def test_one_inside_the_other_is_one() -> None:
    with undisturbed():
        with undisturbed():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
