"""``leadline measure``: steps of many models on the device at hand, into one file; or the kit for another machine."""

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
            help="File of measurements, begun or gone on with.",
            show_default="needed, but for --kit",
        ),
    ] = None,
    *,
    kit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.pyz",
            help="Measure nothing, and write the kit that does it on a machine without Leadline.",
            show_default="measure here",
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(metavar="N", help="End after so long.")] = MINUTES,
    device: Annotated[
        str, typer.Option(metavar="KIND", help="What to measure: cuda, cpu, or auto for a GPU if there is one.")
    ] = "auto",
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Interpreter that has torch.", show_default="the one that runs this"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny models, timed briefly.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the order in which points are measured.")] = 0,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Measure half of the points under torch.compile.")
    ] = False,
    no_ops: Annotated[bool, typer.Option("--no-ops", help="Do not profile the ops of each step.")] = False,
    point_limit: Annotated[float, typer.Option(metavar="SECONDS", help="Give a point up after so long.")] = 90.0,
    json: Json = False,
) -> None:
    """Measure steps of many models on this device (time, memory, energy, ops), and keep them in one file.

    The same command again goes on where it was ended, however that was.
    """
    if (to is None) == (kit is None):
        raise InvalidInput(
            "leadline measure needs either --out FILE to measure into, or --kit FILE.pyz to write the kit"
        )
    if kit is not None:
        _write(kit, json=json)
        return
    assert to is not None  # noqa: S101 - one of the two is given
    console = err()
    request = MeasureRequest(to, minutes, device, python, quick, seed, compiled, not no_ops, point_limit)

    def show(said: str, in_file: int, elapsed_s: float) -> None:
        console.print(f"[{in_file}, {format_duration(elapsed_s)}] {said}", markup=False, soft_wrap=True)

    found = measure(request, show)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if json:
        print_json(to_document(found, SCHEMA))
    else:
        out().print(found.sentence, markup=False, soft_wrap=True)


def _write(kit: Path, *, json: bool) -> None:
    size_bytes = write_kit(kit)
    if json:
        print_json(to_document({"path": str(kit), "size_bytes": size_bytes}, KIT_SCHEMA))
        return
    out().print(
        f"{kit} written ({format_bytes(size_bytes)}); where torch is: python {kit.name} --out rows.jsonl --minutes 20",
        markup=False,
        soft_wrap=True,
    )
