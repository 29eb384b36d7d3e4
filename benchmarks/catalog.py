"""``bench catalog``: the size of the catalog, and the time to estimate and rank all of it for one workload."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path

from benchmarks.results import BenchmarkResult, at_least, at_most
from benchmarks.speed import LLAMA_7B
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import Toolbox
from leadline.app.estimate.recommend import recommend
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.hardware import Device
from leadline.core.ports import Catalog
from leadline.core.recommendation import Constraints
from leadline.core.systems import System
from leadline.core.workload import Workload


@dataclass(frozen=True, slots=True)
class RepeatedCatalog:
    """A catalog ``times`` as large as another; each copy has its own devices and systems."""

    base: Catalog
    times: int

    def devices(self) -> Sequence[Device]:
        """Return every device, copied under numbered names."""
        return [
            replace(device, name=f"{device.name} #{copy}")
            for copy in range(self.times)
            for device in self.base.devices()
        ]

    def systems(self) -> Sequence[System]:
        """Return every system, copied under numbered names, on devices of the same number."""
        return [_copied(system, copy) for copy in range(self.times) for system in self.base.systems()]

    def device(self, name: str) -> Device:
        """Return a numbered device."""
        base, _, copy = name.rpartition(" #")
        return replace(self.base.device(base), name=f"{base} #{copy}")

    def system(self, name: str) -> System:
        """Return a numbered system."""
        base, _, copy = name.rpartition(" #")
        return _copied(self.base.system(base), int(copy))


def run(*, quick: bool = False) -> BenchmarkResult:
    """Measure in one process, so that start-up does not count."""
    repeats = 3 if quick else 9
    tools = toolbox()
    large = replace(tools, catalog=RepeatedCatalog(tools.catalog, 10))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(dumps(LLAMA_7B), encoding="utf-8")
        workload = read_workload([str(config)], WorkloadOptions(steps=1000))
        _ranked_s(workload, tools)
        once, tenfold = [], []
        for _ in range(repeats):
            once.append(_ranked_s(workload, tools))
            tenfold.append(_ranked_s(workload, large))
    places = sum(len(system.partitions) for system in tools.catalog.systems())
    how = f"{places} places, a Llama-7B configuration expanded, estimated, priced and ranked; median in one process"
    ratio = statistics.median(tenfold) / statistics.median(once)
    return BenchmarkResult(
        "catalog",
        (
            at_least("devices", len(tools.catalog.devices()), 60, "", how="shipped, and the user's own"),
            at_least("systems", len(tools.catalog.systems()), 20, "", how="shipped, and the user's own"),
            at_most("whole catalog priced and ranked", statistics.median(once), 1.0, "s", n=repeats, how=how),
            at_most("ten times the catalog ÷ the catalog", ratio, 12.0, "×", n=repeats, how="same run, interleaved"),
        ),
    )


def _ranked_s(workload: Workload, tools: Toolbox) -> float:
    begun = time.perf_counter()
    recommend(workload, tools, Constraints())
    return time.perf_counter() - begun


def _copied(system: System, copy: int) -> System:
    partitions = tuple(
        replace(
            partition,
            node=replace(
                partition.node,
                device=partition.node.device and f"{partition.node.device} #{copy}",
                processor=partition.node.processor and f"{partition.node.processor} #{copy}",
            ),
        )
        for partition in system.partitions
    )
    return replace(system, name=f"{system.name} #{copy}", partitions=partitions)
