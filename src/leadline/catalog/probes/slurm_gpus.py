"""Tell which device of the catalog a scheduler's GPUs are, where their names leave only one; pure text."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leadline.catalog.probes.slurm_text import Gres
from leadline.catalog.read import MAKERS
from leadline.core.hardware import Device, DeviceKind

SLICE = re.compile(r"(?:^|[^0-9a-z])\d+g\.\d+gb", re.IGNORECASE)
"""A part of a GPU, as MIG names them: ``1g.10gb``, ``a100_3g.20gb``."""
BOARDS = (DeviceKind.GPU, DeviceKind.ACCELERATOR)
LEAST = 4
"""Characters of a feature that may name a GPU by itself: ``l4`` may as well be a rack."""

_WORD = re.compile(r"[0-9a-z.+]+")
_FILLERS = MAKERS | {"gpu", "graphics", "accelerator", "hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "rev", "c", "r", "tm"}
_CPU_FILLERS = frozenset({"cpu", "processor", "core", "r", "tm"})


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of one type on a node; ``device`` is ``None`` where it is not sure, and ``why`` says what is known."""

    kind: str | None
    count: int
    device: str | None = None
    why: str = ""

    @property
    def label(self) -> str:
        """Return the type in letters, digits and hyphens, ``gpu`` where the site names none."""
        return re.sub(r"[^0-9a-z]+", "-", (self.kind or "gpu").casefold()).strip("-") or "gpu"


def gpus_of(gres: Sequence[Gres], features: Iterable[str], devices: Sequence[Device], seen: str = "") -> list[Gpus]:
    """Return the GPUs of a node, largest number first; ``seen`` is what a driver calls the one GPU model there.

    A type of a GRES counts before the node's features, which count only where exactly one device has such a name. A
    slice of a GPU is no device of the catalog.
    """
    found = [one for one in gres if one.name == "gpu" and one.count]
    made = [_gpus(one, tuple(features), devices, seen if len(found) == 1 else "") for one in found]
    return sorted(made, key=lambda one: (SLICE.search(one.kind or "") is not None, -one.count, one.label))


def devices_called(name: str, devices: Sequence[Device], kinds: Iterable[DeviceKind]) -> list[Device]:
    """Return the devices that a name may mean: the driver's own name for one, else those whose names hold its words.

    ``h100`` may be four boards, ``a100-sxm4-80gb`` and ``rtx3090`` are one each; case, makers and punctuation aside.
    """
    wanted, among = _words(name), [one for one in devices if one.kind in kinds]
    if not wanted:
        return []
    exact = [
        one for one in among if any(_driver(alias) and _squashed(alias) == _squashed(name) for alias in one.aliases)
    ]
    return exact or [one for one in among if _holds(_words(one.name), wanted)]


def processor_called(model: str, devices: Sequence[Device]) -> Device | None:
    """Return the CPU whose words all stand in a processor's full name, as Linux gives it; ``None`` unless it is one."""
    said = {word for word in _split(model) if word not in _CPU_FILLERS}
    cpus = [one for one in devices if one.kind is DeviceKind.CPU and one.calibration is None]
    named = [one for one in cpus if set(_split(one.name)) <= said]
    most = [one for one in named if len(_split(one.name)) == max(len(_split(other.name)) for other in named)]
    return most[0] if len(most) == 1 else None


def _gpus(one: Gres, features: tuple[str, ...], devices: Sequence[Device], seen: str) -> Gpus:
    if one.kind and SLICE.search(one.kind):
        return Gpus(
            one.kind, one.count, why=f"{one.kind} is a part of a GPU (MIG), which the catalog has no figures of"
        )
    for said in filter(None, (seen, one.kind)):
        named = devices_called(said, devices, BOARDS)
        if len(named) == 1:
            return Gpus(one.kind, one.count, named[0].name)
    candidates = devices_called(one.kind, devices, BOARDS) if one.kind else list(devices)
    telling = [word for word in features if one.kind or len(_squashed(word)) >= LEAST]
    by_feature = {match.name for word in telling for match in _only(devices_called(word, candidates, BOARDS))}
    if len(by_feature) == 1:
        return Gpus(one.kind, one.count, by_feature.pop())
    if one.kind is None:
        return Gpus(None, one.count, why="the site names no type of its GPUs")
    if not candidates:
        return Gpus(one.kind, one.count, why=f"the catalog has no device called {one.kind}")
    names = " or ".join(sorted(match.name for match in candidates))
    return Gpus(one.kind, one.count, why=f"{one.kind} may be {names}")


def _only(found: list[Device]) -> list[Device]:
    return found if len(found) == 1 else []


def _driver(alias: str) -> bool:
    return bool(MAKERS & set(_split(alias)))


def _split(name: str) -> list[str]:
    return _WORD.findall(name.casefold())


def _words(name: str) -> list[str]:
    return [word for word in _split(name) if word not in _FILLERS]


def _squashed(name: str) -> str:
    return "".join(_split(name))


def _holds(has: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether each wanted word is one of ``has``, or several of them in a row without the gap between (``rtx3090``)."""
    runs = {"".join(has[at:end]) for at in range(len(has)) for end in range(at + 1, len(has) + 1)}
    return all(word in runs for word in wanted)
