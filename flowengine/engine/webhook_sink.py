"""The webhook: outcomes as signed HTTP requests. Only the standard library is used."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flowengine.settings import Settings
from flowengine.webhooks import HEADER, ID_HEADER, signature

if TYPE_CHECKING:
    from flowengine.engine.hooks import Delivery


class WebhookFailed(Exception):
    """The receiver did not answer 2xx in time."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is a refusal: the address that signatures are for is the configured one."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def webhook_sink(settings: Settings) -> Callable[[Delivery], None]:
    """Return the function that posts a delivery to the URL of the settings."""
    keys = [key.strip() for key in settings.webhook_keys.split(",") if key.strip()]
    opener = urllib.request.build_opener(_NoRedirect)

    def post(delivery: Delivery) -> None:
        body = json.dumps({"id": delivery.id, **asdict(delivery)}, separators=(",", ":")).encode()
        request = urllib.request.Request(
            settings.webhook_url,
            data=body,
            headers={
                "Content-Type": "application/json",
                "User-Agent": "flowengine",
                ID_HEADER: delivery.id,
                HEADER: signature(body, keys, int(time.time())),
            },
        )
        try:
            with opener.open(request, timeout=settings.webhook_timeout) as answer:
                if not 200 <= answer.status < 300:
                    raise WebhookFailed(f"it answered {answer.status}")
        except urllib.error.HTTPError as problem:
            problem.close()
            raise WebhookFailed(f"it answered {problem.code}") from None
        except (urllib.error.URLError, OSError) as problem:
            raise WebhookFailed(str(getattr(problem, "reason", problem))) from None

    return post
