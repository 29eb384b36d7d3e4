"""Sequence lengths of a job's batches: the mean and the longest, from options or from a file of sample lengths."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.app.workloads.options import WorkloadOptions
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.workload import Lengths, ModelKind
from leadline.files.read import read_input, read_input_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


QUANTILES = 200
"""Number of quantiles that summarize the lengths of a data set."""
LONGEST = 10**9
"""Upper limit of a sample's length; more is a typing error."""


def read_lengths(path: Path) -> Lengths:
    """Read the tokens of each sample: one number per line, or a one-dimensional numpy array.

    Raises:
        InvalidInput: the file is missing, or holds anything but positive whole numbers.
    """
    label = f"--lengths {path}"
    if path.suffix == ".npy":
        # Every command that takes a workload imports this module, and few read a file of lengths.
        from leadline.files.arrays import read_array  # noqa: PLC0415 - numpy loads on use

        values: NDArray[Any] = read_array(read_input(path, label=label), label)
    else:
        values = _numbers(read_input_text(path, label=label), label)
    if values.ndim != 1 or not values.size or values.dtype.kind not in "iu":
        raise InvalidInput(
            f"--lengths {path} must be one-dimensional and hold whole numbers, the tokens of each sample"
        )
    if not 0 < int(values.min()) <= int(values.max()) <= LONGEST:
        raise InvalidInput(
            f"--lengths {path} has lengths from {int(values.min())} to {int(values.max())}, but each "
            f"must be between 1 and {LONGEST:,}"
        )
    return length_quantiles(values)


def length_quantiles(values: "NDArray[np.integer]") -> Lengths:
    """Return the midpoints of ``QUANTILES`` even parts of sample lengths (n,); all of them if there are fewer."""
    import numpy as np  # noqa: PLC0415 - numpy loads on use

    ordered = np.sort(values)
    parts = min(QUANTILES, ordered.size)
    middles = ((np.arange(parts) + 0.5) / parts * ordered.size).astype(int)
    return Lengths(tuple(int(length) for length in ordered[middles]), int(ordered[-1]))


def _numbers(content: str, label: str) -> "NDArray[np.integer]":
    import numpy as np  # noqa: PLC0415 - numpy loads on use

    lengths: list[int] = []
    for number, line in enumerate(content.splitlines(), 1):
        text = line.strip()
        if text and not text.isdecimal():
            raise InvalidInput(f"{label} line {number} is {text[:20]!r}: write the tokens of one sample")
        if text:
            # Python refuses to convert thousands of digits
            digits = text.lstrip("0") or "0"
            lengths.append(2 * LONGEST if len(digits) > len(str(LONGEST)) else min(int(digits), 2 * LONGEST))
    return np.array(lengths, dtype=np.int64)


class BatchLengths(Frozen):
    """Tokens of the mean and the longest batch, and the lengths of the samples; ``None`` where not given."""

    sequence: int | None
    longest: int | None
    lengths: Lengths | None = None


def read_batch_lengths(options: WorkloadOptions, kind: ModelKind) -> BatchLengths:
    """Return the batch lengths that the options give.

    Raises:
        InvalidInput: the model is no ``config.json``, options contradict each other, or the file cannot be used.
    """
    for name in ("seq_max", "lengths"):
        if getattr(options, name) is not None:
            _require_use(name, options, kind)
    if options.lengths is None:
        if options.seq_max is not None and options.seq is not None and options.seq_max < options.seq:
            raise InvalidInput(
                f"--seq-max is {options.seq_max}, but it must be at least --seq ({options.seq}), the mean"
            )
        return BatchLengths(options.seq or options.seq_max, options.seq_max)
    if options.seq is not None:
        raise InvalidInput("--seq and --lengths both give the batch lengths: leave one out")

    lengths = read_lengths(Path(options.lengths))
    if options.seq_max is not None:
        lengths = lengths.truncated(options.seq_max)
    return BatchLengths(None, lengths.longest, lengths)


def _require_use(name: str, options: WorkloadOptions, kind: ModelKind) -> None:
    option = f"--{name.replace('_', '-')} is {getattr(options, name)}"
    if kind is ModelKind.COMMAND:
        raise InvalidInput(f"{option}, but the batches of a script are measured: leave it out")
    if kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"{option}, but it works for a config.json only: give the shape of the longest batch with --input"
        )
    if options.generate is not None:
        raise InvalidInput(f"{option}, but --generate uses prompts of one length: give the longest with --seq")
