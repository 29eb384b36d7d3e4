"""Single kernels on a held-out device: from its specifications, and with a short sweep on it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn import baselines
from benchmarks.dnn.kernel_data import DRIFTING, FAMILIES, NAMES, half_timings, timings
from benchmarks.dnn.kernel_fitting import fit_kernel_samples, typical_effects
from benchmarks.dnn.kernel_sweeps import HALF_PLAN, swept_kernels
from benchmarks.dnn.splits import LEVEL, Array, SplitResult
from leadline.estimators.step_time.analytical_kernels import analytical_model, combine_with_launch_s
from leadline.estimators.step_time.fitted_kernels import FittedKernels, kernel_groups
from leadline.estimators.step_time.kernel_table import KERNEL_GROUPS, kernel_coordinates
from leadline.estimators.step_time.swept_kernels import KernelSamples, fit_sweep, tabulate_kernels
from leadline.uncertainty.conformal import Residuals, calibrate

Whole = npt.NDArray[np.int64]

MOST = {"pointwise": 300}
"""Kernels of each device and table in use, by family; 1,500 by default."""
SPECS_TARGETS = {"bmm": 20.0, "linear": 20.0, "conv": 20.0, "norm": 12.0, "softmax": 12.0, "pointwise": 12.0}
SWEEP_TARGET = 10.0
TRUSTED = (0.25, 0.5, 1.0)
SHARES = (0.0, 0.5, 1.0)
"""Candidates for the weight of the trees on a new device, and for the share of the known devices' median residual."""
LEVELS = (0.9, 0.92, 0.94, 0.96, 0.98, 0.99)
"""Candidate levels for intervals on an unseen device."""
INNER_ROWS = {"law_rows": 250, "tree_rows": 500}
"""Kernels of each device for fits that only choose settings and intervals: those without two devices."""
UNSEEN = "unseen device"
HALF = "half-precision linear"
"""Products of matrix units, as profiled by Vidur; NeuSight's kernels are of single precision."""


def splits(data: Path, *, quick: bool = False) -> list[SplitResult]:
    """Return, for each family, held-out devices without and with a sweep, and held-out sizes."""
    results: list[SplitResult] = []
    for family in (*FAMILIES, HALF):
        left_out = HeldOutKernels(family, table_of(data, family, quick=quick))
        results += [left_out.from_specs(), left_out.with_sweeps(), _sizes_left_out(family, left_out.timings)]
    return results


def table_of(data: Path, family: str, *, quick: bool = False) -> KernelSamples:
    """Return the measured kernels of a family, from all its devices."""
    most = MOST.get(family, 1500) // (4 if quick else 1)
    if family == HALF:
        return tabulate_kernels(half_timings(data, most), NAMES)
    return tabulate_kernels([sample for table in FAMILIES[family] for sample in timings(data, table, most)], NAMES)


@dataclass(frozen=True, slots=True)
class KernelTrust:
    """Settings for new devices: weight of the trees, and share of the known devices' median residual."""

    trusted: float = 1.0
    share: float = 0.0


@dataclass(slots=True)
class HeldOutKernels:
    """One family with each device held out in turn; splits without the same devices share a fit."""

    family: str
    timings: KernelSamples
    fitted: dict[frozenset[int], FittedKernels] = field(default_factory=dict)

    @property
    def devices(self) -> range:
        """Return the positions of the devices in ``timings.boards``."""
        return range(len(self.timings.boards.names))

    def from_specs(self) -> SplitResult:
        """Predict each device from its specifications alone."""
        parts, chosen = [], {}
        for out in self.devices:
            model, residuals, suit = self._chosen(out)
            rows = self.rows(out)
            point = predicted_seconds(model, rows)
            parts.append(_Part(rows, point, *_interval(residuals, point, np.full(len(point), np.nan))))
            chosen[self.timings.boards.names[out]] = suit
        answers = {
            name: np.concatenate([ask(self.rows_without(out), self.rows(out)) for out in self.devices])
            for name, ask in baselines.METHODS.items()
        }
        measured = np.concatenate([part.rows.seconds for part in parts])
        named = list(enumerate(self.timings.boards.names))
        with_launch = np.concatenate([self._launch_known(out, chosen[name]) for out, name in named])
        floor = 100 * float(np.mean(np.abs(with_launch / measured - 1)))
        how = f"{len(self.devices)} devices, each left out; forms and intervals chosen by leaving out among the others"
        result = _as_asked(
            self.family, "device left out, specs", parts, answers, SPECS_TARGETS.get(self.family), how,
            {name: asdict(suit) for name, suit in chosen.items()},
        )  # fmt: skip
        limits = f"what no specification says: with the launch as measured on the host {floor:.1f} %"
        return replace(result, limits=limits, more={**result.more, "launch_known_mape": round(floor, 2)})

    def with_sweeps(self) -> SplitResult:
        """Predict each device with a sweep on it; the swept kernels are not tested."""
        parts, took = [], {}
        for out in self.devices:
            sweep = self.swept((out,), out)
            inner = []
            for inner_device in self.devices:
                if inner_device != out:
                    inner_sweep = self.swept((out, inner_device), inner_device)
                    inner.append(
                        Residuals.of(
                            inner_sweep.rows.seconds, inner_sweep.point, spread=inner_sweep.spread, scale=UNSEEN
                        )
                    )
            parts.append(_Part(sweep.rows, sweep.point, *_interval(inner, sweep.point, sweep.spread)))
            took[self.timings.boards.names[out]] = {"kernels": sweep.measured, "seconds": round(sweep.took_s, 1)}
        asked_without = zip(self.devices, parts, strict=True)
        answers = {
            "specs": np.concatenate([predicted_seconds(self.model((out,)), part.rows) for out, part in asked_without])
        }
        longest = max(took.values(), key=lambda sweep: sweep["seconds"])
        how = f"at most {longest['seconds']:.0f} s of a sweep on the device: {longest['kernels']} of its kernels"
        return _as_asked(self.family, "device left out, sweep on it", parts, answers, SWEEP_TARGET, how, took)

    def model(self, out: tuple[int, ...]) -> FittedKernels:
        """Return the model fitted without these devices."""
        key = frozenset(out)
        if key not in self.fitted:
            keep = ~np.isin(self.timings.device, out)
            most = {"tree_rows": 1500} if len(out) == 1 else INNER_ROWS
            self.fitted[key] = fit_kernel_samples(self.timings.at(np.flatnonzero(keep)), **most)
        return self.fitted[key]

    def rows(self, device: int) -> KernelSamples:
        """Return the kernels of a device."""
        return self.timings.at(np.flatnonzero(self.timings.device == device))

    def rows_without(self, device: int) -> KernelSamples:
        """Return the kernels of the other devices."""
        return self.timings.at(np.flatnonzero(self.timings.device != device))

    def swept(self, out: tuple[int, ...], device: int) -> "_SweptDevice":
        """Return the kernels of ``device`` outside its sweep, with their predictions."""
        rows, model = self.rows(device), self.model(out)
        sweep, took_s = swept_kernels(rows, predicted_seconds(model, rows), HALF_PLAN if self.family == HALF else None)
        model = fit_sweep(model, rows.at(sweep))
        unswept = rows.at(np.setdiff1d(np.arange(len(rows)), sweep))
        errors = [
            fit.surface.error
            for (name, _), fit in model.sweeps.items()
            if name == self.timings.boards.names[device] and fit.surface
        ]
        spread = np.full(len(unswept), errors[-1] if errors else np.nan)
        return _SweptDevice(unswept, predicted_seconds(model, unswept), spread, len(sweep), took_s)

    def _launch_known(self, out: int, suit: KernelTrust) -> Array:
        """Return the predictions from specifications, with the launch measured by each operator's smallest kernels."""
        rows, model = self.rows(out), trusted_model(self.model((out,)), suit)
        kernel_s, launch_s = model.predict(rows.kernels, rows.boards, rows.device)
        for name in np.unique(rows.kernels.name):
            of_operator = rows.kernels.name == name
            launch_s[of_operator] = np.quantile(rows.seconds[of_operator], 0.02)
        return combine_with_launch_s(kernel_s, launch_s * rows.launched, launch_waits(rows))

    def suiting(self, out: tuple[int, ...]) -> KernelTrust:
        """Return the best settings for new devices, by holding out each device but ``out``."""
        inner_devices = [device for device in self.devices if device not in out]
        suits = [KernelTrust(trusted, share) for trusted in TRUSTED for share in SHARES]
        return min(suits, key=lambda suit: float(np.mean([self._inner(out, device, suit) for device in inner_devices])))

    def _chosen(self, out: int) -> tuple[FittedKernels, list[Residuals], KernelTrust]:
        """Return the model with the other devices' best settings, its errors on those held out, and the settings."""
        suit = self.suiting((out,))
        errors = []
        for device in self.devices:
            if device != out:
                rows = self.rows(device)
                point = predicted_seconds(trusted_model(self.model((out, device)), suit), rows)
                errors.append(Residuals.of(rows.seconds, point, scale=UNSEEN))
        return trusted_model(self.model((out,)), suit), errors, suit

    def _inner(self, out: tuple[int, ...], device: int, suit: KernelTrust) -> float:
        """Return the mean absolute percentage error on a device of the model fitted without it and ``out``."""
        rows = self.rows(device)
        point = predicted_seconds(trusted_model(self.model((*out, device)), suit), rows)
        return 100 * float(np.mean(np.abs(point / rows.seconds - 1)))


@dataclass(frozen=True, slots=True)
class _Part:
    rows: KernelSamples
    point: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True)
class _SweptDevice:
    """Kernels outside a sweep, their predictions and spreads, and the sweep's kernels and seconds."""

    rows: KernelSamples
    point: Array
    spread: Array
    measured: int
    took_s: float


def trusted_model(fitted: FittedKernels, suit: KernelTrust) -> FittedKernels:
    """Return the model with settings for new devices."""
    laws = {
        number: replace(law, trusted=suit.trusted, typical=suit.share * typical_effects(fitted, number))
        for number, law in fitted.groups.items()
    }
    return replace(fitted, groups=laws)


def predicted_seconds(fitted: FittedKernels, rows: KernelSamples) -> Array:
    """Return the predictions for measured kernels, launch included where it was measured."""
    kernel_s, launch_s = fitted.predict(rows.kernels, rows.boards, rows.device)
    return combine_with_launch_s(kernel_s, launch_s * rows.launched, launch_waits(rows))


def launch_waits(rows: KernelSamples) -> Array:
    """Return the share of each kernel's launch time before it starts."""
    group = kernel_groups(rows.placed())
    return np.array([analytical_model(number).wait for number in range(len(KERNEL_GROUPS))])[group]


def _interval(inner: Sequence[Residuals], point: Array, spread: Array) -> tuple[Array, Array]:
    """Return intervals at the level that covers 90 % of each inner device's kernels by the errors on the others.

    Errors on one device are correlated, so nominal 90 % intervals from the other devices' errors would cover too few.
    """
    level = LEVELS[-1]
    for tried in LEVELS:
        coverage = []
        for position in range(len(inner)):
            elsewhere = Residuals.joined(*(residual for i, residual in enumerate(inner) if i != position))
            low, high = _ends(elsewhere, np.ones(len(inner[position].log_error)), inner[position].spread, tried)
            coverage.append(
                float(np.mean((np.log(low) <= inner[position].log_error) & (inner[position].log_error <= np.log(high))))
            )
        if float(np.mean(coverage)) >= LEVEL:
            level = tried
            break
    return _ends(Residuals.joined(*inner), point, spread, level)


def _ends(residuals: Residuals, point: Array, spread: Array, level: float) -> tuple[Array, Array]:
    return calibrate(residuals).interval(point, spread, np.zeros(len(point)), UNSEEN, level)


def _as_asked(
    family: str,
    split: str,
    parts: Sequence[_Part],
    baseline_answers: Mapping[str, Array],
    target: float | None,
    how: str,
    chosen: Mapping[str, object],
) -> SplitResult:
    if family in DRIFTING:
        how += "; less the drift of the table's rows"
    measured = np.concatenate([part.rows.seconds for part in parts])
    point = np.concatenate([part.point for part in parts])
    low, high = (np.concatenate([getattr(part, end) for part in parts]) for end in ("low", "high"))
    devices = np.concatenate([np.array(part.rows.boards.names)[part.rows.device] for part in parts])
    by_device = {}
    for name in np.unique(devices).tolist():
        mask = devices == name
        covered = (low[mask] <= measured[mask]) & (measured[mask] <= high[mask])
        error = 100 * np.abs(point[mask] / measured[mask] - 1)
        by_device[name] = {"mape": round(float(error.mean()), 2), "coverage": round(100 * float(covered.mean()), 1)}
    return SplitResult(
        f"{family} kernels",
        split,
        measured,
        {"leadline": point, **baseline_answers},
        low,
        high,
        np.full(len(measured), family),
        mape=target,
        how=how,
        more={"by_device": by_device, "chosen": dict(chosen)},
    )


def _sizes_left_out(family: str, timings_: KernelSamples) -> SplitResult:
    """Predict a fifth of the sizes, on devices with other kernels in the training data."""
    where = np.column_stack([kernel_coordinates(0, timings_.kernels), timings_.kernels.rows, timings_.kernels.columns])
    _, size = np.unique(where, axis=0, return_inverse=True)
    fold = np.random.default_rng(0).integers(0, 5, size.max() + 1)[size.ravel()]
    inner = fit_kernel_samples(timings_.at(np.flatnonzero(fold > 1)), **INNER_ROWS)
    inner_rows = timings_.at(np.flatnonzero(fold == 1))
    residuals = Residuals.of(inner_rows.seconds, predicted_seconds(inner, inner_rows), scale=UNSEEN)
    learned, rows = timings_.at(np.flatnonzero(fold > 0)), timings_.at(np.flatnonzero(fold == 0))
    point = predicted_seconds(fit_kernel_samples(learned, tree_rows=1000), rows)
    part = _Part(rows, point, *_ends(residuals, point, np.full(len(point), np.nan), LEVEL))
    answers = {name: ask(learned, rows) for name, ask in baselines.METHODS.items()}
    return _as_asked(family, "sizes left out, seen devices", [part], answers, None, "a random fifth of the sizes", {})
