"""``leadline adapt``: adapt the estimates of a device to measured steps."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from leadline.app.composition import toolbox
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json

if TYPE_CHECKING:
    from leadline.app.estimate.adapt import AdaptAnswer


app = CommandApp()

SCHEMA = "leadline.adapted/1"
FORGOTTEN = "leadline.forgotten/1"
EXAMPLES = """\
Examples:
  leadline adapt steps.csv --device "A100 SXM4 80GB"     columns: workload, batch, precision, step_s
  leadline adapt a100.jsonl --device "A100 SXM4 80GB"    what leadline measure wrote
  leadline adapt --forget "A100 SXM4 80GB\""""


@app.command(epilog=EXAMPLES)
def adapt_command(
    subject: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="CSV table with the columns workload and step_s, and any options of leadline estimate; "
            "or a file of leadline measure.",
            show_default=False,
        ),
    ] = None,
    *,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Catalog device that the steps ran on.",
            show_default="the device in the file",
        ),
    ] = None,
    most: Annotated[int, typer.Option(metavar="N", help="Maximum number of steps to use.")] = 50,
    no_save: Annotated[bool, typer.Option("--no-save", help="Show the result without saving it.")] = False,
    forgotten: Annotated[
        str | None,
        typer.Option("--forget_device", metavar="NAME", help="Delete the adaptation of a device.", show_default="keep"),
    ] = None,
    json: Json = False,
) -> None:
    """Adapt the estimates of a device to steps measured on it: 5 to 50 of each kind of job.

    Each step is traced. The estimator with the smallest error on left-out models is used from then on.
    """
    if (subject is None) == (forgotten is None):
        raise InvalidInput("name either a FILE of measured steps, or --forget and a device")
    if forgotten is not None:
        _forget(forgotten, json=json)
        return
    assert subject is not None  # noqa: S101 - one of the two is given
    from leadline.app.estimate.adapt import adapt  # noqa: PLC0415 - numpy loads on use

    console = err()

    def show(where: str, number: int, count: int) -> None:
        console.print(f"[{number}/{count}] tracing {where}", markup=False, soft_wrap=True)

    answer = adapt(subject, toolbox(), device=device, most=most, keep=not no_save, progress=show)
    for note in answer.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if json:
        print_json(to_document(answer, SCHEMA))
    else:
        _show(answer)


def _show(answer: "AdaptAnswer") -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("kind of job", "runs", "estimator", "factor", "error before", "error now", "90 % range"):
        table.add_column(name, justify="left" if name in ("kind of job", "estimator") else "right")
    for record in answer.records:
        layout = ", channels last" if record.channels_last else ""
        kind = f"{record.group or 'any other job'}{layout}"
        factor = "refitted" if record.by_law else f"{record.factor:.2f} ×"
        table.add_row(kind, str(record.runs), record.estimator, factor, f"{record.before:.0%}",
                      f"{record.error:.0%}", f"± {record.longest:.0%}")  # fmt: skip
    console = out()
    console.print(f"{answer.device}, errors on left-out models:", style="bold", markup=False)
    console.print(table)
    console.print(f"saved to {answer.path}" if answer.path else "not saved", style="dim", markup=False)


def _forget(device: str, *, json: bool) -> None:
    from leadline.app.estimate.adapt import forget_device  # noqa: PLC0415 - numpy loads on use

    path = forget_device(device, toolbox())
    if json:
        print_json({"schema": FORGOTTEN, "device": device, "path": path})
    else:
        out().print(f"deleted {path}; {device} uses the shipped estimators again", markup=False, soft_wrap=True)
