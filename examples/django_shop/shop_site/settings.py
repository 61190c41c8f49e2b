import os
from pathlib import Path
from typing import Any

BASE_DIR = Path(os.environ.get("SHOP_DIRECTORY", Path(__file__).parent.parent))
SECRET_KEY = "only for this example"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop_site.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "flowengine.contrib.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES: dict[str, dict[str, Any]]
if os.environ.get("SHOP_DATABASE"):
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["SHOP_DATABASE"],
            "HOST": os.environ.get("SHOP_DATABASE_HOST", ""),
            "USER": os.environ.get("SHOP_DATABASE_USER", ""),
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": BASE_DIR / "shop.sqlite3",
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
        }
    }

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER")

# Optional: any setting of flowengine. The database is the one above.
FLOWENGINE = {
    "SPOOL_DIRECTORY": BASE_DIR / "flowengine-spool",
    "PAGES_URL": "http://localhost:5555",  # Flower: links in the admin
}
