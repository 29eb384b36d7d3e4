"""How long the batches of a job are: what the options say of mean and longest ones."""

from dataclasses import dataclass
from pathlib import Path

from leadline.app.workload_options import WorkloadOptions
from leadline.core.errors import InvalidInput
from leadline.core.workload import Lengths, ModelKind


@dataclass(frozen=True, slots=True)
class Padding:
    """The tokens of a mean and of the longest batch, as far as the options say them, and the samples' own lengths."""

    sequence: int | None
    longest: int | None
    lengths: Lengths | None = None


def padding_of(given: WorkloadOptions, kind: ModelKind) -> Padding:
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
        return Padding(given.seq or given.seq_max, given.seq_max)
    if given.seq is not None:
        raise InvalidInput(f"--seq is {given.seq}, but --lengths says how long batches are: leave one of them out")
    from leadline.app.length_file import read_lengths  # noqa: PLC0415 - numpy loads when a file is read

    lengths = read_lengths(Path(given.lengths))
    if given.seq_max is not None:
        lengths = lengths.at_most(given.seq_max)
    return Padding(None, lengths.longest, lengths)


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
