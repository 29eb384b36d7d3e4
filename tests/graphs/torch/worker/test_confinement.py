"""Hostile scripts, traced with all means of the kernel and without some. Each has a canary that it tries to harm.

A test is skipped only if the kernel itself lacks what it needs, which a program without Leadline's code finds out.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import pytest

pytest.importorskip("torch")
from benchmarks.trust.harms import HARMS, TRAINING, WITHOUT_TRACE
from benchmarks.trust.hostile import attempt, named_harms, run_without
from leadline.core.errors import Untraceable
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command
from leadline.graphs.torch.worker import confinement
from leadline.graphs.torch.worker.confinement import Confinement
from tests.support.forked_python import run_forked

NOTHING = "the traced code could not change files, use the network or affect other processes"
FILTERS_ONLY, PYTHON_ONLY = ("namespaces",), ("namespaces", "landlock", "seccomp")
KINDS = [
    ModelKind.COMMAND,
    ModelKind.FUNCTION,
    pytest.param(
        ModelKind.JAX_FUNCTION,
        marks=pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs the [jax] extra"),
    ),
]
PROBE = """
import ctypes, json, os, signal
libc = ctypes.CDLL(None, use_errno=True)
USER, MOUNTS, HOSTNAME, IPC, NETWORK, PROCESSES = (1 << bit for bit in (28, 17, 26, 27, 30, 29))

def succeeds(action):
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if action() else 1)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0

def write(path, text):
    with open(path, "w") as file:
        file.write(text)

def enter():
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(USER | MOUNTS | HOSTNAME | IPC | NETWORK | PROCESSES) != 0:
        return False
    write("/proc/self/uid_map", f"{user} {user} 1")
    write("/proc/self/setgroups", "deny")
    write("/proc/self/gid_map", f"{group} {group} 1")
    return succeeds(mount)  # a child is the first process of the new process namespace

def mount():
    private, no_suid = 1 << 18 | 1 << 14, 2
    return (libc.mount(None, b"/", None, ctypes.c_ulong(private), None) == 0
            and libc.mount(b"tmpfs", b"/tmp", b"tmpfs", ctypes.c_ulong(no_suid), None) == 0
            and libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(no_suid | 4 | 8), None) == 0)

def has_filter():
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(22, 2, ctypes.c_void_p(0), 0, 0)
    return ctypes.get_errno() == 14  # EFAULT: the kernel would have read the filter

print(json.dumps({"namespaces": succeeds(enter), "landlock": libc.syscall(444, None, ctypes.c_size_t(0), 1),
                  "seccomp": os.uname().machine in ("x86_64", "aarch64") and succeeds(has_filter)}))
"""
"""Asks the kernel by its own calls, as Leadline's confinement might be broken: its namespaces, the version of Landlock
(below 1 without it), and whether it takes filters of system calls."""


@cache
def kernel():
    """Return what the kernel offers to this user."""
    printed = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True).stdout
    return json.loads(printed)


def codes(*harms):
    """Return the code of the scripts of these kinds of harm, or of all, without those that end their own trace."""
    return [code for harm in harms or HARMS for name, code in HARMS[harm].items() if name not in WITHOUT_TRACE]


def trace(script, *arguments, without=()):
    words = (sys.executable, str(script), *arguments)
    workload = Workload(ModelSource(ModelKind.COMMAND, " ".join(words), words))
    return trace_command(workload, runner=partial(run_without, without, run_forked, {}, script.parent))


@cache
def offer(without=()):
    """Return Leadline's note about this kernel on a harmless script."""
    changes, notes = attempt("pass", without=without, runner=run_forked)
    assert changes == []
    return next(note for note in notes if note.startswith(("the traced code", "this machine offers")))


needs_namespaces = pytest.mark.skipif(
    "not kernel()['namespaces']", reason="the kernel gives no namespaces to this user"
)
needs_filters = pytest.mark.skipif(
    "kernel()['landlock'] < 1 or not kernel()['seccomp']", reason="the kernel has no Landlock or no seccomp filters"
)


@needs_namespaces
@pytest.mark.parametrize("kind", KINDS)
def test_confined_scripts_and_functions_harm_nothing_and_are_traced(kind):
    changes, notes = attempt(*codes(), kind=kind, runner=run_forked)
    assert changes == []
    assert named_harms(notes) == set()
    assert (NOTHING in notes) == (kind is ModelKind.COMMAND)


@needs_namespaces
@pytest.mark.parametrize("name", WITHOUT_TRACE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_script_or_function_that_ends_its_trace_is_confined_too(kind, name):
    changes, notes = attempt(HARMS[confinement.CHANGES][name], kind=kind, runner=run_forked)
    assert changes == []
    assert re.search("before it could answer|ValueError: stopped; .* stopped here$", notes[0])


@needs_filters
@pytest.mark.parametrize("kind", KINDS)
def test_without_namespaces_the_filters_of_the_kernel_hold(kind):
    held_back = [harm for harm in HARMS if harm not in named_harms([offer(FILTERS_ONLY)])]
    assert {confinement.CHANGES, confinement.ATTRIBUTES, confinement.CACHES, confinement.NETWORK} <= {*held_back}
    changes, notes = attempt(*codes(*held_back), kind=kind, without=FILTERS_ONLY, runner=run_forked)
    assert changes == []
    assert offer(FILTERS_ONLY) in notes


@pytest.mark.parametrize("name", WITHOUT_TRACE)
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_without_a_trace_names_the_harms_that_were_possible(kind, name):
    changes, notes = attempt(HARMS[confinement.CHANGES][name], kind=kind, without=PYTHON_ONLY, runner=run_forked)
    assert changes
    assert confinement.CHANGES in named_harms(notes)


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
    assert any(note.startswith("this machine offers no confinement") for note in notes)
    assert harm in named_harms(notes)


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
    twice = [note for note in notes if "; the script ran twice, and so did everything that was not held back" in note]
    assert len(twice) == (0 if confined else 1)


@needs_namespaces
def test_a_failure_for_lack_of_the_network_says_so(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, urllib.request\nurllib.request.urlopen('http://192.0.2.1/weights.pt', timeout=9)\n"
    )
    with pytest.raises(Untraceable, match="the trace has no network, so download what it needs first"):
        trace(script)


def test_there_is_a_hostile_script_for_every_harm():
    assert {*HARMS} == {*confinement.HARMS}


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
