"""Read the lengths of a data set's samples from a file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leadline.app.workloads.options import WorkloadOptions
from leadline.core.documents import explain_read_error
from leadline.core.errors import InvalidInput
from leadline.core.workload import Lengths, ModelKind

QUANTILES = 200
"""So many lengths stand for those of a data set."""
LONGEST = 10**9
"""A longer sample is a slip of the keyboard."""


def read_lengths(path: Path) -> Lengths:
    """Read the tokens of each sample, one number a line or a numpy array in one dimension.

    Raises:
        InvalidInput: there is no such file, or something else than whole numbers above zero is in it.
    """
    try:
        values = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _numbers(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--lengths {path} cannot be read: {explain_read_error(error)}") from error
    except ValueError as error:
        raise InvalidInput(f"--lengths {path} is no numpy array: {error}") from error
    if not isinstance(values, np.ndarray) or values.ndim != 1 or not values.size or values.dtype.kind not in "iu":
        raise InvalidInput(f"--lengths {path} must hold whole numbers in one dimension, the tokens of each sample")
    if not 0 < int(values.min()) <= int(values.max()) <= LONGEST:
        raise InvalidInput(
            f"--lengths {path} has lengths from {int(values.min())} to {int(values.max())}: each must be at least 1 "
            f"and at most {LONGEST:,}"
        )
    return length_quantiles(values)


def length_quantiles(values: NDArray[np.integer]) -> Lengths:
    """Return what stands for the lengths of samples (n,): the middle of each of ``QUANTILES`` even parts.

    Fewer samples stand for themselves.
    """
    ordered = np.sort(values)
    parts = min(QUANTILES, ordered.size)
    middles = ((np.arange(parts) + 0.5) / parts * ordered.size).astype(int)
    return Lengths(tuple(int(one) for one in ordered[middles]), int(ordered[-1]))


def _numbers(path: Path) -> NDArray[np.integer]:
    found: list[int] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if text and not text.isdecimal():
            raise InvalidInput(f"--lengths {path} line {number} is {text[:20]!r}: write the tokens of a sample there")
        if text:
            found.append(min(int(text), 2 * LONGEST))
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class BatchLengths:
    """The tokens of a mean and of the longest batch, as far as the options say them, and the samples' own lengths."""

    sequence: int | None
    longest: int | None
    lengths: Lengths | None = None


def read_batch_lengths(given: WorkloadOptions, kind: ModelKind) -> BatchLengths:
    """Return how long batches are.

    Raises:
        InvalidInput: the model is no ``config.json``, options contradict each other, or the file cannot be used.
    """
    for name in ("seq_max", "lengths"):
        if getattr(given, name) is not None:
            _require_use(name, given, kind)
    if given.lengths is None:
        if given.seq_max is not None and given.seq is not None and given.seq_max < given.seq:
            raise InvalidInput(
                f"--seq-max is {given.seq_max}, less than --seq {given.seq}: the longest batch is no shorter than a "
                "mean one"
            )
        return BatchLengths(given.seq or given.seq_max, given.seq_max)
    if given.seq is not None:
        raise InvalidInput(f"--seq is {given.seq}, but --lengths says how long batches are: leave one of them out")

    lengths = read_lengths(Path(given.lengths))
    if given.seq_max is not None:
        lengths = lengths.truncated(given.seq_max)
    return BatchLengths(None, lengths.longest, lengths)


def _require_use(name: str, given: WorkloadOptions, kind: ModelKind) -> None:
    option = f"--{name.replace('_', '-')} is {getattr(given, name)}"
    if kind is ModelKind.COMMAND:
        raise InvalidInput(f"{option}, but a script's own batches are looked at for the longest: leave it out")
    if kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"{option}, but only a config.json is asked about two lengths: give the shape of the longest batch"
        )
    if given.generate is not None:
        raise InvalidInput(f"{option}, but --generate answers prompts of one length: give the longest by --seq")
