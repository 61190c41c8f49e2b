"""The Celery tasks of flowengine, and the life of a Celery worker."""

from flowengine.tasks.celery_tasks import register_celery_tasks

__all__ = ["register_celery_tasks"]
