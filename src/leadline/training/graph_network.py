"""Load a graph neural network of steps from its ONNX file, the shipped one or another; onnxruntime runs it."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.estimators.learned.gnn import INPUTS, GraphNetwork, Session
from leadline.training.shipped_files import content_of


class NetworkCard(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a trained network: what it learned from, how far off it is on families it had not seen.

    ``errors`` maps a split to its figures in percent (``mape``, ``median``, ``p90``) and its number of rows ``n``,
    ``law`` the same rows under the law of ops. ``settings`` are those it learned: device, phase, layout and release.
    """

    schema: str
    made_on: str
    sources: tuple[str, ...]
    licence: str
    rows: int
    graphs: int
    devices: tuple[str, ...]
    settings: tuple[str, ...]
    training: dict[str, float]
    errors: dict[str, dict[str, float]]
    law: dict[str, dict[str, float]]
    versions: dict[str, str]
    limits: str


def shipped_network() -> GraphNetwork:
    """Return the network that comes with Leadline.

    Raises:
        MissingExtra: onnxruntime is not installed.
    """
    return network_of(content_of("gnn.onnx"), "the shipped gnn.onnx")


def shipped_card() -> NetworkCard:
    """Return the card of the network that comes with Leadline."""
    return msgspec.json.decode(content_of("gnn.json"), type=NetworkCard)


def network_at(path: Path) -> GraphNetwork:
    """Return the network of an ONNX file.

    Raises:
        InvalidInput: the file cannot be read, or holds no such network.
        MissingExtra: onnxruntime is not installed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}): give a network's ONNX file") from error
    return network_of(content, str(path))


def network_of(content: bytes, name: str) -> GraphNetwork:
    """Return the network that an ONNX file's ``content`` holds; ``name`` is what errors call it.

    Raises:
        InvalidInput: it is not an ONNX model, or not one with the inputs of a graph.
        MissingExtra: onnxruntime is not installed.
    """
    return GraphNetwork(_session(content, name))


def _session(content: bytes, name: str) -> Session:
    try:
        import onnxruntime  # noqa: PLC0415 - only the graph neural network needs it
        from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, InvalidProtobuf  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtra("the graph neural network", "gnn") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except (Fail, InvalidGraph, InvalidProtobuf) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{name} is not an ONNX model ({reason}): train the network again") from error
    known = tuple(one.name for one in session.get_inputs())
    if set(known) != set(INPUTS):
        raise InvalidInput(
            f"{name} has the inputs {', '.join(known)}, not {', '.join(INPUTS)}: give a network that "
            "benchmarks.dnn.train_gnn made"
        )

    def run(inputs: Mapping[str, npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
        found: npt.NDArray[np.generic] = session.run(None, dict(inputs))[0]
        return found

    return run
