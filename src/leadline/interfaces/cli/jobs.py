"""``leadline jobs``: what was handed over, where it stands, and what it took."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from leadline.app.standing import Standing, folded, silent, standings
from leadline.core.documents import to_document
from leadline.interfaces.cli.face import Json, err, out, print_json
from leadline.interfaces.cli.jobs_table import clock, jobs_table, plain
from leadline.interfaces.cli.verb import Verb

app = Verb()

SCHEMA = "leadline.jobs/1"
EXAMPLES = """\
Examples:
  leadline jobs                     those at work
  leadline jobs train --all         every job that is called train
  leadline jobs 3f2a91 --each       the elements of an array, one by one"""

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOB…",
        help="A job's key or its beginning, its name, its id at the scheduler, or an array.",
        show_default="all at work",
    ),
]


@app.command(epilog=EXAMPLES)
def jobs(
    names: Names = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Those that ended, too.")] = False,
    most: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Only the newest so many.", show_default="all")
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Every element of an array in a row of its own.")] = False,
    json: Json = False,
) -> None:
    """List your jobs, newest first: where, how far, when they are expected to end, and what they took."""
    found = standings(names or (), everything=everything or most is not None, most=most)
    if json:
        print_json(to_document({"jobs": found}, SCHEMA))
        return
    if not found:
        err().print(nothing(all_=everything or bool(most)), markup=False, soft_wrap=True)
        return
    print_table(found, each=each)


def print_table(found: Sequence[Standing], *, each: bool = False) -> None:
    """Print jobs on stdout, and on stderr which of their systems do not answer."""
    console = out()
    console.print(jobs_table(found if each else folded(found), console.width), soft_wrap=True)
    for sentence in silence_words(found):
        err().print(f"note: {sentence}", markup=False, soft_wrap=True)


def silence_words(found: Sequence[Standing]) -> list[str]:
    """Return a sentence for each system that does not answer: what is shown of its jobs is older than that."""
    now = datetime.now().astimezone()
    return [
        f"{system} has not answered since {clock(since, now)}, and is asked again ({plain(why, 200)})"
        for system, (since, why) in silent(found).items()
    ]


def nothing(*, all_: bool) -> str:
    """Say what to do where there is no job to be shown."""
    if all_:
        return "no job was handed over yet: leadline submit --on SYSTEM:PARTITION -- COMMAND hands one over"
    return "no job is at work: leadline jobs --all shows those that ended, leadline submit hands one over"
