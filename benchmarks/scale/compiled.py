"""The time of ops between products that torch.compile leaves, fitted to vision models with and without compilation.

Run as ``python -m benchmarks.scale.compiled DIR`` on the folder of ``timm_steps.parquet``. A step takes time linear in
its multiply-adds and its activations; compilation changes the second part.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.tables import read_table
from leadline.estimators.ports import Array, IntArray

COLUMNS = ["model", "img_size", "batch_size", "step_time", "gmacs", "macts", "hardware", "torch", "mode", "dynamo"]
HARDWARE, TORCH = "rtx4090", 291
FOLDS = 5


def read_pairs(data: Path) -> tuple[Array, Array]:
    """Return MACs, activations, eager and compiled time of n models (4, n), and the number of their family (n,)."""
    columns = read_table(data, "timm_steps", COLUMNS)
    steps: dict[tuple[object, ...], dict[bool, Mapping[str, float]]] = defaultdict(dict)
    for place, hardware in enumerate(columns["hardware"]):
        row = {name: columns[name][place] for name in COLUMNS}
        if (hardware, row["torch"], row["mode"]) == (HARDWARE, TORCH, "infer") and row["batch_size"] > 0:
            steps[row["model"], row["img_size"], row["batch_size"]][bool(row["dynamo"])] = row
    pairs = [(key, pair) for key, pair in steps.items() if len(pair) == 2]
    sizes = [(pair[False]["gmacs"], pair[False]["macts"], pair[False]["step_time"] / float(str(key[2])),
              pair[True]["step_time"] / float(str(key[2]))) for key, pair in pairs]  # fmt: skip
    families = [str(key[0]).split("_")[0].split(".")[0].rstrip("0123456789") for key, _ in pairs]
    return np.array(sizes, float).T, np.unique(families, return_inverse=True)[1].astype(float)


def fit_share(rows: Array) -> tuple[float, Array]:
    """Return the share of time that activations keep, and the log coefficients: MACs, activations eager, compiled."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - needed to fit alone

    macs, activations, eager, compiled = rows

    def misfit(x: Array) -> Array:
        return np.concatenate([
            np.log(np.exp(x[0]) * macs + np.exp(x[place]) * activations) - np.log(measured)
            for place, measured in ((1, eager), (2, compiled))
        ])  # fmt: skip

    x = least_squares(misfit, np.log([0.01, 0.01, 0.005]), loss="soft_l1", f_scale=0.1).x
    return float(np.exp(x[2] - x[1])), np.asarray(x, float)


def log_ratio_errors(x: Array, rows: Array) -> Array:
    """Return ln of measured ÷ predicted ratios of compiled to eager time (n,)."""
    macs, activations, eager, compiled = rows
    after, before = (np.exp(x[0]) * macs + np.exp(x[place]) * activations for place in (2, 1))
    return np.asarray(np.log(compiled / eager) - np.log(after / before), float)


def main(arguments: list[str]) -> int:
    """Print the share, its range if families are left out, and the errors on these."""
    rows, families = read_pairs(Path(arguments[0]))
    share, _ = fit_share(rows)
    fold: IntArray = np.random.default_rng(0).permutation(int(families.max()) + 1)[families.astype(int)] % FOLDS
    shares, errors = [], np.empty(len(families))
    for number in range(FOLDS):
        left_out = fold == number
        kept, x = fit_share(rows[:, ~left_out])
        shares.append(kept)
        errors[left_out] = log_ratio_errors(x, rows[:, left_out])
    nine_in_ten = float(np.quantile(np.abs(errors), 0.9))
    sys.stdout.write(
        f"{len(families)} models: {share:.2f} of the time, {min(shares):.2f} to {max(shares):.2f} with families left "
        f"out; nine in ten ratios of these within exp(±{nine_in_ten:.2f})\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
