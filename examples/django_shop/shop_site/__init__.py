from shop_site.celery import app

__all__ = ["app"]
