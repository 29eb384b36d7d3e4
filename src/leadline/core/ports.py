"""Ports: small protocols for each kind of plug-in."""

from collections.abc import Sequence
from typing import Protocol

from leadline.core.estimate import Estimate, Tier
from leadline.core.graph import Op, OpGraph, TracedJob
from leadline.core.hardware import Device
from leadline.core.systems import System
from leadline.core.workload import Workload


class GraphSource(Protocol):
    """A front-end that traces models of one format."""

    def __call__(self, workload: Workload, *, device_type: str = "cuda") -> TracedJob:
        """Trace the workload under the kernel policies of ``device_type`` (``cuda`` or ``cpu``).

        Raises:
            InvalidInput: the workload is not usable.
            Untraceable: no reliable graph can be built.
        """


class KernelModel(Protocol):
    """Predicts the time of ops on one device; its training data determines its tier.

    ``reasons`` explain why the model was selected and give its measured error. ``host_spread`` is the standard
    deviation of ln(true ÷ predicted) of launch time, 0 if measured on the host.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - a field

    @property
    def tier(self) -> Tier: ...  # noqa: D102 - a field

    @property
    def host_spread(self) -> float: ...  # noqa: D102 - a field

    @property
    def reasons(self) -> tuple[str, ...]: ...  # noqa: D102 - a field

    def spread_of(self, graph: OpGraph) -> float:
        """Return the standard deviation of ln(true ÷ predicted) of a whole step, measured where possible."""

    def ops_s(self, ops: Sequence[Op]) -> Sequence[float]:
        """Return the seconds of one call of each op, without launch; counts are not applied."""

    def launch_s(self, op: Op) -> float:
        """Return the host's seconds to launch one call of ``op`` (dispatch, autograd, kernel launch)."""

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph, with kernels and launches overlapped as on the device."""


class Estimator(Protocol):
    """Predicts time and memory of a traced job on a device, independent of prices and schedulers."""

    @property
    def name(self) -> str: ...  # noqa: D102 - a field

    def estimate(
        self,
        workload: Workload,
        job: TracedJob,
        device: Device,
        *,
        nodes: int | None = None,
        network_bytes_per_s: float | None = None,
        network_technology: str | None = None,
    ) -> Estimate:
        """Return the estimate for ``workload.gpus`` such devices over ``nodes``, each with this network.

        Unknown quantities are ``None`` with a reason.
        """


class Catalog(Protocol):
    """The cyberinfrastructure configuration database."""

    def devices(self) -> Sequence[Device]:
        """Return all devices, the user's own calibrated records first."""

    def systems(self) -> Sequence[System]:
        """Return all systems."""

    def device(self, name: str) -> Device:
        """Return the device of that name or alias, ignoring case; ``UnknownName`` if there is none."""

    def system(self, name: str) -> System:
        """Return the system of that name, ignoring case; ``UnknownName`` if there is none."""
