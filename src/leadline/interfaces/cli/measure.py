"""``leadline measure``: time steps of many models on this device, or write the kit for another machine."""

import sys
from pathlib import Path

import click

from leadline.app.machines.measure import KIT_SCHEMA, SCHEMA, MeasureOptions, summary_sentence, write_kit
from leadline.app.machines.measure import measure as measure_verb
from leadline.core.errors import InvalidInput
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli.command import FILE, command, flag, json_option, option
from leadline.interfaces.cli.output import print_answer, print_json, print_note, print_notes


@command("measure")
@option("to --out", "FILE", "File of measurements, created or resumed.", "required, unless --kit is given", type=FILE)
@option(
    "--kit", "FILE.pyz", "Write the measuring kit for a machine without Leadline, instead of measuring.",
    "measure here", type=FILE,
)  # fmt: skip
@option("--minutes", "N", "Time limit in minutes.", type=float, default=MeasureOptions.minutes)
@option("--device", "KIND", "Device to measure: cuda, cpu, or auto (a GPU if there is one).", default="auto")
@option("--python", "PATH", "Python interpreter with torch.", "this one")
@flag("--quick", "Measure tiny models briefly.")
@option("--seed", "N", "Random seed of the order of points.", type=int, default=0)
@flag("compiled --compile", "Measure half of the points under torch.compile.")
@flag("--no-ops", "Do not profile the ops of each step.")
@option("--point-limit", "SECONDS", "Time limit of one point.", type=float, default=90.0)
@option(
    "--collectives",
    "N",
    "Processes among which collectives are timed: one per GPU, or on the CPU.",
    "all GPUs of this machine",
    type=int,
)
@json_option
def measure(
    *, to: Path | None, kit: Path | None, minutes: float, device: str, python: str | None, quick: bool, seed: int,
    compiled: bool, no_ops: bool, point_limit: float, collectives: int | None, json: bool,
) -> None:  # fmt: skip
    """Time steps of many models on this device (time, memory, energy, ops), and save them in one file.

    Run the same command again to resume.
    """
    if (to is None) == (kit is None):
        raise InvalidInput("name either --out FILE to measure, or --kit FILE.pyz to write the kit")
    if kit is not None:
        _write(kit, json=json)
        return
    assert to is not None  # noqa: S101 - one of the two is given
    options = MeasureOptions(
        str(to),
        minutes,
        device,
        python or sys.executable,
        quick,
        seed,
        compiled,
        not no_ops,
        point_limit,
        collectives or 0,
    )
    summary = measure_verb(
        options, lambda text, in_file, elapsed_s: print_note(f"[{in_file}, {format_duration(elapsed_s)}] {text}")
    )
    print_notes(summary.notes)
    sentence = summary_sentence(summary)
    print_answer({**vars(summary), "sentence": sentence}, SCHEMA, lambda _: click.echo(sentence), json=json)


def _write(kit: Path, *, json: bool) -> None:
    size_bytes = write_kit(kit)
    if json:
        print_json({"schema": KIT_SCHEMA, "path": str(kit), "size_bytes": size_bytes})
        return
    click.echo(
        f"wrote {kit} ({format_bytes(size_bytes)}); on a machine with torch: python {kit.name} "
        "--out rows.jsonl --minutes 20"
    )
