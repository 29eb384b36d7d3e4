"""``leadline measure``: time steps of many models on this device, or write the kit for another machine."""

from pathlib import Path
from typing import Annotated

import typer

from leadline.app.machines.measure import KIT_SCHEMA, MINUTES, SCHEMA, MeasureRequest, measure, write_kit
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline measure --out h200.jsonl --minutes 20
  leadline measure --kit kit.pyz          copy it, and on the node: python kit.pyz --out h200.jsonl
  leadline train h200.jsonl --target step_s"""


@app.command(epilog=EXAMPLES)
def measure_command(
    to: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="File of measurements, created or resumed.",
            show_default="required, unless --kit is given",
        ),
    ] = None,
    *,
    kit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.pyz",
            help="Write the measuring kit for a machine without Leadline, instead of measuring.",
            show_default="measure here",
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(metavar="N", help="Time limit in minutes.")] = MINUTES,
    device: Annotated[
        str, typer.Option(metavar="KIND", help="Device to measure: cuda, cpu, or auto (a GPU if there is one).")
    ] = "auto",
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Python interpreter with torch.", show_default="this one"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure tiny models briefly.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed of the order of points.")] = 0,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Measure half of the points under torch.compile.")
    ] = False,
    no_ops: Annotated[bool, typer.Option("--no-ops", help="Do not profile the ops of each step.")] = False,
    point_limit: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit of one point.")] = 90.0,
    json: Json = False,
) -> None:
    """Time steps of many models on this device (time, memory, energy, ops), and save them in one file.

    Run the same command again to resume.
    """
    if (to is None) == (kit is None):
        raise InvalidInput("name either --out FILE to measure, or --kit FILE.pyz to write the kit")
    if kit is not None:
        _write(kit, json=json)
        return
    assert to is not None  # noqa: S101 - one of the two is given
    console = err()
    request = MeasureRequest(to, minutes, device, python, quick, seed, compiled, not no_ops, point_limit)

    def show(text: str, in_file: int, elapsed_s: float) -> None:
        console.print(f"[{in_file}, {format_duration(elapsed_s)}] {text}", markup=False, soft_wrap=True)

    summary = measure(request, show)
    for note in summary.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if json:
        print_json(to_document(summary, SCHEMA))
    else:
        out().print(summary.sentence, markup=False, soft_wrap=True)


def _write(kit: Path, *, json: bool) -> None:
    size_bytes = write_kit(kit)
    if json:
        print_json(to_document({"path": str(kit), "size_bytes": size_bytes}, KIT_SCHEMA))
        return
    out().print(
        f"wrote {kit} ({format_bytes(size_bytes)}); on a machine with torch: python {kit.name} "
        "--out rows.jsonl --minutes 20",
        markup=False,
        soft_wrap=True,
    )
