"""The laws of all measured steps, to be shipped."""

import numpy as np

from benchmarks.dnn.vision_lab import Lab, setting_of
from leadline.estimators.learned.law_kernels import StepLaws, classes_seen

USUAL = 0.9
"""Share of the learned graphs that are surer than what is called usual."""


def fitted_laws(lab: Lab) -> StepLaws:
    """Return the law of every setting that was measured, learned from all of its steps."""
    laws = lab.laws(np.arange(len(lab.steps.step_s)))
    found, usual, seen = {}, {}, {}
    for name in np.unique(lab.setting).tolist():
        rows = np.flatnonzero(lab.setting == name)
        device, setting = name.split()[0], setting_of(lab, name)
        basis = lab.bases[device].taken(np.unique(lab.steps.graph[rows]))
        found[setting] = laws[name]
        usual[setting] = float(np.quantile(lab.priced(rows, device, laws, name).spread, USUAL))
        seen[setting] = classes_seen(basis, laws[name])
    return StepLaws(found, usual, seen)
