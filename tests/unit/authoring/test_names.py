"""The name of a definition does not depend on how its file is run."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from flowengine.authoring import event_facet, event_facet_names, facet, workflow
from flowengine.authoring.definitions import main_namespace
from flowengine.errors import AuthoringError
from tests.registries import empty_registry

USER_FILE = """
from flowengine.authoring import event_facet, foreach, workflow
from flowengine.program.serializer import program_hash

@event_facet
def fetch(url: str) -> str: ...

@workflow
def all_pages(urls: list[str]) -> list[str]:
    return foreach(urls, fetch)

print(all_pages.name, program_hash(all_pages.program()))
"""


@event_facet
def here(url: str) -> str:
    return url


class Shop:
    def order(self) -> None: ...


@pytest.mark.parametrize(
    "command",
    [["quick_shop.py"], ["-m", "quick_shop"], ["-c", "import quick_shop"], ["./quick_shop.py"]],
)
def test_a_main_module_has_the_hash_of_an_imported_one(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "quick_shop.py").write_text(USER_FILE)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{root}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    name, digest = done.stdout.split()
    assert name == "quick_shop.all_pages"
    imported: dict[str, Any] = runpy.run_path(
        str(tmp_path / "quick_shop.py"), run_name="quick_shop"
    )
    from flowengine.program.serializer import program_hash

    assert program_hash(imported["all_pages"].program()) == digest


def test_a_package_run_with_dash_m_has_the_package_name_as_namespace() -> None:
    assert main_namespace({"__spec__": ModuleSpec("shop.__main__", None)}) == "shop"
    assert main_namespace({"__spec__": ModuleSpec("shop.orders", None)}) == "shop.orders"
    assert main_namespace({"__spec__": None, "__file__": "/x/shop.py"}) == "shop"
    assert main_namespace({}) == "__main__"


def test_a_module_level_function_needs_no_name() -> None:
    assert here.name == f"{__name__}.here"


def test_local_functions_methods_and_lambdas_need_a_name() -> None:
    def local() -> None: ...

    for fn in (local, Shop.order, lambda: None):
        with pytest.raises(AuthoringError, match=r'test_names.py:\d+\).*name="…"'):
            event_facet(fn)
        assert event_facet(name="shop.given")(fn).name == "shop.given"
        from flowengine.authoring import registry

        registry._event_facets.clear()
        registry.note_change()


def test_a_name_without_a_dot_gets_the_namespace_of_its_module() -> None:
    @facet(name="short", aliases=["old", "elsewhere.older"])
    def local() -> None: ...

    assert local.name == f"{__name__}.short"
    assert local.aliases == (f"{__name__}.old", "elsewhere.older")


@pytest.mark.parametrize("name", ["", "a..b", "a b", ".a", "1a", "flowengine.foreach", 5])
def test_an_invalid_name_is_refused(name: Any) -> None:
    def local() -> None: ...

    with pytest.raises(
        AuthoringError, match=r"workflow .*local.* \(.*test_names.py:\d+\): the name"
    ):
        workflow(name=name)(local)


def test_names_are_listed_again_only_after_a_change() -> None:
    """Workers ask for them at every step."""
    with empty_registry():
        event_facet(name="shop.b")(lambda: None)
        before = event_facet_names()
        assert event_facet_names() is before
        event_facet(name="shop.a", aliases=["shop.old"])(lambda: None)
        ours = [name for name in event_facet_names() if name.startswith("shop.")]
        assert ours == ["shop.a", "shop.b", "shop.old"]
    assert "shop.a" not in event_facet_names()
