"""The network link between the cameras and the broker: a namespace of the cameras' own, which can be cut off."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.field.shaped_link import LinkNotMade
from leadline.execution.processes import run_process

STATION, CAMERAS = "10.78.0.1", "10.78.0.2"


@dataclass(frozen=True)
class CameraLink:
    """The cameras' side of the link: a command prefix, and the station's address; without root, this machine's own."""

    namespace: str = ""

    @property
    def host(self) -> str:
        """Address of the broker as the cameras see it."""
        return STATION if self.namespace else "127.0.0.1"

    @property
    def prefix(self) -> list[str]:
        """Words before a command that runs among the cameras."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []

    def cut(self, seconds: float) -> None:
        """Take the link down for a while."""
        _run("ip link set leadline-field down")
        try:
            time.sleep(seconds)
        finally:
            _run("ip link set leadline-field up")


@contextmanager
def camera_link() -> Iterator[CameraLink]:
    """Yield a link that can be cut where root may make one, else this machine's loopback."""
    link = CameraLink(f"leadline-{os.getpid()}-cameras")
    try:
        yield link if _make(link) else CameraLink()
    finally:
        if shutil.which("ip"):
            run_process(["ip", "netns", "del", link.namespace])  # the link goes with it


def _make(link: CameraLink) -> bool:
    """Make the link; False without root or NET_ADMIN."""
    if shutil.which("ip") is None:
        return False
    try:
        for line in (
            f"ip netns add {link.namespace}",
            f"ip link add leadline-field type veth peer name cameras netns {link.namespace}",
            f"ip addr add {STATION}/30 dev leadline-field",
            f"ip -n {link.namespace} addr add {CAMERAS}/30 dev cameras",
            "ip link set leadline-field up",
            f"ip -n {link.namespace} link set cameras up",
            f"ip -n {link.namespace} link set lo up",
        ):
            _run(line)
    except LinkNotMade:
        return False
    return True


def _run(line: str) -> None:
    answer = run_process(line.split())
    if answer.returncode:
        raise LinkNotMade(f"{line} failed ({answer.stderr.strip()})")
