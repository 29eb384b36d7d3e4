"""``leadline export``: an answer as a file of another tool."""

import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from leadline.app.composition import process_runner
from leadline.core.errors import InvalidInput, LeadlineError, MissingExtra
from leadline.interfaces.cli.command import FILE, argument, command, option
from leadline.interfaces.cli.output import print_note

SNIPPETS = ("snakemake", "nextflow", "submitit", "skypilot")
FORMS = ("table", "report", *SNIPPETS, "ondemand")
NOTHING_FITS = 3


@command("export")
@argument("form", "FORM", f"What to write: {', '.join(FORMS)}.")
@argument("asked", "-- COMMAND…", "A command of Leadline, such as recommend config.json.", "none", nargs=-1)
@option("--to", "FILE", "The file, or the folder of ondemand.", "stdout for a snippet", type=FILE)
@option("--run", "COMMAND", "What a snippet runs.", "the command of the workload", default="")
@option("--option", "N", "Rank of the option that a snippet requests.", type=click.IntRange(1), default=1)
@option("--cluster", "NAME", "With ondemand: the cluster's name in Open OnDemand.", "the one to edit", default="")
@option("--server", "HOST", "With ondemand: name of its web server.", "the one to edit", default="")
def export(
    form: str, asked: tuple[str, ...], *, to: Path | None, run: str, option: int, cluster: str, server: str
) -> None:
    """Write an answer as a table, a report to mail, or the request of a workflow tool with its retries.

    table writes .csv or .parquet, with a row per estimate, job, run, system or device.
    """
    if form not in FORMS:
        raise InvalidInput(f"FORM is {form!r}, but it must be {', '.join(FORMS)}")
    if form == "ondemand":
        _write_app(to, cluster, server)
        return
    document = _answer(asked)
    if form in SNIPPETS:
        _write_snippet(form, document, to, run, option)
        return
    if to is None:
        raise InvalidInput(f"--to is missing: name the file of the {form}")
    if form == "table":
        from leadline.interfaces.exports.tables import write_table  # noqa: PLC0415 - each form loads what it needs

        print_note(f"{write_table(document, to)} rows in {to}")
        return
    if find_spec("jinja2") is None:
        raise MissingExtra("leadline export report", "web")
    from leadline.interfaces.exports.report import write_report  # noqa: PLC0415 - an optional extra

    write_report(document, to, command=f"leadline {shlex.join(asked)}")
    print_note(f"the report is in {to}")


def _answer(asked: tuple[str, ...]) -> dict[str, object]:
    """Return the document of a command of Leadline."""
    if not asked:
        raise InvalidInput("the command is missing: write it after --, such as -- recommend config.json")
    words = list(asked)
    at = words.index("--") if "--" in words else len(words)
    words.insert(at, "--json")
    ended = process_runner()([sys.executable, "-m", "leadline", *words])
    if ended.returncode not in (0, NOTHING_FITS):
        raise LeadlineError(ended.stderr.strip().removeprefix("leadline: ") or f"leadline {asked[0]} failed")
    try:
        document = json.loads(ended.stdout)
    except ValueError as error:
        raise InvalidInput(f"leadline {asked[0]} has no JSON answer, so there is nothing to export") from error
    if not isinstance(document, dict):
        raise InvalidInput(f"the answer of leadline {asked[0]} is no document")
    return document


def _write_snippet(form: str, document: dict[str, object], to: Path | None, run: str, rank: int) -> None:
    from leadline.files.atomic import write_atomically  # noqa: PLC0415
    from leadline.interfaces.exports import snippets  # noqa: PLC0415

    if document.get("schema") != "leadline.recommendation/1":
        raise InvalidInput(f"{form} needs a recommendation: write -- recommend WORKLOAD")
    request = snippets.request_of(document, shlex.split(run) or ["python", "train.py"], rank)
    text = snippets.FORMS[form](request)
    if to is None:
        click.echo(text, nl=False)
    else:
        write_atomically(to, text)
        print_note(f"the request is in {to}")


def _write_app(to: Path | None, cluster: str, server: str) -> None:
    from leadline.interfaces.exports.ondemand import write_app  # noqa: PLC0415

    if to is None:
        raise InvalidInput("--to is missing: name the folder of the app")
    files = write_app(to, cluster=cluster or "my-cluster", host=server or "ondemand.example.edu", leadline="leadline")
    print_note(f"{len(files)} files in {to}: read {to / 'README.md'} first")
