"""Steps of a script that ends by itself before a trace has all its steps."""

from typing import List, Optional, Tuple

from leadline.graphs.torch.worker.loops import EnclosingLoop

Lengths = Tuple[Optional[int], Optional[float]]
"""Steps per epoch, and epochs."""


def correct_lengths(made: Optional[int], loops: List[EnclosingLoop], read: Lengths, notes: List[str]) -> Lengths:
    """Return the lengths of a script that ended after ``made`` steps, if it did, and note how they are known.

    ``read`` are those that the ``loops`` around a step have by its source, ``notes`` the sentences on them. The steps
    made are true, unless a loop ends by values: a trace has none.
    """
    if made is None:
        return read
    total = read[0] * read[1] if read[0] is not None and read[1] is not None else None
    by_values = any(loop.may_end if loop.is_for else loop.times is None for loop in loops)
    if by_values and (total is None or total > made):
        assumed = "" if total is None else f": {total:g} steps are assumed"
        notes.append(f"the script ended after {made} steps, by values that a trace has not{assumed}")
        return read
    if total != made:
        notes[:] = [note for note in notes if " unknown" not in note]
        read = made, 1
    notes.append(
        f"the script ended after {made} steps, which are the whole run"
        if made > 1
        else "the script ended after one step, which is the whole run: its optimizer has state only at the end of it"
    )
    return read
