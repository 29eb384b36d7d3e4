"""``leadline adapt``: a few measured steps of your own device, and its estimates are better."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from leadline.app.composition import toolbox
from leadline.app.estimate.adapt import MAX_STEPS, AdaptAnswer, adapt, forget_device
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json

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
            help="CSV table with the columns workload and step_s, others being options of estimate; or a file that "
            "leadline measure wrote.",
            show_default=False,
        ),
    ] = None,
    *,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Device in the catalog that the steps ran on.",
            show_default="the one that a file names",
        ),
    ] = None,
    most: Annotated[
        int, typer.Option(metavar="N", help="Steps of the file that are used, from its beginning.")
    ] = MAX_STEPS,
    no_save: Annotated[bool, typer.Option("--no-save", help="Show what is learned, and keep nothing.")] = False,
    forgotten: Annotated[
        str | None,
        typer.Option(
            "--forget_device", metavar="NAME", help="Delete what was learned of a device.", show_default="keep"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Adapt the estimates of a device to steps that you measured there: 5 to 50 of each kind of job.

    Each step is traced, and the estimator that is least off on models left out of the fit answers from then on.
    """
    if (subject is None) == (forgotten is None):
        raise InvalidInput("leadline adapt needs either a FILE of measured steps, or --forget and a device")
    if forgotten is not None:
        _forget(forgotten, json=json)
        return
    assert subject is not None  # noqa: S101 - one of the two is given
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


def _show(answer: AdaptAnswer) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("steps of", "runs", "answered by", "factor", "off before", "off now", "90 % range"):
        table.add_column(name, justify="left" if name in ("steps of", "answered by") else "right")
    for one in answer.records:
        layout = ", channels last" if one.channels_last else ""
        kind = f"{one.group or 'any other job'}{layout}"
        factor = "own law" if one.by_law else f"{one.factor:.2f} ×"
        table.add_row(kind, str(one.runs), one.estimator, factor, f"{one.before:.0%}",
                      f"{one.error:.0%}", f"± {one.longest:.0%}")  # fmt: skip
    console = out()
    console.print(f"{answer.device}, asked about models left out:", style="bold", markup=False)
    console.print(table)
    console.print(f"kept in {answer.path}" if answer.path else "nothing was kept", style="dim", markup=False)


def _forget(device: str, *, json: bool) -> None:
    path = forget_device(device, toolbox())
    if json:
        print_json({"schema": FORGOTTEN, "device": device, "path": path})
    else:
        out().print(f"{path} was deleted: {device} is estimated as any other again", markup=False, soft_wrap=True)
