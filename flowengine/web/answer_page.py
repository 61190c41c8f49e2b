"""The page of a signed link: shows the question, and takes the answer by POST.

A GET changes nothing, because mail programs and scanners open links. The link itself is the login:
the page shows nothing of the run but its workflow, its key and the name of the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from tornado.template import Loader
from tornado.web import RequestHandler

from flowengine.answer_links import LinkedAnswer
from flowengine.engine import Engine
from flowengine.errors import AnswerRefused, FlowengineError, LinkRefused, UnknownRun, ValueRefused
from flowengine.printable import printable
from flowengine.store.failures import DatabaseFailure
from flowengine.web.engines import engine_of

_TEMPLATES = Loader(str(Path(__file__).parent / "templates"))
_Shown: TypeAlias = dict[str, Any]  # values of the template, and the HTTP status
#: Only forms of this page, only to this server, and never inside a page of somebody else.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_MAX_SHOWN = 2_000  # characters of a value or a schema


class AnswerPage(RequestHandler):
    """Gives the answer of a signed link."""

    def check_xsrf_cookie(self) -> None:
        """The link is a secret that another site does not have: no cookie is needed."""

    application: Any

    def set_default_headers(self) -> None:
        self.set_header("Referrer-Policy", "no-referrer")  # the address is the credential
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")

    async def get(self, link: str) -> None:
        await self._answered(self._question, link)

    async def post(self, link: str) -> None:
        await self._answered(self._send, link)

    async def _answered(self, act: Callable[[str], _Shown], link: str) -> None:
        try:
            shown = await asyncio.to_thread(act, link)
        except (LinkRefused, UnknownRun) as refused:
            shown = {"status": 403, "problem": _reason(refused)}
        except AnswerRefused as refused:
            shown = {"status": 409, "problem": _reason(refused)}
        except ValueRefused as refused:
            shown = {"status": 400, "problem": str(refused)}
        except (FlowengineError, DatabaseFailure):
            problem = "The answer cannot be stored now. Try again in a minute."
            shown = {"status": 503, "problem": problem}
        values: _Shown = {"problem": "", "sent": False, "linked": None, "workflow": "", "key": ""}
        values |= {"value": "", "schema": "", "typed": "", "status": 200, **shown}
        self.set_status(values.pop("status"))
        await self.finish(_TEMPLATES.load("answer.html").generate(**values))

    def _question(self, link: str) -> _Shown:
        engine = engine_of(self.application.capp)
        linked, schema = engine.answers.open_link(link)
        return {**_shown(engine, linked), "schema": _written(schema) if schema else ""}

    def _send(self, link: str) -> _Shown:
        engine = engine_of(self.application.capp)
        linked = engine.answers.read_link(link)
        typed = self.get_body_argument("value", "")
        shown = _shown(engine, linked)
        value = None
        if not linked.has_value:
            try:
                value = json.loads(typed)
            except (ValueError, RecursionError):
                problem = 'The answer is not JSON: texts need quotation marks, as in "yes".'
                typed = typed[:_MAX_SHOWN]
                return {**shown, "status": 400, "typed": typed, "problem": problem}
        engine.send_link(link, value)
        return {**shown, "sent": True}


def _shown(engine: Engine, linked: LinkedAnswer) -> _Shown:
    run = engine.get(linked.run_id)
    value = _written(linked.value) if linked.has_value else ""
    return {"linked": linked, "workflow": run.workflow, "key": run.key or "", "value": value}


def _written(value: Any) -> str:
    return printable(json.dumps(value, indent=2), lines=True, limit=_MAX_SHOWN)


def _reason(refused: Exception) -> str:
    reason = getattr(refused, "reason", "") or "the run does not exist any more"
    return f"The answer was not taken: {reason}."
