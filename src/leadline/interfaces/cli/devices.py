"""``leadline devices``: list and show the devices of the catalog."""

from typing import Any

import click

from leadline.app.composition import user_catalog
from leadline.core.documents import to_document
from leadline.core.units import format_bytes
from leadline.interfaces.cli.command import argument, group, json_option
from leadline.interfaces.cli.jobs import wrap_text
from leadline.interfaces.cli.output import print_json, print_table, table_width


@group("devices")
def devices() -> None:
    """List and show devices."""


@devices.command("list")
@json_option
def list_devices(*, json: bool) -> None:
    """List devices with their memory and peak rates; unknown values are blank."""
    known = user_catalog().devices()
    if json:
        print_json({"schema": "leadline.devices/1", "devices": known})
        return
    rows = []
    for device in known:
        peaks = device.peak_flops_per_s
        half = peaks.get("bfloat16") or peaks.get("float16")
        rows.append((
            device.name, device.kind.value, format_bytes(device.memory_bytes) if device.memory_bytes else "",
            f"{device.memory_bytes_per_s / 1e9:,.0f}" if device.memory_bytes_per_s else "",
            _tera(peaks.get("float32")), _tera(peaks.get("tf32")), _tera(half),
            "measured here" if device.calibration else device.confidence.value,
        ))  # fmt: skip
    titles = ("device", "kind", "memory", "GB/s", "float32", "tf32", "16-bit TFLOP/s", "trust")
    print_table(titles, rows, words=("device", "kind", "trust"))


@devices.command("show")
@argument("name", "NAME", "Name or alias of the device; quote names with spaces.")
@json_option
def show(name: str, *, json: bool) -> None:
    """Show every spec of a device, with its source."""
    device = user_catalog().device(name)
    document = to_document(device, "leadline.device/1")
    if json:
        print_json(document)
        return
    click.secho(device.name, bold=True)
    for field, value in document.items():
        if field not in ("schema", "name", "calibration") and value not in (None, "", [], (), {}):
            title, text = _spec(field, value)
            click.echo("\n".join(wrap_text(f"  {title:<20} ", text, table_width())))
    if device.calibration:
        click.echo(f"  calibrated           {device.calibration.measured_at}, {device.calibration.software}")


_UNITS = {"_bytes_per_s": (1e9, "GB/s"), "_hz": (1e9, "GHz"), "_w": (1.0, "W"), "_flops_per_s": (1e12, "TFLOP/s")}
"""Ending of a field's name to the size and the name of the unit that people read it in."""


def _spec(field: str, value: Any) -> tuple[str, str]:  # noqa: ANN401 - a field of any type
    """Return the words for a field of a device, and its value with its unit."""
    for ending, (size, unit) in _UNITS.items():
        if field.endswith(ending):
            title = field.removesuffix(ending).replace("_", " ") + " rate" * (unit == "GB/s")
            rates = [f"{name} {rate / size:,.4g}" for name, rate in value.items()] if isinstance(value, dict) else []
            return title, f"{', '.join(rates) or format(value / size, ',.4g')} {unit}"
    if field.endswith("_bytes"):
        return field.removesuffix("_bytes").replace("_", " "), format_bytes(value)
    return field.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _tera(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:.4g}"
