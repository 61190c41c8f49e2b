"""Doorways: the Celery tasks of flowengine. A name in, one call, and never an exception."""

from flowengine.tasks.doorways import open_doorways

__all__ = ["open_doorways"]
