"""Whole transformers on a held-out device, from kernels measured on other devices."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.dnn.kernel_data import DEVICES, NAMES, STREAMS, timings
from benchmarks.dnn.kernel_fitting import fit_kernel_samples
from benchmarks.dnn.kernel_sweeps import swept_kernels as swept_by
from benchmarks.dnn.kernels import INNER_ROWS, KernelTrust, predicted_seconds, trusted_model
from benchmarks.dnn.splits import LEVEL, Array, SplitResult
from benchmarks.dnn.transformer_graphs import TracedTransformer, traced_transformers
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.step_time.fitted_kernels import FittedKernels, LearnedKernels
from leadline.estimators.step_time.roofline import RooflineKernels
from leadline.estimators.step_time.swept_kernels import KernelSamples, fit_sweep, tabulate_kernels
from leadline.uncertainty.conformal import Residuals, calibrate

MOST = {"bmm": 1000, "linear": 1000, "ln": 500, "softmax": 500, **dict.fromkeys(STREAMS, 250)}
"""Kernels of each device and table in use."""
TARGET, WORST = 8.0, 12.0
"""Targets of the mean error of all runs and of those on any one device, in percent."""
TRUSTED = (0.0, 0.5, 1.0)
"""Candidates for the weight of the trees on a device without measured kernels."""


def splits(data: Path, *, quick: bool = False) -> list[SplitResult]:
    """Return inference and training steps with each device held out, without and with a sweep of its kernels."""
    left_out = held_out_runs(data, 4 if quick else 1)
    return [
        left_out.split(training=training, swept=swept) for swept in (False, True) for training in (False, True)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TransformerRuns:
    """Settings for new devices: weight of the trees, and logarithm of whole steps over the sum of their kernels."""

    trusted: float = 1.0
    offset: float = 0.0


def held_out_runs(data: Path, share: int = 1) -> "HeldOutRuns":
    """Return the runs and the kernels (a ``share``-th of these), from which each device is held out in turn."""
    measured = [sample for table, most in MOST.items() for sample in timings(data, table, most // share)]
    return HeldOutRuns(tabulate_kernels(measured, NAMES), traced_transformers(data))


@dataclass(slots=True)
class HeldOutRuns:
    """Kernels and runs with each device held out in turn; splits without the same devices share a fit."""

    timings: KernelSamples
    runs: list[TracedTransformer]
    fitted: dict[frozenset[str], FittedKernels] = field(default_factory=dict)
    priced: dict[tuple[frozenset[str], str, TransformerRuns, bool], Array] = field(default_factory=dict)

    def split(self, *, training: bool, swept: bool) -> SplitResult:
        """Predict the runs of one phase on each device."""
        rows: list[TracedTransformer] = []
        point, low, high, chosen = [], [], [], {}
        for device in self._devices():
            places = [i for i, run in enumerate(self._of(device)) if run.training is training]
            if not places:
                continue
            suit, errors = (TransformerRuns(), self._swept_errors(device)) if swept else self._suiting(device)
            answer = self._priced((device,), device, suit, swept=swept)[places]
            residuals = Residuals.of(np.exp(errors), np.ones(len(errors)), scale="")
            ends = calibrate(residuals).interval(answer, np.full(len(places), np.nan), np.zeros(len(places)), "", LEVEL)
            rows += [self._of(device)[i] for i in places]
            point.append(answer)
            low.append(ends[0])
            high.append(ends[1])
            chosen[device] = {} if swept else asdict(suit)
        phase = "training" if training else "inference"
        split = f"{phase}, device left out" + (", sweep on it" if swept else "")
        return _as_asked(split, rows, (np.concatenate(point), np.concatenate(low), np.concatenate(high)), chosen)

    def _devices(self) -> list[str]:
        return sorted({run.device for run in self.runs})

    def _of(self, device: str) -> list[TracedTransformer]:
        return [run for run in self.runs if run.device == device]

    def suiting(self) -> tuple[float, dict[str, float]]:
        """Return the best weight of the trees for held-out devices, and by vendor the mean residual log of steps."""
        best: tuple[float, float, dict[str, float]] = (np.inf, 0.0, {})
        for trusted in TRUSTED:
            suit = TransformerRuns(trusted)
            logs = {device: self._errors((device,), device, suit, swept=False) for device in self._devices()}
            vendors = {_device(device).vendor for device in logs}
            offsets = {vendor: _offset(logs, vendor) for vendor in sorted(vendors)}
            residuals = np.concatenate([errors - offsets[_device(device).vendor] for device, errors in logs.items()])
            best = min(best, (_mape(residuals), trusted, offsets), key=lambda choice: choice[0])
        return best[1], best[2]

    def _suiting(self, out: str) -> tuple["TransformerRuns", Array]:
        """Return the best settings on the other devices, and the residuals on those.

        The offset is that of the vendor's other devices, whose libraries are the same; zero without another.
        """
        best: tuple[float, TransformerRuns, Array] = (np.inf, TransformerRuns(), np.zeros(0))
        for trusted in TRUSTED:
            inner = [device for device in self._devices() if device != out]
            suit = TransformerRuns(trusted)
            logs = {device: self._errors((out, device), device, suit, swept=False) for device in inner}
            offset = _offset(logs, _device(out).vendor)
            residuals = np.concatenate([errors - offset for errors in logs.values()])
            choice = (_mape(residuals), TransformerRuns(trusted, offset), residuals)
            best = min(best, choice, key=lambda choice: choice[0])
        return best[1], best[2]

    def _swept_errors(self, out: str) -> Array:
        """Return the errors on the other devices, each held out as well and swept."""
        inner = [device for device in self._devices() if device != out]
        return np.concatenate([self._errors((out, device), device, TransformerRuns(), swept=True) for device in inner])

    def _errors(self, out: tuple[str, ...], device: str, suit: "TransformerRuns", *, swept: bool) -> Array:
        """Return ln(measured ÷ predicted) of all runs on a device."""
        measured = np.array([run.elapsed_s for run in self._of(device)])
        return np.asarray(np.log(measured / self._priced(out, device, suit, swept=swept)))

    def _priced(self, out: tuple[str, ...], device: str, suit: "TransformerRuns", *, swept: bool) -> Array:
        """Return the seconds of all runs on a device by the model fitted without the devices ``out``."""
        key = (frozenset(out), device, suit, swept)
        if key not in self.priced:
            fitted = trusted_model(self._model(out), KernelTrust(suit.trusted))
            fitted = replace(fitted, steps={_device(device).vendor: suit.offset})
            if swept:
                fitted = fit_sweep(fitted, self._sweep(fitted, device))
            model = LearnedKernels(fitted, _device(device))
            self.priced[key] = np.array([model.step_s(run.graph) for run in self._of(device)])
        return self.priced[key]

    def _model(self, out: tuple[str, ...]) -> FittedKernels:
        key = frozenset(out)
        if key not in self.fitted:
            names = self.timings.boards.names
            dropped = [names.index(_device(device).name) for device in out]
            keep = np.flatnonzero(~np.isin(self.timings.device, dropped))
            self.fitted[key] = fit_kernel_samples(
                self.timings.at(keep), **({"tree_rows": 1000} if len(out) == 1 else INNER_ROWS)
            )
        return self.fitted[key]

    def _sweep(self, fitted: FittedKernels, device: str) -> KernelSamples:
        """Return the kernels of a device that a sweep times."""
        place = self.timings.boards.names.index(_device(device).name)
        of_device = self.timings.at(np.flatnonzero(self.timings.device == place))
        return of_device.at(swept_by(of_device, predicted_seconds(fitted, of_device))[0])


def _offset(logs: Mapping[str, Array], vendor: str) -> float:
    """Return the mean over a vendor's devices of the median of their errors; zero without a device."""
    medians = [float(np.median(errors)) for device, errors in logs.items() if _device(device).vendor == vendor]
    return float(np.mean(medians)) if medians else 0.0


def _mape(residuals: Array) -> float:
    return float(np.mean(np.abs(np.expm1(-residuals))))


def _as_asked(
    split: str, rows: Sequence[TracedTransformer], figures: tuple[Array, Array, Array], chosen: Mapping[str, object]
) -> SplitResult:
    point, low, high = figures
    measured = np.array([run.elapsed_s for run in rows])
    specs = np.array([RooflineKernels(_device(run.device)).step_s(run.graph) for run in rows])
    peak = np.array([run.graph.flops / _device(run.device).peak_flops_per_s["float32"] for run in rows])
    floor = 100 * float(np.mean([abs(run.summed_s / run.elapsed_s - 1) for run in rows]))
    return SplitResult(
        "transformers",
        split,
        measured,
        {"leadline": point, "specs roofline": specs, "flops over peak": peak},
        low,
        high,
        np.full(len(measured), ""),
        mape=TARGET,
        how="kernels and runs of the device left out",
        limits=f"the sum of the ops measured one by one is itself {floor:.1f} % off",
        more={"sum_of_measured_ops_mape": round(floor, 2), "chosen": dict(chosen)},
        apart=np.array([run.device for run in rows]),
        apart_mape=WORST,
    )


def _device(name: str) -> Device:
    return TomlCatalog().device(DEVICES[name])
