"""How much memory this process holds."""

import collections
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident bytes of this process; zero where the system does not say (no ``/proc``)."""
    if not STATM.exists():
        return 0
    return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class StopTrace(BaseException):
    """Ends the user's script once enough was seen; not an ``Exception``, so that no handler of the script eats it."""


@dataclass
class TraceSession:
    """One trace.

    Attributes:
        policy: whose kernel choices are recorded, ``cuda`` or ``cpu``.
        bare: run with the pretended device and record nothing (the baseline of the tracer's own overhead).
        world_size, local_size: processes of the job, and those on this node.
        real: ops on tensors with data are written down too: nothing else trains (bare tensors on the CPU).
        compiled: the script hands something to PyTorch's compiler.
        deadline: clock time at which the script is stopped whatever it does.
        framework_s: processor seconds that importing torch took here.
        began_s, began_bytes: processor time and resident memory when the user's own code began; zero where the memory
            is not known.
    """

    policy: str = "cuda"
    bare: bool = False
    real: bool = False
    world_size: int = 1
    local_size: int = 1
    deadline: float = float("inf")
    low_confidence: bool = False
    compiled: bool = False
    notes: List[str] = field(default_factory=list)
    fallbacks: "collections.Counter[str]" = field(default_factory=collections.Counter)
    facts: Dict[str, Any] = field(default_factory=dict)
    recorder: Optional[Any] = None
    after_backward: List[Any] = field(default_factory=list)
    framework_s: float = 0.0
    began_s: float = 0.0
    began_bytes: int = 0

    def note(self, sentence: str) -> None:
        """Keep a sentence for the user, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def begin(self) -> None:
        """Note where this process stands just before the user's own code runs."""
        self.began_s, self.began_bytes = time.process_time(), resident_bytes()

    def weigh(self) -> None:
        """Keep what the script's own imports and data cost, when its first module is called; no tensor is real."""
        if "script_s" in self.facts:
            return
        self.facts["script_s"] = time.process_time() - self.began_s
        self.facts["framework_s"] = self.framework_s
        if self.began_bytes:
            self.facts["script_bytes"] = max(resident_bytes() - self.began_bytes, 0)
        if self.recorder is not None and self.policy == "cpu":
            self.facts["built_bytes"] = self.recorder.peak_bytes

    def check_time(self) -> None:
        """End the script when its time is up."""
        if time.monotonic() > self.deadline:
            raise StopTrace
