"""``leadline export``: an answer as a file of another tool."""

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from leadline.core.documents import split_command
from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.units import pluralize
from leadline.files.atomic import write_atomically
from leadline.interfaces import documents
from leadline.interfaces.chat.run_command import run_leadline
from leadline.interfaces.cli.command import FILE, argument, command, option
from leadline.interfaces.cli.output import print_note

SNIPPETS = ("snakemake", "nextflow", "submitit", "skypilot")
FORMS = ("table", "report", *SNIPPETS, "ondemand")


@command("export")
@argument("form", "FORM", f"What to write: {', '.join(FORMS)}.")
@argument("asked", "-- COMMAND…", "A command of Leadline, such as recommend config.json.", "none", nargs=-1)
@option("--to", "FILE", "The file, or the folder of ondemand.", "stdout for a snippet", type=FILE)
@option("--run", "COMMAND", "What a snippet runs.", "the command of the workload", default="")
@option("--option", "N", "Rank of the option that a snippet requests.", type=click.IntRange(1), default=1)
@option("--account", "NAME", "Project that a snippet charges.", "your default", default="")
@option("--cluster", "NAME", "With ondemand: the cluster's name in Open OnDemand.", "the one to edit", default="")
@option("--server", "HOST", "With ondemand: name of its web server.", "the one to edit", default="")
def export(
    form: str, asked: tuple[str, ...], *, to: Path | None, run: str, option: int, account: str, cluster: str,
    server: str,
) -> None:  # fmt: skip
    """Write an answer as a table, a report to mail, or the request of a workflow tool with its retries.

    table writes .csv or .parquet, with a row per estimate, job, run, system or device.
    """
    if form not in FORMS:
        raise InvalidInput(f"FORM is {form!r}, but it must be {', '.join(FORMS)}")
    if form == "ondemand":
        _write_app(to, cluster, server)
        return
    if form in SNIPPETS:
        text = _snippet(form, _answer(asked), rank=option, run=_command(run, asked), account=account)
        if to is None:
            click.echo(text, nl=False)
        else:
            write_atomically(to, text)
            print_note(f"the request is in {to}")
    elif to is None:
        raise InvalidInput(f"--to is missing: name the file of the {form}")
    elif form == "table":
        from leadline.interfaces.exports.tables import write_table  # noqa: PLC0415 - each form loads what it needs

        print_note(f"{pluralize(write_table(_answer(asked), to), 'row')} in {to}")
    else:
        if find_spec("jinja2") is None:
            raise MissingExtra("leadline export report", "web")
        from leadline.interfaces.exports.report import write_report  # noqa: PLC0415 - an optional extra

        write_report(_answer(asked), to, command=f"leadline {shlex.join(asked)}")
        print_note(f"the report is in {to}")


def _answer(asked: tuple[str, ...]) -> dict[str, Any]:
    """Return the document of a command of Leadline."""
    if not asked:
        raise InvalidInput("the command is missing: write it after --, such as -- recommend config.json")
    words = list(asked)
    words.insert(words.index("--") if "--" in words else len(words), "--json")
    try:
        document = json.loads(run_leadline(words)[0])
    except ValueError as error:
        raise InvalidInput(f"leadline {asked[0]} has no JSON answer, so there is nothing to export") from error
    if not isinstance(document, dict):
        raise InvalidInput(f"the answer of leadline {asked[0]} is no document")
    return document


def _command(run: str, asked: Sequence[str]) -> list[str]:
    """Return the words of the command that a snippet runs: --run, or the command whose script was asked about."""
    if run:
        return split_command(run, label="--run")
    return list(asked[asked.index("--") + 1 :]) if "--" in asked else []


def _snippet(form: str, document: Mapping[str, Any], *, rank: int, run: Sequence[str], account: str) -> str:
    """Return the request of an option of a recommendation."""
    from leadline.app.composition import user_catalog  # noqa: PLC0415
    from leadline.interfaces.exports import snippets  # noqa: PLC0415

    if document.get("schema") != documents.RECOMMENDATION:
        raise InvalidInput(f"{form} needs a recommendation: write -- recommend WORKLOAD")
    options = document["options"]
    if rank > len(options):
        raise InvalidInput(f"the recommendation has {pluralize(len(options), 'option')}, and --option is {rank}")
    option = options[rank - 1]
    words = run or option["command"]
    if not words:
        raise InvalidInput("--run is missing: name the command that the job runs, such as --run 'python train.py'")
    system = user_catalog().system(option["system"])
    if form != "skypilot" and system.scheduler != "slurm":
        raise InvalidInput(
            f"{form} requests from Slurm, and {system.name} has {system.scheduler}: choose another option with --option"
        )
    return snippets.FORMS[form](snippets.build_request(option, system, words, account))


def _write_app(to: Path | None, cluster: str, server: str) -> None:
    from leadline.interfaces.exports.ondemand import write_app  # noqa: PLC0415

    if to is None:
        raise InvalidInput("--to is missing: name the folder of the app")
    files = write_app(to, cluster=cluster or "my-cluster", host=server or "ondemand.example.edu")
    print_note(f"{len(files)} files in {to}: read {to / 'README.md'} first")
