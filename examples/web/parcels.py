"""The service behind the web API: what a parcel costs, and labels for parcels.

    bstar run parcels:app --processes 2

Its bodies are models of pydantic, the same as in the API.
"""

import asyncio
import os

from pydantic import BaseModel, Field

from bstar_client import App, Declined, Request
from bstar_client.tracing import SpanHooks

# Cents for a parcel and for each kilogram that it has begun.
TARIFFS = {"CH": (700, 90), "NO": (1_900, 310)}
# How long the printer takes for a label.
PRINT_S = float(os.environ.get("PRINT_S", "0.1"))

app = App()


class Parcel(BaseModel):
    """What is to be sent, and where."""

    country: str = Field(min_length=2, max_length=2)
    grams: int = Field(gt=0, le=30_000)


class Quote(BaseModel):
    """What it costs."""

    cents: int


class Label(BaseModel):
    """A label, paid for."""

    tracking: str
    cents: int


@app.service("parcel.quote", hooks=SpanHooks())
async def quote(parcel: Parcel) -> Quote:
    """The price."""
    if parcel.country not in TARIFFS:
        raise Declined("no-such-country", f"no parcels go to {parcel.country}", data=sorted(TARIFFS))
    base, each = TARIFFS[parcel.country]
    return Quote(cents=base + each * -(-parcel.grams // 1_000))


@app.service("parcel.label", hooks=SpanHooks())
async def label(parcel: Parcel, request: Request) -> Label:
    """A label. Its number follows from the request's identity: a repetition prints the same label."""
    price = await quote(parcel)
    await asyncio.sleep(PRINT_S)
    return Label(tracking=request.identity.hex(), cents=price.cents)
