from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404

from flowengine.contrib.django.models import Run
from shop import orders
from shop.models import Order


def place_order(request: HttpRequest) -> HttpResponse:
    order, run = orders.place(request.POST["customer"], int(request.POST["cents"]))
    return JsonResponse({"order": order.pk, "run": run.id}, status=202)


def show_order(request: HttpRequest, order_id: int) -> HttpResponse:
    order = get_object_or_404(Order, pk=order_id)
    run = Run.objects.get(pk=order.run)
    return JsonResponse({"customer": order.customer, "receipt": order.receipt, "run": run.state})
