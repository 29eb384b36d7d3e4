"""A trace leaves the user's folder as it was, and the script still finds what it wrote."""

import hashlib
import os
import shlex
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from leadline.core.errors import Untraceable
from leadline.core.graph import TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked

TRAIN = """
model = torch.nn.Linear(10, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(9):
    model(torch.rand(4, 10).cuda()).sum().backward()
    optimizer.step()
"""

WRITERS = {
    "arrays": """
        import h5py, numpy as np
        os.makedirs("cache")
        with h5py.File("cache/first.hdf5", "w") as file:
            file["x"] = np.ones(3)
        assert [1, 1, 1] == h5py.File("cache/first.hdf5")["x"][:].tolist()
    """,
    "columns": """
        import pyarrow
        with pyarrow.OSFile("first.arrow", "wb") as file:
            file.write(b"123")
        with open("second.arrow", "wb") as file:
            file.write(b"4")
        assert b"1234" == pyarrow.memory_map("first.arrow").read() + pyarrow.memory_map("second.arrow", "r").read()
    """,
    "a database": """
        import sqlite3
        os.makedirs("runs/first")
        for number in range(2):
            log = sqlite3.connect("runs/first/log.db")
            log.execute("CREATE TABLE IF NOT EXISTS losses (step INTEGER)")
            log.execute("INSERT INTO losses VALUES (1)")
            log.commit()
            assert log.execute("SELECT count(*) FROM losses").fetchone() == (number + 1,)
            log.close()
    """,
    "tables": """
        import numpy as np
        with open("table.csv", "w") as file:
            file.write("1,2\\n3,4\\n")
        assert [[1, 2], [3, 4]] == np.genfromtxt("table.csv", delimiter=",").tolist()
        np.savetxt("table.txt", np.ones(3))
        assert [1, 1, 1] == np.loadtxt("table.txt").tolist()
    """,
    "logs": """
        import csv, json, logging
        logging.basicConfig(filename="train.log", level=logging.INFO)
        table = csv.writer(open("log.csv", "w"))
        for step in range(3):
            logging.info("step %d", step)
            table.writerow([step])
        with open("config.json", "w") as file:
            json.dump({"width": 4}, file)
        assert {"width": 4} == json.load(open("config.json"))
        with open("notes.txt", "a") as file:
            file.write("more")
        assert "as it wasmore" == open("notes.txt").read()
    """,
    "folders": """
        import glob, pathlib, shutil
        os.makedirs("runs/first", exist_ok=True)
        pathlib.Path("runs/second").mkdir(parents=True, exist_ok=True)
        assert ["first", "second"] == sorted(os.listdir("runs"))
        pathlib.Path("runs/first/a.txt").write_text("a")
        assert ["runs/first/a.txt"] == glob.glob("runs/*/*.txt")
        shutil.rmtree("data")
        assert not os.path.exists("data/one.txt") and "data" not in os.listdir(".")
        os.chdir("runs/first")
        assert "a" == open("a.txt").read() and os.getcwd().endswith("runs/first")
        os.chdir("../..")
        assert [os.path.join(".", "runs")] == [e.path for e in os.scandir(".") if e.is_dir() and e.name == "runs"]
        os.system("mkdir -p made_by_shell/inside")
        os.system("touch never.txt")
        assert os.path.isdir("made_by_shell/inside") and not os.path.exists("never.txt")
    """,
    "moves": """
        import pathlib, shutil
        shutil.copy("notes.txt", "copy.txt")
        os.rename("copy.txt", "moved.txt")
        assert not os.path.exists("copy.txt") and "as it was" == open("moved.txt").read()
        os.replace("notes.txt", "elsewhere.txt")
        assert not os.path.isfile("notes.txt")
        shutil.move("data", "moved_data")
        assert "1" == open("moved_data/one.txt").read()
        os.chmod("moved_data/one.txt", 0o600)
        os.mkdir("data")
        assert [] == os.listdir("data") and not os.path.exists("data/one.txt")
        open("data/two.txt", "w").close()
        assert [(".", ["data", "moved_data"]), ("./data", []), ("./moved_data", [])] == sorted(
            (folder, sorted(folders)) for folder, folders, _ in os.walk(".")
        )
        assert {"two.txt"} == {path.name for path in pathlib.Path("data").iterdir()}
    """,
    "links": """
        os.symlink("data", "latest")
        assert os.path.islink("latest") and "data" == os.readlink("latest") and "1" == open("latest/one.txt").read()
        with open("latest/one.txt", "a") as file:
            file.write("2")
        open("latest/new.txt", "w").write("new")
        assert "12" == open("data/one.txt").read() and ["new.txt", "one.txt"] == sorted(os.listdir("latest"))
        os.mkdir("second")
        os.symlink("second", "next")
        os.replace("next", "latest")
        assert [] == os.listdir("latest") and not os.path.lexists("next")
        os.unlink("latest")
        assert not os.path.lexists("latest") and os.path.isdir("second")
        os.link("notes.txt", "hard.txt")
        open("hard.txt", "w").write("x")
        assert "as it was" == open("notes.txt").read()
    """,
    "archives": """
        import gzip, sqlite3, tarfile, tempfile, zipfile
        with tarfile.open("all.tar", "w") as archive:
            archive.add("data")
        with tarfile.open("all.tar") as archive:
            archive.extractall("copy")
        assert "1" == open("copy/data/one.txt").read()
        with zipfile.ZipFile("all.zip", "w") as archive:
            archive.write("notes.txt")
        with gzip.open("log.gz", "wt") as file:
            file.write("x")
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write("kept")
        os.replace(file.name, "final.txt")
        assert "kept" == open("final.txt").read() and not os.path.exists(file.name)
    """,
    "large files": """
        import numpy
        seen = numpy.memmap("tokens.bin", dtype=numpy.uint16, mode="r")
        changed = numpy.memmap("tokens.bin", dtype=numpy.uint16)
        changed[:] = 7
        changed.flush()
        assert 1 == seen[0] and 7 == numpy.memmap("tokens.bin", dtype=numpy.uint16, mode="r")[0]
    """,
    "checkpoints": """
        net = torch.nn.Linear(3, 2).cuda().half()
        torch.save({"model": net.state_dict(), "epoch": 3}, "last.pt")
        found = torch.load("last.pt", map_location="cpu")
        assert 3 == found["epoch"] and (2, 3) == tuple(found["model"]["weight"].shape)
        assert torch.float16 == found["model"]["weight"].dtype
        net.load_state_dict(found["model"])
        del net
        big = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).cuda()
        torch.save(big, "whole.pt")
        assert torch.is_tensor(torch.load("whole.pt", weights_only=False)[0].weight)
        torch.save(obj=[1], f="list.pt")
        assert [1] == torch.load("list.pt")
        parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        torch.save(parallel, "parallel.pt")
        del big
        import numpy
        numpy.save("curve.npy", numpy.arange(3))
        assert 3 == numpy.load("curve.npy").size
    """,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_files_of_a_script_are_readable_and_gone_afterwards(tmp_path: Path, kind: str) -> None:
    before = _prepare(tmp_path, "import os, torch\n" + textwrap.dedent(WRITERS[kind]) + TRAIN)
    assert _trace(tmp_path).step.parameters == 110
    assert before == _content(tmp_path)


def test_a_script_that_fails_after_writing_leaves_nothing(tmp_path: Path) -> None:
    before = _prepare(tmp_path, "import torch\nopen('half.txt', 'w').write('x')\nraise ValueError('bad')\n")
    with pytest.raises(Untraceable, match="bad") as caught:
        _trace(tmp_path)
    assert "train.py:3" in str(caught.value)
    assert before == _content(tmp_path)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("open('missing/file.txt', 'w')", "FileNotFoundError"),
        ("open('notes.txt', 'x')", "FileExistsError"),
        ("os.mkdir('data')", "FileExistsError"),
        ("os.rmdir('data')", "OSError"),
        ("open('data', 'w')", "IsADirectoryError"),
        ("os.remove('notes.txt'); open('notes.txt')", "FileNotFoundError"),
        ("os.remove('data')", "IsADirectoryError"),
        ("open('notes.txt/below', 'w')", "NotADirectoryError"),
        ("open('data/missing.txt', 'r+')", "FileNotFoundError"),
        ("os.rename('missing', 'x')", "FileNotFoundError"),
        ("os.listdir('notes.txt')", "NotADirectoryError"),
    ],
)
def test_writing_fails_where_it_would_really_fail(tmp_path: Path, line: str, error: str) -> None:
    before = _prepare(tmp_path, f"import os, torch\n{line}\n")
    with pytest.raises(Untraceable, match=error):
        _trace(tmp_path)
    assert before == _content(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_not_written_to(tmp_path: Path) -> None:
    before = _prepare(tmp_path, "import torch\nopen('data/new.txt', 'w')\n")
    (tmp_path / "data").chmod(0o500)
    with pytest.raises(Untraceable, match="PermissionError"):
        _trace(tmp_path)
    assert before == _content(tmp_path)


def _prepare(folder: Path, code: str) -> dict[str, str]:
    (folder / "train.py").write_text(code)
    (folder / "notes.txt").write_text("as it was")
    (folder / "tokens.bin").write_bytes(b"\1\0" * 100)
    (folder / "data").mkdir()
    (folder / "data" / "one.txt").write_text("1")
    return _content(folder)


def _content(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def _trace(folder: Path) -> TracedJob:
    words = (sys.executable, str(folder / "train.py"))
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words))
    return trace_command(workload, runner=run_forked, cwd=folder)


def test_a_trace_ends_when_leadline_is_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("while True:\n    pass\n", encoding="utf-8")
    code = f"""
    from leadline.core.workload import ModelKind, ModelSource, Workload
    from leadline.execution.processes import run_process
    from leadline.graphs.torch import trace
    words = ({sys.executable!r}, "train.py")
    trace.trace_command(Workload(ModelSource(ModelKind.COMMAND, "", words)), runner=run_process)
    """
    leadline = psutil.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path)
    workers: list[psutil.Process] = []
    while leadline.poll() is None and sum(worker.cpu_times().user > 1 for worker in workers) == 0:
        time.sleep(0.1)
        workers = leadline.children(recursive=True)
    leadline.kill()
    leadline.wait()
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert gone
    assert not alive
