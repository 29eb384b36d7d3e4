"""The rows on hostile scripts judge each script by its own output."""

import pytest

from benchmarks.trust import hostile
from leadline.graphs.torch.worker.confinement import CHANGES, NETWORK

NOTE = f"this machine offers no confinement: the trace did not hold back {CHANGES}; it held back {NETWORK}"


@pytest.mark.parametrize(
    ("notes", "unnamed"),
    [
        ((NOTE,), []),
        ((f"train.py:3: ValueError: x; the trace stopped here; {NOTE}",), []),
        (("train.py:3: ValueError: x; the trace stopped here",), ["rm"]),
        ((NOTE.replace(CHANGES, NETWORK),), ["rm"]),
    ],
)
def test_a_harm_counts_as_named_only_if_the_output_of_its_own_script_names_it(monkeypatch, notes, unnamed):
    outputs = {"remove": (["file.txt"], notes), "wait": ([], ()), "pass": ([], (NOTE,))}
    monkeypatch.setattr(hostile, "HARMS", {CHANGES: {"rm": "remove", "sleep": "wait"}})
    monkeypatch.setattr(hostile, "attempt", lambda code, **_: outputs[code])
    rows = {row.name: row for row in hostile.rows()}
    level = "no help of the kernel"
    assert rows[f"harms that got through, {level}"].value == 1
    row = rows[f"harms of a kind that the output does not name, {level}"]
    assert (row.value, row.how, row.met, row.n) == (len(unnamed), ", ".join(unnamed), not unnamed, 2)
