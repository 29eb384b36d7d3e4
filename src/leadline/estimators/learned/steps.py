"""Steps of whole graphs from measured steps of others: of one setting, of another device, or a few of one's own.

A setting is what changes the kernels that run and no specification tells: the framework's release, the layout in
memory, training or inference. Settings that are alike share weights, from which each departs as far as its own steps
ask for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from leadline.estimators.learned.op_fit import departed, fit
from leadline.estimators.learned.op_law import Array, Observed, Weights
from leadline.estimators.tabular.ports import State
from leadline.estimators.tabular.states import nest, within

COMMON_RIDGE = 20.0
OWN_RIDGE = 10.0
FEW_RIDGES = (640.0, 160.0, 40.0, 10.0)
"""How firmly few steps are met with what was believed; how far a device departs is not known, so all are asked, the
firmest first: its answer is near the next one's."""
CARRIED = 0.8
"""Share of a model's error on one device that is found on another: much of it is the library's and the graph's."""

Laws = dict[str, Weights]


def fit_settings(observed: Mapping[str, Observed], alike: Mapping[str, str], *, start: Laws | None = None) -> Laws:
    """Return the law of each setting; ``alike`` names the group of settings that shares weights.

    ``start`` holds laws of nearly the same steps, from which the search is shorter.
    """
    found: Laws = {}
    for group in dict.fromkeys(alike[name] for name in observed):
        names = [name for name in observed if alike[name] == group]
        near = start.get(f"{group} in common") if start else None
        together = fit([observed[name] for name in names], Weights.believed(), ridge=COMMON_RIDGE, start=near)
        for name, common in zip(names, together, strict=True):
            found[name] = departed(observed[name], fit([observed[name]], common, ridge=OWN_RIDGE)[0])
        found[f"{group} in common"] = together[0]
    return found


def adapt(weights: Weights, few: Observed, known: Array | None = None) -> Weights:
    """Return the law of a setting or device of which only a few steps were measured, nearest to ``weights``.

    ``known`` (k,) are the errors to expect of these few (``carried``): what is odd about a model is then not taken for
    what is odd about the device.
    """
    if known is not None:
        few = Observed(few.basis, few.graph, few.step_s * np.exp(-known))
    tried: list[Weights] = []
    for ridge in FEW_RIDGES:
        tried += fit([few], weights, ridge=ridge, start=tried[-1] if tried else None)
    return departed(few, _mean_of(tried))


def _mean_of(laws: Sequence[Weights]) -> Weights:
    """Return the law whose every weight is the mean of theirs; what they depart by and how sure they are is alike."""
    return replace(
        laws[-1],
        f=np.mean([one.f for one in laws], axis=0),
        offset=float(np.mean([one.offset for one in laws])),
        launch_s=float(np.exp(np.mean([np.log(one.launch_s) for one in laws]))),
    )


def carried(elsewhere: Array) -> Array:
    """Return ln(measured ÷ priced) to expect of models with these errors on another device; 0 where it is NaN."""
    found: Array = CARRIED * np.nan_to_num(elsewhere)
    return found


def dump(laws: Laws) -> State:
    """Return the laws as arrays."""
    found: State = {"settings": np.array(list(laws))}
    for number, weights in enumerate(laws.values()):
        found |= nest(str(number), weights.dump())
    return found


def load(state: State) -> Laws:
    """Return the laws that were dumped."""
    return {str(name): Weights.load(within(str(number), state)) for number, name in enumerate(state["settings"])}
