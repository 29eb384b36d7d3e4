"""Accuracy over whole seasons of the field station: never retrained, by the calendar, and when drift is detected."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from benchmarks.results import BenchmarkRow
from leadline.files.atomic import write_atomically

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/field_station/season.py"
STRENGTHS = (0.3, 0.6, 1.0)
SEEDS = (1, 2, 3)
"""Kept for the report: the example was designed on seeds from 100 on."""
QUICK = ((100, 1.0),)
NEVER, SCHEDULED, REVIEWED, TRIGGERED = "never", "scheduled", "scheduled, reviews before", "triggered"
STATION = "this station"
COLOURS = {NEVER: "#8a8d91", SCHEDULED: "#e09f3e", REVIEWED: "#b5651d", TRIGGERED: "#0b6e4f", STATION: "#1d4e89"}
POLICIES = (NEVER, SCHEDULED, REVIEWED, TRIGGERED)
LABELS = {
    NEVER: "never retrained",
    SCHEDULED: "scheduled, at equal compute",
    REVIEWED: "scheduled, with most reviews before",
    TRIGGERED: "when drift is detected",
    STATION: "this season, with real parts",
}
PROCESSES = 2

SeasonCourse = Mapping[str, Any]
"""What season.py prints of a policy, with the season's seed and strength."""


def season_rows(folder: Path, *, quick: bool) -> list[BenchmarkRow]:
    """Run the seasons, keep their curves in ``folder`` as seasons.json and seasons.svg, and return the rows."""
    settings = QUICK if quick else tuple(product(SEEDS, STRENGTHS))
    with ThreadPoolExecutor(PROCESSES) as pool:
        courses = [course for season in pool.map(lambda pair: follow_season(*pair), settings) for course in season]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "seasons.json", msgspec.json.format(msgspec.json.encode(courses)))
    draw_seasons(courses, folder / "seasons.svg")
    return rows_of(courses)


def rows_of(courses: Sequence[SeasonCourse]) -> list[BenchmarkRow]:
    """Return a row for each strength of drift; the mildest has no target."""
    rows = []
    strengths = sorted({course["strength"] for course in courses})
    for strength in strengths:
        of_policy = {
            policy: [c["accuracy"] for c in courses if c["strength"] == strength and c["policy"] == policy]
            for policy in POLICIES
        }
        never, evenly, before, triggered = (100 * mean(of_policy[policy]) for policy in POLICIES)
        scheduled = max(evenly, before)
        retrained = [c["retrained"] for c in courses if c["strength"] == strength and c["policy"] == TRIGGERED]
        target = None if strength == strengths[0] and len(strengths) > 1 else max(never, scheduled)
        rows.append(
            BenchmarkRow(
                f"accuracy over a season, drift of strength {strength:g}",
                triggered,
                "%",
                target=target,
                met=None if target is None else triggered > target,
                baseline=scheduled,
                n=len(retrained),
                how=f"retrained when drift was detected, {mean(map(len, retrained)):.1f} times a season; baseline: by "
                f"the calendar, as often, with reviews spread evenly ({evenly:.1f} %) or before each retraining "
                f"({before:.1f} %); never retrained: {never:.1f} %",
            )
        )
    return rows


def draw_seasons(courses: Sequence[SeasonCourse], path: Path) -> None:
    """Draw a panel for each strength: accuracy over the season, thin for each seed and thick for their mean.

    It is an SVG or a PNG file, as the path ends.
    """
    from matplotlib import rc_context  # noqa: PLC0415 - heavy, and only to draw
    from matplotlib.figure import Figure  # noqa: PLC0415

    strengths = sorted({course["strength"] for course in courses})
    with rc_context({"svg.hashsalt": "leadline", "svg.fonttype": "none"}):
        figure = Figure(figsize=(max(6.4, 4.2 * len(strengths)), 3.8), layout="constrained")
        axes = figure.subplots(1, len(strengths), squeeze=False, sharey=True)[0]
        for axis, strength in zip(axes, strengths, strict=True):
            for policy, colour in COLOURS.items():
                curves = [c["curve"] for c in courses if c["strength"] == strength and c["policy"] == policy]
                if not curves:
                    continue
                places = [(stretch + 0.5) / len(curves[0]) for stretch in range(len(curves[0]))]
                for curve in curves:
                    axis.plot(places, [100 * share for share in curve], color=colour, linewidth=0.6, alpha=0.4)
                middle = [100 * mean(shares) for shares in zip(*curves, strict=True)]
                axis.plot(places, middle, color=colour, linewidth=2, label=LABELS[policy])
            axis.set(title=f"drift of strength {strength:g}", xlabel="time of the season")
        axes[0].set_ylabel("accuracy [%]")
        figure.legend(
            *axes[0].get_legend_handles_labels(), frameon=False, loc="outside lower center",
            ncols=2 if len(strengths) == 1 else len(POLICIES),
        )  # fmt: skip
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def follow_season(seed: int, strength: float, *words: str) -> list[SeasonCourse]:
    """Return the courses that season.py prints; ``words`` are further options of it."""
    command = [sys.executable, str(EXAMPLE), "--seed", str(seed), "--strength", str(strength), *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603 - the example's own script
    courses = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    return [{"seed": seed, "strength": strength} | course for course in courses]
