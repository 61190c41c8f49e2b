"""Without an optional package, a command names the extra that brings it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SHOP = """
from celery import Celery
from flowengine import event_facet, workflow
from flowengine.assembly import FlowEngine
app = Celery("shop", broker="BROKER")
FlowEngine(app)
@event_facet
def pack(n: int) -> int:
    return n
@workflow
def order(n: int) -> int:
    return pack(n)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of this environment without redis and Flower, and our entry points."""
    folder = tmp_path_factory.mktemp("packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        name = path.name.partition("-")[0]
        if name not in ("redis", "flower", "flowengine") and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["celery.commands"]
    metadata = folder / "flowengine-0.dist-info"
    metadata.mkdir()
    lines = ["[celery.commands]", *(f"{name} = {target}" for name, target in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flowengine\nVersion: 0\n")
    return folder


def run(
    packages: Path, directory: Path, words: Sequence[str], *, broker: str
) -> subprocess.CompletedProcess[str]:
    (directory / "shop.py").write_text(SHOP.replace("BROKER", broker))
    return subprocess.run(
        [sys.executable, "-S", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{packages}:{ROOT}:{directory}",
            "FLOWENGINE_DATABASE_URL": f"sqlite:///{directory}/flow.db",
        },
    )


NEEDS_REDIS = "a broker at redis:// needs the package 'redis': pip install 'flowengine[redis]'"


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_a_redis_broker_without_its_package_names_the_extra(
    packages: Path, tmp_path: Path, command: str
) -> None:
    words = ["-m", "celery", "-A", "shop", command]
    ended = run(packages, tmp_path, words, broker="redis://localhost:1")
    assert ended.returncode == 1
    assert ended.stderr == f"Error: {NEEDS_REDIS}\n"


def test_a_client_without_the_package_of_its_broker_stores_its_run_and_names_the_extra(
    packages: Path, tmp_path: Path
) -> None:
    words = ["-c", "import shop; print(shop.order.start(1).state)"]
    ended = run(packages, tmp_path, words, broker="redis://localhost:1")
    assert ended.stdout == "RUNNING\n", ended.stderr
    assert NEEDS_REDIS in ended.stderr


def test_an_installation_without_redis_works_with_another_broker(
    packages: Path, tmp_path: Path
) -> None:
    words = ["-c", "import shop; print(shop.order.start(1).state)"]
    ended = run(packages, tmp_path, words, broker="memory://")
    assert (ended.stdout, ended.stderr) == ("RUNNING\n", "")


def test_celery_flower_without_flower_names_the_extra(packages: Path, tmp_path: Path) -> None:
    words = ["-m", "celery", "-A", "shop", "flower", "--port=5555"]
    ended = run(packages, tmp_path, words, broker="memory://")
    assert ended.returncode == 1
    assert ended.stderr == (
        "Error: celery flower needs the package 'flower': pip install 'flowengine[flower]'\n"
    )
    listed = run(packages, tmp_path, ["-m", "celery", "--help"], broker="memory://")
    assert "flower" not in listed.stdout.replace("flowengine", "")
