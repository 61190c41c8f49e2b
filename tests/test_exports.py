"""The front door: small, and light to open."""

from __future__ import annotations

import subprocess
import sys

import flowengine


def test_every_name_in_all_is_there() -> None:
    for name in flowengine.__all__:
        assert getattr(flowengine, name) is not None


def test_every_public_name_is_in_all() -> None:
    public = {name for name in vars(flowengine) if not name.startswith("_")}
    modules = {name for name in public if type(getattr(flowengine, name)).__name__ == "module"}
    typing_only = {"TYPE_CHECKING", "Any", "annotations", "set_launcher_source"}
    assert public - modules - typing_only <= set(flowengine.__all__)


def test_importing_flowengine_loads_neither_celery_nor_a_database() -> None:
    script = (
        "import sys, flowengine, flowengine.evaluator\n"
        "heavy = {'celery', 'kombu', 'redis', 'sqlalchemy', 'sqlmodel', 'alembic', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_importing_the_sdk_loads_no_optional_package() -> None:
    script = (
        "import sys, flowengine.sdk\n"
        "optional = {'mcp', 'anthropic', 'openai', 'tornado', 'celery', 'uvicorn', 'starlette'}\n"
        "print(sorted(optional & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
