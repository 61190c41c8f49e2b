"""Doorways: the Celery tasks of flowengine. A name in, one call, and never an exception."""

from flowengine.tasks.doorways import open_doorways, open_drain

__all__ = ["open_doorways", "open_drain"]
