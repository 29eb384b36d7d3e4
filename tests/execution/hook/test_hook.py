"""The hook in real interpreters: a script behaves as it does without it, and its loops are seen."""

import ast
import importlib.util
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import leadline.progress
from leadline.execution import hook
from leadline.execution.hook import record
from leadline.execution.wrapper.hook_report import read_hook_progress
from leadline.execution.wrapper.outcome import read_outcome

WRAPPER = [sys.executable, "-P", "-m", "leadline.execution.wrapper"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(leadline.progress.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, source, name="train.py"):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return name


def both(folder, *words, **more):
    """Run a command plainly and under the hook, and return both ends with the outcome of the second."""
    plain = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    command = [*WRAPPER, "--result", str(folder / "result.json"), "--probe-hook", "--", *words]
    watched = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    return plain, watched, read_outcome(folder / "result.json")


def watch(folder, *words, options=()):
    command = [*WRAPPER, "--result", str(folder / "result.json"), "--probe-hook", *options, "--", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended, read_outcome(folder / "result.json")


SAME = {
    "names": """
        '''What it is.'''
        from __future__ import annotations
        import sys, os
        print(__name__, __file__, __spec__, __package__, __doc__, type(__loader__).__name__, sys.argv, sys.path[0])
        print(sorted(name for name in globals() if "leadline" in name), "LEADLINE_HOOK" in os.environ)
        print([path for path in os.environ.get("PYTHONPATH", "").split(":") if "hook" in path])
        """,
    "break, else, continue": """
        for i in range(5):
            if i == 1:
                continue
            if i == 3:
                break
        else:
            print("no")
        for i in ():
            pass
        else:
            print("else", i)
        n = 0
        while n < 3:
            n += 1
            if n == 2:
                continue
        else:
            print("done", n)
        it = iter(range(10))
        for a in it:
            if a == 4:
                break
        print(list(it))
        """,
    "generators": """
        def numbers():
            try:
                for i in range(10):
                    yield i
            finally:
                print("closed")
        for i in numbers():
            if i == 2:
                break
        print("after")
        class Again:
            def __init__(self): self.n = 0
            def __iter__(self): return self
            def __next__(self):
                self.n += 1
                if self.n % 4 == 0:
                    raise StopIteration
                return self.n
        print([x for x in Again()], end=" ")
        for x in Again(): print(x, end=" ")
        async def later():
            for i in range(3): pass
            return i
        import asyncio
        print(asyncio.run(later()))
        """,
    "not iterable": "for i in 5:\n    pass\n",
    "error in a function": """
        def fail(rows):
            for row in rows:
                while True:
                    print(1 / row)
                    break
        fail([1, 2, 0])
        """,
    "error in an iterator": """
        def rows():
            yield 1
            raise KeyError("row")
        try:
            for row in rows():
                print(row)
        except KeyError as error:
            print(repr(error))
        """,
    "exit code": "import sys\nfor i in range(3):\n    sys.exit(7)\n",
    "syntax error": "x = 1\nfor i in range(3)\n    pass\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "pickles": """
        import pickle
        class Point:
            def __init__(self, x): self.x = x
        print(pickle.loads(pickle.dumps(Point(3))).x)
        """,
    "threads and recursion": """
        from concurrent.futures import ThreadPoolExecutor
        def work(n):
            total = 0
            for i in range(n):
                for j in range(3):
                    total += work(n - 1) if j > 1 and n > 4 else i
            return total
        with ThreadPoolExecutor(4) as pool:
            print(sum(pool.map(work, range(8))), work(9))
        """,
    "spawn": """
        import multiprocessing
        def work(n):
            return sum(i for i in range(n))
        if __name__ == "__main__":
            for method in ("spawn", "fork"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(method, pool.map(work, [3, 4]))
        """,
    "own json": "import json\nprint(json.NAME)\nfor i in range(3): pass\n",
}


@pytest.mark.parametrize("name", SAME)
def test_a_script_behaves_as_without_the_hook(folder, name):
    write(folder, "NAME = 'mine'\n", "json.py") if name == "own json" else None
    plain, watched, _ = both(folder, sys.executable, write(folder, SAME[name]), "--epochs", "3")
    assert plain.stdout == watched.stdout
    assert plain.stderr == watched.stderr
    assert (plain.returncode if plain.returncode >= 0 else 128 - plain.returncode) == watched.returncode


def test_a_module_runs_as_without_the_hook_and_is_watched(folder):
    write(folder, "", "pkg/__init__.py")
    write(folder, "def rows(n):\n    for i in range(n):\n        yield i\n", "pkg/data.py")
    source = """
        import sys, time
        from .data import rows
        print(__name__, __spec__.name, __package__, sys.argv)
        for row in rows(30):
            time.sleep(0.001)
        """
    write(folder, source, "pkg/run.py")
    plain, watched, outcome = both(folder, sys.executable, "-m", "pkg.run", "x")
    assert plain.stdout == watched.stdout
    assert [(one.name, one.count, one.length) for one in outcome.progress.levels] == [("for row in rows(30)", 30, 30)]


def test_a_terminated_script_runs_its_own_handler(folder):
    source = """
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        for i in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        """
    plain, watched, _ = both(folder, sys.executable, write(folder, source))
    assert 9 == plain.returncode == watched.returncode


NESTED = """
    import time
    def train(epochs):
        for epoch in range(epochs):
            for i, batch in enumerate(range(10)):
                time.sleep(0.004)
                for k in range(20):
                    k * k
            for v in range(2):
                time.sleep(0.004)
    time.sleep(0.2)
    train({epochs})
"""


def test_the_loops_of_a_plain_script_are_found_with_their_lengths_and_times(folder):
    _, outcome = watch(folder, sys.executable, write(folder, NESTED.format(epochs=4)))
    epochs, batches = outcome.progress.levels
    assert (epochs.name, epochs.count, epochs.length) == ("for epoch in range(epochs)", 4, 4)
    assert (batches.count, batches.length, batches.passes, batches.where) == (40, 10, 4, "train.py:5")
    assert 0.004 <= outcome.measured["unit_s"].value < 0.02
    assert 0.2 <= outcome.measured["startup_s"].value < 2
    assert 4 * 10 * 0.004 <= epochs.inside_s < epochs.total_s
    assert outcome.measured["epochs"].value == 4


def test_a_probe_ends_a_plain_script_at_a_boundary_with_its_handlers_run(folder):
    source = NESTED.format(epochs=10**6) + "    print('never')\n"
    source = "    import atexit; atexit.register(print, 'goodbye')\n" + source
    ended, outcome = watch(folder, sys.executable, write(folder, source), options=["--stop-time-s", "0.3"])
    assert ended.stdout == "goodbye\n"
    assert outcome.progress.stopped
    assert outcome.progress.levels[0].length == 10**6


def test_a_script_that_catches_everything_is_ended_all_the_same(folder):
    source = """
        import time
        def again():
            try:
                for i in range(10**9):
                    time.sleep(0.01)
            except BaseException:
                time.sleep(20)
                again()
        again()
        """
    _, outcome = watch(folder, sys.executable, write(folder, source), options=["--stop-units", "20"])
    assert outcome.reason == "the probe has seen enough of it"
    assert outcome.signal == signal.SIGTERM
    assert outcome.progress.stopped
    assert outcome.progress.unit.count == 20


@pytest.mark.parametrize(
    ("source", "length"),
    [
        ("step = 0\nwhile step < 400:\n    time.sleep(0.002)\n    step += 1\n", 400),
        ("step, most = 0, 400\nwhile True:\n    step += 1\n    time.sleep(0.002)\n    if step >= most: break\n", 400),
        ("import itertools\nfor i in itertools.count():\n    if i >= 400: break\n    time.sleep(0.002)\n", 400),
        ("import itertools\nfor i in itertools.islice(itertools.count(), 400):\n    time.sleep(0.002)\n", 400),
        ("for a, b in zip(range(400), range(500)):\n    time.sleep(0.002)\n", 400),
        ("while True:\n    time.sleep(0.002)\n", None),
        ("step = 0\nwhile step < 1e300:\n    time.sleep(0.002)\n    step += 1\n", None),
        ("step, most = 0, float('inf')\nwhile step < most:\n    time.sleep(0.002)\n    step += 1\n", None),
        ("step = float('nan')\nwhile step != 400:\n    time.sleep(0.002)\n    step += 1\n", None),
        ("bad = 0\nwhile bad < 400:\n    time.sleep(0.002)\n    bad += 1\n    bad = 0\n", None),
    ],
)
def test_the_length_of_a_loop_is_read_where_it_can_be(folder, source, length):
    script = write(folder, "import time\n" + source)
    _, outcome = watch(folder, sys.executable, script, options=["--stop-units", "40"])
    (level,) = outcome.progress.levels
    assert length == (level.length if level.length is None else round(level.length, -1))


def test_a_python_script_that_a_shell_script_starts_is_watched_too(folder):
    write(folder, NESTED.format(epochs=2))
    _, outcome = watch(folder, "sh", "-c", f"{sys.executable} train.py")
    assert outcome.progress.unit.count == 20


def test_a_torch_loop_is_the_one_around_the_optimizer_step(folder):
    pytest.importorskip("torch")
    source = """
        import torch
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(torch.randn(160, 64), batch_size=16)
        for epoch in range(1000):
            for x in loader:
                for part in x.chunk(2):
                    model(part).square().mean().backward()
                optimizer.step()
        """
    _, outcome = watch(folder, sys.executable, write(folder, source), options=["--stop-units", "25"])
    assert [one.name for one in outcome.progress.levels] == ["for epoch in range(1000)", "for x in loader"]
    assert [one.length for one in outcome.progress.levels] == [1000, 10]
    assert 25 <= outcome.measured["steps"].value <= 27
    assert outcome.progress.source == "PyTorch's optimizer steps"


def test_a_compiler_sees_nothing_of_the_hook(folder):
    pytest.importorskip("torch")
    source = """
        import torch
        def shifted(x):
            for i, k in enumerate(range(3)):
                x = x + k
            n = 0
            while n < 2:
                n += 1
            return x * n
        once = torch.compile(lambda x: shifted(x), backend="eager", fullgraph=True)
        print(once(torch.ones(2)))
        """
    ended, outcome = watch(folder, sys.executable, write(folder, source))
    assert ended.stdout == "tensor([8., 8.])\n", ended.stderr
    assert outcome.progress.remarks == ()


@pytest.mark.parametrize("path", [*Path(hook.__file__).parent.rglob("*.py"), Path(leadline.progress.__file__)], ids=str)
def test_code_in_the_users_interpreter_is_valid_python_3_9(path):
    assert ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9)).body


def test_a_keras_fit_is_seen_by_epochs_and_batches(folder):
    if importlib.util.find_spec("keras") is None:
        pytest.skip("keras is not installed")
    source = """
        import os
        os.environ["KERAS_BACKEND"] = "torch"
        import keras, numpy
        model = keras.Sequential([keras.layers.Dense(8)])
        model.compile("sgd", "mse")
        model.fit(numpy.ones((64, 4)), numpy.ones((64, 8)), batch_size=8, epochs=500, verbose=0)
        """
    _, outcome = watch(folder, sys.executable, write(folder, source), options=["--stop-units", "20"])
    assert outcome.progress.source == "Keras"
    assert [one.length for one in outcome.progress.levels] == [500, 8]
    assert 20 <= outcome.progress.unit.count <= 21


def test_a_report_that_cannot_be_written_is_a_remark(folder):
    source = """
        import sys
        sys.modules["_leadline_hook.record"].STATE.extra.append(lambda: {"odd": object()})
        print("fine")
        """
    ended, outcome = watch(folder, sys.executable, write(folder, source))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")
    (remark,) = outcome.progress.remarks
    assert "could not be watched (TypeError" in remark


def test_a_hook_that_cannot_start_is_a_remark_and_the_job_runs(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(hook.__file__).parent / "site"))
    monkeypatch.setenv("LEADLINE_HOOK", str(folder))
    monkeypatch.setenv("LEADLINE_HOOK_UNITS", "many")
    ended = subprocess.run([sys.executable, "-c", "print('fine')"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")
    assert "ValueError: invalid literal" in read_hook_progress(folder, 0.0).remarks[0]


def test_a_fault_of_the_hook_is_a_remark_and_not_the_jobs_affair(folder):
    source = """
        import time
        class Odd:
            def __iter__(self): return iter(range(3))
            def __len__(self): raise SystemError("odd")
        for i in Odd():
            time.sleep(0.001)
        print("fine")
        """
    ended, outcome = watch(folder, sys.executable, write(folder, source))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")
    assert outcome.progress.unit.count == 3
    assert outcome.progress.unit.length is None


@pytest.mark.parametrize(("took_s", "wait_s"), [(0.001, 2.0), (0.01, 10.0), (0.2, 20.0)])
def test_a_report_that_is_slow_to_write_is_put_off_but_not_for_long(monkeypatch, took_s, wait_s):
    state = record.HookState()
    monkeypatch.setattr(record.HookState, "write", lambda _: None)
    monkeypatch.setattr(record, "clock", lambda: 100.0 + took_s)
    state.write_soon(100.0)
    assert pytest.approx(wait_s) == state.wait_s
