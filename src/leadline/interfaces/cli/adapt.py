"""``leadline adapt``: adapt the estimates of a device to measured steps."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.app.composition import toolbox
from leadline.core.errors import InvalidInput
from leadline.core.units import format_duration
from leadline.interfaces.cli.command import FILE, argument, command, flag, json_option, option
from leadline.interfaces.cli.output import print_answer, print_json, print_note, print_notes, print_table

if TYPE_CHECKING:
    from leadline.app.estimate.adapt import AdaptAnswer


@command("adapt")
@argument(
    "subject", "FILE", "CSV table with the columns workload and step_s, and any options of leadline estimate; "
    "or a file of leadline measure.", required=False, type=FILE,
)  # fmt: skip
@option("--device", "NAME", "Catalog device that the steps ran on.", "the device in the file")
@option("--most", "N", "Maximum number of steps to use.", type=int, default=50)
@flag("--no-save", "Show the result without saving it.")
@option("forgotten --forget", "NAME", "Delete the adaptation of a device.", "keep")
@json_option
def adapt(
    subject: Path | None, *, device: str | None, most: int, no_save: bool, forgotten: str | None, json: bool
) -> None:
    """Adapt the estimates of a device to steps measured on it: 3 to 50 of each kind of job.

    Each step is traced. The estimator with the smallest error on left-out models is used from then on. Three or more
    training steps of language models show the speed of the device and what its host needs to launch an op.
    """
    if (subject is None) == (forgotten is None):
        raise InvalidInput("name either a FILE of measured steps, or --forget and a device")
    if forgotten is not None:
        _forget(forgotten, json=json)
        return
    assert subject is not None  # noqa: S101 - one of the two is given
    from leadline.app.estimate.adapt import adapt as adapt_verb  # noqa: PLC0415 - numpy loads on use

    answer = adapt_verb(
        subject, toolbox(), device=device, most=most, keep=not no_save,
        progress=lambda where, number, count: print_note(f"[{number}/{count}] tracing {where}"),
    )  # fmt: skip
    print_notes(answer.notes)
    print_answer(answer, "leadline.adapted/1", _show, json=json)


def _show(answer: "AdaptAnswer") -> None:
    rows = []
    for record in answer.records:
        layout = ", channels last" if record.channels_last else ""
        kind = f"{record.group or 'any other job'}{layout}"
        factor = "refitted" if record.by_law else f"{record.factor:.2f} ×"
        errors = (f"{record.before:.0%}", f"{record.error:.0%}", f"± {record.longest:.0%}")
        rows.append((kind, str(record.runs), record.estimator, factor, *errors))
    if (whole := answer.whole_steps) is not None:
        errors = (f"{whole.before:.0%}", f"{whole.error:.0%}", f"± {whole.longest:.0%}")
        host = f"host {format_duration(whole.launch_s)} an op"
        rows.insert(0, ("language training as a whole", str(whole.runs), whole.estimator, host, *errors))
    click.secho(f"{answer.device}, errors on left-out models:", bold=True)
    titles = ("kind of job", "runs", "estimator", "adapted", "error before", "error now", "90 % range")
    print_table(titles, rows, words=("kind of job", "estimator"))
    click.secho(f"saved to {answer.path}" if answer.path else "not saved", dim=True)


def _forget(device: str, *, json: bool) -> None:
    from leadline.app.estimate.adapt import forget_device  # noqa: PLC0415 - numpy loads on use

    path = forget_device(device, toolbox())
    if json:
        print_json({"schema": "leadline.forgotten/1", "device": device, "path": path})
    else:
        click.echo(f"deleted {path}; {device} uses the shipped estimators again")
