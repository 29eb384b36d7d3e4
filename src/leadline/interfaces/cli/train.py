"""``leadline train``: train a model on measured runs."""

from functools import partial
from pathlib import Path

import click

from leadline.app.models.train import DEFAULT_POLICY, TrainedFiles, TrainRequest
from leadline.app.models.train import train as train_verb
from leadline.core.documents import to_document
from leadline.interfaces.cli.command import FILE, argument, command, flag, json_option, option
from leadline.interfaces.cli.output import print_json, print_table, status
from leadline.training.model_card import candidate_table, describe_errors, describe_training_data

about_data, selection, output = (partial(option, section=section) for section in ("Data", "Selection", "Files"))


@command("train")
@argument(
    "source", "CAMPAIGN|FILE",
    "A campaign of the history, a table of runs (CSV, also .gz), a folder of tables, or a file of leadline measure.",
    "the whole history", required=False,
)  # fmt: skip
@about_data(
    "--target", "FIGURE", "Target: elapsed_s, host_memory_bytes, gpu_memory_bytes, unit_s, or a column; repeatable.",
    "elapsed time, and measured memory", multiple=True,
)  # fmt: skip
@about_data("--scale", "A,B", "Features that define the scale.", "features that are larger at full scale")
@about_data("--without", "A,B", "Features to leave out.", "none")
@about_data("--categories", "A,B", "Features whose numbers are categories.", "features with text values")
@flag("--graphs", "Trace the commands (PyTorch) and add features of their op graphs.", section="Data")
@selection(
    "--policy", "POLICY", "mape or mae (mean error), wtm (HARP's: fewest underestimates, then smallest "
    "overestimates), pinball (the 90 % upper bound), cost (of kills and waste).", default=DEFAULT_POLICY,
)  # fmt: skip
@selection("--seed", "N", "Random seed of splits and fits.", type=int, default=0)
@selection("--jobs", "N", "Number of processes.", "one per core", type=click.IntRange(1))
@output(
    "--to", "FILE", "Output file; the card is written next to it.", "models/CAMPAIGN.npz in your data folder",
    type=FILE,
)  # fmt: skip
@output("--plots", "DIR", "Folder for plots of the errors.", "no plots", type=FILE)
@json_option
def train(
    source: str | None, *, target: tuple[str, ...], scale: str | None, without: str | None, categories: str | None,
    graphs: bool, policy: str, seed: int, jobs: int | None, to: Path | None, plots: Path | None, json: bool,
) -> None:  # fmt: skip
    """Fit and compare all estimators on measured runs, and keep the one that a policy chooses.

    Estimators are compared on runs held out from their fits. A separate test set gives the error of the chosen one.
    """
    request = TrainRequest(
        target, policy, _names(scale), _names(without), _names(categories), seed, jobs, source, to, plots, graphs,
    )  # fmt: skip
    with status("reading runs", quiet=json) as update:
        done = train_verb(request, progress=lambda step, number, total: update(f"fitting {number}/{total}: {step}"))
    if json:
        document = to_document(done.card, "leadline.model/1")
        files = {"model": str(done.model), "card": str(done.text), "plots": [str(plot) for plot in done.plots]}
        print_json({**document, **files})
    else:
        _show(done)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _show(done: TrainedFiles) -> None:
    for target in done.card.targets:
        heads, rows = candidate_table(target)
        rows = [(f"{'  ' if number else '* '}{row[0]}", *row[1:]) for number, row in enumerate(rows)]
        used = [at for at in range(len(heads)) if any(row[at] for row in rows)]
        click.secho(f"{done.card.application}: {target.target}", bold=True)
        click.echo(describe_training_data(target))
        print_table([heads[at] for at in used], [[row[at] for at in used] for row in rows], words=(heads[0], ""))
        click.echo(f"chosen by policy {target.policy}: {target.reason}")
        for sentence in (*describe_errors(target), *(f"note: {note}" for note in target.notes)):
            click.echo(sentence)
        click.echo()
    click.echo(f"model  {done.model}")
    click.echo(f"card   {done.text}")
    for plot in done.plots:
        click.echo(f"plot   {plot}")
