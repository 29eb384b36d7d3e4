"""Copies and cross traffic over TCP, run inside a network namespace: ``serve``, or ``drive`` a plan.

``serve ADDRESS PORT`` reads connections. ``drive ADDRESS PORT`` reads a plan as JSON from its input, and prints each
copy as a line of JSON.
"""

import json
import math
import random
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

CHUNK = bytes(256 * 1024)
SO_MAX_PACING_RATE = 47
"""Of Linux, in bytes/s; Python does not name it."""
ANSWER_S = 120.0
"""A connection that is silent for so long ends the program."""
CROSS_FLOWS = 3
HEADER = struct.Struct("!Q")


def serve(address: str, port: int) -> None:
    """Read what each connection announces, and answer with one byte when all of it is here."""
    with socket.create_server((address, port), backlog=64) as listener:
        print("ready", flush=True)  # noqa: T201 - the starter waits for it
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_read, args=(connection,), daemon=True).start()


def _read(connection: socket.socket) -> None:
    buffer = bytearray(len(CHUNK))
    with connection, suppress(ConnectionError):
        header = connection.recv(HEADER.size, socket.MSG_WAITALL)
        (left,) = HEADER.unpack(header)
        while left:
            received = connection.recv_into(buffer, min(len(buffer), left))
            if not received:
                return
            left -= received
        connection.sendall(b"1")


class Driver:
    """Flows that probe and copy in turn, and cross traffic at a level that changes."""

    def __init__(self, address: tuple[str, int], plan: dict[str, Any]) -> None:
        """Take the address of the server and a plan."""
        self.address, self.plan = address, plan
        self.lock, self.enough = threading.Lock(), threading.Event()
        self.began_s, self.copied = time.monotonic(), 0
        self.left_bytes: dict[int, int] = {}  # of each copy under way

    def run(self) -> None:
        """Copy until there are enough copies."""
        cross = threading.Thread(target=self._cross, daemon=True)
        flows = [threading.Thread(target=self._flow, args=(flow,)) for flow in range(self.plan["flows"])]
        for thread in (cross, *flows):
            thread.start()
        for thread in flows:
            thread.join()

    def _connect(self) -> socket.socket:
        link = socket.socket()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        link.settimeout(ANSWER_S)
        link.connect(self.address)
        return link

    def _transfer(self, size: int, flow: int | None = None) -> tuple[float, float]:
        """Return the seconds of the handshake and of the whole transfer; count what a flow's copy has yet to move."""
        began_s = time.monotonic()
        with self._connect() as link:
            round_trip_s = time.monotonic() - began_s
            link.sendall(HEADER.pack(size))
            for start in range(0, size, len(CHUNK)):
                link.sendall(CHUNK[: size - start])
                if flow is not None:
                    self.left_bytes[flow] = max(0, size - start - len(CHUNK))
            link.recv(1)
        return round_trip_s, time.monotonic() - began_s

    def _flow(self, number: int) -> None:
        chance = random.Random(f"{self.plan['seed']} {number}")  # noqa: S311 - a workload
        low, high = (math.log(size) for size in self.plan["sizes"])
        while not self.enough.wait(chance.expovariate(1 / self.plan["pause_s"])):
            size = int(math.exp(chance.uniform(low, high)))
            round_trip_s, probe_s = self._transfer(self.plan["probe_bytes"])
            with self.lock:
                competing = list(self.left_bytes.values())
                self.left_bytes[number] = size
            started_s = time.monotonic() - self.began_s
            _, elapsed_s = self._transfer(size, number)
            with self.lock:
                del self.left_bytes[number]
                self.copied += 1
                if self.copied <= self.plan["copies"]:
                    line = {"started_s": started_s, "moved_bytes": size, "elapsed_s": elapsed_s,
                            "competing_bytes": competing, "probe_s": probe_s,
                            "round_trip_s": round_trip_s}  # fmt: skip
                    print(json.dumps(line), flush=True)  # noqa: T201 - the program's output
                if self.copied >= self.plan["copies"]:
                    self.enough.set()

    def _cross(self) -> None:
        chance = random.Random(f"{self.plan['seed']} cross")  # noqa: S311 - a workload
        links = [self._connect() for _ in range(CROSS_FLOWS)]
        for link in links:
            link.sendall(HEADER.pack(2**63))
            threading.Thread(target=self._fill, args=(link,), daemon=True).start()
        while True:
            level = chance.uniform(0.0, self.plan["most_cross"]) * self.plan["capacity_bytes_per_s"] / CROSS_FLOWS
            for link in links:
                link.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, max(1000, int(level)))
            time.sleep(chance.expovariate(1 / self.plan["level_s"]))

    def _fill(self, link: socket.socket) -> None:
        with suppress(OSError):  # the program ends
            while True:
                link.sendall(CHUNK[: 16 * 1024])


if __name__ == "__main__":
    role, host, number = sys.argv[1:4]
    if role == "serve":
        serve(host, int(number))
    else:
        Driver((host, int(number)), json.loads(Path("/dev/stdin").read_text(encoding="utf-8"))).run()
