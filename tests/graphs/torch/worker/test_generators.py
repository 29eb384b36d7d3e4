"""The source of a generator tells how often it yields, without running it."""

import ast
import runpy
from types import SimpleNamespace

import pytest

from leadline.graphs.torch.worker.generators import count_yields, early_end_of
from leadline.graphs.torch.worker.loop_lengths import _passes

CODE = """
def batches(n, size=2):
    total = n * size
    for i in range(total):
        yield i

def endless():
    while True:
        yield 1

def guarded(n):
    for i in range(n):
        if i % 2:
            yield i

def either(rows, extra=None):
    count = len(rows)
    for i in range(count // 4):
        if extra is not None:
            yield i, extra
        else:
            yield i
    if count > count // 4 * 4:
        yield count

def stopped(n):
    for i in range(n):
        yield i
        if i > 3:
            break

class Epochs:
    stopping = False
    def __iter__(self):
        for epoch in range(6):
            yield epoch
            if self.stopping:
                break

def until(n, data):
    for i in range(n):
        if data.length * i > 9:
            return
        yield i

def nested(n):
    for x in nested(n):
        yield x

def slices(*columns, **options):
    size = options.get("size", 2)
    if len(columns) == 1:
        column = columns[0]
        for i in range(0, len(column), size):
            yield column[i : i + size]
    else:
        for i in range(0, len(columns[0]), size):
            yield [column[i : i + size] for column in columns]

class Data:
    length = 5
    def __iter__(self):
        for i in range(self.length):
            for j in range(2):
                yield i

    def shuffled(self, times):
        for i in range(times):
            yield i

class Rows:
    def __init__(self, rows):
        self.rows = rows
    def __iter__(self):
        for i in range(0, len(self.rows), 2):
            yield self.rows[i : i + 2]

def in_epochs(rows, epochs):
    rows = list(rows)
    for epoch in range(epochs):
        for i in range(0, len(rows), 2):
            yield rows[i : i + 2]

def whole_batches(rows, size):
    rows = rows[: len(rows) // size * size]
    for i in range(0, len(rows), size):
        yield rows[i : i + size]

def in_turn(rows, size=2):
    start = 0
    while start < len(rows):
        yield rows[start : start + size]
        start += size

data, running, epochs = Data(), batches(4), Epochs()
of_whole = whole_batches("abcdefgh", 3)
next(of_whole)
of_call, of_class = in_epochs(zip("abc", "def"), 5), iter(Rows("abcde"))
for generator in (running, of_call, of_class):
    next(generator)
"""


@pytest.mark.parametrize(
    ("expression", "yields"),
    [
        ("batches(3)", 6), ("batches(n=3, size=5)", 15), ("data", 10), ("data.shuffled(7)", 7), ("running", 8),
        ("endless()", None), ("guarded(4)", None), ("stopped(9)", None), ("nested(2)", None), ("nested(missing)", None),
        ("of_call", 10), ("of_class", 3), ("slices(x for x in 'ab')", None),
        ("of_whole", 2), ("in_turn('abcde')", 3), ("in_turn('abcde', size=1)", 5),
        ("either('abcdefghi')", 3), ("either('abcdefgh', extra=2)", 2),
        ("epochs", 6), ("until(7, data)", None),
        ("range(3)", None), ("missing", None), ("slices('abcdef')", 3), ("slices('abcde', 'abcde', size=4)", 2),
    ],
)  # fmt: skip
def test_yields_are_counted_where_only_loops_decide(script_frame, expression, yields):
    assert count_yields(ast.parse(expression, mode="eval").body, script_frame, _passes) == yields


@pytest.mark.parametrize(("expression", "condition"), [("epochs", "if self.stopping"), ("data", "")])
def test_what_may_end_a_generator_is_told(script_frame, expression, condition):
    node = ast.parse(expression, mode="eval").body
    count_yields(node, script_frame, _passes)
    assert early_end_of(node, script_frame).strip("`").partition("`")[0] == condition


@pytest.fixture
def script_frame(tmp_path):
    """Return what stands for a frame of the script that has defined all of it."""
    script = tmp_path / "train.py"
    script.write_text(CODE)
    names = runpy.run_path(str(script))
    code = SimpleNamespace(co_flags=0, co_filename=str(script))
    return SimpleNamespace(f_locals=names, f_globals=names, f_code=code)
