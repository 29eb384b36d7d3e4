"""Scripts that wait, hang or fail before they train end in one sentence that helps."""

import sys
import textwrap
import time

import pytest

from leadline.core.errors import Untraceable
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.torch.trace import trace_command
from leadline.graphs.torch.worker import watchdog
from tests.support.forked_python import run_forked


def failure(folder, code, *, arguments=(), limit_s=60):
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code))
    workload = Workload(
        ModelSource(ModelKind.COMMAND, "train", (sys.executable, str(script), *arguments)), trace_limit_s=limit_s
    )
    with pytest.raises(Untraceable) as caught:
        trace_command(workload, runner=run_forked, cwd=folder)
    return caught.value


def test_a_script_that_computes_too_long_is_told_its_line(tmp_path):
    code = """
    import torch
    def count():
        while True:
            sum(range(1000))
    count()
    """
    error = failure(tmp_path, code, limit_s=1)
    assert "did not reach its second training step in 1 s" in error.reason
    assert "--trace-limit" in error.reason
    assert error.location in (f"{tmp_path}/train.py:4", f"{tmp_path}/train.py:5")


def test_a_script_that_sleeps_in_a_library_is_told_its_line(tmp_path):
    # A second lock of a mutex of C waits for ever, and no signal ends it.
    code = """
    import ctypes, torch
    c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    c.pthread_mutex_lock(mutex)
    c.pthread_mutex_lock(mutex)
    """
    began_s = time.monotonic()
    error = failure(tmp_path, code, limit_s=1)
    assert error.location == f"{tmp_path}/train.py:5"
    assert time.monotonic() - began_s < 4 * 1 + 60  # the parent's limit was not needed


def test_a_script_that_waits_for_nothing_ends_before_its_limit(tmp_path):
    code = f"""
    import sys, threading, torch
    watchdog = sys.modules["{watchdog.__name__}"]
    watchdog.HANG_S = 2.0
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
    """
    error = failure(tmp_path, code)
    assert "waits here, and used no processor" in error.reason
    assert error.location == f"{tmp_path}/train.py:7"


def test_a_script_whose_child_computes_does_not_hang(tmp_path):
    code = f"""
    import subprocess, sys, torch
    sys.modules["{watchdog.__name__}"].HANG_S = 2.0
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 5: pass"])
    raise SystemExit("the child has ended")
    """
    assert "the script exited: the child has ended" in failure(tmp_path, code).reason


def test_missing_arguments_are_told_as_the_script_tells_them(tmp_path):
    code = """
    import argparse, sys, torch
    print("\\x1b[31ma red warning\\x1b[0m", file=sys.stderr)
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.parse_args()
    """
    reason = failure(tmp_path, code).reason
    assert "exited with code 2" in reason
    assert reason.endswith("train.py: error: the following arguments are required: --data")
    assert "\x1b" not in reason


def test_a_missing_package_and_a_missing_file_are_told_with_the_way_on(tmp_path):
    error = failure(tmp_path, "import torch\nimport absent_package\n")
    assert f"imports absent_package, which {sys.executable} does not have: install it there" in error.reason
    error = failure(tmp_path, "import torch\nopen('data/train.bin')\n")
    assert f"'data/train.bin'; the trace runs in {tmp_path} and needs the files" in error.reason
