"""Steps of vision models: families that were never seen, GPUs that were never seen, and both known from elsewhere."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from leadline.bench.dnn.asked import Asked
from leadline.bench.dnn.vision_baselines import Baselines
from leadline.bench.dnn.vision_data import VisionSteps, vision_steps
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.learned.op_law import Basis, Observed, Priced, Weights, price
from leadline.estimators.learned.steps import Laws, adapt, carried, fit_settings
from leadline.uncertainty.conformal import Residuals, calibrate

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]

TABLE = "vision steps"
OURS = "Leadline"
DEVICES = {"rtx3090": "RTX 3090", "rtx4090": "RTX 4090"}
FOLDS, INNER = 5, 3
FEW, DRAWS = 50, 3
LEVEL = 0.9
DEVICE_DOUBT = 0.06
"""Standard deviation of ln(true ÷ priced) that a device never seen adds: what is left of whole transformer graphs, each
device left out, once kernels are priced by their own device's sweep."""
DOUBT_QUANTILE = 2.015
"""Those were six devices: the 95 % quantile of Student's t of five degrees of freedom."""


class Lab:
    """The steps, the basis of their graphs on each device, and the laws that learning rows give."""

    def __init__(self, data: Path) -> None:
        self.steps: VisionSteps = vision_steps(data)
        catalog = TomlCatalog(None)
        self.devices: dict[str, Device] = {one: catalog.device(DEVICES[one]) for one in np.unique(self.steps.device)}
        self.bases = {
            there if there == here else carried_to(there, here): Basis.of(self.steps.table, device, learned_on=known)
            for here, device in self.devices.items()
            for there, known in self.devices.items()
        }
        self.setting: Texts = np.char.add(np.char.add(self.steps.device, " "), self.steps.setting)
        self.baselines = Baselines(self.steps, self.devices)

    def observed(self, rows: Whole, device: str) -> Observed:
        """Return the rows as steps of one device; ``device`` names a basis."""
        graphs, place = np.unique(self.steps.graph[rows], return_inverse=True)
        return Observed(self.bases[device].taken(graphs), place, self.steps.step_s[rows])

    def laws(self, rows: Whole, start: Laws | None = None) -> Laws:
        """Return the laws of all settings among ``rows``."""
        names = [str(one) for one in np.unique(self.setting[rows])]
        observed = {one: self.observed(rows[self.setting[rows] == one], str(one).partition(" ")[0]) for one in names}
        return fit_settings(observed, {one: one.split()[2] for one in names}, start=start)

    def priced(self, rows: Whole, device: str, laws: Laws, setting: str) -> Priced:
        """Return the price of each row under the law of ``setting``; ``device`` names a basis."""
        graphs, place = np.unique(self.steps.graph[rows], return_inverse=True)
        found = price(self.bases[device].taken(graphs), laws[setting])
        return Priced(found.step_s[place], found.device_s[place], found.spread[place])

    def answered(self, rows: Whole, laws: Laws) -> tuple[Array, Array]:
        """Return price and spread of rows, each under the law of its own setting."""
        said, spread = np.empty(len(rows)), np.empty(len(rows))
        for name in np.unique(self.setting[rows]):
            own = self.setting[rows] == name
            found = self.priced(rows[own], str(name).split()[0], laws, str(name))
            said[own], spread[own] = found.step_s, found.spread
        return said, spread


def carried_to(seen: str, unseen: str) -> str:
    """Return the name of the basis of one GPU for laws that were learned on another."""
    return f"{unseen} from {seen}"


def asked(data: Path, *, quick: bool) -> list[Asked]:
    """Return all splits; a quick run asks one fold in five, and one draw."""
    lab = Lab(data)
    folds = 1 if quick else FOLDS
    return [
        *_by_family(lab, folds),
        *_by_model(lab, folds),
        *_other_gpu(lab),
        *_few_runs(lab, 1 if quick else DRAWS),
    ]


def parts_of(names: Texts, count: int, seed: int) -> Whole:
    """Return the fold of each row, such that rows of one name are together."""
    known, place = np.unique(names, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(known)) % count
    found: Whole = fold[place]
    return found


def _by_family(lab: Lab, folds: int) -> list[Asked]:
    """Leave families out, learn each setting of the GPU from the others; intervals from families left out inside."""
    steps = lab.steps
    fold = parts_of(steps.family, FOLDS, 0)
    asked_rows, said, low, high, others = [], [], [], [], []
    for number in range(folds):
        learn, ask = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        laws = lab.laws(learn)
        calibration = calibrate(_inner_errors(lab, learn, laws))
        points, spread = lab.answered(ask, laws)
        ends = calibration.interval(points, spread, np.zeros(len(ask)), lab.setting[ask].tolist(), LEVEL)
        asked_rows.append(ask)
        said.append(points)
        low.append(ends[0])
        high.append(ends[1])
        others.append(lab.baselines.answers(learn, ask))
    rows = np.concatenate(asked_rows)
    answers = {OURS: np.concatenate(said)} | {name: np.concatenate([one[name] for one in others]) for name in others[0]}
    return _phases(lab, rows, answers, np.concatenate(low), np.concatenate(high))


def _phases(lab: Lab, rows: Whole, answers: dict[str, Array], low: Array, high: Array) -> list[Asked]:
    """Return the split by families for inference and for training, as one row each."""
    found = []
    for mode, word in (("infer", "inference"), ("train", "training")):
        own = lab.steps.columns["mode"][rows] == mode
        found.append(
            Asked(
                TABLE, f"unseen families, {word}", lab.steps.step_s[rows][own],
                {name: one[own] for name, one in answers.items()}, low[own], high[own], lab.setting[rows][own],
                mape=6.0, median=4.0, p90=20.0,
                how="each setting of a GPU learned from other families, in five folds of families",
                limits="kernels that only the unseen family calls (talking heads, 9 × 9 depthwise, odd grouped widths "
                "in channels-last), which the libraries of each release run 2 to 10 times slower",
            )
        )  # fmt: skip
    return found


def _by_model(lab: Lab, folds: int) -> list[Asked]:
    """Leave models out at random: other sizes of the same family were seen."""
    how = "models left out at random, in five folds; intervals by the errors of the other folds"
    return [left_out(lab, lab.steps.model, folds, TABLE, "random models", how)]


def left_out(
    lab: Lab, names: Texts, folds: int, table: str, split: str, how: str, *, mape: float | None = None
) -> Asked:
    """Leave rows of some ``names`` out in turn, all settings together; intervals by the errors of the other folds."""
    fold = parts_of(names, FOLDS, 0)
    parts = []
    for number in range(folds):
        learn, ask = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        parts.append((ask, *lab.answered(ask, lab.laws(learn)), lab.baselines.answers(learn, ask)))
    rows = np.concatenate([one[0] for one in parts])
    said, spread = (np.concatenate([one[column] for one in parts]) for column in (1, 2))
    low, high = bounds_by_fold(lab, rows, fold[rows], said, spread)
    answers = {OURS: said} | {name: np.concatenate([one[3][name] for one in parts]) for name in parts[0][3]}
    return Asked(table, split, lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=mape, how=how)


def bounds_by_fold(lab: Lab, rows: Whole, fold: Whole, said: Array, spread: Array) -> tuple[Array, Array]:
    """Return the ends of intervals around ``said``, each by the errors of the rows of other folds, if there are any."""
    low, high = np.empty(len(rows)), np.empty(len(rows))
    for number in np.unique(fold):
        own = fold == number
        rest = ~own if not own.all() else own
        bounds = calibrate(residuals(lab, rows[rest], said[rest], spread[rest]))
        settings = lab.setting[rows[own]].tolist()
        low[own], high[own] = bounds.interval(said[own], spread[own], np.zeros(own.sum()), settings, LEVEL)
    return low, high


def _inner_errors(lab: Lab, learn: Whole, laws: Laws) -> Residuals:
    """Return the errors of the learning rows, by laws that were learned without their families."""
    inner = parts_of(lab.steps.family, INNER, 1)
    errors = []
    for part in range(INNER):
        out = learn[inner[learn] == part]
        errors.append(residuals(lab, out, *lab.answered(out, lab.laws(learn[inner[learn] != part], start=laws))))
    return Residuals.joined(*errors)


def _other_gpu(lab: Lab) -> list[Asked]:
    """Leave one GPU out: from its specifications alone, and with the same models known on the other."""
    found = []
    for seen, unseen in (("rtx3090", "rtx4090"), ("rtx4090", "rtx3090")):
        learn, ask = inference(lab, seen), inference(lab, unseen)
        laws = lab.laws(learn)
        said, elsewhere = _transferred(lab, laws, ask, seen, unseen)
        answers = {OURS: said} | lab.baselines.answers(learn, ask)
        answers["same model × bandwidth"] = _by_bandwidth(lab, learn, ask, seen, unseen)
        width = _width_between(lab, laws, learn, seen, knowing=False)
        how = f"learned on the {DEVICES[seen]}, asked about the {DEVICES[unseen]}"
        limits = "the release: 2.9 was measured on one GPU only, and clocks under load, which no specification tells"
        group = lab.steps.setting[ask]
        found.append(
            Asked(TABLE, f"unseen {DEVICES[unseen]}, specs only", lab.steps.step_s[ask], answers, said / width,
                  said * width, group, mape=9.0, how=how, limits=limits)
        )  # fmt: skip
        known = np.isfinite(elsewhere)
        carry = said[known] * np.exp(carried(elsewhere[known]))
        within_width = _width_between(lab, laws, learn, seen, knowing=True)
        rest = {name: one[known] for name, one in answers.items() if name != OURS}
        found.append(
            Asked(TABLE, f"unseen {DEVICES[unseen]}, model known on the other", lab.steps.step_s[ask][known],
                  {OURS: carry} | rest, carry / within_width, carry * within_width, group[known], mape=6.0, how=how,
                  limits=limits)
        )  # fmt: skip
    return found


def _few_runs(lab: Lab, draws: int) -> list[Asked]:
    """Measure a few runs on the unseen GPU, of each setting; the others are asked about."""
    found = []
    for seen, unseen in (("rtx3090", "rtx4090"), ("rtx4090", "rtx3090")):
        laws = lab.laws(inference(lab, seen))
        ask = inference(lab, unseen)
        plain, with_known = [], []
        for setting in np.unique(lab.setting[ask]):
            rows = ask[lab.setting[ask] == setting]
            for draw in range(draws):
                one, other = few_runs(lab, laws, rows, seen, unseen, draw)
                plain.append(one)
                with_known.append(other)
        how = f"learned on the {DEVICES[seen]}, and from {FEW} runs of each setting here; {draws} draws"
        found.append(_pooled(lab, f"{FEW} runs of an unseen {DEVICES[unseen]}", plain, 6.0, how))
        found.append(_pooled(lab, f"{FEW} runs of an unseen {DEVICES[unseen]}, model known", with_known, 4.0, how))
    return found


def few_runs(
    lab: Lab, laws: Laws, rows: Whole, seen: str, unseen: str, seed: int
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Return (rows, said, low, high) of what a draw of few runs leaves, without and with the models known elsewhere."""
    chosen = np.random.default_rng(seed).permutation(len(rows))
    few, rest = rows[np.sort(chosen[:FEW])], rows[np.sort(chosen[FEW:])]
    near = nearest_setting(laws, lab, rows, seen)
    here = carried_to(seen, unseen)
    plain = _adapted(lab, laws[near], few, rest, here, None, None)
    there, few_there = (_errors_elsewhere(lab, laws, one, near) for one in (rest, few))
    known = np.isfinite(there)
    better = _adapted(lab, laws[near], few, rest[known], here, carried(few_there), carried(there[known]))
    return plain, better


def _adapted(
    lab: Lab, law: Weights, few: Whole, rest: Whole, device: str, few_known: Array | None, known: Array | None
) -> tuple[Array, ...]:
    """Return (rows, said, low, high) of ``rest`` under the law adapted to ``few``; intervals by folds of the few."""
    shift, few_shift = (0.0 if one is None else one for one in (known, few_known))
    fold = np.arange(FEW) % FOLDS
    errors = np.empty(FEW)
    for number in range(FOLDS):
        out = fold == number
        part = adapt(law, lab.observed(few[~out], device), None if few_known is None else few_known[~out])
        errors[out] = np.log(lab.steps.step_s[few[out]] / lab.priced(few[out], device, {"": part}, "").step_s)
    whole = adapt(law, lab.observed(few, device), few_known)
    said: Array = lab.priced(rest, device, {"": whole}, "").step_s * np.exp(shift)
    return rest.astype(float), said, *_around(said, errors - few_shift)


def _around(said: Array, errors: Array) -> tuple[Array, Array]:
    calibration = calibrate(Residuals.of(np.exp(errors), np.ones(len(errors))))
    return calibration.interval(said, np.full(len(said), np.nan), np.zeros(len(said)), "", LEVEL)


def _pooled(lab: Lab, split: str, parts: Sequence[tuple[Array, ...]], target: float, how: str) -> Asked:
    rows = np.concatenate([one[0] for one in parts]).astype(np.int64)
    said, low, high = (np.concatenate([one[column] for one in parts]) for column in (1, 2, 3))
    return Asked(
        TABLE, split, lab.steps.step_s[rows], {OURS: said}, low, high, lab.steps.setting[rows], mape=target, how=how
    )


def _transferred(lab: Lab, laws: Laws, ask: Whole, seen: str, unseen: str) -> tuple[Array, Array]:
    """Return prices on the unseen GPU under the nearest setting's law, and the models' errors on the seen one."""
    said, elsewhere = np.empty(len(ask)), np.empty(len(ask))
    for setting in np.unique(lab.setting[ask]):
        own = lab.setting[ask] == setting
        near = nearest_setting(laws, lab, ask[own], seen)
        said[own] = lab.priced(ask[own], carried_to(seen, unseen), laws, near).step_s
        elsewhere[own] = _errors_elsewhere(lab, laws, ask[own], near)
    return said, elsewhere


def _width_between(lab: Lab, laws: Laws, learn: Whole, seen: str, *, knowing: bool) -> float:
    """Return high ÷ price on another GPU: errors between settings of the seen one, and the doubt of a device.

    Each setting is asked of the nearest other release of its layout; ``knowing`` tells whether errors are carried.
    """
    errors = []
    for setting in np.unique(lab.setting[learn]):
        rows = learn[lab.setting[learn] == setting]
        phase, layout, _ = str(lab.steps.setting[rows[0]]).split()
        others = {name: law for name, law in laws.items() if name != setting}
        if not any(name.startswith(f"{seen} {phase} {layout} ") for name in others):
            continue
        near = nearest_setting(others, lab, rows, seen)
        shift = _errors_elsewhere(lab, laws, rows, near)
        known = np.isfinite(shift)
        said = lab.priced(rows[known], seen, laws, near).step_s
        errors.append(np.log(lab.steps.step_s[rows[known]] / said) - (carried(shift[known]) if knowing else 0.0))
    between = float(np.quantile(np.abs(np.concatenate(errors)), LEVEL))
    return float(np.exp(np.hypot(between, DOUBT_QUANTILE * DEVICE_DOUBT)))


def nearest_setting(laws: Laws, lab: Lab, rows: Whole, seen: str) -> str:
    """Return the setting of the seen GPU with the same phase and layout, and the nearest release."""
    phase, layout, release = str(lab.steps.setting[rows[0]]).split()
    alike = [one for one in laws if one.startswith(f"{seen} {phase} {layout} ")]
    return min(alike, key=lambda one: abs(int(one.rpartition(" ")[2]) - int(release)))


def _errors_elsewhere(lab: Lab, laws: Laws, rows: Whole, near: str) -> Array:
    """Return ln(measured ÷ priced) of the same models in the setting ``near``; NaN where they were not measured."""
    there = np.flatnonzero(lab.setting == near)
    priced = lab.priced(there, near.split(maxsplit=1)[0], laws, near).step_s
    images = lab.steps.columns["img_size"]
    errors = np.log(lab.steps.step_s[there] / priced)
    names = [(str(model), int(image)) for model, image in zip(lab.steps.model, images, strict=True)]
    known = {names[row]: float(error) for row, error in zip(there, errors, strict=True)}
    return np.array([known.get(names[row], np.nan) for row in rows])


def _by_bandwidth(lab: Lab, learn: Whole, ask: Whole, seen: str, unseen: str) -> Array:
    """Return the same model's time a sample on the seen GPU, by the ratio of bandwidths; NaN where it is not known."""
    columns = lab.steps.columns
    ratio = (lab.devices[seen].memory_bytes_per_s or 1.0) / (lab.devices[unseen].memory_bytes_per_s or 1.0)

    def name(row: int) -> tuple[object, ...]:
        return (str(lab.steps.model[row]), int(columns["img_size"][row]), str(columns["layout"][row]))

    sample_s = {name(row): lab.steps.step_s[row] / columns["batch_size"][row] for row in learn}
    return np.array([sample_s.get(name(row), np.nan) * columns["batch_size"][row] * ratio for row in ask])


def inference(lab: Lab, device: str) -> Whole:
    """Return the rows of inference on a GPU."""
    return np.flatnonzero((lab.steps.device == device) & (lab.steps.columns["mode"] == "infer"))


def residuals(lab: Lab, rows: Whole, said: Array, spread: Array) -> Residuals:
    """Return the errors of rows, each setting a group of its own and each model a configuration."""
    return Residuals.of(
        lab.steps.step_s[rows],
        said,
        spread=spread,
        scale=lab.setting[rows].tolist(),
        configuration=lab.steps.model[rows].tolist(),
    )
