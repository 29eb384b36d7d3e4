"""``leadline train``: measured runs → the estimator that predicts them best, with its card."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from leadline.app.models.train import DEFAULT_POLICY, TrainedFiles, TrainRequest, summarize_target
from leadline.app.models.train import train as train_verb
from leadline.core.documents import to_document
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline train classifier --plots plots
  leadline train runs.csv --target elapsed_s --scale epochs,samples --policy wtm"""

DATA, CHOICE, FILES = "What to learn", "How to choose", "Files"


@app.command(epilog=EXAMPLES)
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="CAMPAIGN|FILE",
            help="A campaign of the history, a table of runs (CSV, also .gz), a folder of tables, or a file of "
            "leadline measure.",
            show_default="the whole history",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE",
            help="What to predict: elapsed_s, host_memory_bytes, gpu_memory_bytes, unit_s, or a column; repeatable.",
            show_default="the walltime, and the memory that was measured",
            rich_help_panel=DATA,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="The features that carry scale.",
            show_default="those larger at full scale",
            rich_help_panel=DATA,
        ),
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Features to leave out.", show_default="none", rich_help_panel=DATA),
    ] = None,
    categories: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Features whose numbers are but names.",
            show_default="those with texts",
            rich_help_panel=DATA,
        ),
    ] = None,
    graphs: Annotated[
        bool,
        typer.Option(
            "--graphs",
            help="Trace the commands (PyTorch): what their op graphs say before they run is a feature too.",
            rich_help_panel=DATA,
        ),
    ] = False,
    policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="mape or mae (mean error), wtm (HARP's: least often too short, then least too long), pinball (the "
            "bound that 90 % stay below), cost (of kills and of waste).",
            rich_help_panel=CHOICE,
        ),
    ] = DEFAULT_POLICY,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the splits and the fits.", rich_help_panel=CHOICE)] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Processes that fit.", show_default="one for each core", rich_help_panel=CHOICE
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the model is written; its card goes beside it.",
            show_default="models/CAMPAIGN.npz in your data folder",
            rich_help_panel=FILES,
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw the errors there.", show_default="no plots", rich_help_panel=FILES),
    ] = None,
    json: Json = False,
) -> None:
    """Fit and compare all estimators on measured runs, and keep the one that a policy chooses.

    It is judged on runs that its fits did not see; a test that took part in nothing says how far off it is.
    """
    request = TrainRequest(
        source,
        tuple(target or ()),
        policy,
        _names(scale),
        _names(without),
        _names(categories),
        to,
        plots,
        seed,
        jobs,
        graphs,
    )
    with err().status("reading runs") as status:
        done = train_verb(
            request, progress=lambda what, number, total: status.update(f"fitting {number}/{total}: {what}")
        )
    if json:
        document = to_document(done.card, "leadline.model/1")
        files = {"model": str(done.model), "card": str(done.text), "plots": [str(plot) for plot in done.plots]}
        print_json({**document, **files})
    else:
        _show(done)


def _names(said: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (said or "").split(",") if name.strip())


def _show(done: TrainedFiles) -> None:
    console = out()
    for one in done.card.targets:
        text = summarize_target(one)
        console.print(f"{done.card.application}: {one.target}", style="bold", markup=False)
        console.print(text.data, markup=False, soft_wrap=True)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, head in enumerate(text.heads):
            left = number == 0 or not head
            table.add_column(head, justify="left" if left else "right", no_wrap=True)
        for number, row in enumerate(text.rows):
            table.add_row(("* " if number == 0 else "  ") + row[0], *row[1:])
        console.print(table)
        for sentence in (*text.choice, *(f"note: {note}" for note in one.notes)):
            console.print(sentence, markup=False, soft_wrap=True)
        console.print()
    console.print(f"model  {done.model}", markup=False, soft_wrap=True)
    console.print(f"card   {done.text}", markup=False, soft_wrap=True)
    for plot in done.plots:
        console.print(f"plot   {plot}", markup=False, soft_wrap=True)
