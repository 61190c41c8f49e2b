"""The OpenAPI document: generated from the routes, and kept in the documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

from flowengine.sdk.wire.openapi import openapi_document
from flowengine.sdk.wire.operations import Operations
from flowengine.sdk.wire.refusals import CODES
from flowengine.sdk.wire.routes import OPENAPI_PATH, OPERATIONS, codes_of

ROOT = Path(__file__).parent.parent.parent.parent
KEPT = ROOT / "docs" / "reference" / "openapi.json"
PAGE = (ROOT / "docs" / "sdk" / "wire-protocol.md").read_text()


def test_the_kept_document_is_the_generated_one() -> None:
    """To renew it: `json.dumps(openapi_document(), indent=1, sort_keys=True)` and a line end."""
    written = json.dumps(openapi_document(), indent=1, sort_keys=True) + "\n"
    assert KEPT.read_text() == written


def test_every_route_is_described_and_has_a_function() -> None:
    paths = openapi_document()["paths"]
    for operation in OPERATIONS:
        assert paths[operation.path][operation.method.lower()]["operationId"] == operation.name
        assert callable(getattr(Operations, operation.name))
        assert f"`{operation.method} {operation.path}`" in PAGE
    assert OPENAPI_PATH in PAGE


def test_every_code_is_of_a_route_and_on_the_page() -> None:
    used = {code for operation in OPERATIONS for code in codes_of(operation)}
    assert used == set(CODES)
    for code, (status, hint) in CODES.items():
        row = re.search(rf"^\| {status} \|.*`{code}`", PAGE, re.MULTILINE)
        assert row, code
        assert hint


def test_every_test_that_the_page_names_exists() -> None:
    places = [*(ROOT / "tests/integration/wire").glob("*.py")]
    places += (ROOT / "tests/acceptance/wire").glob("*.py")
    defined = {name for path in places for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named
    assert named <= defined
