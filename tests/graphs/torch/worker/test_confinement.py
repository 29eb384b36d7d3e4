"""Hostile scripts, traced with all means of the kernel and without some. Each has a canary that it tries to harm."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
from benchmarks.trust.harms import HARMS, TRAINING
from benchmarks.trust.hostile import attempt
from leadline.core.errors import Untraceable
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command
from leadline.graphs.torch.worker import confinement
from leadline.graphs.torch.worker.confinement import Confinement
from tests.support.forked_python import run_forked

NOTHING = "the traced code could not change files, use the network or affect other processes"
FILTERS_ONLY, PYTHON_ONLY = ("namespaces",), ("namespaces", "landlock", "seccomp")
ENDING = "execve in place of the script"


def codes(*harms):
    """Return the code of the scripts of these kinds of harm, or of all, without the script that ends its own trace."""
    return [code for harm in harms or HARMS for name, code in HARMS[harm].items() if name != ENDING]


def trace(script, *arguments, without=()):
    words = (sys.executable, str(script), *arguments)
    workload = Workload(ModelSource(ModelKind.COMMAND, " ".join(words), words))
    return trace_command(workload, runner=run_forked, cwd=script.parent, timeout_s=60, without=without)


@cache
def offer(without=()):
    """Return the note about this kernel on a harmless script."""
    changes, notes = attempt("pass", without=without, runner=run_forked)
    assert changes == []
    return next(note for note in notes if note.startswith(("the traced code", "this machine offers")))


needs_namespaces = pytest.mark.skipif("offer() != NOTHING", reason="needs all namespaces")
needs_filters = pytest.mark.skipif(
    "'Landlock' not in offer(FILTERS_ONLY) or 'seccomp' not in offer(FILTERS_ONLY)", reason="needs Landlock and seccomp"
)


@needs_namespaces
def test_confined_scripts_harm_nothing_and_are_traced():
    changes, notes = attempt(*codes(), runner=run_forked)
    assert changes == []
    assert NOTHING in notes


@needs_namespaces
def test_a_program_in_place_of_the_script_is_confined_too():
    changes, notes = attempt(HARMS[confinement.CHANGES][ENDING], runner=run_forked)
    assert changes == []
    assert "before it could answer" in notes[0]


@needs_filters
def test_without_namespaces_the_filters_of_the_kernel_hold():
    held_back = [harm for harm in HARMS if harm not in offer(FILTERS_ONLY).partition(";")[0]]
    assert {confinement.CHANGES, confinement.ATTRIBUTES, confinement.CACHES, confinement.NETWORK} <= {*held_back}
    changes, notes = attempt(*codes(*held_back), without=FILTERS_ONLY, runner=run_forked)
    assert changes == []
    assert offer(FILTERS_ONLY) in notes


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (confinement.CHANGES, "rm in a shell"),
        (confinement.ATTRIBUTES, "chmod in C"),
        (confinement.NETWORK, "a TCP connection"),
        (confinement.SIGNALS, "os.kill"),
    ],
)
def test_a_harm_that_gets_through_is_named(harm, name):
    changes, notes = attempt(HARMS[harm][name], without=PYTHON_ONLY, runner=run_forked)
    assert changes
    possible = [note.partition(";")[0] for note in notes if note.startswith("this machine offers no confinement")]
    assert [harm in note for note in possible] == [True]


def test_no_port_is_opened_and_no_daemon_stays_on_any_kernel():
    store = HARMS[confinement.NETWORK]["a store of torch.distributed"]
    assert attempt(store, *codes(confinement.LASTING), without=PYTHON_ONLY, runner=run_forked)[0] == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root gives up its rights")
@needs_namespaces
def test_a_user_without_rights_is_confined_alike():
    # Without CAP_SETFCAP, Linux refuses to map user 0, so root would not be like a user.
    unprivileged = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all", "--no-new-privs"]
    changes, notes = attempt(*codes(), runner=lambda argv, **options: run_process([*unprivileged, *argv], **options))
    assert changes == []
    assert NOTHING in notes


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs to cover a part of /proc")
@needs_namespaces
def test_a_container_that_hides_parts_of_proc_keeps_files_and_network_safe():
    covered = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc/fs && exec "$@"', "sh"]
    safe = [harm for harm in HARMS if harm not in (confinement.SETTINGS, confinement.SIGNALS)]
    changes, notes = attempt(*codes(*safe), runner=lambda argv, **options: run_process([*covered, *argv], **options))
    assert changes == []
    assert any(note.startswith("this machine offers namespaces") and confinement.SETTINGS in note for note in notes)


@needs_namespaces
def test_a_child_process_may_write_to_a_folder_among_the_arguments(tmp_path):
    source, results = tmp_path / "source" / "train.py", tmp_path / "results"
    source.parent.mkdir()
    results.mkdir()
    command = "subprocess.run(['touch', sys.argv[1].partition('=')[2] + '/new'], check=True)"
    source.write_text(f"import subprocess, sys, torch\n{command}{TRAINING}")
    assert trace(source, f"--output={results}").step.parameters == 6
    assert list(results.iterdir()) == []


@pytest.mark.skipif(not os.access("/usr", os.W_OK), reason="needs a folder that root may write to")
@needs_namespaces
def test_python_code_may_write_where_everything_below_it_is_read_only(tmp_path):
    new = Path("/usr/leadline-test.txt")
    write = f"open({str(new)!r}, 'w').write('x')\nassert open({str(new)!r}).read() == 'x'"
    (tmp_path / "train.py").write_text(f"import os, torch\nassert os.access('/usr', os.W_OK)\n{write}{TRAINING}")
    assert trace(tmp_path / "train.py").step.parameters == 6
    assert not new.exists()


@pytest.mark.parametrize("without", [(), PYTHON_ONLY])
def test_a_note_says_that_a_script_ran_twice_unless_it_was_confined(tmp_path, without):
    (tmp_path / "train.py").write_text(f"import torch{TRAINING.replace('.cuda()', '')}")
    notes = trace(tmp_path / "train.py", without=without).notes
    assert any("trains on the CPU" in note for note in notes)
    confined = any(note == NOTHING for note in notes)
    assert [note for note in notes if "ran twice" in note] == (
        [] if confined else ["the script ran twice, and so did everything that was not held back"]
    )


@needs_namespaces
def test_a_failure_for_lack_of_the_network_says_so(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, urllib.request\nurllib.request.urlopen('http://192.0.2.1/weights.pt', timeout=9)\n"
    )
    with pytest.raises(Untraceable, match="the trace has no network, so download what it needs first"):
        trace(script)


def test_every_harm_is_either_prevented_or_named():
    partial = Confinement(("seccomp",), (confinement.NETWORK, confinement.LASTING))
    assert {*partial.possible} == {*confinement.HARMS} - {confinement.NETWORK, confinement.LASTING}
    possible, _, prevented = partial.sentence().partition("; it held back ")
    assert all(harm in possible for harm in partial.possible)
    assert prevented == f"{confinement.NETWORK}, {confinement.LASTING}"


def test_the_exit_code_of_a_confined_process_is_its_own(tmp_path):
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(confinement.__file__).parents[4])!r})
from leadline.graphs.torch.worker import confinement
confinement.confine({str(tmp_path)!r}, [])
os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
