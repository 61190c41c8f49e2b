"""The errors, which are imported from one module."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from flowengine import errors


def test_every_public_error_of_a_submodule_is_imported_from_the_package() -> None:
    modules = [
        import_module(f"flowengine.errors.{m.name}") for m in pkgutil.iter_modules(errors.__path__)
    ]
    public = {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseException) and name[0] != "_"
    }
    assert public
    assert public | {"Problem"} == set(errors.__all__)


def test_processes_of_an_older_version_find_the_class_of_an_error_they_unpickle() -> None:
    assert {getattr(errors, name).__module__ for name in errors.__all__} == {"flowengine.errors"}
