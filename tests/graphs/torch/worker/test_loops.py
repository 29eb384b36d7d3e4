""""""

import runpy
import sys
import weakref

import pytest

from leadline.graphs.torch.worker.loops import enclosing_loops, read_locals


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

    def run(source):
        script = tmp_path / "train.py"
        script.write_text(source)
        recorded = []

        def step():
            if not recorded:
                recorded.append(enclosing_loops(str(tmp_path)))

        runpy.run_path(str(script), init_globals={"step": step}, run_name="__main__")
        return [(loop.times, loop.counts_inner) for loop in recorded[0]]

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
        ("from itertools import count\nfor i in count(1):\n    step()\n    if i >= 8:\n        break\n", [(8, False)]),
        ("n = 0\nwhile n < 10:\n    for b in [1, 2]:\n        step()\n        n += 1\n", [(10, True), (2, False)]),
        ("def bound():\n    return 2\nfor i in range(bound()):\n    step()\n", [(None, False)]),
        ("for phase in ['train', 'val']:\n    step()\n", [(2, False)]),
        ("cfg = {'steps': 6}\nfor i, j in enumerate(range(0, cfg['steps'], 2)):\n    step()\n", [(3, False)]),
        ("step()\nfor i in range(3):\n    pass\n", []),
        ("i, n = 0, float('nan')\nwhile i != n:\n    step()\n    i += 1\n    if i > 2:\n        break\n", [(3, False)]),
        ("i = 0\nwhile i < 1e300:\n    step()\n    break\n    i += 1\n", [(None, False)]),
        ("for i in range(1000000000000000000):\n    step()\n    break\n", [(None, False)]),
    ],
    ids=["expression", "attribute", "through a call", "while true", "count", "steps inside", "calls user code", "names",
         "dictionary", "no loop", "no number", "too many", "too many to count"],
)  # fmt: skip
def test_a_loop_runs_as_often_as_its_source_says(loops_of, source, expected):
    assert expected == loops_of(source)


def test_the_users_code_is_never_called_to_find_a_bound(loops_of):
    source = "calls = []\ndef bound():\n    calls.append(1)\n    return 2\nfor i in range(bound()):\n    step()\n"
    source += "assert calls == [1]\n"
    assert loops_of(source) == [(None, False)]
