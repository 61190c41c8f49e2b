"""The Celery tasks of flowengine, and the life of a Celery worker."""
