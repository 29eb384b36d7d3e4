"""Run benchmarks by name: ``python3 dev bench NAME`` measures the promised metrics again."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import click

from benchmarks.provenance import with_provenance
from benchmarks.results import BenchmarkResult, BenchmarkRow, missed_targets, target_sign
from leadline.core.documents import to_document, to_json
from leadline.core.errors import InvalidInput, UnknownName
from leadline.interfaces.cli.command import FILE, argument, command, flag, option
from leadline.interfaces.cli.output import print_note, print_table, status


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark of the table.

    Attributes:
        module: Has ``run(*, quick)``; imported only when the benchmark runs.
        summary: One line of help.
        measures: Files and folders whose code its numbers depend on; ``benchmarks.stale`` watches them.
        seed: The seed of its random draws; None where nothing is drawn.
    """

    module: str
    summary: str
    measures: tuple[str, ...]
    seed: int | None = None


def _source(*names: str) -> tuple[str, ...]:
    return tuple(f"src/leadline/{name}" for name in names)


BENCHMARKS: dict[str, Benchmark] = {
    "local": Benchmark(
        "benchmarks.local.run",
        "small models: predicted from the calibration, then measured on this CPU",
        (*_source("graphs/torch", "estimators/step_time", "estimators/memory", "kit"), "benchmarks/local"),
    ),
    "trace": Benchmark(
        "benchmarks.trace",
        "unmodified training scripts: correct facts, time of the trace, accuracy of memory",
        (*_source("graphs/torch", "estimators/memory"), "benchmarks/trace.py", "benchmarks/corpus.py",
         "benchmarks/llama_7b.py", "benchmarks/scripts", "benchmarks/measured"),
    ),
    "scripts": Benchmark(
        "benchmarks.public_scripts.run",
        "public training scripts, unmodified: steps, weights and operations against real runs",
        (*_source("graphs/torch"), "benchmarks/public_scripts", "benchmarks/trace.py"),
    ),
    "script-runs": Benchmark(
        "benchmarks.public_scripts.real_runs",
        "small public scripts, estimated for this machine, then run to their end",
        (*_source("graphs/torch", "catalog/probes", "estimators/walltime.py", "estimators/step_time",
                  "estimators/memory"), "benchmarks/public_scripts"),
    ),
    "probe": Benchmark(
        "benchmarks.probe",
        "whole runs forecast from their first steps, and the overhead of watching a script",
        (*_source("app/jobs/probe.py", "execution/hook", "execution/wrapper", "estimators/progress"),
         "benchmarks/probe.py", "benchmarks/probed"),
    ),
    "speed": Benchmark(
        "benchmarks.speed",
        "time of start-up and of an estimate, compared with accelerate",
        (*_source("interfaces/cli", "app/estimate", "app/workloads", "graphs/hf_config", "estimators"),
         "benchmarks/speed.py"),
    ),
    "harp": Benchmark(
        "benchmarks.harp.run",
        "unmeasured configurations: predicted by HARP, by plain boosting and by Leadline",
        (*_source("training", "estimators/tabular", "uncertainty"), "benchmarks/harp", "benchmarks/histories.py",
         "benchmarks/histories"),
        seed=0,
    ),
    "dnn": Benchmark(
        "benchmarks.dnn.run",
        "steps, kernels, collectives and whole runs on held-out devices, models and scales",
        (*_source("estimators", "training", "uncertainty"), "benchmarks/dnn"),
        seed=0,
    ),
    "scale": Benchmark(
        "benchmarks.scale.run",
        "training steps on many GPUs, on sources and generations that were left out",
        (*_source("estimators/parallelism", "training/decoder_steps.py", "graphs/hf_config"), "benchmarks/scale"),
    ),
    "memory": Benchmark(
        "benchmarks.memory.run",
        "memory peaks of real steps: predictions, their bound, and the alternatives",
        (*_source("graphs/torch", "estimators/memory"), "benchmarks/memory", "benchmarks/measured",
         "benchmarks/llama_7b.py"),
    ),
    "fine-tunes": Benchmark(
        "benchmarks.memory.fine_tunes",
        "published memory of fine-tuning runs, with adapters and without",
        (*_source("graphs/hf_config", "estimators/memory", "estimators/gpu_memory_interval.py"),
         "benchmarks/memory/fine_tunes.py", "benchmarks/memory/peft_runs.py"),
    ),
    "detectors": Benchmark(
        "benchmarks.detectors.run",
        "published GPU memory of segmenters and detectors in training",
        (*_source("estimators/memory"), "benchmarks/detectors"),
    ),
    "plane": Benchmark(
        "benchmarks.plane.run",
        "jobs on a real Slurm: rates, faults, costs; waits and requests on a published trace",
        (*_source("execution", "estimators/queue_wait.py", "estimators/walltime.py", "estimators/progress"),
         "benchmarks/plane"),
        seed=1,
    ),
    "field": Benchmark(
        "benchmarks.field.run",
        "the field station on a real broker and Slurm: seasons, faults, ingestion, transfers",
        (*_source("pipelines", "app/pipelines", "estimators/adaptive_transfer.py", "estimators/file_transfer.py"),
         "examples/field_station", "benchmarks/field"),
        seed=1,
    ),
    "interfaces": Benchmark(
        "benchmarks.interfaces.run",
        "questions that the chat understands without a model, and the page under load",
        (*_source("interfaces", "app/estimate", "app/jobs", "history"), "benchmarks/interfaces"),
        seed=1,
    ),
    "catalog": Benchmark(
        "benchmarks.catalog",
        "the whole catalog: estimated and ranked for one workload",
        (*_source("catalog", "recommendation", "app/estimate", "graphs/hf_config"), "benchmarks/catalog.py"),
    ),
    "trust": Benchmark(
        "benchmarks.trust.run",
        "wrong answers of the past, harm by traced scripts, hostile input, a busy machine",
        (*_source("app", "campaigns", "catalog", "core", "estimators", "execution", "files", "graphs", "history", "kit",
                  "pipelines", "recommendation", "training", "uncertainty"), "benchmarks/trust"),
        seed=1,
    ),
    "quick": Benchmark(
        "benchmarks.quick",
        "ratios that must not grow, in less than a minute, for continuous integration",
        (*_source("interfaces/cli", "app", "estimators", "execution/plane"), "benchmarks/quick.py"),
    ),
}  # fmt: skip

SCHEMA = "leadline.bench/1"


@command("bench", epilog="Benchmarks:\n" + "\n".join(f"  {name:<10} {row.summary}" for name, row in BENCHMARKS.items()))
@argument("name", "NAME", f"Which benchmark: {', '.join(BENCHMARKS)}.")
@flag("--quick", "A smaller run with fewer samples.")
@option("json_file --json", "FILE", "Also write the rows to this file as JSON.", "none", type=FILE)
@option("--data", "FOLDER", "A folder of public data, for benchmarks that read it.", "none", type=FILE)
@option("--only", "PART", "One part of a benchmark with parts, such as plane.", "all")
def bench(name: str, *, quick: bool, json_file: Path | None, data: Path | None, only: str | None) -> None:
    """Measure the promised metrics again; the exit code is 1 if a target is missed."""
    if name not in BENCHMARKS:
        raise UnknownName("bench", name, BENCHMARKS)
    if json_file is not None and not json_file.parent.is_dir():
        raise InvalidInput(f"--json {json_file} cannot be written: there is no folder {json_file.parent}; create it")
    benchmark = BENCHMARKS[name]
    run = import_module(benchmark.module).run
    result = _run(run, _options(name, run, quick=quick, data=data, only=only), name)
    result = with_provenance(result, benchmark.measures, seed=benchmark.seed)
    _print(result)
    if json_file is not None:
        json_file.write_text(to_json(to_document(result, SCHEMA)) + "\n", encoding="utf-8")
        print_note(f"written to {json_file}")
    if names := missed_targets(result.rows):
        sys.stderr.write(f"leadline bench: {len(names)} of {len(result.rows)} rows missed: {', '.join(names)}\n")
        raise click.exceptions.Exit(1)


def _options(
    name: str, run: Callable[..., BenchmarkResult], *, quick: bool, data: Path | None, only: str | None
) -> dict[str, object]:
    """Return the arguments of a benchmark; refuse options that it does not take."""
    options: dict[str, object] = {"quick": quick}
    parameters = inspect.signature(run).parameters
    if data is not None:
        if "data" not in parameters:
            raise InvalidInput(f"bench {name} reads no data: leave --data {data} out")
        if not data.is_dir():
            raise InvalidInput(f"--data {data} is not a folder: give the folder that holds the data")
        options["data"] = data
    if only is not None:
        if "only" not in parameters:
            raise InvalidInput(f"bench {name} has no parts: leave --only {only} out")
        options["only"] = only
    return options


def _run(run: Callable[..., BenchmarkResult], options: dict[str, object], name: str) -> BenchmarkResult:
    """Run a benchmark; show its progress if it reports any."""
    if "progress" not in inspect.signature(run).parameters:
        return run(**options)
    with status(f"bench {name}") as update:
        return run(**options, progress=lambda done, total: update(f"bench {name}: {done} of {total} done"))


def _print(result: BenchmarkResult) -> None:
    """Print the rows as a table."""
    rows = [
        (row.name, _with_unit(row.value, row.unit), _target(row), _met(row), _with_unit(row.baseline, ""), row.how)
        for row in result.rows
    ]
    click.echo(f"leadline bench {result.bench}")
    print_table(("metric", "value", "target", "met", "baseline", "how"), rows, words=("metric", "met", "how"))


def _with_unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.4g} {unit}".rstrip()


def _target(row: BenchmarkRow) -> str:
    """Write the target with its sign."""
    if row.target is None:
        return ""
    if row.target_high is not None:
        return f"{row.target:.4g} – {row.target_high:.4g}"
    return f"{target_sign(row.value, row.target, row.met)}{row.target:.4g}"


def _met(row: BenchmarkRow) -> str:
    if row.value is None:
        return "not measured"
    return "" if row.met is None else "yes" if row.met else "NO"
