"""Runs of an application whose walltime is known: 2 s + epochs x samples x 1e-4 s / cores, with 1 % of noise."""

import random

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.runs import Measurement, Run, Scale

START_S, UNIT_S = 2.0, 1e-4


def walltime_s(epochs, samples, cores=1, kind="a"):
    return START_S + epochs * samples * UNIT_S / cores * (1.0 if kind == "a" else 1.5)


def make_run(number, *, epochs=1, samples=1000, cores=1, kind="a", scale=Scale.SCALED_DOWN, noise=0.0,
             state=JobState.COMPLETED, name="net", tags=None, **more):  # fmt: skip
    truth = walltime_s(epochs, samples, cores, kind)
    elapsed = truth * (1 + noise)
    figures = {"elapsed_s": elapsed, "host_memory_bytes": 1e8 + 400.0 * samples,
               "startup_s": START_S * (1 + noise), "unit_s": (elapsed - START_S) / epochs,
               "work_s": elapsed - START_S * (1 + noise)}  # fmt: skip
    return Run(
        f"{number:012x}", JobSpec(name, ("net",), ResourceSpec(cores_per_task=cores), partition="cpu"), state,
        f"2026-01-01T00:00:{number:09d}", scale=scale,
        measured={name: Measurement(value, "", "test") for name, value in figures.items()},
        parameters={"epochs": epochs, "samples": samples, "kind": kind}, tags=tags or {}, **more,
    )  # fmt: skip


def campaign(scaled_down=120, full_scale=30, *, seed=1, repeats=1, noise=0.01):
    """Return runs at both scales, spread at random, each configuration ``repeats`` times."""
    draw = random.Random(seed)  # noqa: S311 - a test must repeat
    runs = []
    for scale, count in ((Scale.SCALED_DOWN, scaled_down), (Scale.FULL_SCALE, full_scale)):
        full = scale is Scale.FULL_SCALE
        for _ in range(count):
            epochs = draw.randint(20, 60) if full else draw.randint(1, 5)
            samples = draw.randint(20, 100) * 1000 if full else draw.randint(1, 10) * 1000
            cores, kind = draw.choice((1, 2, 4)), draw.choice("ab")
            runs += [
                make_run(len(runs) + turn, epochs=epochs, samples=samples, cores=cores, kind=kind, scale=scale,
                         noise=draw.gauss(0, noise))
                for turn in range(repeats)
            ]  # fmt: skip
    return runs
