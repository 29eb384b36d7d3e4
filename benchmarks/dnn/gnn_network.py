"""The graph neural network in PyTorch, for training; it is shipped and run as ONNX."""

import warnings
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch import nn

from benchmarks.dnn.gnn_data import NODE_KINDS, NODE_WIDTH, SETTING_WIDTH
from benchmarks.dnn.setting_models import PRIOR_F
from leadline.estimators.ports import Single
from leadline.estimators.step_time.op_table import KERNEL_CLASSES
from leadline.estimators.step_time.op_utilization import (
    LEAST_MULTIPLE,
    OVERLAP_POWER,
    PRIOR_LAUNCH_S,
)
from leadline.estimators.step_time.step_kernels import (
    NETWORK_INPUTS,
    GraphBatch,
)

WIDTH = 64
ROUNDS = 2
CONDITION = 16
HIGHEST = 3.0
"""Bound on the absolute value of f."""
MOST_LEARNED = 1.5
"""Bound on the change of f by messages."""
FARTHEST = 4.0
"""Bound on the columns of ops, in standard deviations."""
LOST = 0.1
"""Dropout on the result of a round."""
MOST_LEFT = 0.15
"""Bound on the logarithm of the correction of a whole step."""
MOST_LAUNCH = 1.5
"""Bound on the logarithm of the correction of the host's launch time."""
RIDGE = 3e-3
"""Penalty on each squared weight of a class: a class that few models call stays near its prior."""
FREEDOM = 0.1
"""Share of the penalty on the constants of a class."""
OPSET = 18


class StepNetwork(nn.Module):  # type: ignore[misc]
    """A linear model of each op class in its sizes, corrected by rounds of messages over the op graph.

    Neither f nor the correction of the whole step depends on the counts of ops, so a step grows with every count.
    """

    def __init__(self, mean: Single, deviation: Single) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(mean))
        self.register_buffer("deviation", torch.from_numpy(deviation))
        self.law = nn.Embedding(len(KERNEL_CLASSES), NODE_WIDTH + 1)
        self.layout_law = nn.Embedding(NODE_KINDS, NODE_WIDTH + 1)
        self.kind = nn.Embedding(len(KERNEL_CLASSES), WIDTH)
        self.loss = nn.Dropout(LOST)
        self.condition = nn.Sequential(nn.Linear(SETTING_WIDTH, 32), nn.SiLU(), nn.Linear(32, CONDITION), nn.Tanh())
        self.first = nn.Linear(NODE_WIDTH + CONDITION, WIDTH)
        self.rounds = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(ROUNDS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(ROUNDS))
        self.last = nn.Sequential(nn.Linear(WIDTH + CONDITION, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))
        self.whole = nn.Sequential(nn.Linear(WIDTH + CONDITION, 32), nn.SiLU(), nn.Linear(32, 1))
        self.launch = nn.Linear(CONDITION, 1)
        for table in (self.law, self.layout_law, self.kind):
            nn.init.zeros_(table.weight)
        nn.init.constant_(self.law.weight[:, 0], PRIOR_F)
        for head in (self.last[-1], self.whole[-1], self.launch):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, *inputs: Any) -> Any:  # noqa: ANN401 - tensors, by INPUTS
        """Return the step of each graph in µs from tensors in the order of ``NETWORK_INPUTS``."""
        kind, node, roofline_us, count, launches, owner, source, target, setting = inputs
        scaled = ((node - self.mean) / self.deviation).clamp(-FARTHEST, FARTHEST)
        shared = kind % len(KERNEL_CLASSES)
        condition = self.condition(setting)
        of_node = condition[owner]
        hidden = nn.functional.silu(self.first(torch.cat([scaled, of_node], 1)) + self.kind(shared))
        producers, consumers = _degrees(target, node), _degrees(source, node)
        for linear, norm in zip(self.rounds, self.norms, strict=True):
            read = _summed(hidden[source], target, node.shape[0]) / producers
            written = _summed(hidden[target], source, node.shape[0]) / consumers
            hidden = hidden + self.loss(nn.functional.silu(linear(_with_neighbours(norm, hidden, read, written))))
        linear_terms = self.law(shared) + self.layout_law(kind)
        learned = MOST_LEARNED * torch.tanh(self.last(torch.cat([hidden, of_node], 1))[:, 0])
        f = linear_terms[:, 0] + (linear_terms[:, 1:] * scaled).sum(1) + learned
        op_us = count * roofline_us * (LEAST_MULTIPLE + torch.exp(HIGHEST * torch.tanh(f / HIGHEST)))
        graphs = setting.shape[0]
        device = torch.log(_summed(op_us[:, None], owner, graphs)[:, 0])
        launch = PRIOR_LAUNCH_S * 1e6 * torch.exp(MOST_LAUNCH * torch.tanh(self.launch(condition)[:, 0]))
        host = torch.log(launch * _summed(launches[:, None], owner, graphs)[:, 0])
        mean = _summed(hidden, owner, graphs) / _degrees(owner, setting)
        correction = MOST_LEFT * torch.tanh(self.whole(torch.cat([mean, condition], 1))[:, 0])
        return torch.exp(_larger(device, host) + correction)

    def penalty(self) -> Any:  # noqa: ANN401 - a tensor
        """Return the penalty on the weights of classes, to be added to the mean error."""
        away = self.law.weight[:, 0] - PRIOR_F
        common = FREEDOM * (away.square().sum() + self.layout_law.weight[:, 0].square().sum())
        sizes = self.law.weight[:, 1:].square().sum() + 2 * self.layout_law.weight[:, 1:].square().sum()
        return RIDGE * (common + sizes + self.kind.weight.square().sum())


def _with_neighbours(norm: Any, hidden: Any, read: Any, written: Any) -> Any:  # noqa: ANN401 - tensors
    """Join an op with the means of its producers and consumers, each normalized."""
    return torch.cat([norm(hidden), norm(read), norm(written)], 1)


def tensors(batch: GraphBatch) -> tuple[Any, ...]:
    """Return the inputs of the network, in order."""
    return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in structs.astuple(batch))


def onnx_network(network: StepNetwork, example: GraphBatch) -> bytes:
    """Return the network as an ONNX file for graphs of any size."""
    sizes = {"ops": torch.export.Dim("ops"), "edges": torch.export.Dim("edges"), "graphs": torch.export.Dim("graphs")}
    of = {"source": "edges", "target": "edges", "setting": "graphs"}
    shapes = (tuple({0: sizes[of.get(name, "ops")]} for name in NETWORK_INPUTS),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own: a name of an axis that it uses once only
        program = torch.onnx.export(
            network.eval(), tensors(example), input_names=list(NETWORK_INPUTS), output_names=["step_us"],
            dynamic_shapes=shapes, opset_version=OPSET, dynamo=True, verbose=False,
        )  # fmt: skip
    return plain(program.model_proto)


def plain(model: Any) -> bytes:  # noqa: ANN401 - onnx's messages are untyped
    """Return the file of an ONNX model without the exporter's notes on code and machine."""
    del model.metadata_props[:], model.graph.metadata_props[:]
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output,
                 *model.graph.initializer):  # fmt: skip
        del part.metadata_props[:]
        part.ClearField("doc_string")
    content: bytes = model.SerializeToString()
    return content


def _summed(values: Any, place: Any, size: int) -> Any:  # noqa: ANN401 - tensors
    """Return the sum of ``values`` (n, w) at each place, of shape (size, w)."""
    empty = torch.zeros((size, values.shape[1]), dtype=values.dtype)
    return empty.index_add(0, place, values)


def _degrees(place: Any, like: Any) -> Any:  # noqa: ANN401 - tensors
    """Return the count at each place, at least one, of shape (rows of ``like``, 1)."""
    unit = torch.ones((place.shape[0], 1), dtype=like.dtype)
    return _summed(unit, place, like.shape[0]).clamp(min=1.0)


def _larger(first: Any, second: Any) -> Any:  # noqa: ANN401 - tensors
    """Return the logarithm of the power mean of ``OVERLAP_POWER``, a smooth maximum."""
    return (
        torch.maximum(first, second)
        + torch.log1p(torch.exp(-OVERLAP_POWER * torch.abs(first - second))) / OVERLAP_POWER
    )
