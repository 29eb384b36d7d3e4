"""``leadline model``: list and show trained models."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from leadline.app.composition import trained_model
from leadline.app.models.train import list_models
from leadline.core.documents import to_document
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json, write_text
from leadline.training.model_card import model_card_markdown

app = CommandApp(group=True, help="List and show trained models.")


@app.command("list")
def list_command(json: Json = False) -> None:
    """List the models in your data folder."""
    models = list_models()
    if json:
        documents = [{"name": path.stem, "file": str(path), "card": card, "why_not": why} for path, card, why in models]
        print_json(to_document({"models": documents}, "leadline.models/1"))
        return
    if not models:
        err().print("No models; train one with leadline train CAMPAIGN.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("model", "application", "predicts", "runs", "trained", "mean error"):
        table.add_column(column, no_wrap=True)
    for path, card, why in models:
        if card is None:
            err().print(f"{path.stem}: {why}", markup=False, soft_wrap=True)
            continue
        for number, target in enumerate(card.targets):
            errors = ", ".join(f"{scale} {each.mape:.1f} %" for scale, each in target.errors.items())
            cells = (path.stem, card.application) if number == 0 else ("", "")
            table.add_row(*cells, target.target, str(target.samples), card.trained_at[:10], errors)
    out().print(table)


@app.command()
def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Model file, or the name of a model in your data folder.")
    ],
    json: Json = False,
) -> None:
    """Show a model's card: its data, every candidate's errors, the coverage, and how to reproduce it."""
    card = trained_model(file).card
    if json:
        print_json(to_document(card, "leadline.model/1"))
    else:
        write_text(model_card_markdown(card))
