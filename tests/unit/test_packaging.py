"""The package is built with a list of its parts, and its tested versions are those it allows."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import flowengine

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
RUNTIME = [*PROJECT["dependencies"], *(t for e in EXTRAS if e != "dev" for t in EXTRAS[e])]


def script(name: str) -> Any:
    loader = SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


# --- constraints ---


@pytest.fixture(scope="module")
def pinned() -> dict[str, str]:
    found: dict[str, str] = script("constraints").read((ROOT / "constraints.txt").read_text())
    return found


@pytest.mark.parametrize("text", [*RUNTIME, *EXTRAS["dev"]])
def test_a_dependency_has_a_tested_version_that_it_allows(
    text: str, pinned: dict[str, str]
) -> None:
    requirement = Requirement(text)
    if requirement.name != "flowengine":
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(Version(version), prereleases=True)


def test_constraints_are_versions_and_nothing_else() -> None:
    text = (ROOT / "constraints.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+", line)] == []
    assert lines.count("celery==" + script("constraints").read(text)["celery"]) == 1


def test_written_constraints_can_be_read() -> None:
    constraints = script("constraints")
    text = constraints.text({"a": "1", "b": "2.0"}, {"b": "2.0", "a": "1", "pytest": "9"})
    assert constraints.read(text) == {"a": "1", "b": "2.0", "pytest": "9"}
    hook = script("sbom_hook.py")
    assert hook.runtime_versions(text) == {"a": "1", "b": "2.0"}


def test_the_environment_is_compared_with_the_constraints() -> None:
    # The environment may have other versions: where it cannot have these, tests still run.
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "constraints", "check"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"all \d+ packages have|\d+ of \d+ packages differ from", done.stdout)


# --- the bill of materials ---


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = directory.iterdir()
    return zipfile.ZipFile(file)


def test_the_wheel_contains_its_bill_of_materials(wheel: zipfile.ZipFile) -> None:
    place = f"flowengine-{flowengine.__version__}.dist-info"
    sbom = json.loads(wheel.read(f"{place}/sboms/flowengine.cdx.json"))
    assert f"{place}/sboms/flowengine.cdx.json" in wheel.read(f"{place}/RECORD").decode()
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    own = sbom["metadata"]["component"]
    assert own["purl"] == f"pkg:pypi/flowengine@{flowengine.__version__}"
    parts = {part["name"]: part for part in sbom["components"]}
    direct = {canonicalize_name(Requirement(text).name) for text in RUNTIME}
    assert direct <= parts.keys()
    assert {"vine", "billiard"} <= parts.keys(), "what Celery needs, too"
    assert "pytest" not in parts
    scopes = {name: part.get("scope") for name, part in parts.items()}
    assert (scopes["celery"], scopes["psycopg"], scopes["vine"]) == ("required", "optional", None)
    (edges,) = sbom["dependencies"]
    assert edges["ref"] == own["bom-ref"]
    assert edges["dependsOn"] == sorted(parts[name]["bom-ref"] for name in direct)


# --- the audit ---


def report(*vulnerabilities: str, skipped: bool = False) -> str:
    found = [{"id": one, "fix_versions": ["2.0"]} for one in vulnerabilities]
    package = {"name": "a", "version": "1"} | ({} if skipped else {"vulns": found})
    return json.dumps({"dependencies": [package], "fixes": []})


@pytest.mark.parametrize(
    ("output", "errors", "code", "text"),
    [
        (report(), "", 0, "no known vulnerability in 1 of 1 packages"),
        (report("CVE-1"), "", 1, "a 1 has CVE-1, mended in 2.0"),
        (report(skipped=True), "", 0, "skipped: its data cannot be reached"),
        ("", "line\nno route to host\n", 0, "skipped: .*no route to host"),
        ("", "", 0, "skipped"),
        ("null", "", 0, "skipped"),
        ("[]", "", 0, "skipped"),
    ],
)
def test_an_audit_fails_for_vulnerabilities_and_for_nothing_else(
    output: str, errors: str, code: int, text: str
) -> None:
    given, lines = script("audit").verdict(output, errors)
    assert given == code
    assert re.search(text, "\n".join(lines))


def test_the_readme_names_every_command() -> None:
    from flowengine.cli import main

    (row,) = re.findall(r"^\| Commands: (.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(main.commands) <= {name.split()[0] for name in re.findall(r"`([^`]+)`", row)}
