"""``leadline pipeline simulate``: the same season with other numbers of events, tiers or links."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from leadline.app.pipelines.simulate import PipelineSimulation, SeasonChanges, SeasonRange, simulate_pipeline
from leadline.core.errors import InvalidInput
from leadline.core.units import format_duration
from leadline.interfaces.cli.command import FILE, argument, command, json_option, option
from leadline.interfaces.cli.output import print_answer, print_note, print_table, status
from leadline.interfaces.documents import PIPELINE_SIMULATION
from leadline.interfaces.tables import format_currency, format_energy
from leadline.pipelines.replay import SeasonOutcome, StageOutcome, TierOutcome

Part = TypeVar("Part", StageOutcome, TierOutcome)


@command("simulate")
@argument("file", "PIPELINE.toml", "Pipeline file.", type=FILE)
@option("--events", "EVENT=10x", "Times as many events, or a rate such as 100/min; repeatable.", "as recorded",
        multiple=True)  # fmt: skip
@option("--without", "TIER", "Leave a tier out; repeatable.", "none", multiple=True)
@option("--bandwidth", "TIER=RATE", "Bandwidth of copies to a tier, such as hpc=1MB/s; repeatable.", "as predicted",
        multiple=True)  # fmt: skip
@option("--like", "TIER=OTHER", "Measured times of OTHER hold for TIER, too; repeatable.", "none", multiple=True)
@option("length --for", "TIME", "Length of a season of stated rates, such as 2d.", "the recorded one, or 1d")
@json_option
def simulate(
    file: Path, *, events: tuple[str, ...], without: tuple[str, ...], bandwidth: tuple[str, ...],
    like: tuple[str, ...], length: str | None, json: bool,
) -> None:  # fmt: skip
    """Replay the recorded season with changes, in seconds and without running anything.

    Beside the season as measured stands its replay without changes, which shows the error of the simulation.
    """
    changes = SeasonChanges(
        _pairs("--events", events, "images=10x"), without, _pairs("--bandwidth", bandwidth, "hpc=1MB/s"),
        _pairs("--like", like, "cloud=hpc"), length,
    )  # fmt: skip
    with status("simulating", quiet=json):
        simulation = simulate_pipeline(file, changes)
    print_answer(simulation, PIPELINE_SIMULATION, _print_simulation, json=json)


def _pairs(name: str, texts: tuple[str, ...], example: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [text for text, (key, sign, value) in zip(texts, pairs, strict=True) if not (key and sign and value)]:
        raise InvalidInput(f"{name} is {wrong[0]!r}: write for example {name} {example}")
    return {key: value for key, _, value in pairs}


def _print_simulation(simulation: PipelineSimulation) -> None:
    click.echo(f"{simulation.name}, simulated in {format_duration(simulation.simulated_in_s)}")
    click.echo()
    seasons: dict[str, SeasonOutcome] = {}
    if simulation.measured is not None and simulation.replayed is not None:
        seasons = {"measured": simulation.measured, "replayed": simulation.replayed.likely}
    rows = [
        (label, *(show(season) for season in seasons.values()), show(simulation.changed.likely),
         _range(simulation.changed, show))
        for label, show in _rows(simulation.changed.likely)
    ]  # fmt: skip
    print_table(("", *seasons, "changed", "range"), rows, words=("", "range"))
    for note in simulation.notes:
        print_note(note)


def _rows(season: SeasonOutcome) -> list[tuple[str, Callable[[SeasonOutcome], str]]]:
    stage_rows: dict[str, Callable[[StageOutcome], str]] = {
        "runs": lambda stage: str(stage.runs),
        "most waiting": lambda stage: str(stage.most_waiting),
        "longest delay": lambda stage: _time(stage.longest_delay_s) if stage.runs else "",
    }
    tier_rows: dict[str, Callable[[TierOutcome], str]] = {
        "runs": lambda tier: str(tier.runs),
        "time": lambda tier: _time(tier.busy_s),
        "cost": lambda tier: "unknown" if tier.cost_usd is None else format_currency(tier.cost_usd, "USD"),
        "energy": lambda tier: "unknown" if tier.energy_j is None else format_energy(tier.energy_j),
    }
    rows: list[tuple[str, Callable[[SeasonOutcome], str]]] = [("whole season", lambda season: _time(season.elapsed_s))]
    for name in season.stages:
        rows += [(f"{name}: {label}", _of(name, show, lambda of: of.stages)) for label, show in stage_rows.items()]
    for name in season.tiers:
        rows += [(f"{name}: {label}", _of(name, show, lambda of: of.tiers)) for label, show in tier_rows.items()]
    return rows


def _of(
    name: str, show: Callable[[Part], str], parts: Callable[[SeasonOutcome], Mapping[str, Part]]
) -> Callable[[SeasonOutcome], str]:
    return lambda season: show(parts(season)[name]) if name in parts(season) else ""


def _range(seasons: SeasonRange, show: Callable[[SeasonOutcome], str]) -> str:
    """Return the values with the bounds of all times, if they differ."""
    fast, slow = show(seasons.fast), show(seasons.slow)
    return "" if fast == slow else f"{fast} – {slow}"


def _time(span_s: float | None) -> str:
    return "unknown" if span_s is None else format_duration(span_s)
