"""A trained model of one application: what it may be asked about, and what it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from leadline.core.runs import Value


class FeatureRole(StrEnum):
    """Where the value of a feature comes from."""

    PARAMETER = "parameter"
    """The user's own choice: a ``{name}`` of the command."""
    RESOURCE = "resource"
    """What the job asks for: ``nodes``, ``cores``, ``gpus``, ``memory_bytes``, ``partition``; counts are of the whole
    job."""
    NODE = "node"
    """What the node is made of: ``node_cores``, ``node_hz``, ``node_gpu_bytes_per_s`` …"""
    GRAPH = "graph"
    """A white-box figure of the op graph."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing a model was fitted on, and what it has seen of it.

    A numeric feature was seen from ``low`` to ``high`` and takes whole numbers alone where ``whole`` is set; a
    categorical one has the ``choices`` that were seen. ``values`` are the distinct values of a numeric feature where
    there were few. ``used`` is false of a feature that was the same, or told nothing, in every run.
    """

    name: str
    role: FeatureRole
    low: float | None = None
    high: float | None = None
    whole: bool = False
    choices: tuple[Value, ...] = ()
    values: tuple[float, ...] = ()
    unit: str = ""
    used: bool = True

    @property
    def categorical(self) -> bool:
        """Whether the feature names a category."""
        return bool(self.choices)


@dataclass(frozen=True, slots=True)
class ModelPredictions:
    """What a model says of n rows: sequences of n figures each, in the target's unit.

    ``low`` to ``high`` holds the truth with probability ``level``. ``beyond`` is how far a row lies outside what was
    fitted, as ``Predicted.beyond`` of a tabular estimator: 0 within, infinity for a category never seen.
    """

    point: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    beyond: Sequence[float]
    level: float = 0.9


class TrainedModel(Protocol):
    """A model that ``leadline train`` wrote; asking it needs numpy alone."""

    @property
    def application(self) -> str: ...  # noqa: D102 - a field

    @property
    def features(self) -> Sequence[Feature]: ...  # noqa: D102 - a field

    @property
    def targets(self) -> Sequence[str]:
        """Return what it predicts: ``elapsed_s``, ``host_memory_bytes``, ``gpu_memory_bytes``."""

    @property
    def command(self) -> Sequence[str]:
        """Return the words of the application's command with ``{parameters}``; none where the campaign is not known."""

    @property
    def basis(self) -> Sequence[str]:
        """Return sentences on what the predictions rest on: the estimator, the runs, the error on runs not seen."""

    def beyond(self, row: Mapping[str, Value]) -> Sequence[str]:
        """Return a sentence for each feature of a row that lies outside what was run, farthest first."""

    def predict(self, target: str, rows: Sequence[Mapping[str, Value]]) -> ModelPredictions:
        """Predict ``target`` for each row; a feature that is missing or unknown widens the interval."""
