"""The Celery app of the project. Without a broker, workflows run in the web process."""

import os

from celery import Celery

from flowengine.contrib.django import FlowEngine

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_site.settings")

app = Celery("shop_site")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
if os.environ.get("SHOP_BROKER"):
    FlowEngine(app)
