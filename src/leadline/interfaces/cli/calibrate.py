"""``leadline calibrate``: measure this machine's device."""

import click

from leadline.app.machines.this_machine import calibrate as measure
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GB, format_bytes, format_duration
from leadline.interfaces.cli.command import command, flag, json_option, option
from leadline.interfaces.cli.output import print_answer, print_note, status


@command("calibrate")
@option("--device", "KIND", "Device to measure: cpu or cuda.", default="cpu")
@option("--budget", "SECONDS", "Time limit of the sweep; at least 10.", "75 for cpu, 90 for cuda", type=float)
@flag("--dry-run", "Measure without saving the record.")
@json_option
def calibrate(*, device: str, budget: float | None, dry_run: bool, json: bool) -> None:
    """Measure this machine's device (kernels by size, overheads, memory) and save the record in your catalog."""
    with status("calibrating", quiet=json) as update:
        measured = measure(
            device_type=device, budget_s=budget, save=not dry_run,
            progress=lambda kind, number, total: update(f"calibrating {number}/{total}: {kind}"),
        )  # fmt: skip
    print_note(f"calibrated {measured.name}{'' if dry_run else '; saved to your catalog'}")
    sweep = measured.calibration
    if sweep and sweep.is_doubtful:
        print_note(
            f"the machine was {sweep.busy_share:.0%} busy before the sweep, so the times may be "
            "several times too long: run leadline calibrate again when it is idle"
        )
    if measured.kind is DeviceKind.CPU and measured.launch_s:
        print_note(
            f"the host takes {format_duration(measured.launch_s)} an op of plain modules, one to three times that in a "
            "model of transformers: give a GPU in this host --launch with such a time"
        )
    print_answer(measured, "leadline.device/1", _print, json=json)


def _print(device: Device) -> None:
    """Print the measurements, one per line."""
    click.echo(device.name)
    if device.calibration is None:
        return
    for dtype, best in device.calibration.best_flops_per_s().items():
        peak = device.peak_flops_per_s.get(dtype, best)
        share = f" ({best / peak:.0%} of the vendor's spec)" if peak != best else ""
        click.echo(f"  {f'best {dtype} rate':<22} {best / 1e9:,.1f} GFLOP/s{share}")
    click.echo(f"  kernels timed          {len(device.calibration.timings)} ({device.calibration.software})")
    for name, value in sorted(device.calibration.figures.items()):
        bare = name.removesuffix("_per_s").removesuffix("_bytes").removesuffix("_s")
        click.echo(f"  {bare.replace('_', ' '):<22} {_figure(name, value)}")


def _figure(name: str, value: float) -> str:
    """Return a value with the unit that its name ends in."""
    if name.endswith("_bytes_per_s"):
        return f"{value / GB:.3g} GB/s"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_share"):
        return f"{value:.0%}"
    return format_duration(value) if name.endswith("_s") else f"{value:.4g}"
