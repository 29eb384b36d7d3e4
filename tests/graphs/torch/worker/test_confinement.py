"""Hostile scripts, traced with all means of the kernel and without some. Each has a canary that it tries to harm."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
from benchmarks.trust.harms import HARMS
from benchmarks.trust.hostile import attempt
from leadline.core.errors import Untraceable
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command
from leadline.graphs.torch.worker import confinement
from leadline.graphs.torch.worker.confinement import Confinement
from tests.support.forked_python import run_forked

SCRIPTS = {name: (harm, code) for harm, scripts in HARMS.items() for name, code in scripts.items()}
NOTHING = "the traced code could not change files, use the network or affect other processes"
FILTERS_ONLY, PYTHON_ONLY = ("namespaces",), ("namespaces", "landlock", "seccomp")


@cache
def features(without=()):
    """Return the features of this kernel, from the note of a harmless script."""
    changes, notes = attempt("pass", without, runner=run_forked)
    assert changes == []
    return NOTHING if NOTHING in notes else next(note for note in notes if note.startswith("this machine offers"))


needs_namespaces = pytest.mark.skipif("features() != NOTHING", reason="needs all namespaces")
needs_filters = pytest.mark.skipif(
    "'Landlock' not in features(FILTERS_ONLY) or 'seccomp' not in features(FILTERS_ONLY)",
    reason="needs Landlock and seccomp",
)


@needs_namespaces
@pytest.mark.parametrize(
    "name",
    [
        "rm in a shell",
        "an asyncio shell",
        "a user namespace of its own",
        "unlink in C",
        "a shared mapping in C",
        "sqlite3",
        "a FIFO",
        "a file of the cache",
        "a worker of a data loader",
        "chmod in C",
        "a file in /dev/shm",
        "a System V segment",
        "a TCP connection",
        "a listening port",
        "a Unix socket",
        "an abstract socket",
        "os.kill",
        "memory of another process by /proc",
        "the CPUs of another process",
        "a daemon that starts daemons",
    ],
)
def test_a_confined_script_harms_nothing_and_is_traced(name):
    changes, notes = attempt(SCRIPTS[name][1], runner=run_forked)
    assert changes == []
    assert NOTHING in notes


@needs_filters
@pytest.mark.parametrize(
    "name",
    [
        "sed -i",
        "rename in C",
        "a tensor mapped to a file",
        "a FIFO",
        "a file of the cache",
        "chmod in a shell",
        "a UDP message",
        "a listening port",
        "an abstract socket",
        "kill in a shell",
        "memory of another process by ptrace",
        "the limits of another process",
        "a daemon",
    ],
)
def test_without_namespaces_the_filters_of_the_kernel_hold(name):
    changes, notes = attempt(SCRIPTS[name][1], FILTERS_ONLY, runner=run_forked)
    assert changes == []
    assert any(note.startswith("this machine offers Landlock") for note in notes)


@pytest.mark.parametrize("name", ["rm in a shell", "chmod in C", "a TCP connection", "os.kill"])
def test_a_harm_that_gets_through_is_named(name):
    harm, code = SCRIPTS[name]
    changes, notes = attempt(code, PYTHON_ONLY, runner=run_forked)
    assert changes
    assert [harm in note for note in notes if note.startswith("this machine offers no confinement")] == [True]


@pytest.mark.parametrize("name", ["a store of torch.distributed", "a daemon"])
def test_no_port_is_opened_and_no_daemon_stays_on_any_kernel(name):
    assert attempt(SCRIPTS[name][1], PYTHON_ONLY, runner=run_forked)[0] == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root gives up its rights")
@needs_namespaces
def test_a_user_without_rights_is_confined_alike():
    unprivileged = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    changes, notes = attempt(
        SCRIPTS["rm in a shell"][1], runner=lambda argv, **options: run_process([*unprivileged, *argv], **options)
    )
    assert changes == []
    assert NOTHING in notes


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs to cover a part of /proc")
@needs_namespaces
def test_a_container_that_hides_parts_of_proc_keeps_files_and_network_safe():
    covered = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc/fs && exec "$@"', "sh"]
    for name in ("rm in a shell", "a TCP connection", "a daemon"):
        changes, notes = attempt(
            SCRIPTS[name][1], runner=lambda argv, **options: run_process([*covered, *argv], **options)
        )
        assert changes == []
        assert any("did not hold back priorities and limits" in note for note in notes)


@needs_namespaces
def test_a_failure_for_lack_of_the_network_says_so(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, urllib.request\nurllib.request.urlopen('http://192.0.2.1/weights.pt', timeout=9)\n"
    )
    words = (sys.executable, str(script))
    workload = Workload(ModelSource(ModelKind.COMMAND, " ".join(words), words))
    with pytest.raises(Untraceable, match="the trace has no network, so download what it needs first"):
        trace_command(workload, runner=run_forked, cwd=tmp_path)


def test_every_harm_is_either_prevented_or_named():
    partial = Confinement(("seccomp",), (confinement.NETWORK, confinement.LASTING))
    assert {*partial.possible} == {*confinement.HARMS} - {confinement.NETWORK, confinement.LASTING}
    assert all(harm in partial.sentence() for harm in partial.possible)
    assert confinement.NETWORK not in partial.sentence()


def test_the_exit_code_of_a_confined_process_is_its_own(tmp_path):
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(confinement.__file__).parent)!r})
import confinement
confinement.confine({str(tmp_path)!r}, {str(tmp_path)!r})
os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
