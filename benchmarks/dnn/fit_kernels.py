"""``python -m benchmarks.dnn.fit_kernels DATA OUT.npz``: fit the kernel model on all devices, to be shipped."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.dnn.kernel_data import NAMES, STREAMS, half_timings, timings
from benchmarks.dnn.kernels import HALF, LeftOut, Suit, suited, table_of
from benchmarks.dnn.transformers import left_out_of
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.estimators.learned.fit_kernels import Timing, fit_kernels
from leadline.estimators.learned.fitted_kernels import GROUPS, FittedKernels, group_of

MOST = {"bmm": 2500, "linear": 2500, "conv": 2500, "ln": 1400, "softmax": 1750, **dict.fromkeys(STREAMS, 300)}
"""Kernels of each device that are taken of a table."""
IN_STEPS = ("product", "batched", "stream", "norm", "softmax")
"""Groups of kernels whose trust is decided by whole transformers; that of the others by their kernels."""


def everything(data: Path, *, share: int = 1) -> list[Timing]:
    """Return the timings of all devices, single precision with launches and half precision without."""
    found = [one for table, most in MOST.items() for one in timings(data, table, most // share)]
    return found + half_timings(data, 2500 // share)


def fitted_on_all(data: Path, *, share: int = 1) -> FittedKernels:
    """Return the model fitted on all devices."""
    return fit_kernels(everything(data, share=share), NAMES)


def shipped(data: Path) -> FittedKernels:
    """Return the model fitted on all devices, with what suits a device that it does not know."""
    fitted = fitted_on_all(data)
    laws = dict(fitted.laws)
    for family in ("conv", HALF):
        table = table_of(data, family)
        suit = LeftOut(family, table).suiting(())
        number = int(group_of(table.placed())[0])
        laws[number] = suited(fitted, suit).laws[number]
    trusted, steps = left_out_of(data).suiting()
    in_steps = suited(fitted, Suit(trusted))
    laws |= {number: in_steps.laws[number] for number in laws if GROUPS[number] in IN_STEPS}
    return replace(fitted, laws=laws, steps=steps)


def main(arguments: list[str]) -> int:
    """Fit, and write the state; return the exit status."""
    try:
        if len(arguments) != 2:
            raise InvalidInput(f"{len(arguments)} arguments were given, not a folder of data and a file: DATA OUT.npz")
        data, out = (Path(one) for one in arguments)
        state = shipped(data).dump()
        np.savez_compressed(out, **state)  # type: ignore[arg-type]
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{out}: {out.stat().st_size / 1e6:.2f} MB\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
