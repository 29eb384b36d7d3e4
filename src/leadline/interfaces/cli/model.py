"""``leadline model``: list and show trained models."""

from pathlib import Path

import click

from leadline.app.composition import trained_model
from leadline.app.models.train import list_models
from leadline.interfaces.cli.command import FILE, argument, group, json_option
from leadline.interfaces.cli.output import print_answer, print_json, print_note, print_table
from leadline.training.model_card import model_card_markdown


@group("model")
def model() -> None:
    """List and show trained models."""


@model.command("list")
@json_option
def list_command(*, json: bool) -> None:
    """List the models in your data folder."""
    models = list_models()
    if json:
        documents = [{"name": path.stem, "file": str(path), "card": card, "why_not": why} for path, card, why in models]
        print_json({"schema": "leadline.models/1", "models": documents})
        return
    if not models:
        print_note("No models; train one with leadline train CAMPAIGN.")
        return
    rows = []
    for path, card, why in models:
        if card is None:
            print_note(f"{path.stem}: {why}")
            continue
        for number, target in enumerate(card.targets):
            errors = ", ".join(f"{scale} {each.mape:.1f} %" for scale, each in target.errors.items())
            cells = (path.stem, card.application) if number == 0 else ("", "")
            rows.append((*cells, target.target, str(target.samples), card.trained_at[:10], errors))
    titles = ("model", "application", "predicts", "runs", "trained", "mean error")
    print_table(titles, rows, words=("model", "application", "predicts", "mean error"))


@model.command("show")
@argument("file", "FILE", "Model file, or the name of a model in your data folder.", type=FILE)
@json_option
def show(file: Path, *, json: bool) -> None:
    """Show a model's card: its data, every candidate's errors, the coverage, and how to reproduce it."""
    card = trained_model(file).card
    print_answer(card, "leadline.model/1", lambda card: click.echo(model_card_markdown(card), nl=False), json=json)
