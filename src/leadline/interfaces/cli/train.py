"""``leadline train``: train a model on measured runs."""

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

DATA, CHOICE, FILES = "Data", "Selection", "Files"


@app.command(epilog=EXAMPLES)
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="CAMPAIGN|FILE",
            help="A campaign of the history, a table of runs (CSV, also .gz), a folder of tables, or a "
            "file of leadline measure.",
            show_default="the whole history",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE",
            help="Target: elapsed_s, host_memory_bytes, gpu_memory_bytes, unit_s, or a column; repeatable.",
            show_default="elapsed time, and measured memory",
            rich_help_panel=DATA,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Features that define the scale.",
            show_default="features that are larger at full scale",
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
            help="Features whose numbers are categories.",
            show_default="features with text values",
            rich_help_panel=DATA,
        ),
    ] = None,
    graphs: Annotated[
        bool,
        typer.Option(
            "--graphs",
            help="Trace the commands (PyTorch) and add features of their op graphs.",
            rich_help_panel=DATA,
        ),
    ] = False,
    policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="mape or mae (mean error), wtm (HARP's: fewest underestimates, then smallest "
            "overestimates), pinball (the 90 % upper bound), cost (of kills and waste).",
            rich_help_panel=CHOICE,
        ),
    ] = DEFAULT_POLICY,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed of splits and fits.", rich_help_panel=CHOICE)] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Number of processes.", show_default="one per core", rich_help_panel=CHOICE
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file; the card is written next to it.",
            show_default="models/CAMPAIGN.npz in your data folder",
            rich_help_panel=FILES,
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for plots of the errors.", show_default="no plots", rich_help_panel=FILES
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Fit and compare all estimators on measured runs, and keep the one that a policy chooses.

    Estimators are compared on runs held out from their fits. A separate test set gives the error of the chosen one.
    """
    request = TrainRequest(
        tuple(target or ()),
        policy,
        _names(scale),
        _names(without),
        _names(categories),
        seed,
        jobs,
        source,
        to,
        plots,
        graphs,
    )
    with err().status("reading runs") as status:
        done = train_verb(
            request, progress=lambda step, number, total: status.update(f"fitting {number}/{total}: {step}")
        )
    if json:
        document = to_document(done.card, "leadline.model/1")
        files = {"model": str(done.model), "card": str(done.text), "plots": [str(plot) for plot in done.plots]}
        print_json({**document, **files})
    else:
        _show(done)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _show(done: TrainedFiles) -> None:
    console = out()
    for target in done.card.targets:
        text = summarize_target(target)
        console.print(f"{done.card.application}: {target.target}", style="bold", markup=False)
        console.print(text.data, markup=False, soft_wrap=True)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, head in enumerate(text.heads):
            is_text = number == 0 or not head
            table.add_column(head, justify="left" if is_text else "right", no_wrap=True)
        for number, row in enumerate(text.rows):
            table.add_row(("* " if number == 0 else "  ") + row[0], *row[1:])
        console.print(table)
        for sentence in (*text.choice, *(f"note: {note}" for note in target.notes)):
            console.print(sentence, markup=False, soft_wrap=True)
        console.print()
    console.print(f"model  {done.model}", markup=False, soft_wrap=True)
    console.print(f"card   {done.text}", markup=False, soft_wrap=True)
    for plot in done.plots:
        console.print(f"plot   {plot}", markup=False, soft_wrap=True)
