"""The trained model of one application: its features, targets and predictions."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from leadline.core.frozen import Frozen
from leadline.core.runs import Value


class FeatureRole(StrEnum):
    """Source of a feature's value."""

    PARAMETER = "parameter"  # a user's choice: a `{name}` of the command
    RESOURCE = "resource"
    """A job resource: ``nodes``, ``cores``, ``gpus``, ``memory_bytes``, ``partition``; counts cover the whole job."""
    NODE = "node"  # a hardware number of the node: `node_cores`, `node_hz`, `node_gpu_bytes_per_s` …
    GRAPH = "graph"  # a number of the op graph


class Feature(Frozen):
    """A feature of a model, with its range in the training data."""

    name: str
    role: FeatureRole
    low: float | None = None
    high: float | None = None  # range of a numeric feature
    whole: bool = False  # True if a numeric feature takes integers only
    choices: tuple[Value, ...] = ()  # values of a categorical feature
    values: tuple[float, ...] = ()  # distinct values of a numeric feature, if there were few
    unit: str = ""
    used: bool = True  # False for a feature that was constant or uninformative

    @property
    def categorical(self) -> bool:
        """True if the feature names a category."""
        return bool(self.choices)


class ModelPredictions(Frozen):
    """Predictions for n rows, in the target's unit.

    ``low`` to ``high`` holds the true value with probability ``level``. ``beyond`` is the extrapolation distance of a
    row: 0 within the training data, infinity for an unseen category.
    """

    point: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    beyond: Sequence[float]
    level: float = 0.9


class TrainedModel(Protocol):
    """A model that ``leadline train`` wrote; prediction needs only numpy."""

    @property
    def application(self) -> str: ...  # noqa: D102 - a field

    @property
    def features(self) -> Sequence[Feature]: ...  # noqa: D102 - a field

    @property
    def targets(self) -> Sequence[str]:
        """Predicted metrics: ``elapsed_s``, ``host_memory_bytes``, ``gpu_memory_bytes``."""

    @property
    def command(self) -> Sequence[str]:
        """Words of the application's command with ``{parameters}``; empty if the campaign is unknown."""

    @property
    def basis(self) -> Sequence[str]:
        """Evidence for the predictions, in sentences: estimator, runs, held-out error."""

    def beyond(self, row: Mapping[str, Value]) -> Sequence[str]:
        """Return a sentence for each feature of a row outside the training data, farthest first."""

    def predict(self, target: str, rows: Sequence[Mapping[str, Value]]) -> ModelPredictions:
        """Predict ``target`` for each row; a missing feature widens the interval."""
