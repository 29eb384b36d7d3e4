"""The kernels of a calibrated GPU: the shipped ones with its own sweep fitted in, kept for the next estimate."""

import hashlib
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from leadline.app import settings
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
    own = _kept(path, made_of)
    if own is None:
        own = swept(shipped_kernels(), device).of(device.name)
        _keep(path, made_of, own)
    return shipped_kernels().with_more(own)


swept_kernels = Remembered(_swept)
"""Returns what ``_swept`` does, at once for the devices that it was asked about before.

Raises:
    InvalidInput: the device is not calibrated, or lacks figures that the laws need.
"""


def _kept(path: Path, made_of: str) -> FittedKernels | None:
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            state: State = dict(arrays)
        return FittedKernels.load(state) if lines(state[MADE_OF]) == (made_of,) else None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _keep(path: Path, made_of: str, own: FittedKernels) -> None:
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez_compressed(file, **own.dump(), **{MADE_OF: texts([made_of])})  # type: ignore[arg-type]
        partial.replace(path)
    except OSError:
        return  # a home without room or rights: the next estimate fits it again
