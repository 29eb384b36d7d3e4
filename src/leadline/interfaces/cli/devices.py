"""``leadline devices``: list and show the devices of the catalog."""

from typing import Annotated

import typer
from rich.table import Table

from leadline.app.composition import user_catalog
from leadline.core.documents import to_document
from leadline.core.units import format_bytes
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, out, print_json

app = CommandApp(group=True, help="List and show devices.")


@app.command(name="list")
def list_devices(json: Json = False) -> None:
    """List devices with their memory and peak rates; unknown values are blank."""
    devices = user_catalog().devices()
    if json:
        print_json({"schema": "leadline.devices/1", "devices": devices})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("device", "kind", "memory", "GB/s", "float32", "tf32", "16-bit TFLOP/s", "trust"):
        table.add_column(title, no_wrap=True, justify="left" if title in ("device", "kind", "trust") else "right")
    for device in devices:
        peaks = device.peak_flops_per_s
        half = peaks.get("bfloat16") or peaks.get("float16")
        table.add_row(
            device.name,
            device.kind.value,
            format_bytes(device.memory_bytes) if device.memory_bytes else "",
            f"{device.memory_bytes_per_s / 1e9:,.0f}" if device.memory_bytes_per_s else "",
            _tera(peaks.get("float32")),
            _tera(peaks.get("tf32")),
            _tera(half),
            "measured here" if device.calibration else device.confidence.value,
        )
    out().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or alias of the device; quote names with spaces.")],
    json: Json = False,
) -> None:
    """Show every spec of a device, with its source."""
    device = user_catalog().device(name)
    document = to_document(device, "leadline.device/1")
    if json:
        print_json(document)
        return
    console = out()
    console.print(device.name, style="bold")
    for field, value in document.items():
        if field not in ("schema", "name", "calibration") and value not in (None, "", [], {}):
            console.print(f"  {field:<20} {value}", markup=False)
    if device.calibration:
        console.print(f"  calibrated           {device.calibration.measured_at}, {device.calibration.software}")


def _tera(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:.4g}"
