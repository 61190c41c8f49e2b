"""The OpenAPI document of the wire protocol, generated from its routes and documents."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from flowengine.sdk.wire.documents import ErrorDocument
from flowengine.sdk.wire.refusals import CODES
from flowengine.sdk.wire.routes import OPERATIONS, Operation, codes_of

VERSION = "1.0.0"
_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_DESCRIPTION = (
    "Agents claim tasks of event facets, work, and report results. Each write names the lease of "
    "its claim: a repeated report is accepted as a duplicate, a late one is refused. Errors have "
    "one shape; `code` is stable, `message` is for people, `hint` says what to do."
)


def openapi_document() -> dict[str, Any]:
    models: set[type[BaseModel]] = {ErrorDocument, *(each.answer for each in OPERATIONS)}
    models |= {each.document for each in OPERATIONS if each.document}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in ordered], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flowengine wire protocol",
            "version": VERSION,
            "description": _DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        }
        for name in _PARAMETER.findall(operation.path)
    ]
    parameters += [
        {
            "name": name,
            "in": "query",
            "description": about,
            "schema": {"type": "integer", "minimum": 0},
        }
        for name, about in operation.query
    ]
    by_status: dict[int, list[str]] = {}
    for code in codes_of(operation):
        by_status.setdefault(CODES[code][0], []).append(code)
    responses = {"200": _response(operation.answer.__name__, "done")} | {
        str(status): _response("ErrorDocument", f"{HTTPStatus(status).phrase}: {', '.join(codes)}")
        for status, codes in sorted(by_status.items())
    }
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Scope: {' or '.join(operation.scopes)}.",
        "responses": responses,
    }
    if parameters:
        found["parameters"] = parameters
    if operation.document is not None:
        schema = {"$ref": _REF.format(model=operation.document.__name__)}
        is_needed = any(field.is_required() for field in operation.document.model_fields.values())
        found["requestBody"] = {
            "required": is_needed,
            "content": {"application/json": {"schema": schema}},
        }
    return found


def _response(model: str, about: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model=model)}
    return {"description": about, "content": {"application/json": {"schema": schema}}}
