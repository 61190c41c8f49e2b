"""A shop in Django whose orders are fulfilled by a workflow.

    python manage.py migrate
    python manage.py order ada@example.org 1200
    python manage.py flowengine list
    python manage.py runserver          # /orders/ takes orders, /admin/ shows the runs

Everything runs in this process, on the SQLite file of the project. With Redis and PostgreSQL:

    export SHOP_BROKER=redis://localhost SHOP_DATABASE=shop      # the name of a database
    python manage.py migrate
    celery -A shop_site worker --beat
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_site.settings")
    execute_from_command_line(sys.argv)
