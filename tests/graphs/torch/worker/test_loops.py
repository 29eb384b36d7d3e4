""""""

import runpy
import sys
import weakref

import pytest

from leadline.graphs.torch.worker.expressions import read_locals
from leadline.graphs.torch.worker.loops import enclosing_loops


class Thing:
    """Something a variable may hold."""


def test_reading_a_variable_does_not_keep_its_old_value_alive():
    thing = Thing()
    gone = weakref.ref(thing)
    assert thing is read_locals(sys._getframe())["thing"]
    thing = None
    assert gone() is None


def test_reading_the_variables_of_a_module_leaves_them():
    names = {"sys": sys, "locals_of": read_locals}
    exec("answer = locals_of(sys._getframe())\nkept = 1", names)  # noqa: S102 - a frame of module kind is wanted
    assert names["kept"] == 1
    assert "sys" in names["answer"]


@pytest.fixture
def loops_of(tmp_path):
    """Run a script that calls ``step()`` and return the loops seen at the first call, as (times, counts_inner)."""

    def run(source, fields=("times", "counts_inner")):
        script = tmp_path / "train.py"
        script.write_text(source)
        recorded = []

        def step():
            if not recorded:
                recorded.append(enclosing_loops(str(tmp_path)))

        runpy.run_path(str(script), init_globals={"step": step, "tqdm": lambda items, *_: items}, run_name="__main__")
        return [tuple(getattr(loop, field) for field in fields) for loop in recorded[0]]

    return run


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("n = 3\nfor epoch in range(1, n + 1):\n    step()\n", [(3, False)]),
        ("class A: epochs = 4\nargs = A()\nfor e in range(args.epochs):\n    for b in [1, 2]:\n        step()\n",
         [(4, False), (2, False)]),
        ("def train(n):\n    for i in range(n // 2):\n        step()\nfor e in range(5):\n    train(9)\n",
         [(5, False), (4, False)]),
        ("i = 0\nwhile True:\n    step()\n    i += 1\n    if i > 6:\n        break\n", [(7, False)]),
        ("from itertools import count\nfor i in count():\n    i += len('ab')\n    step()\n    if i > 6: break\n",
         [(6, False)]),
        ("from itertools import count\nfor i in count(1):\n    step()\n    if i >= 8:\n        break\n", [(8, False)]),
        ("n = 0\nwhile n < 10:\n    for b in [1, 2]:\n        step()\n        n += 1\n", [(10, True), (2, False)]),
        ("def bound():\n    return 2\nfor i in range(bound()):\n    step()\n", [(None, False)]),
        ("for phase in ['train', 'val']:\n    step()\n", [(2, False)]),
        ("cfg = {'steps': 6}\nfor i, j in enumerate(range(0, cfg['steps'], 2)):\n    step()\n", [(3, False)]),
        ("step()\nfor i in range(3):\n    pass\n", []),
        ("i, n = 0, float('nan')\nwhile i != n:\n    step()\n    i += 1\n    if i > 2:\n        break\n", [(3, False)]),
        ("i = 0\nwhile i < 1e300:\n    step()\n    break\n    i += 1\n", [(None, False)]),
        ("for i in range(1000000000000000000):\n    step()\n    break\n", [(None, False)]),
        ("i = 0\nwhile i < 20:\n    step()\n    i += 8\n", [(3, False)]),
        ("for i, b in enumerate([0] * 9, 1):\n    step()\n    if i >= 6:\n        break\n", [(6, False)]),
        ("for i, b in enumerate([0] * 9):\n    if i == 6:\n        break\n    step()\n    if b: pass\n",
         [(6, False)]),
        ("for i in range(2, 30, 2):\n    step()\n    if i >= 6:\n        break\n", [(3, False)]),
        ("for i, b in enumerate(range(9)):\n    step()\n    if b >= 6:\n        break\n", [(9, False)]),
        ("i = 0\nwhile True:\n    step()\n    if i >= 6:\n        break\n    i += 1\n", [(7, False)]),
        ("i = 0\nwhile True:\n    last = i == 6\n    if last:\n        break\n    step()\n    i += 1\n", [(6, False)]),
        ("i = 0\nwhile True:\n    if i >= 6:\n        break\n    step()\n    i += 1\n", [(6, False)]),
        ("s = [1, 2, 3]\nfor e, x in enumerate(s[1:], 1):\n    step()\n", [(2, False)]),
        ("class K:\n    n_splits = 5\n    def split(k): return [1]\nkfold = K()\nfor f in kfold.split(): step()\n",
         [(5, False)]),
        ("i = 0\ni = 5\ndef other():\n    i = 7\nwhile i <= 20:\n    step()\n    i += 5\n", [(4, False)]),
        ("for e in range(3):\n    for a in [[1, 2], [3], [4, 5, 6]]:\n        for b in a:\n            step()\n",
         [(3, False), (6, False)]),
        ("for n in range(4):\n    for i in range(10 * (n + 1)):\n        step()\n", [(100, False)]),
        ("d = {1: [1] * 9, 2: [1] * 20}\nfor k, v in tqdm(d.items()):\n    for i in range(0, len(v), 4): step()\n",
         [(8, False)]),
        ("for n, a in enumerate([[1], [2, 3]]):\n    for c in range(2):\n        for b in a:\n            step()\n",
         [(6, False)]),
        ("for a in iter([[1], [2]]):\n    for b in a:\n        step()\n", [(2, False)]),
        ("for a in map(list, ['ab', 'c']):\n    for b in a:\n        step()\n", [(None, False)]),
        ("for p in ['train', 'val']:\n    for b in {'train': [1, 2], 'val': [1]}[p]:\n        step()\n",
         [(2, False), (None, False)]),
    ],
    ids=["expression", "attribute", "through a call", "while true", "offset", "count", "steps inside",
         "calls user code", "names",
         "dictionary", "no loop", "no number", "too many", "too many to count", "increment", "numbered",
         "test before", "range", "no counter", "test first",
         "named test",
         "test at the top", "slice", "folds", "start", "lists",
         "growing", "dictionary of lists", "three levels", "iterator", "unreadable lists", "phases"],
)  # fmt: skip
def test_a_loop_runs_as_often_as_its_source_says(loops_of, source, expected):
    assert expected == loops_of(source)


COUNTED = "n = 0\ndef fit(n):\n    for e in range(9):\n        for b in [1, 2]:\n            {}\nfit(n)\n"
STOP = "step(); n += 1\n            if n >= 5: return"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (COUNTED.format(STOP), [(9, 5), (2, None)]),
        (COUNTED.format(STOP.replace("n += 1", "n = n + 1")), [(9, 5), (2, None)]),
        (COUNTED.format(STOP + "\n        n = 0"), [(9, None), (2, None)]),
        (COUNTED.format("step()\n            if b > 1: n += 1\n            if n >= 5: return"), [(9, None), (2, None)]),
        (COUNTED.format("if b > 0:\n                step(); n += 1\n            if n >= 5: return"), [(9, 5), (2, 5)]),
        (COUNTED.format("step(); n += 1\n        if n >= 5: break"), [(9, 5), (2, None)]),
        (
            "class T: n = 0\nself = T()\nfor b in [1, 2]:\n    step()\n    self.n += 1\n    if self.n >= 5: break\n",
            [(2, 5)],
        ),
        (
            "class t: n = 0\ndef f():\n t.n = 0\n for b in 'ab':\n  step()\n  t.n += 1\n  if t.n > 4: break\nf()\n",
            [(2, None)],
        ),
    ],
    ids=[
        "return",
        "assignment",
        "reset",
        "other condition",
        "same condition",
        "break of epochs",
        "attribute",
        "attribute of a call",
    ],
)
def test_a_counter_of_steps_limits_loops_of_known_length(loops_of, source, expected):
    assert loops_of(source, ("times", "limit")) == expected


def test_epochs_without_progress_are_no_passes_of_the_loop(loops_of):
    source = "bad = 0\nfor e in range(40):\n    step()\n    if e < 3:\n        bad = 0\n    else:\n        bad += 1\n"
    source += "    if bad >= 5: break\n"
    assert loops_of(source, ("times", "may_end")) == [(40, "`if bad >= 5` in line 8")]


def test_the_users_code_is_never_called_to_find_a_bound(loops_of):
    source = "calls = []\ndef bound():\n    calls.append(1)\n    return 2\nfor i in range(bound()):\n    step()\n"
    source += "assert calls == [1]\n"
    assert loops_of(source) == [(None, False)]


def test_a_condition_that_may_end_a_loop_is_read_unless_it_is_an_option(loops_of):
    source = "import argparse\nargs = argparse.Namespace(dry_run=False)\nonly_once = False\nfor e in range(3):\n"
    source += "    for b in [1, 2]:\n        step()\n        if args.dry_run:\n            break\n"
    source += "        if b > 1 and only_once:\n            break\n"
    source += "    if e >= 2:\n        break\n    if b < 1:\n        e = 0\n    else:\n        break\n"
    assert loops_of(source, ("may_end",)) == [("`if b < 1` in line 13",), ("",)]


def test_a_label_of_a_progress_bar_changes_no_length(loops_of):
    source = "for e in range(3):\n    bar = tqdm([1, 2], f'epoch {e}') if tqdm else []\n    for b in bar: step()\n"
    assert loops_of(source, ("times", "varies_with", "joined")) == [(3, "", False), (2, "", False)]


@pytest.mark.parametrize(
    ("source", "passes"),
    [
        ("n, w = 66, 8\nfor b, i in enumerate(range(0, n, w)):\n    if i + w >= n:\n        continue\n    step()\n", 8),
        ("for i in range(9):\n    if i < 2:\n        continue\n    if i % 2:\n        continue\n    step()\n", 4),
        ("for n, i in enumerate(range(9), 1):\n    if n % 3:\n        continue\n    step()\n", 3),
        ("n = 0\nfor i in range(9):\n    n += 1\n    if n < 2:\n        continue\n    step()\n", 9),
        ("for i in range(9):\n    step()\n    if i < 2:\n        continue\n", 9),
    ],
    ids=["window past the end", "two conditions", "counted from 1", "a variable that changes", "below the step"],
)
def test_passes_that_a_counter_skips_are_not_counted(loops_of, source, passes):
    assert loops_of(source, ("times",)) == [(passes,)]


ACCUMULATING = """class Rows: step = lambda self: step()
optimizer = Rows()
for e in range(2):
    for b in range(5):
        if TEST:
            optimizer.step()
    AFTER
"""


@pytest.mark.parametrize(
    ("test", "after", "at_end"),
    [
        ("b % 2 == 0", "pass", False),
        ("b % 2 == 0 or b == 4", "pass", True),
        ("b % 2 == 0", "if b % 2: optimizer.step()", True),
        ("b % 2 == 0", "for c in []: optimizer.step()", False),
        ("b % 2 == 0", "if e: print()", False),
    ],
)
def test_a_step_from_the_last_batches_is_read_from_the_source(loops_of, test, after, at_end):
    source = ACCUMULATING.replace("TEST", test).replace("AFTER", after)
    assert loops_of(source, ("times", "steps_at_end")) == [(2, False), (5, at_end)]


PASSED = """def fit(e, rows):
    for b in rows: step()
for e in range(2):
    for a in [[1], [2, 3]]:
        cut = a[:9]
        fit(e, ROWS)
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def cut(a):\n    return a\nfor a in [[1], [2, 3]]:\n    rows = cut(a)\n    for b in rows: step()\n",
         [(2, ""), (1, "[[1], [2, 3]]")]),
        (PASSED.replace("ROWS", "rows=cut"), [(2, ""), (2, ""), (1, "[[1], [2, 3]]")]),
        (PASSED.replace("ROWS", "[1, 2]"), [(2, ""), (2, ""), (2, "")]),
    ],
    ids=["result", "argument", "fixed argument"],
)  # fmt: skip
def test_a_length_that_a_call_may_decide_is_assumed_for_all_passes(loops_of, source, expected):
    assert loops_of(source, ("times", "varies_with")) == expected
