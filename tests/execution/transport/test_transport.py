"""Where commands run: one protocol on this machine and over a real sshd, and words that stay as they are."""

import filecmp
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.processes import CompletedProcess
from leadline.core.units import MIB
from leadline.execution.processes import run_pipe, run_process
from leadline.execution.transport.port import ConnectionLost, LocalTransport, shell_line
from leadline.execution.transport.ssh import SshTransport
from tests.support.ssh_server import HOST, ssh_server, why_no_sshd

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=1, max_size=5)
ODD = [
    "",
    " ",
    "'",
    '"',
    "$(touch gone)",
    "`id`",
    "a\nb",
    "\\",
    "!x",
    "~",
    "*",
    "-n",
    "%s",
    "ü€",
    ";",
    "&",
    "|",
    "#",
    "=",
]

SETTINGS = {
    "SQUEUE_PARTITION": "short", "SQUEUE_FORMAT": "%i", "SACCT_FORMAT": "jobid", "SBATCH_TIMELIMIT": "1",
    "SBATCH_GET_USER_ENV": "1", "SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "1", "SLURM_TIME_FORMAT": "%H",
    "SCONTROL_FUTURE": "1", "SCANCEL_VERBOSE": "1", "SRUN_CPUS_PER_TASK": "3", "SLURMD_NODENAME": "n1",
    "SALLOC_WAIT": "1", "SINFO_ALL": "1", "SACCTMGR_X": "1", "PBS_DPREFIX": "#X", "PBS_JOBID": "7", "QSTAT_X": "1",
}  # fmt: skip
KEPT = {"SLURM_CONF": "/etc/it's", "SBATCH_ACCOUNT": "a b", "PBS_SERVER": "pbs01", "MY_SLURM_X": "1", "slurm_x": "1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if reason := why_no_sshd():
        pytest.skip(reason)
    with ssh_server(tmp_path_factory.mktemp("ssh"), {"PLACE": "over there", **SETTINGS, **KEPT}) as running:
        yield running


@pytest.fixture
def sockets():
    with tempfile.TemporaryDirectory(prefix="s") as folder:  # a socket's path is short
        yield Path(folder)


@pytest.fixture
def ssh(server, sockets):
    opened = SshTransport(HOST, config=server.config, sockets=sockets)
    yield opened
    opened.close()


@pytest.fixture(params=["here", "ssh"])
def transport(request):
    return LocalTransport() if request.param == "here" else request.getfixturevalue("ssh")


def echoed(transport, words):
    """Return the words as a program there got them."""
    code = "import sys; sys.stdout.buffer.write(b'\\0'.join(map(__import__('os').fsencode, sys.argv[1:])))"
    done = transport.run([sys.executable, "-c", code, *words], timeout_s=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")


@settings(max_examples=300)
@given(words=WORDS)
def test_a_shell_restores_the_quoted_words(words):
    done = subprocess.run(
        ["sh", "-c", f"for word in {shell_line(words)}; do printf '%s\\0' \"$word\"; done"],
        capture_output=True,
        check=True,
    )
    assert words == done.stdout.decode().split("\0")[:-1]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS.filter(lambda words: not any("\r" in word for word in words)))
def test_arguments_arrive_unchanged_over_ssh(ssh, words):
    assert words == echoed(ssh, words)


def test_invalid_commands_are_refused(transport, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert echoed(transport, ODD) == ODD
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("word", ["a\0b", "\ud800"])
def test_arguments_that_no_program_can_get_are_refused(word, transport):
    with pytest.raises(InvalidInput, match=r"(change|remove) it"):
        transport.run(["true", word], timeout_s=5)
    with pytest.raises(InvalidInput):
        shell_line([word])


def test_a_command_has_its_input_its_variables_its_output_and_its_exit_code(transport):
    done = transport.run(["sh", "-c", "cat; echo $A >&2; exit 3"], stdin="in\n", env={"A": "x y"}, timeout_s=10)
    assert (done.returncode, done.stdout, done.stderr, done.timed_out) == (3, "in\n", "x y\n", False)
    assert CompletedProcess(0, "", "") == transport.run(["cat"], timeout_s=10)


def test_the_users_settings_of_schedulers_reach_no_command(transport, monkeypatch):
    for name, value in {**SETTINGS, **KEPT}.items():
        monkeypatch.setenv(name, value)
    given = {"SLURM_TIME_FORMAT": "%s", "SBATCH_ACCOUNT": None, "no_such": None}
    listing = transport.run(["env", "-0"], env=given, timeout_s=10).stdout
    environment = dict(line.split("=", 1) for line in listing.split("\0") if line)
    seen = {name: environment[name] for name in {**SETTINGS, **KEPT} if name in environment}
    kept = {name: value for name, value in KEPT.items() if name != "SBATCH_ACCOUNT"}
    assert seen == {**kept, "SLURM_TIME_FORMAT": "%s"}


def test_timeouts_and_missing_programs_are_reported(transport):
    assert transport.run(["sleep", "3600"], timeout_s=0.5).timed_out
    assert transport.run(["no-such-program"], timeout_s=10).returncode == 127
    assert transport.run(["sh", "-c", "exit 255"], timeout_s=10).returncode == 255


@pytest.mark.usefixtures("open_umask")
def test_a_file_is_written_whole_or_not_at_all(transport, tmp_path):
    path = PurePosixPath(tmp_path / "new folder" / "it's.sh")
    transport.write(path, "ü\n" * 10_000)
    transport.write(path, "second 'one'\n$x")
    folder = tmp_path / "new folder"
    assert (folder / "it's.sh").read_text() == "second 'one'\n$x"
    assert [one.name for one in folder.iterdir()] == ["it's.sh"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "it's.sh")] == [0o700, 0o600]
    (tmp_path / "file").touch()
    with pytest.raises(LeadlineError, match="cannot be written"):
        transport.write(PurePosixPath(tmp_path / "file" / "below"), "x")


def test_the_files_that_changed_are_read_by_one_command(transport, tmp_path):
    for number in range(4):
        (tmp_path / f"k{number}.json").write_text(f"{number} ü")
        os.utime(tmp_path / f"k{number}.json", (1000.0 + number, 1000.0 + number + 0.5))
    folder, names = PurePosixPath(tmp_path), [f"k{number}.json" for number in (0, 1, 3, 9)]
    assert transport.read_changed(folder, names, since_s=1000.5) == {"k1.json": "1 ü", "k3.json": "3 ü"}
    assert transport.read_changed(folder, names, since_s=1003.4) == {"k3.json": "3 ü"}
    assert transport.read_changed(folder, names, since_s=2000.0) == {}
    assert transport.read_changed(folder / "nowhere", names, since_s=0.0) == {}
    assert transport.read_changed(folder, [], since_s=0.0) == {}


@pytest.mark.parametrize("rsync", [True, False])
def test_a_folder_is_copied_there_and_back_and_the_copy_is_measured(transport, rsync, tmp_path):
    if isinstance(transport, SshTransport):
        transport._rsync = rsync
    source, there, back = tmp_path / "a b", tmp_path / "it's there", tmp_path / "back"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "weights $x").write_bytes(os.urandom(300_000))
    (source / "empty").touch()
    there.mkdir()
    (there / "kept").touch()
    sent = transport.send(source, PurePosixPath(there), timeout_s=30)
    fetched = transport.fetch(PurePosixPath(there), back, timeout_s=30)
    assert 300_000 == sent.moved_bytes == fetched.moved_bytes
    assert 0 < sent.elapsed_s < 30
    assert (source / "deep" / "weights $x").read_bytes() == (back / "deep" / "weights $x").read_bytes()
    assert {"deep", "empty", "kept"} == {one.name for one in back.iterdir()}
    with pytest.raises(LeadlineError, match="copy it again"):
        transport.fetch(PurePosixPath(tmp_path / "nowhere"), back, timeout_s=30)


def test_the_connection_is_shared_and_opened_once(ssh, server):
    assert ssh.run(["sh", "-c", "echo $PLACE"], timeout_s=20).stdout.strip() == "over there"
    accepted = (server.folder / "sshd.log").read_text().count("Accepted publickey")
    for _ in range(5):
        assert ssh.run(["true"], timeout_s=20).returncode == 0
    assert accepted == (server.folder / "sshd.log").read_text().count("Accepted publickey") > 0


def test_a_lost_connection_differs_from_a_failed_command(tmp_path, sockets):
    if reason := why_no_sshd():
        pytest.skip(reason)
    now = [0.0]
    with ssh_server(tmp_path) as server:
        ssh = SshTransport(HOST, config=server.config, sockets=sockets, clock=lambda: now[0])
        assert ssh.run(["true"], timeout_s=20).returncode == 0
        cut = threading.Timer(1.0, server.stop)
        cut.start()
        with pytest.raises(ConnectionLost, match="the connection to place broke"):
            ssh.run(["sleep", "5"], timeout_s=20)
        cut.join()
        with pytest.raises(SchedulerUnreachable, match=r"place cannot be reached by ssh \(.*refused.*\)$"):
            ssh.run(["true"], timeout_s=20)
        server.start()
        with pytest.raises(SchedulerUnreachable, match="refused"):
            ssh.run(["true"], timeout_s=20)  # nothing is tried yet
        now[0] = 6.0
        assert ssh.run(["true"], timeout_s=20).returncode == 0
        server.stop()
        server.start()
        time.sleep(0.2)
        assert ssh.run(["true"], timeout_s=20).returncode == 0  # nothing was sent, so it was opened anew
        ssh.close()


@pytest.mark.parametrize("direction", ["send", "fetch"])
def test_a_copy_that_was_cut_off_resumes(tmp_path, sockets, direction):
    if reason := why_no_sshd() or ("" if shutil.which("rsync") else "rsync is not installed here"):
        pytest.skip(reason)
    now = [0.0]
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "weights").write_bytes(os.urandom(192 * MIB))
    with ssh_server(tmp_path) as server:
        ssh = SshTransport(HOST, config=server.config, sockets=sockets, clock=lambda: now[0])
        ends = (source, PurePosixPath(target)) if direction == "send" else (PurePosixPath(source), target)
        copy = partial(getattr(ssh, direction), *ends, timeout_s=60)
        assert ssh._has_rsync()

        def cut_off():
            while sum(path.stat().st_size for path in target.glob(".weights.*")) < 96 * MIB:
                time.sleep(0.001)
            server.stop()

        cut = threading.Thread(target=cut_off)
        cut.start()
        with pytest.raises(LeadlineError, match="copy it again"):
            copy()
        cut.join()
        assert not (target / "weights").exists()
        deadline_s = time.monotonic() + 10
        while list(target.glob(".weights.*")) and time.monotonic() < deadline_s:
            time.sleep(0.01)  # the program at the other end notices that it is alone
        server.start()
        now[0] = 10.0
        copied = copy()
        ssh.close()
    assert 0 < copied.moved_bytes < 0.6 * 192 * MIB
    assert filecmp.cmp(source / "weights", target / "weights", shallow=False)
    assert [path.name for path in target.iterdir()] == ["weights"]


def test_a_damaged_file_of_the_same_size_and_time_is_copied_again(transport, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "weights").write_bytes(b"w" * 300_000)
    transport.send(source, PurePosixPath(target), timeout_s=30)
    times = (target / "weights").stat()
    with (target / "weights").open("r+b") as file:
        file.seek(150_000)
        file.write(b"x")
    os.utime(target / "weights", ns=(times.st_atime_ns, times.st_mtime_ns))
    transport.send(source, PurePosixPath(target), timeout_s=30)
    assert (target / "weights").read_bytes() == b"w" * 300_000


def test_a_refused_login_is_the_users_to_make(tmp_path, sockets):
    if reason := why_no_sshd():
        pytest.skip(reason)
    now = [0.0]
    with ssh_server(tmp_path) as server:
        allowed = (tmp_path / "authorized_keys").read_bytes()
        (tmp_path / "authorized_keys").write_bytes(b"")
        ssh = SshTransport(HOST, config=server.config, sockets=sockets, clock=lambda: now[0])
        with pytest.raises(SchedulerUnreachable, match=r"Permission denied.*log in once with ssh -F .* -fNM -S"):
            ssh.run(["true"], timeout_s=20)
        (tmp_path / "authorized_keys").write_bytes(allowed)
        now[0] = 1e6
        with pytest.raises(SchedulerUnreachable, match="log in once with"):
            ssh.run(["true"], timeout_s=20)
        login = str(ssh._failure).partition("log in once with ")[2]
        subprocess.run(["sh", "-c", login], check=True, stderr=subprocess.DEVNULL)
        assert ssh.run(["true"], timeout_s=20).returncode == 0
        ssh.close()


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a;b", "", "$(x)"])
def test_a_host_cannot_be_an_option_or_a_command(host):
    with pytest.raises(InvalidInput, match="cannot be a host"):
        SshTransport(host)


def test_a_pipe_has_the_exit_code_of_the_one_that_failed():
    assert CompletedProcess(0, "", "") == run_pipe(["echo", "x"], ["cat"], timeout_s=30)
    assert run_pipe(["sh", "-c", "echo no >&2; exit 3"], ["cat"], timeout_s=30).returncode == 3
    assert run_pipe(["true"], ["sh", "-c", "echo no >&2; exit 3"], timeout_s=30).stderr == "no\n"
    assert run_pipe(["sleep", "30"], ["cat"], timeout_s=0.2).timed_out


def test_a_process_reads_its_stdin():
    assert run_process(["cat"], stdin="ü\n").stdout == "ü\n"
    assert run_process(["true"], stdin="x" * 1_000_000).returncode == 0
