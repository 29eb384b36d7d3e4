"""A real link between two network namespaces, shaped by ``tc qdisc ... tbf``, and copies over it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.field.fluid_links import PROBE_BYTES, SharedPath, TimedCopy
from leadline.core.errors import LeadlineError
from leadline.core.units import MIB
from leadline.estimators.file_transfer import MeasuredCopy, PathProbe
from leadline.execution.processes import run_process

SENDER, RECEIVER, PORT = "10.77.0.1", "10.77.0.2", 7700
QUEUE_S = 0.05
"""The link's buffer in seconds of its rate."""
LINK = SharedPath(capacity_bytes_per_s=12.5e6, sizes=(1 * MIB, 16 * MIB), pause_s=1.0, level_s=12.0)
TRAFFIC = Path(__file__).with_name("shaped_traffic.py")
RUN_S = 300.0
LINKS = count()
"""Numbers the links of this process."""


class LinkNotMade(LeadlineError):
    """The namespaces or the link could not be made."""


def why_no_link() -> str:
    """Return why no link can be shaped here; empty if one can."""
    absent = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if absent:
        return f"no link can be shaped here: there is no {', '.join(absent)}"
    try:
        with shaped_link(LINK):
            return ""
    except LinkNotMade as error:
        return f"no link can be shaped here: {error}"


@contextmanager
def shaped_link(path: SharedPath) -> Iterator[tuple[str, str]]:
    """Yield the namespaces of the sender and the receiver, with a link of the path's capacity between them.

    Raises:
        LinkNotMade: Root, NET_ADMIN or tbf is not there.
    """
    number = next(LINKS)
    here, there = (f"leadline-{os.getpid()}-{number}{side}" for side in "ab")
    rate, queue = round(8 * path.capacity_bytes_per_s), round(QUEUE_S * path.capacity_bytes_per_s)
    try:
        for line in (
            f"ip netns add {here}",
            f"ip netns add {there}",
            f"ip link add shaped netns {here} type veth peer name shaped netns {there}",
            f"ip -n {here} addr add {SENDER}/24 dev shaped",
            f"ip -n {there} addr add {RECEIVER}/24 dev shaped",
            f"ip -n {here} link set shaped up",
            f"ip -n {there} link set shaped up",
            f"ip netns exec {here} tc qdisc add dev shaped root tbf rate {rate}bit burst 32kb limit {queue}",
        ):
            answer = run_process(line.split())
            if answer.returncode:
                raise LinkNotMade(f"{line} failed ({answer.stderr.strip()})")
        yield here, there
    finally:
        for side in (here, there):
            run_process(["ip", "netns", "del", side])


def copies_over_link(path: SharedPath, seed: int, copies: int) -> list[TimedCopy]:
    """Copy over a shaped link until there are so many copies; return them in order of their ends.

    Raises:
        LinkNotMade: The link or one of its programs failed.
    """
    plan = {
        "seed": seed, "flows": path.flows, "sizes": path.sizes, "pause_s": path.pause_s, "level_s": path.level_s,
        "most_cross": path.most_cross, "capacity_bytes_per_s": path.capacity_bytes_per_s, "copies": copies,
        "probe_bytes": PROBE_BYTES,
    }  # fmt: skip
    with shaped_link(path) as (here, there), _server(there):
        drive = ["ip", "netns", "exec", here, sys.executable, str(TRAFFIC), "drive", RECEIVER, str(PORT)]
        answer = run_process(drive, stdin=json.dumps(plan), timeout_s=RUN_S)
    if answer.returncode or answer.timed_out:
        raise LinkNotMade(f"the copies broke off ({answer.stderr.strip()[-300:] or 'no answer in time'})")
    return sorted(map(_read_copy, answer.stdout.splitlines()), key=lambda copy: copy.ended_s)


@contextmanager
def _server(namespace: str) -> Iterator[None]:
    command = ["ip", "netns", "exec", namespace, sys.executable, str(TRAFFIC), "serve", RECEIVER, str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 - a fixed command
        try:
            if server.stdout is None or server.stdout.readline() != "ready\n":
                raise LinkNotMade("the receiver of the copies did not start")
            yield
        finally:
            server.terminate()


def _read_copy(line: str) -> TimedCopy:
    row = json.loads(line)
    probe = PathProbe(PROBE_BYTES, row["probe_s"], row["round_trip_s"])
    copy = MeasuredCopy(row["moved_bytes"], row["elapsed_s"], tuple(row["competing_bytes"]), probe)
    return TimedCopy(row["started_s"], row["started_s"] + row["elapsed_s"], copy)
