"""The kernels of a calibrated GPU: the shipped ones with its own sweep fitted in, kept for the next estimate."""

import hashlib

from leadline.app import settings
from leadline.app.kept_states import keep_state, kept_state
from leadline.core.documents import dump
from leadline.core.hardware import Device
from leadline.estimators.learned.fitted_kernels import FittedKernels
from leadline.estimators.learned.remembered import Remembered
from leadline.estimators.learned.swept import swept
from leadline.estimators.tabular.ports import State
from leadline.estimators.tabular.states import lines, texts
from leadline.training.shipped_files import content_of
from leadline.training.shipped_models import KERNELS, shipped_kernels

MADE_OF = "made_of"
"""The entry of a kept file that names the shipped kernels and the calibration that it was made of."""


def _swept(device: Device) -> FittedKernels:
    """Return the shipped kernels with what the sweep of ``device`` says of it.

    Fitting it in takes seconds, so what it gave is kept in a file, which is made anew when the calibration or the
    shipped kernels change. Where it cannot be written, or is damaged, it costs these seconds again and nothing else.
    """
    path = settings.swept_dir() / f"{device.file_stem}.npz"
    made_of = hashlib.sha256(content_of(KERNELS) + dump(device).encode()).hexdigest()
    own = _load(kept_state(path), made_of)
    if own is None:
        own = swept(shipped_kernels(), device).of(device.name)
        keep_state(path, {**own.dump(), MADE_OF: texts([made_of])})
    return shipped_kernels().with_more(own)


def _load(state: State | None, made_of: str) -> FittedKernels | None:
    try:
        return FittedKernels.load(state) if state is not None and lines(state[MADE_OF]) == (made_of,) else None
    except (ValueError, KeyError):
        return None


swept_kernels = Remembered(_swept)
"""Returns what ``_swept`` does, at once for the devices that it was asked about before.

Raises:
    InvalidInput: the device is not calibrated, or lacks figures that the laws need.
"""
