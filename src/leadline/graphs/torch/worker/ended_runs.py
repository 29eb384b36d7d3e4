"""Steps of a run whose end is known: the script ended in the trace, or its rest ran without calculations."""

import enum
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from leadline.graphs.torch.worker.loops import EnclosingLoop
from leadline.graphs.torch.worker.projection import Projection

Lengths = Tuple[Optional[int], Optional[float]]
"""Steps per epoch, and epochs."""
UNREACHED = 10**9
"""Steps that no run makes: a limit of so many stands for none where something else may end a loop."""
LATE = 18
"""Steps after which one of an optimizer that had none before belongs to no round of the others."""


class StepCounts:
    """Steps of all optimizers of a script, in their order."""

    def __init__(self) -> None:
        self.steps = 0
        self._uses: Dict[int, List[int]] = {}
        """First and last step, and number, of each optimizer's steps."""

    def add(self, optimizer: int) -> None:
        """Count a step of an optimizer, or with zero a backward pass without one."""
        self.steps += 1
        use = self._uses.setdefault(optimizer, [self.steps, 0, 0])
        use[1:] = self.steps, use[2] + 1

    def total(self) -> Optional[int]:
        """Return the steps of the optimizer that steps most rarely, ``None`` if a later one steps between others.

        Steps of optimizers that are used one after the other add up. Backward passes count if nothing else does.
        """
        total, end, rarest = 0, 0, 0
        stepped = [use for optimizer, use in self._uses.items() if optimizer or len(self._uses) == 1]
        for first, last, count in sorted(stepped):
            if first <= end:
                if first > LATE:
                    return None
                rarest = min(rarest, count)
            else:
                total, rarest = total + rarest, count
            end = max(end, last)
        return total + rarest


class Guesses(enum.Enum):
    """What the values that a run without calculations had to guess mean for its steps."""

    TRACED = "traced"
    """The script ended in the trace itself."""
    NONE = "none"
    ALIKE = "alike"
    """Opposite ones led to the same steps."""
    ONE = "one"
    """With others the script failed, or was too slow."""
    DIFFERENT = "different"
    MORE = "more"
    """The run went on beyond the steps that were read from the source, and its end is not known."""
    PROJECTED = "projected"
    """The run is too long to be counted."""


class CountedRun(NamedTuple):
    """The steps of a whole run, or those made of one that is too long, with what they tell of the whole one."""

    steps: int
    guesses: Guesses
    evaluated: int = 0
    """Batches that were evaluated after a first step."""
    projection: Optional[Projection] = None

    def document(self) -> Dict[str, Any]:
        """Return what ``read`` reads again."""
        return {**self._asdict(), "guesses": self.guesses.value}

    @classmethod
    def read(cls, document: Optional[Dict[str, Any]]) -> "Optional[CountedRun]":
        """Return the run of a document, if there is one."""
        if document is None:
            return None
        projection = Projection(*document["projection"]) if document["projection"] else None
        return cls(**{**document, "guesses": Guesses(document["guesses"]), "projection": projection})


def correct_lengths(run: Optional[CountedRun], loops: List[EnclosingLoop], read: Lengths, notes: List[str]) -> Lengths:
    """Return the lengths of a run whose steps were counted, if they were, and note how they are known.

    ``read`` are those that the ``loops`` around a step have by its source, ``notes`` the sentences on them. The steps
    counted are true, unless values decide: a trace has none.
    """
    per_epoch, epochs = _counted_or_read(run, loops, read, notes)
    steps = (per_epoch or 0) * (epochs or 0)
    if steps < UNREACHED or not any(loop.may_end for loop in loops):
        return per_epoch, epochs
    notes.append(f"a limit of {steps:,.0f} steps is hardly meant to be reached: the steps are unknown")
    return None, None


def _counted_or_read(run: Optional[CountedRun], loops: List[EnclosingLoop], read: Lengths, notes: List[str]) -> Lengths:
    total = read[0] * read[1] if read[0] is not None and read[1] is not None else None
    if run is None:
        return read
    if run.guesses is not Guesses.TRACED and run.steps == total:
        if run.guesses is Guesses.NONE and run.projection is None:
            notes[:] = [note for note in notes if " assumed to " not in note]  # they came true
        return read
    if run.projection is not None:
        return _projected(run.steps, run.projection, loops, read, total, notes)
    if run.guesses is Guesses.MORE:
        notes[:] = [f"the script makes more than {run.steps} steps, and how many is unknown"]
        return None, None
    if _values_decide(run, loops, total, notes) and (total is None or total > run.steps):
        assumed = "" if total is None else f": {total:g} steps are assumed"
        notes.append(f"the script ended after {run.steps} steps, by values that a trace has not{assumed}")
        return read
    if run.guesses is not Guesses.TRACED:
        notes.clear()  # they told other steps
        assumed = "" if run.guesses is Guesses.NONE else ", assuming that values of tensors do not change that"
        notes.append(f"the script made {run.steps} steps to its end, without calculations{assumed}")
    else:
        notes[:] = [note for note in notes if total == run.steps or " unknown" not in note]
        notes.append(
            f"the script ended after {run.steps} steps, which are the whole run"
            if run.steps > 1
            else "the script ended after one step, the whole run: its optimizer has state only at the end of it"
        )
    return read if total == run.steps else split_steps(read[0], run.steps)


def _projected(
    made: int,
    projection: Projection,
    loops: List[EnclosingLoop],
    read: Lengths,
    total: Optional[float],
    notes: List[str],
) -> Lengths:
    """Return the lengths that were read, in ``total``, unless a run would have others if it goes on as it did."""
    if total is not None:
        is_limited = made <= total < projection.low and any(loop.limit is not None for loop in loops)
        if is_limited or projection.holds(total):
            return read
    if projection.steps is not None:
        notes[:] = [f"about {projection.steps} steps are assumed, as far as the loops had come after {made} of them"]
        per_epoch = round(projection.steps / read[1]) if read[1] is not None else 0
        return (per_epoch, read[1]) if per_epoch else split_steps(None, projection.steps)
    if total is None:
        return read
    notes.append(
        f"the steps are unknown: {total:g} are read from the source, but after {made} of them, made without "
        "calculations, its loops were not where that would be"
    )
    return None, None


def _values_decide(run: CountedRun, loops: List[EnclosingLoop], total: Optional[float], notes: List[str]) -> bool:
    """Return whether the end of a run may depend on values, so that steps read from the source are better."""
    if run.guesses is Guesses.TRACED:
        return any(loop.may_end if loop.is_for else loop.times is None for loop in loops)
    if run.guesses is Guesses.ALIKE and not any(loop.may_end for loop in loops):
        return False
    is_read = total is not None and not any("assum" in note for note in notes)
    return run.guesses is Guesses.DIFFERENT or (is_read and run.guesses is not Guesses.NONE)


def split_steps(per_epoch: Optional[int], steps: int) -> Lengths:
    """Return the lengths of a run of so many steps."""
    if per_epoch is None or steps <= per_epoch:
        return steps, 1
    rounds = steps / per_epoch
    return per_epoch, int(rounds) if rounds.is_integer() else rounds
