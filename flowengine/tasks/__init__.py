"""Doorways: the Celery tasks of flowengine. A name in, one call, and never an exception."""

from flowengine.tasks.celery_tasks import register_celery_tasks

__all__ = ["register_celery_tasks"]
