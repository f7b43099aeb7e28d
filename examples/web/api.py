"""A web API in front of a service: one HTTP status for each outcome of a call.

    uvicorn api:api

The header ``Request-Timeout`` says how many seconds its caller waits; the call has the same deadline. The
caller's trace goes on in the call. On SIGTERM uvicorn finishes the requests that it has, and then the
lifespan closes the client.
"""

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract

from bstar_client import AsyncHAClient, BusyError, CallError, DeclinedError, HandlerError, RejectedError
from bstar_client.tracing import instrument
from parcels import Label, Parcel, Quote

# What the service declines; its other codes are conflicts.
STATUSES = {"bad-body": 422, "no-such-country": 404}


@asynccontextmanager
async def lifespan(served: FastAPI) -> AsyncGenerator[None, None]:
    """One client for the whole process."""
    async with AsyncHAClient() as client:
        instrument(client)
        served.state.client = client
        yield


api = FastAPI(title="Parcels", lifespan=lifespan)


async def client_of(request: Request) -> AsyncHAClient:
    """The client of the process."""
    client: AsyncHAClient = request.app.state.client
    return client


async def follow_trace(request: Request) -> AsyncGenerator[None, None]:
    """The call's span is a child of the caller's (W3C trace context)."""
    token = attach(extract(request.headers))
    try:
        yield
    finally:
        detach(token)


Client = Annotated[AsyncHAClient, Depends(client_of)]
Patience = Annotated[float, Header(alias="Request-Timeout", gt=0, le=30)]
Key = Annotated[str, Header(alias="Idempotency-Key", min_length=1, max_length=200)]


@api.post("/quotes", dependencies=[Depends(follow_trace)])
async def quotes(parcel: Parcel, client: Client, patience: Patience = 5.0) -> Quote:
    """What a parcel costs."""
    return await client.request("parcel.quote", parcel, reply=Quote, timeout=patience)


@api.post("/labels", dependencies=[Depends(follow_trace)])
async def labels(parcel: Parcel, client: Client, key: Key, patience: Patience = 5.0) -> Label:
    """A label. After a 503 or 504, ask again with the same Idempotency-Key: it is the same label."""
    return await client.request("parcel.label", parcel, reply=Label, timeout=patience, key=key)


@api.exception_handler(CallError)
async def failed(request: Request, error: Exception) -> JSONResponse:
    """The answer to a call without a reply."""
    assert isinstance(error, CallError)
    body = {"text": str(error), "may_have_executed": error.may_have_executed}
    match error:
        case DeclinedError():
            declined = {"code": error.code, "text": error.text, "data": error.data}
            return JSONResponse(declined, STATUSES.get(error.code, 409))
        case HandlerError():
            return JSONResponse(body, 502)
        case RejectedError():  # it breaks a rule, such as another body under a key in use
            return JSONResponse(body, 400)
        case _ if error.may_have_executed:
            return JSONResponse(body, 504)
        case BusyError(retry_after_s=float(seconds)):
            return JSONResponse(body, 503, {"Retry-After": str(math.ceil(seconds))})
        case _:  # no active node, no worker in time: not executed
            return JSONResponse(body, 503, {"Retry-After": "1"})
