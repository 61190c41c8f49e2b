"""A shop in FastAPI whose orders are fulfilled by a workflow.

    pip install fastapi uvicorn
    uvicorn --app-dir examples fastapi_shop:app

    curl localhost:8000/orders -H 'content-type: application/json' \\
        -d '{"number": "A-7", "customer": "ada", "cents": 1200}'
    curl localhost:8000/orders/<run>
    curl 'localhost:8000/orders/<run>/receipt?wait=10'

The engine runs in the web process, on the SQLite file `flowengine.db`. Kill the process while an
order is charged: the next one continues the run.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, PositiveInt

from flowengine import RunFailed, current_step, default_engine, event_facet, workflow
from flowengine.assembly import close_default_engine
from flowengine.engine import Engine, Run
from flowengine.errors import UnknownRun

BANK_SECONDS = float(os.environ.get("SHOP_BANK_SECONDS", "0.2"))


class Order(BaseModel):
    number: str
    customer: str
    cents: PositiveInt


@event_facet
def charge(order: Order) -> str:
    """Ask the bank; the key makes a second try harmless."""
    time.sleep(BANK_SECONDS)
    if order.customer == "mallory":
        raise PermissionError("the bank refuses")
    return f"receipt-{order.cents}-{current_step().idempotency_key[:6]}"


@event_facet
async def send_mail(order: Order, receipt: str) -> str:
    await asyncio.sleep(0)  # an async client sends it here
    return f"mail to {order.customer} with {receipt}"


@workflow
def fulfil(order: Order) -> str:
    return send_mail(order, charge(order))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the engine, which continues unfinished runs, and close it with the server."""
    app.state.engine = await asyncio.to_thread(default_engine)
    yield
    await asyncio.to_thread(close_default_engine)


app = FastAPI(lifespan=lifespan)


class Placed(BaseModel):
    run: str


class Status(BaseModel):
    state: str
    waits_for: list[str]
    error: str | None


@app.post("/orders", status_code=202)
async def place(order: Order) -> Placed:
    """Start the run; the same order number starts it once."""
    run = await fulfil.options(key=order.number).astart(order)
    return Placed(run=run.id)


@app.get("/orders/{run_id}")
async def status(run_id: str) -> Status:
    run = await find(run_id)
    info = await run.ainfo()
    waits_for = [step.path for step in await run.asteps() if step.task_state == "running"]
    return Status(state=info.state, waits_for=waits_for, error=info.error_text)


@app.get("/orders/{run_id}/receipt")
async def receipt(run_id: str, wait: float = 0) -> str:
    """Wait for the result without a thread; other requests are answered meanwhile."""
    run = await find(run_id)
    try:
        return str(await run.aresult(timeout=wait))
    except TimeoutError:
        raise HTTPException(503, "not yet", headers={"Retry-After": "1"}) from None
    except RunFailed as failure:
        raise HTTPException(422, f"{failure.error_type}: {failure.message}") from None


async def find(run_id: str) -> Run[object]:
    engine: Engine = app.state.engine
    try:
        return await engine.arun(run_id)
    except UnknownRun:
        raise HTTPException(404, "no such order") from None
