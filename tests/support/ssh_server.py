"""A private sshd on loopback for the length of a test, with its own keys and injected faults."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from leadline.core.errors import LeadlineError
from leadline.execution.processes import run_process, start_process
from tests.support.slurm_cluster import DIE_WITH_PARENT, PATH

HOST = "place"
"""Alias of the server in the client's configuration."""
START_S = 20.0

SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxSessions 100
MaxStartups 100
{variables}
"""
CLIENT = """\
Host {host}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""


class ServerNotStarted(LeadlineError):
    """sshd did not start; the message contains its output."""


def why_no_sshd() -> str:
    """Return why no server can be started here; empty if one can."""
    absent = [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name, path=PATH) is None]
    return f"OpenSSH's server is not installed here: there is no {', '.join(absent)}" if absent else ""


@contextmanager
def ssh_server(folder: Path, variables: Mapping[str, str] | None = None) -> Iterator["SshServer"]:
    """Yield a server that accepts this user as ``HOST`` of its ``config``, with ``variables`` set there.

    Raises:
        ServerNotStarted: it did not start.
    """
    server = SshServer(folder, _free_port(), dict(variables or {}))
    server.make()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@dataclass(slots=True)
class SshServer:
    """A server in a folder; ``config`` is for clients with ``ssh -F``."""

    folder: Path
    port: int
    variables: dict[str, str]
    _process: "subprocess.Popen[bytes] | None" = field(default=None)

    @property
    def config(self) -> Path:
        """The client's configuration."""
        return self.folder / "config"

    def make(self) -> None:
        """Write keys and configuration."""
        for name in ("host_key", "key"):
            answer = run_process(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)])
            if answer.returncode:
                raise ServerNotStarted(f"ssh-keygen failed: {answer.stderr}")
        (self.folder / "authorized_keys").write_bytes((self.folder / "key.pub").read_bytes())
        host_key = (self.folder / "host_key.pub").read_text(encoding="ascii")
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}", encoding="ascii")
        pairs = " ".join(f'"{name}={value}"' for name, value in self.variables.items())
        server = SERVER.format(port=self.port, folder=self.folder, variables=f"SetEnv {pairs}" if pairs else "")
        (self.folder / "sshd_config").write_text(server, encoding="utf-8")
        client = CLIENT.format(host=HOST, port=self.port, user=getpass.getuser(), folder=self.folder)
        self.config.write_text(client, encoding="utf-8")

    def start(self) -> None:
        """Start it and wait until it listens."""
        if os.geteuid() == 0:
            # sshd of root needs this folder for its privilege separation.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        program = shutil.which("sshd", path=PATH)
        if program is None:
            raise ServerNotStarted(why_no_sshd())
        with (self.folder / "sshd.log").open("ab") as log, Path(os.devnull).open("rb") as null:
            self._process = start_process(
                [*DIE_WITH_PARENT, program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=null.fileno(), stdout=log.fileno(), stderr=log.fileno(), own_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerNotStarted(f"sshd did not start: {(self.folder / 'sshd.log').read_text(encoding='utf-8')}")
            time.sleep(0.02)

    def pause(self) -> None:
        """Let it accept connections and answer none, as a host that hangs does; commands on it continue."""
        for daemon in self._daemons():
            with suppress(psutil.NoSuchProcess):
                daemon.suspend()

    def resume(self) -> None:
        """Let it answer again."""
        for daemon in self._daemons():
            with suppress(psutil.NoSuchProcess):
                daemon.resume()

    def _daemons(self) -> list[psutil.Process]:
        """Return the server and those of its connections."""
        try:
            server = psutil.Process(self._process.pid if self._process else 0)
            return [server, *(child for child in server.children(recursive=True) if child.name() == "sshd")]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """Stop it with all connections, as a cut cable would; commands on it continue."""
        if self._process is None:
            return
        self.resume()  # a suspended process does not end
        daemons = self._daemons()[1:]
        self._process.terminate()
        self._process.wait()
        self._process = None
        for daemon in daemons:
            try:
                daemon.kill()
            except psutil.NoSuchProcess:
                continue


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
