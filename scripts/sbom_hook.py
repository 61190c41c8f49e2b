"""Add a software bill of materials (CycloneDX, JSON) to the wheel, in `.dist-info/sboms/`.

flowengine bundles no package. The list names the packages that it and its extras install, with the
versions of constraints.txt: those it was tested with. It has no date, so that a build can be
repeated bit by bit.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SbomHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._directory = tempfile.TemporaryDirectory()
        file = Path(self._directory.name) / "flowengine.cdx.json"
        core = self.metadata.core
        optional = [
            text
            for extra in sorted(core.optional_dependencies)
            if extra != "dev"
            for text in core.optional_dependencies[extra]
        ]
        pinned = runtime_versions((Path(self.root) / "constraints.txt").read_text())
        content = sbom(self.metadata.version, core.dependencies, optional, pinned)
        file.write_text(json.dumps(content, indent=1) + "\n")
        build_data["sbom_files"].append(str(file))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._directory.cleanup()


def runtime_versions(text: str) -> dict[str, str]:
    """Read the first part of constraints.txt: the packages of flowengine and its extras."""
    part = text.partition("# Packages that flowengine")[2].partition("# Packages that only")[0]
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", part, re.MULTILINE))


def sbom(
    version: str, required: list[str], optional: list[str], pinned: dict[str, str]
) -> dict[str, Any]:
    own = f"pkg:pypi/flowengine@{version}"
    direct = {name_of(text): text for text in (*required, *optional)}
    needed = {name_of(text) for text in required}
    components = []
    for name, tested in sorted(pinned.items()):
        component = {
            "type": "library",
            "bom-ref": purl(name, tested),
            "name": name,
            "version": tested,
            "purl": purl(name, tested),
        }
        if name in direct:
            component["scope"] = "required" if name in needed else "optional"
            component["properties"] = [{"name": "flowengine:requirement", "value": direct[name]}]
        components.append(component)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "flowengine",
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [
            {
                "ref": own,
                "dependsOn": [purl(n, v) for n, v in sorted(pinned.items()) if n in direct],
            }
        ],
        # The graph below the direct dependencies is not given.
        "compositions": [{"aggregate": "incomplete", "dependencies": [own]}],
    }


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"
