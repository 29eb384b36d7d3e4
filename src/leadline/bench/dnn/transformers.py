"""Whole transformers on a device that the model never saw, from kernels measured on other devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from leadline.bench.dnn.asked import LEVEL, Array, Asked
from leadline.bench.dnn.kernel_data import DEVICES, NAMES, STREAMS, timings
from leadline.bench.dnn.kernel_sweeps import swept as swept_by
from leadline.bench.dnn.kernels import INNER_ROWS, Suit, seconds_of, suited
from leadline.bench.dnn.transformer_graphs import Traced, traced
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.learned.fit_kernels import Timings, learn, tabulate
from leadline.estimators.learned.fitted_kernels import FittedKernels
from leadline.estimators.learned.kernel_sweep import with_sweep
from leadline.estimators.learned.kernels import LearnedKernels
from leadline.estimators.roofline import SpecsKernels
from leadline.uncertainty.conformal import Residuals, calibrate

MOST = {"bmm": 1000, "linear": 1000, "ln": 500, "softmax": 500, **dict.fromkeys(STREAMS, 250)}
"""Kernels of each device that are taken of a table."""
TARGET = 8.0
TRUSTED = (0.0, 0.5, 1.0)
SWEPT_SHARES = (0.25, 0.5, 0.75, 1.0)
"""How far trees may be trusted from specifications; with a sweep, the share of its logarithm beside that of the
specifications: kernels swept back to back run hotter than those of a model, on P4, T4 and P100 at half their speed."""


def asked(data: Path, *, quick: bool = False) -> list[Asked]:
    """Return inference and training steps with each device left out, without and with a sweep of kernels on it."""
    share = 4 if quick else 1
    measured = [one for table, most in MOST.items() for one in timings(data, table, most // share)]
    left_out = _LeftOut(tabulate(measured, NAMES), traced(data))
    return [
        left_out.asked(training=training, swept=swept) for swept in (False, True) for training in (False, True)
    ]  # fmt: skip


@dataclass(slots=True)
class _LeftOut:
    """Each device left out in turn, of kernels and of runs; fits are shared by the devices that they leave out."""

    timings: Timings
    runs: list[Traced]
    fitted: dict[frozenset[str], FittedKernels] = field(default_factory=dict)
    priced: dict[tuple[frozenset[str], str, float, bool], Array] = field(default_factory=dict)

    def asked(self, *, training: bool, swept: bool) -> Asked:
        """Ask for the runs of one mode on each device."""
        rows: list[Traced] = []
        point, low, high, chosen = [], [], [], {}
        for device in self._devices():
            own = [i for i, run in enumerate(self._of(device)) if run.training is training]
            if not own:
                continue
            trusted, offset, errors = self._chosen(device, swept=swept)
            answer = (self._steps((device,), device, trusted, swept=swept) * np.exp(offset))[own]
            residuals = Residuals.of(np.exp(errors), np.ones(len(errors)), scale="")
            ends = calibrate(residuals).interval(answer, np.full(len(own), np.nan), np.zeros(len(own)), "", LEVEL)
            rows += [self._of(device)[i] for i in own]
            point.append(answer)
            low.append(ends[0])
            high.append(ends[1])
            chosen[device] = {"sweep's share" if swept else "trusted": trusted, "offset": round(offset, 3)}
        what = "training" if training else "inference"
        split = f"{what}, device left out" + (", sweep on it" if swept else "")
        return _as_asked(split, rows, (np.concatenate(point), np.concatenate(low), np.concatenate(high)), chosen)

    def _devices(self) -> list[str]:
        return sorted({run.device for run in self.runs})

    def _of(self, device: str) -> list[Traced]:
        return [run for run in self.runs if run.device == device]

    def _chosen(self, out: str, *, swept: bool) -> tuple[float, float, Array]:
        """Return the trust, or the sweep's share, and the offset that suit the others, and the errors left on those.

        The offset is that of the maker's other devices, whose libraries are the same; none where there is no other.
        """
        best: tuple[float, float, float, Array] = (np.inf, 0.0, 0.0, np.zeros(0))
        for trusted in SWEPT_SHARES if swept else TRUSTED:
            logs = {
                one: np.log(
                    np.array([run.elapsed_s for run in self._of(one)])
                    / self._steps((out, one), one, trusted, swept=swept)
                )
                for one in self._devices()
                if one != out
            }
            own = [np.median(errors) for one, errors in logs.items() if _device(one).vendor == _device(out).vendor]
            offset = float(np.mean(own)) if own else 0.0
            left = np.concatenate([errors - offset for errors in logs.values()])
            error = float(np.mean(np.abs(np.expm1(-left))))
            if error < best[0]:
                best = (error, trusted, offset, left)
        return best[1], best[2], best[3]

    def _steps(self, out: tuple[str, ...], device: str, trusted: float, *, swept: bool) -> Array:
        """Return the seconds of all runs on a device by the model that was fitted without the devices ``out``."""
        if swept:
            with_it, without = (self._priced(out, device, 1.0, swept=one) for one in (True, False))
            return np.asarray(with_it**trusted * without ** (1 - trusted))
        return self._priced(out, device, trusted, swept=False)

    def _priced(self, out: tuple[str, ...], device: str, trusted: float, *, swept: bool) -> Array:
        key = (frozenset(out), device, trusted, swept)
        if key not in self.priced:
            fitted = self._model(out)
            if swept:
                fitted = with_sweep(fitted, self._sweep(fitted, device))
            model = LearnedKernels(suited(fitted, Suit(trusted)), _device(device))
            self.priced[key] = np.array([model.step_s(run.graph) for run in self._of(device)])
        return self.priced[key]

    def _model(self, out: tuple[str, ...]) -> FittedKernels:
        key = frozenset(out)
        if key not in self.fitted:
            names = self.timings.boards.names
            left = [names.index(_device(one).name) for one in out]
            keep = np.flatnonzero(~np.isin(self.timings.device, left))
            self.fitted[key] = learn(self.timings.at(keep), **({"tree_rows": 1000} if len(out) == 1 else INNER_ROWS))
        return self.fitted[key]

    def _sweep(self, fitted: FittedKernels, device: str) -> Timings:
        """Return the kernels of a device that a sweep measures."""
        place = self.timings.boards.names.index(_device(device).name)
        own = self.timings.at(np.flatnonzero(self.timings.device == place))
        return own.at(swept_by(own, seconds_of(fitted, own))[0])


def _as_asked(
    split: str, rows: Sequence[Traced], figures: tuple[Array, Array, Array], chosen: Mapping[str, object]
) -> Asked:
    point, low, high = figures
    measured = np.array([run.elapsed_s for run in rows])
    specs = np.array([SpecsKernels(_device(run.device)).step_s(run.graph) for run in rows])
    peak = np.array([run.graph.flops / _device(run.device).peak_flops_per_s["float32"] for run in rows])
    errors = 100 * np.abs(point / measured - 1)
    devices = np.array([run.device for run in rows])
    by_device = {one: round(float(errors[devices == one].mean()), 2) for one in np.unique(devices).tolist()}
    floor = 100 * float(np.mean([abs(run.summed_s / run.elapsed_s - 1) for run in rows]))
    how = "kernels and runs of the device left out; the offset is that of the maker's other devices"
    worst = max(by_device, key=lambda one: by_device[one])
    return Asked(
        "transformers",
        split,
        measured,
        {"leadline": point, "specs roofline": specs, "flops over peak": peak},
        low,
        high,
        np.full(len(measured), ""),
        mape=TARGET,
        how=f"{how}; worst device {worst} {by_device[worst]:.1f} % (target 12)",
        limits=f"the sum of the ops measured one by one is itself {floor:.1f} % off",
        more={"by_device": by_device, "sum_of_measured_ops_mape": round(floor, 2), "chosen": dict(chosen)},
    )


def _device(name: str) -> Device:
    return TomlCatalog().device(DEVICES[name])
