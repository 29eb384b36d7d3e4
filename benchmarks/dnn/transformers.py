"""Whole transformers on a device that the model never saw, from kernels measured on other devices."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.dnn.kernel_data import DEVICES, NAMES, STREAMS, timings
from benchmarks.dnn.kernel_sweeps import swept_kernels as swept_by
from benchmarks.dnn.kernels import INNER_ROWS, KernelTrust, predicted_seconds, trusted_model
from benchmarks.dnn.splits import LEVEL, Array, SplitResult
from benchmarks.dnn.transformer_graphs import TracedTransformer, traced_transformers
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.step_time.fitted_kernels import FittedKernels
from leadline.estimators.step_time.kernel_fitting import KernelSamples, fit_kernel_samples, tabulate_kernels
from leadline.estimators.step_time.learned_kernels import LearnedKernels
from leadline.estimators.step_time.roofline import RooflineKernels
from leadline.estimators.step_time.swept_kernels import fit_sweep
from leadline.uncertainty.conformal import Residuals, calibrate

MOST = {"bmm": 1000, "linear": 1000, "ln": 500, "softmax": 500, **dict.fromkeys(STREAMS, 250)}
"""Kernels of each device that are taken of a table."""
TARGET, WORST = 8.0, 12.0
"""Mean errors that are aimed at, of all runs and of those on any one device, in percent."""
TRUSTED = (0.0, 0.5, 1.0)
"""How far trees may be trusted on a device whose kernels were not measured."""


def splits(data: Path, *, quick: bool = False) -> list[SplitResult]:
    """Return inference and training steps with each device left out, without and with a sweep of kernels on it."""
    left_out = held_out_runs(data, 4 if quick else 1)
    return [
        left_out.asked(training=training, swept=swept) for swept in (False, True) for training in (False, True)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TransformerRuns:
    """What suits new devices: trust in trees, and the logarithm of whole steps over the sum of their kernels."""

    trusted: float = 1.0
    offset: float = 0.0


def held_out_runs(data: Path, share: int = 1) -> "HeldOutRuns":
    """Return the runs and the kernels, a ``share``-th of these, from which each device is left out in turn."""
    measured = [one for table, most in MOST.items() for one in timings(data, table, most // share)]
    return HeldOutRuns(tabulate_kernels(measured, NAMES), traced_transformers(data))


@dataclass(slots=True)
class HeldOutRuns:
    """Each device left out in turn, of kernels and of runs; fits are shared by the devices that they leave out."""

    timings: KernelSamples
    runs: list[TracedTransformer]
    fitted: dict[frozenset[str], FittedKernels] = field(default_factory=dict)
    priced: dict[tuple[frozenset[str], str, TransformerRuns, bool], Array] = field(default_factory=dict)

    def asked(self, *, training: bool, swept: bool) -> SplitResult:
        """Ask for the runs of one mode on each device."""
        rows: list[TracedTransformer] = []
        point, low, high, chosen = [], [], [], {}
        for device in self._devices():
            own = [i for i, run in enumerate(self._of(device)) if run.training is training]
            if not own:
                continue
            suit, errors = (TransformerRuns(), self._swept_errors(device)) if swept else self._suiting(device)
            answer = self._priced((device,), device, suit, swept=swept)[own]
            residuals = Residuals.of(np.exp(errors), np.ones(len(errors)), scale="")
            ends = calibrate(residuals).interval(answer, np.full(len(own), np.nan), np.zeros(len(own)), "", LEVEL)
            rows += [self._of(device)[i] for i in own]
            point.append(answer)
            low.append(ends[0])
            high.append(ends[1])
            chosen[device] = {} if swept else asdict(suit)
        what = "training" if training else "inference"
        split = f"{what}, device left out" + (", sweep on it" if swept else "")
        return _as_asked(split, rows, (np.concatenate(point), np.concatenate(low), np.concatenate(high)), chosen)

    def _devices(self) -> list[str]:
        return sorted({run.device for run in self.runs})

    def _of(self, device: str) -> list[TracedTransformer]:
        return [run for run in self.runs if run.device == device]

    def suiting(self) -> tuple[float, dict[str, float]]:
        """Return the trust that suits devices left out, and by their maker what is left of the logarithms of steps."""
        best: tuple[float, float, dict[str, float]] = (np.inf, 0.0, {})
        for trusted in TRUSTED:
            logs = {one: self._errors((one,), one, TransformerRuns(trusted), swept=False) for one in self._devices()}
            vendors = {_device(one).vendor for one in logs}
            offsets = {vendor: _offset(logs, vendor) for vendor in sorted(vendors)}
            left = np.concatenate([errors - offsets[_device(one).vendor] for one, errors in logs.items()])
            best = min(best, (_mape(left), trusted, offsets), key=lambda one: one[0])
        return best[1], best[2]

    def _suiting(self, out: str) -> tuple["TransformerRuns", Array]:
        """Return the trust and the offset that suit the other devices, and the errors left on those.

        The offset is that of the maker's other devices, whose libraries are the same; none where there is no other.
        """
        best: tuple[float, TransformerRuns, Array] = (np.inf, TransformerRuns(), np.zeros(0))
        for trusted in TRUSTED:
            others = [one for one in self._devices() if one != out]
            logs = {one: self._errors((out, one), one, TransformerRuns(trusted), swept=False) for one in others}
            offset = _offset(logs, _device(out).vendor)
            left = np.concatenate([errors - offset for errors in logs.values()])
            best = min(best, (_mape(left), TransformerRuns(trusted, offset), left), key=lambda one: one[0])
        return best[1], best[2]

    def _swept_errors(self, out: str) -> Array:
        """Return the errors on the other devices, each left out as well and swept."""
        others = [one for one in self._devices() if one != out]
        return np.concatenate([self._errors((out, one), one, TransformerRuns(), swept=True) for one in others])

    def _errors(self, out: tuple[str, ...], device: str, suit: "TransformerRuns", *, swept: bool) -> Array:
        """Return ln(measured ÷ predicted) of all runs on a device."""
        measured = np.array([run.elapsed_s for run in self._of(device)])
        return np.asarray(np.log(measured / self._priced(out, device, suit, swept=swept)))

    def _priced(self, out: tuple[str, ...], device: str, suit: "TransformerRuns", *, swept: bool) -> Array:
        """Return the seconds of all runs on a device by the model that was fitted without the devices ``out``."""
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
            left = [names.index(_device(one).name) for one in out]
            keep = np.flatnonzero(~np.isin(self.timings.device, left))
            self.fitted[key] = fit_kernel_samples(
                self.timings.at(keep), **({"tree_rows": 1000} if len(out) == 1 else INNER_ROWS)
            )
        return self.fitted[key]

    def _sweep(self, fitted: FittedKernels, device: str) -> KernelSamples:
        """Return the kernels of a device that a sweep measures."""
        place = self.timings.boards.names.index(_device(device).name)
        own = self.timings.at(np.flatnonzero(self.timings.device == place))
        return own.at(swept_by(own, predicted_seconds(fitted, own))[0])


def _offset(logs: Mapping[str, Array], vendor: str) -> float:
    """Return the mean over a maker's devices of the median of their errors; zero where it has none."""
    own = [float(np.median(errors)) for one, errors in logs.items() if _device(one).vendor == vendor]
    return float(np.mean(own)) if own else 0.0


def _mape(left: Array) -> float:
    return float(np.mean(np.abs(np.expm1(-left))))


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
