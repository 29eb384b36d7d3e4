"""``python -m benchmarks.dnn.fit_kernels DATA OUT.npz``: fit the shipped kernel model on all devices."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.dnn.kernel_data import NAMES, STREAMS, half_timings, timings
from benchmarks.dnn.kernel_fitting import dump_kernels, fit_kernels
from benchmarks.dnn.kernels import HALF, HeldOutKernels, KernelTrust, table_of, trusted_model
from benchmarks.dnn.setting_models import find_learned_classes
from benchmarks.dnn.transformers import held_out_runs
from benchmarks.dnn.vision_lab import VisionLab, select_graphs, setting_of
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.estimators.step_time.fitted_kernels import FittedKernels, kernel_groups
from leadline.estimators.step_time.kernel_table import KERNEL_GROUPS
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationModels, SettingModel
from leadline.estimators.step_time.swept_kernels import KernelSample

MOST = {"bmm": 2500, "linear": 2500, "conv": 2500, "ln": 1400, "softmax": 1750, **dict.fromkeys(STREAMS, 300)}
"""Kernels of each device and table in the training data."""
IN_STEPS = ("product", "batched", "stream", "norm", "softmax")
"""Groups of kernels whose trust is chosen on whole transformers; that of the others on their kernels."""


def all_timings(data: Path, *, share: int = 1) -> list[KernelSample]:
    """Return the timings of all devices, single precision with launches and half precision without."""
    single = [sample for table, most in MOST.items() for sample in timings(data, table, most // share)]
    return single + half_timings(data, 2500 // share)


def fitted_on_all(data: Path, *, share: int = 1) -> FittedKernels:
    """Return the model fitted on all devices."""
    return fit_kernels(all_timings(data, share=share), NAMES)


def shipped_kernels(data: Path) -> FittedKernels:
    """Return the model fitted on all devices, with the settings for unknown devices."""
    fitted = fitted_on_all(data)
    laws = dict(fitted.groups)
    for family in ("conv", HALF):
        table = table_of(data, family)
        suit = HeldOutKernels(family, table).suiting(())
        number = int(kernel_groups(table.placed())[0])
        laws[number] = trusted_model(fitted, suit).groups[number]
    trusted, steps = held_out_runs(data).suiting()
    in_steps = trusted_model(fitted, KernelTrust(trusted))
    laws |= {number: in_steps.groups[number] for number in laws if KERNEL_GROUPS[number] in IN_STEPS}
    return replace(fitted, groups=laws, steps=steps)


def main(arguments: list[str]) -> int:
    """Fit the model and write its state; return the exit status."""
    try:
        if len(arguments) != 2:
            raise InvalidInput(f"{len(arguments)} arguments: give a folder of data and a file, DATA OUT.npz")
        data, out = (Path(argument) for argument in arguments)
        state = dump_kernels(shipped_kernels(data))
        np.savez_compressed(out, **state)  # type: ignore[arg-type]
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{out}: {out.stat().st_size / 1e6:.2f} MB\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))


USUAL = 0.9
"""Quantile of the spreads of the training graphs that counts as usual."""


def fitted_op_models(lab: VisionLab) -> OpUtilizationModels:
    """Return the op model of every measured setting, fitted to all of its steps."""
    laws = lab.laws(np.arange(len(lab.steps.step_s)))
    models = {}
    for name in np.unique(lab.setting).tolist():
        rows = np.flatnonzero(lab.setting == name)
        device, setting = name.split()[0], setting_of(lab, name)
        basis = select_graphs(lab.bases[device], np.unique(lab.steps.graph[rows]))
        usual = float(np.quantile(lab.priced(rows, device, laws, name).spread, USUAL))
        models[setting] = SettingModel(laws[name], usual, find_learned_classes(basis, laws[name]), setting.device)
    return OpUtilizationModels(models)
