"""Times of collectives inside a node or rack: curves fitted to measured ones, by generation of the link.

A collective of S bytes among n devices takes t = (a^k + w^k)^(1/k). Its latency is a = a₂·(n/2)^g. Its transfer is
w = c·S/(e·B)·(2(n−1)/n)^s: B is the rate of a device's link in one direction, e the share of it that NCCL reaches, and
c·S what a link carries between two devices. The knee k < 1 is smooth, since NCCL changes protocol between the ends.

``collectives.json`` holds the fitted numbers with their sources; ``benchmarks/scale/collectives.py`` fits and judges
them.
"""

import math
from dataclasses import replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from leadline.core.frozen import Frozen
from leadline.core.hardware import Device
from leadline.core.units import GB

if TYPE_CHECKING:
    from leadline.estimators.ports import Array

Number = TypeVar("Number", float, "Array")


class Collective(StrEnum):
    """An operation among the devices of a group."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"  # to the next device


# Share of the bytes that each link carries between two devices. Bytes are those of the largest tensor of a device.
CARRIED = {Collective.ALL_REDUCE: 1.0, Collective.SEND: 1.0}
HALF = 0.5
MESHED = 4  # superchips of a board are joined directly, more of them by a switch


def collective_seconds(curve: tuple[Number, ...], work: Number, devices: Number) -> Number:
    """Return the seconds of a collective.

    ``curve`` are latency in seconds, its growth, efficiency, growth of the transfer, and knee; ``work`` are the
    seconds that a link needs between two devices at its rate.
    """
    latency_s, growth, efficiency, spreading, knee = curve
    latency_s = latency_s * (devices / 2) ** growth
    transfer_s = work / efficiency * (2 * (devices - 1) / devices) ** spreading
    seconds: Number = (latency_s**knee + transfer_s**knee) ** (1 / knee)
    return seconds


class CollectiveCurve(Frozen):
    """The fitted numbers of one collective on one generation of links."""

    latency_s: float  # between two devices
    growth: float
    efficiency: float
    spreading: float
    knee: float

    def seconds(self, collective: Collective, size_bytes: float, devices: int, link_bytes_per_s: float) -> float:
        """Return the seconds of ``collective`` over links with this rate in one direction."""
        work_s = CARRIED.get(collective, HALF) * size_bytes / link_bytes_per_s
        numbers = (self.latency_s, self.growth, self.efficiency, self.spreading, self.knee)
        return collective_seconds(numbers, work_s, float(devices))


class LinkCurves(Frozen):
    """The curves of one generation of links.

    The spreads are deviations of the logarithm of a time: ``latency_spread`` where latency decides, ``rate_spread``
    where bytes do. ``link_gb_per_s`` is the rate of a device in both directions; ``None`` where any link is meant.
    """

    curves: dict[Collective, CollectiveCurve]
    latency_spread: float
    rate_spread: float
    link_gb_per_s: float | None = None

    def spread(self, latency_share: float) -> float:
        """Return the deviation where latency is this share of the time."""
        return math.hypot(latency_share * self.latency_spread, (1 - latency_share) * self.rate_spread)


class CurveCard(Frozen):
    """Origin of the curves, and errors in percent of curves that took no part."""

    made_on: str
    licence: str
    sources: tuple[str, ...]
    errors: dict[str, float]
    limits: tuple[str, ...]


class CurveFile(Frozen):
    """The content of ``collectives.json``: links by name, ``OTHER`` and ``SLOT`` among them."""

    card: CurveCard
    links: dict[str, LinkCurves]


OTHER, SLOT = "other", "PCIe"
CURVES_FILE = Path(__file__).with_name("collectives.json")


@cache
def _links() -> dict[str, LinkCurves]:
    """Return the curves by generation; the file is read on first use, since most commands need none."""
    return msgspec.json.decode(CURVES_FILE.read_bytes(), type=CurveFile).links


def link_generation(device: Device) -> str:
    """Return the generation of the link between such devices; ``OTHER`` if it was not measured.

    Measured were NVIDIA's boards and superchips that a switch joins. A bridge, a mesh or another vendor's link is
    ``OTHER``: the mean over the measured generations, at its rate.
    """
    form = device.form_factor or ""
    switched = form.startswith("SXM") or (form == "superchip" and (device.scale_up_gpus or 0) > MESHED)
    rate = (device.link_bytes_per_s or 0) / GB
    same = (name for name, link in _links().items() if link.link_gb_per_s == rate)
    return next(same, OTHER) if switched and device.vendor.casefold() == "nvidia" else OTHER


def timed_seconds(device: Device, collective: Collective, devices: int, size_bytes: float) -> float | None:
    """Return the seconds by this machine's own sweep, on straight lines between logarithms; ``None`` if unmeasured.

    A message below the smallest takes as long as that, and one above the largest in proportion longer.
    """
    import numpy as np  # noqa: PLC0415 - commands that list jobs do without numpy

    timings = device.calibration.collectives if device.calibration else ()
    points = sorted(
        (timing.dims["bytes"], timing.elapsed_s)
        for timing in timings
        if timing.kind == f"collective.{collective.value}" and timing.dims["devices"] == devices
    )
    if not points:
        return None
    sizes, seconds = np.array(points, float).T
    between = float(np.exp(np.interp(np.log(size_bytes), np.log(sizes), np.log(seconds))))
    return between * max(size_bytes / float(sizes[-1]), 1.0)


def link_curves(generation: str) -> LinkCurves:
    """Return the curves of a generation of links; those of ``OTHER`` for the collectives it lacks."""
    link = _links()[generation]
    return replace(link, curves=_links()[OTHER].curves | link.curves)
