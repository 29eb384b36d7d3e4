"""``leadline devices``: list and show the devices of the catalog."""

import click

from leadline.app.composition import user_catalog
from leadline.core.documents import to_document
from leadline.core.units import format_bytes
from leadline.interfaces.cli.command import argument, group, json_option
from leadline.interfaces.cli.output import print_json, print_table


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
        if field not in ("schema", "name", "calibration") and value not in (None, "", [], {}):
            click.echo(f"  {field:<20} {value}")
    if device.calibration:
        click.echo(f"  calibrated           {device.calibration.measured_at}, {device.calibration.software}")


def _tera(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:.4g}"
