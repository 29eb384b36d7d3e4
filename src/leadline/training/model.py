"""A trained model as one file, arrays without pickle and its card, written whole or not at all; asked with numpy."""

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from leadline import __version__
from leadline.core.documents import explain_read_error, to_json
from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.core.runs import Scale, Value
from leadline.core.trained_model import Feature, ModelPredictions
from leadline.estimators.ports import FittedEstimator, State, nest, unnest
from leadline.estimators.tabular import registry
from leadline.training.atomic_write import write_atomically
from leadline.training.dataset import complete_rows, describe_extrapolation
from leadline.training.model_card import MODEL_SCHEMA, ModelCard, TargetCard
from leadline.uncertainty.conformal import IntervalCalibration

CARD, DIGEST = "card.json", "sha256"
SUFFIX = ".npz"


@dataclass(frozen=True, slots=True)
class ApplicationModel:
    """A trained model (implements ``TrainedModel``): a fitted estimator and its calibration for each target."""

    card: ModelCard
    fitted: Mapping[str, FittedEstimator]
    calibrations: Mapping[str, IntervalCalibration]

    @property
    def application(self) -> str:
        """Return the campaign, or the name of the jobs, that it was learned from."""
        return self.card.application

    @property
    def features(self) -> Sequence[Feature]:
        """Return what it was fitted on, and what it has seen of each."""
        return self.card.features

    @property
    def targets(self) -> Sequence[str]:
        """Return what it predicts."""
        return [one.target for one in self.card.targets]

    @property
    def command(self) -> Sequence[str]:
        """Return the words of the application's command with ``{parameters}``; none where they are not known."""
        return self.card.command

    @property
    def basis(self) -> Sequence[str]:
        """Return sentences on what the predictions rest on."""
        return [sentence for one in self.card.targets for sentence in _basis(one)]

    def predict(self, target: str, rows: Sequence[Mapping[str, Value]], level: float = 0.9) -> ModelPredictions:
        """Predict ``target`` for each row; a feature that is missing or unknown widens the interval.

        Raises:
            UnknownName: the model was not trained for that target.
        """
        card = self._of(target)
        whole = complete_rows(rows, self.features)
        said = self.fitted[target].predict(whole)
        point = said.point * card.factor
        scales = [_scale(row, card) for row in whole]
        low, high = self.calibrations[target].interval(point, said.spread, said.extrapolation, scales, level)
        return ModelPredictions(
            point.tolist(),
            np.minimum(low, point).tolist(),
            np.maximum(high, point).tolist(),
            said.extrapolation.tolist(),
            level,
        )

    def upper(self, target: str, rows: Sequence[Mapping[str, Value]], risk: float) -> Sequence[float]:
        """Return what each row exceeds with probability ``risk``, in the target's unit; never below the point."""
        card = self._of(target)
        whole = complete_rows(rows, self.features)
        said = self.fitted[target].predict(whole)
        scales = [_scale(row, card) for row in whole]
        bounds = self.calibrations[target].upper(
            said.point * card.factor, said.spread, said.extrapolation, scales, risk
        )
        return [float(one) for one in bounds]

    def beyond(self, row: Mapping[str, Value]) -> tuple[str, ...]:
        """Return a sentence for each feature that lies outside what was run, with its distance, farthest first."""
        return describe_extrapolation(complete_rows([row], self.features)[0], self.features)

    def _of(self, target: str) -> TargetCard:
        card = self.card.of(target)
        if card is None:
            raise UnknownName("target", target, self.targets, fix=f"this model predicts {', '.join(self.targets)}")
        return card


def save_model(model: ApplicationModel, path: Path) -> None:
    """Write the model in place of an older one, whole or not at all.

    Raises:
        LeadlineError: it cannot be written there.
    """
    members = {CARD: to_json(model.card).encode()}
    for target in model.targets:
        state = nest("estimator", dict(model.fitted[target].dump()))
        state |= nest("calibration", dict(model.calibrations[target].dump()))
        for name, array in state.items():
            members[f"{target}/{name}.npy"] = _bytes(array)
    members[DIGEST] = _digest(members).encode()
    archive = io.BytesIO()
    _write(members, archive)
    try:
        write_atomically(path, archive.getvalue())
    except OSError as error:
        raise LeadlineError(
            f"the model cannot be written to {path} ({error.strerror}): name another place with --to"
        ) from error


def load_model(path: Path) -> ApplicationModel:
    """Read a model.

    Raises:
        InvalidInput: there is no such file, or it is no model, cut short, changed, or of another version.
    """
    members = _members(path)
    card = _card(members, path)
    if members.pop(DIGEST, b"").decode("ascii", "replace") != _digest(members):
        raise InvalidInput(f"{path} was changed after it was written, or is damaged: train it again ({card.reproduce})")
    try:
        states = {one.target: _state(members, one.target) for one in card.targets}
        fitted = {name: registry.load_estimator(unnest("estimator", state)) for name, state in states.items()}
        calibrations: dict[str, IntervalCalibration] = {
            name: IntervalCalibration.load(dict(unnest("calibration", state))) for name, state in states.items()
        }
    except (UnknownName, KeyError, ValueError, IndexError) as error:
        raise InvalidInput(
            f"{path} holds an estimator that this Leadline {__version__} does not know (it was written by "
            f"{card.leadline}): train it again ({card.reproduce})"
        ) from error
    return ApplicationModel(card, fitted, calibrations)


def _basis(card: TargetCard) -> list[str]:
    runs = ", ".join(f"{one.runs} {scale}" for scale, one in card.scales.items() if one.runs)
    found = [f"{card.target}: {card.estimator}, learned from {runs} runs"]
    for scale, one in card.errors.items():
        which = "test runs" if scale in card.tested else "runs that its fits did not see"
        found.append(
            f"{card.target}: off by {one.mape:.1f} % in the mean on {one.runs} {scale} {which}, of which "
            f"{one.coverage:.0f} % lay within the {100 * card.level:.0f} % interval"
        )
    return found + [f"{card.target}: {note}" for note in card.notes]


def _scale(row: Mapping[str, Value], card: TargetCard) -> str:
    """Return the scale of a question: scaled down where all that carries scale lies within the scaled-down runs."""
    if Scale.SCALED_DOWN.value not in card.scales:
        return Scale.FULL_SCALE.value
    for name, (low, high) in card.within.items():
        value = row.get(name)
        if not isinstance(value, int | float) or not low <= value <= high:
            return Scale.FULL_SCALE.value
    return Scale.SCALED_DOWN.value


def _bytes(array: "np.typing.NDArray[Any]") -> bytes:
    held = io.BytesIO()
    np.lib.format.write_array(held, np.asarray(array), allow_pickle=False)
    return held.getvalue()


def _digest(members: Mapping[str, bytes]) -> str:
    found = hashlib.sha256()
    for name, content in sorted(members.items()):
        found.update(f"{name}\n{len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _write(members: Mapping[str, bytes], stream: Any) -> None:  # noqa: ANN401 - a binary file
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            # the same date in every file, so that the same model is the same bytes
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def _members(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if CARD not in names:
                raise InvalidInput(f"{path} is no model of Leadline: name a file that leadline train wrote")
            return {name: archive.read(name) for name in names}
    except (zipfile.BadZipFile, EOFError, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
        with path.open("rb") as stream:
            begun = stream.read(2) == b"PK"
        why = "is cut short or damaged: copy it again, or train it again" if begun else (
            "is no model of Leadline: name a file that leadline train wrote"
        )  # fmt: skip
        raise InvalidInput(f"{path} {why}") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {explain_read_error(error)}") from error


def _card(members: Mapping[str, bytes], path: Path) -> ModelCard:
    """Return the card; one of another version is told by its schema before its fields are read."""
    try:
        said = msgspec.json.decode(members[CARD])
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is damaged (its card is no JSON): train it again") from error
    schema = said.get("schema") if isinstance(said, dict) else None
    if schema != MODEL_SCHEMA:
        written = said.get("leadline", "another program") if isinstance(said, dict) else "another program"
        raise InvalidInput(
            f"{path} is of the form {schema or 'unknown'}, written by Leadline {written}, and this Leadline "
            f"{__version__} reads {MODEL_SCHEMA}: train it again, or use that version"
        )
    try:
        return msgspec.convert(said, ModelCard)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path} has a damaged card ({error}): train it again") from error


def _state(members: Mapping[str, bytes], target: str) -> State:
    start = f"{target}/"
    return {
        name.removeprefix(start).removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        for name, content in members.items()
        if name.startswith(start)
    }
