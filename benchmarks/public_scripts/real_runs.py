"""``bench script-runs``: small public scripts estimated for this machine, then run to their end."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

from benchmarks.public_scripts.corpus import PublicScript, public_scripts, require_scripts, variables_set
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_most, within
from leadline.app.composition import toolbox
from leadline.app.machines.this_machine import calibrate
from leadline.core.errors import JobFailed
from leadline.core.estimate import Estimate, Interval
from leadline.core.hardware import Device
from leadline.core.processes import CompletedProcess
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.execution.wrapper.sampling import TreeSampler

RUNS = (
    "examples-forward-forward", "examples-vae", "mingpt-adder", "makemore-transformer",
    "makemore-lstm", "makemore-mlp", "tutorial-feedforward", "tutorial-linear", "tutorial-logistic", "tutorial-birnn",
    "tutorial-rnn", "morvan-301", "morvan-302", "morvan-306", "morvan-402", "morvan-403", "morvan-503", "nlp-nnlm",
    "nlp-textcnn", "nlp-textlstm", "nlp-seq2seq", "nlp-transformer", "nlp-bert", "zerotoall-05", "zerotoall-07",
    "zerotoall-12-4",
    "examples-word-lm-lstm", "examples-super-resolution", "gan-wgan", "morvan-406", "morvan-504", "nlp-textrnn",
    "pygcn", "pygat", "cleanrl-dqn", "pyg-gcn", "pyg-sgc", "pyg-autoencoder",
    "nlp-bilstm", "cleanrl-c51", "cleanrl-ppo", "pyg-arma", "pyg-tagcn", "pyg-pmlp", "pyg-link-pred", "pyg-infomax",
    "pyg-mixhop", "gan-gan", "gan-aae", "lightning-ppo-torch",
)  # fmt: skip
"""Scripts that end within minutes on two cores, chosen by their length alone."""

TIMEOUT_S = 600.0
TIME_TARGET, MEMORY_TARGET, COVERAGE = 20.0, 10.0, (85.0, 95.0)
METRICS = ("time", "host memory")


def run(*, data: Path | None = None, quick: bool = False, only: str | None = None) -> BenchmarkResult:
    """Calibrate this CPU, then estimate and run every script, or those whose names begin with ``only``.

    ``quick`` takes every fifth script.

    Raises:
        InvalidInput: There is no folder of scripts.
        JobFailed: A script failed; the message has its last line.
    """
    data = require_scripts(data)
    scripts = [script for script in public_scripts((only,) if only else RUNS) if script.name in RUNS]
    device = calibrate(device_type="cpu", budget_s=25.0 if quick else 75.0, progress=lambda *_: None, save=False)
    details = [measure(script, data, device) for script in scripts[:: 5 if quick else 1]]
    return BenchmarkResult(
        "script-runs", tuple(_rows(details)), machine={"device": device.name}, details=tuple(details)
    )


def measure(script: PublicScript, data: Path, device: Device) -> dict[str, object]:
    """Estimate a script for the device, run it here, and return both by metric."""
    estimate = estimate_script(script, data, device)
    elapsed_s, peak_bytes = run_script(script, data)
    predicted = {"time": estimate.elapsed_s, "host memory": estimate.host_memory_bytes}
    measured = {"time": elapsed_s, "host memory": float(peak_bytes)}
    metrics = {name: _compare(predicted[name], measured[name]) for name in METRICS}
    return {"name": script.name, "category": script.category, **metrics, "reasons": list(estimate.basis.reasons)}


def estimate_script(script: PublicScript, data: Path, device: Device) -> Estimate:
    """Return what ``leadline estimate --on local`` answers for a script."""
    argv = script.command(data)
    workload = Workload(ModelSource(ModelKind.COMMAND, " ".join(argv), argv))
    with contextlib.chdir(script.cwd(data)), variables_set(script.environment(script.cwd(data).absolute(), data)):
        tools = toolbox()
        job = tools.sources[ModelKind.COMMAND](workload, device_type="cpu")
        return tools.estimator.estimate(workload, job, device)


def run_script(script: PublicScript, data: Path) -> tuple[float, int]:
    """Run a script to its end in a copy of its repository; return its seconds and the peak memory of its processes.

    Raises:
        JobFailed: It failed, or did not end in time.
    """
    with script.copied(data) as cwd, ThreadPoolExecutor(1) as pool:

        def start() -> tuple[CompletedProcess, float]:
            begun = time.perf_counter()
            quiet = {"CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg", "WANDB_MODE": "disabled"}
            done = run_process(
                script.command(data), env={**quiet, **script.environment(cwd, data)}, cwd=cwd, timeout_s=TIMEOUT_S
            )
            return done, time.perf_counter() - begun

        sampler, running, began = TreeSampler(run_process), pool.submit(start), time.perf_counter()
        while not running.done():
            sampler.sample()
            # A sample stops the job for a while, so more of them would lengthen what is measured.
            time.sleep(sampler.next_interval_s(time.perf_counter() - began))
        done, elapsed_s = running.result()
    if done.returncode != 0:
        last = (done.stderr.strip() or "it printed no error").splitlines()[-1]
        raise JobFailed(f"{script.name} did not run to its end (exit code {done.returncode}): {last}")
    return elapsed_s, sampler.peak_memory_bytes


def _compare(predicted: Interval | None, measured: float) -> dict[str, float] | None:
    if predicted is None:
        return None
    error = 100 * (predicted.point / measured - 1)
    bounds = {"point": predicted.point, "low": predicted.low, "high": predicted.high}
    return {**bounds, "measured": measured, "error_percent": error}


def _rows(details: Sequence[Mapping[str, object]]) -> list[BenchmarkRow]:
    """Return the error and the coverage of each metric."""
    rows = []
    for metric, target in zip(METRICS, (TIME_TARGET, MEMORY_TARGET), strict=True):
        points = [detail[metric] for detail in details if detail[metric] is not None]
        errors = [abs(point["error_percent"]) for point in points]  # type: ignore[index]
        inside = [point["low"] <= point["measured"] <= point["high"] for point in points]  # type: ignore[index]
        rows += [
            at_most(f"{metric} MAPE", fmean(errors), target, "%", n=len(points),
                    how="whole runs of public scripts, estimated from the calibration and a trace"),
            within(f"{metric} interval coverage", 100 * fmean(inside), COVERAGE, "%", n=len(points),
                   how="share of the runs within the 90 % interval"),
        ]  # fmt: skip
    return rows
