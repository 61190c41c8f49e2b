from django.db import models


class Order(models.Model):
    customer = models.EmailField()
    cents = models.IntegerField()
    receipt = models.CharField(max_length=64, blank=True)
    run = models.CharField(max_length=32, blank=True)  #: the id of its workflow's run
