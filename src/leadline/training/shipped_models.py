"""The fitted step estimators that come with Leadline, and their cards."""

from collections.abc import Mapping
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.estimators.ports import FittedEstimator, State
from leadline.estimators.step_time.fitted_kernels import FittedKernels
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationModels
from leadline.estimators.step_time.selection import AccuracyRecord
from leadline.estimators.step_time.step_kernels import NETWORK_INPUTS, GraphNetwork
from leadline.estimators.tabular import registry
from leadline.files.arrays import read_arrays
from leadline.training.shipped_files import read_shipped

KERNELS_FILE, STEPS_FILE, BLACK_BOX_FILE, CARD_FILE = "kernels.npz", "steps.npz", "black_box.npz", "estimators.json"


class _AccuracyRecords(msgspec.Struct, frozen=True):
    records: tuple[AccuracyRecord, ...]


@cache
def shipped_kernels() -> FittedKernels:
    """Return the kernels of all measured devices."""
    return FittedKernels.load(_state(KERNELS_FILE))


@cache
def shipped_op_utilization() -> OpUtilizationModels:
    """Return the operator models of all measured steps."""
    return OpUtilizationModels.load(_state(STEPS_FILE))


@cache
def shipped_black_box() -> FittedEstimator:
    """Return the boosted trees fitted on all measured steps, relative to their ideal times."""
    return registry.load_estimator(_state(BLACK_BOX_FILE))


@cache
def shipped_accuracy() -> tuple[AccuracyRecord, ...]:
    """Return the error of each shipped estimator on held-out steps."""
    return msgspec.json.decode(read_shipped(CARD_FILE), type=_AccuracyRecords).records


def _state(name: str) -> State:
    return read_arrays(read_shipped(name), name)


@cache
def shipped_network() -> GraphNetwork:
    """Return the network that comes with Leadline.

    Raises:
        MissingExtra: onnxruntime is not installed.
    """
    return load_network(read_shipped("gnn.onnx"), "the shipped gnn.onnx")


def load_network(content: bytes, name: str) -> GraphNetwork:
    """Return the network of an ONNX file's ``content``; errors call it ``name``.

    Raises:
        InvalidInput: it is not an ONNX model, or has other inputs.
        MissingExtra: onnxruntime is not installed.
    """
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
    inputs = tuple(tensor.name for tensor in session.get_inputs())
    if set(inputs) != set(NETWORK_INPUTS):
        raise InvalidInput(
            f"{name} has the inputs {', '.join(inputs)}, not {', '.join(NETWORK_INPUTS)}: give a network that "
            "benchmarks.dnn.train_gnn made"
        )

    def run(arrays: Mapping[str, npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
        output: npt.NDArray[np.generic] = session.run(None, dict(arrays))[0]
        return output

    return GraphNetwork(run)
