"""Catalog validation: zero prices, sparse peaks, unknown devices, stale or unsourced rows."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import date

from leadline.core.frozen import Frozen
from leadline.core.hardware import Device, DeviceKind
from leadline.core.systems import Billing, Partition, System

HALF_TO_SINGLE = {"Volta": 8.2, "Turing": 8.2, "Ampere": 16.2, "Ada": 4.2, "Hopper": 15.0, "Blackwell": 32.0}
"""Largest dense 16-bit matrix rate ÷ float32 rate among an architecture's products, from data sheets."""

PRICE_YEARS = 3
"""Age in years at which a price is stale."""

UNDATED = ("has no date", "add as_of, when its source was true")
_YEAR = re.compile(r"\b(19|20)\d{2}\b")


class Finding(Frozen):
    """A problem of one entry; an error makes the catalog unusable, a warning is for its maintainer.

    The entry of a fault in the writing is the file, with the ``line`` if a single one matches.
    """

    entry: str
    problem: str
    fix: str
    error: bool = True
    line: int | None = None


def validate_catalog(devices: Sequence[Device], systems: Sequence[System], today: date) -> list[Finding]:
    """Return the problems of the catalog, errors first."""
    names = {name.casefold() for device in devices for name in (device.name, *device.aliases)}
    findings = [
        *_duplicates("device", (device.name for device in devices)),
        *_duplicates("system", (system.name for system in systems)),
    ]
    for device in devices:
        findings.extend(_device(device))
    for system in systems:
        findings.extend(_duplicates(f"partition of {system.name}", (row.name for row in system.partitions)))
        if not system.source:
            findings.append(Finding(system.name, "has no source", "add its source"))
        if not all(partition.as_of or system.as_of for partition in system.partitions):
            findings.append(Finding(system.name, *UNDATED, error=False))
        for partition in system.partitions:
            findings.extend(_partition(system, partition, names, today))
    return sorted(findings, key=lambda finding: not finding.error)


def _device(device: Device) -> Iterator[Finding]:
    if not device.source:
        yield Finding(device.name, "has no source", "add its source")
    if not device.as_of and device.calibration is None:
        yield Finding(device.name, *UNDATED, error=False)
    specs = {spec.name: getattr(device, spec.name) for spec in fields(device)}
    specs |= {f"its {dtype} peak": peak for dtype, peak in device.peak_flops_per_s.items()}
    for name, value in specs.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            yield Finding(device.name, f"{name} is {value:g}", "leave out an unknown value instead of 0")
    yield from _peaks(device)


def _peaks(device: Device) -> Iterator[Finding]:
    """Find peaks outside the ratios of dense hardware: a sparse peak is twice the dense one."""
    peaks = device.peak_flops_per_s
    half = peaks.get("float16") or peaks.get("bfloat16")
    for narrow in ("float8", "int8"):
        if half and narrow in peaks and peaks[narrow] > 2.6 * half and device.kind is DeviceKind.GPU:
            ratio = peaks[narrow] / half
            if ratio > 4.2 or narrow == "float8":
                problem = f"its {narrow} peak is {ratio:.1f} × its 16-bit peak"
                yield Finding(device.name, problem, "give the dense figure")
    tf32 = peaks.get("tf32")
    if half and tf32 and half > 2.1 * tf32 and device.kind is DeviceKind.GPU:
        yield Finding(device.name, f"its 16-bit peak is {half / tf32:.1f} × its tf32 peak", "give the dense figure")
    single, max_ratio = peaks.get("float32"), HALF_TO_SINGLE.get((device.architecture or "-").split()[0])
    if half and single and max_ratio and half > max_ratio * single:
        yield Finding(
            device.name, f"its 16-bit peak is {half / single:.0f} × its float32 peak", "give the dense figure"
        )
    yield from _clock(device)


def _clock(device: Device) -> Iterator[Finding]:
    """Compare the float32 peak with units × lanes × 2 × clock, if all are known."""
    peak = device.peak_flops_per_s.get("float32")
    if device.kind is DeviceKind.GPU and peak and device.compute_units and device.lanes_per_unit and device.boost_hz:
        possible = 2 * device.compute_units * device.lanes_per_unit * device.boost_hz
        if peak > 2.1 * possible:
            yield Finding(device.name, f"its float32 peak is {peak / possible:.1f} × the peak of its units and clock",
                          "check the peak, the units and the clock")  # fmt: skip


def _partition(system: System, partition: Partition, devices: set[str], today: date) -> Iterator[Finding]:
    name = f"{system.name}:{partition.name}"
    for device in (partition.node.device, partition.node.processor):
        if device is not None and device.casefold() not in devices:
            problem = f"names the device {device!r}, which the catalog does not have"
            yield Finding(name, problem, "add the device, or correct the name")
    if partition.node.power_limit_w is not None and not partition.node.power_limit_w > 0:
        yield Finding(name, f"its power limit is {partition.node.power_limit_w:g} W", "leave out an unknown value")
    limit = partition.limits.max_walltime_s
    if limit is not None and limit <= 0:
        yield Finding(name, f"its walltime limit is {limit:g} s", "leave out an unknown value")
    if partition.billing is not None:
        yield from _price(name, partition.billing, partition.as_of or system.as_of, today)


def _price(name: str, billing: Billing, as_of: str, today: date) -> Iterator[Finding]:
    rates = (billing.core_hour, billing.gpu_hour, billing.node_hour, billing.gib_hour)
    if not billing.free and any(rate is not None and rate <= 0 for rate in rates):
        yield Finding(name, "has a price of zero", "leave the price out, or set free = true")
    if billing.free and any(rate for rate in rates):
        yield Finding(name, "is free and has a price", "keep one of the two")
    if billing.charge_factor <= 0 and not billing.free:
        yield Finding(name, f"its charge factor is {billing.charge_factor:g}", "set free = true")
    dated = billing.as_of or as_of
    years = [int(match.group()) for match in _YEAR.finditer(dated)]
    is_price = billing.currency == "USD" and not billing.free and any(rates)
    if is_price and today.year - max(years, default=0) >= PRICE_YEARS:
        problem = f"its price is of {max(years)}" if years else "its price has no date"
        yield Finding(name, problem, "look the price up again and change as_of", error=False)


def _duplicates(kind: str, names: Iterable[str]) -> Iterator[Finding]:
    for name, count in Counter(names).items():
        if count > 1:
            yield Finding(name, f"occurs {count} times as a {kind}", "keep one of them, or rename one")
