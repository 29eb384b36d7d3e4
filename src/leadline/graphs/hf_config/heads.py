"""What ends a model: scores for a vocabulary or for labels, or the hidden states themselves."""

from leadline.graphs.hf_config import layers, losses
from leadline.graphs.hf_config.modules import Build, Linear, Norm
from leadline.graphs.hf_config.shape import HeadShape
from leadline.graphs.hf_config.tape import Size


class Head:
    """The head of a model; ``table`` is the embedding whose weights a tied head scores with."""

    __slots__ = ("bias", "build", "norm", "score", "shape", "table", "transform")

    def __init__(self, build: Build, hidden: int, shape: HeadShape, table: Size | None = None) -> None:
        self.build, self.shape, self.table = build, shape, table
        self.transform = None
        self.norm = None
        if shape.transform:
            self.transform = Linear(build, shape.transform, hidden, bias=shape.transform_bias)
            if shape.transform_norm:
                self.norm = Norm(build, shape.transform_norm, shape.transform)
        self.score = None
        self.bias = build.weight(shape.outputs) if shape.tied and shape.bias else None
        if shape.outputs and not shape.tied:
            self.score = Linear(build, shape.outputs, shape.transform or hidden, bias=shape.bias, saved=True)

    def __call__(self, hidden: Size) -> Size:
        """Return scores (…, outputs), or the hidden states of a model without."""
        tape, shape = self.build.tape, self.shape
        answer = losses.first_token(tape, hidden) if shape.pooled else hidden
        if self.transform is not None:
            answer = layers.activation(tape, self.transform(answer), shape.activation)
            answer = self.norm(answer) if self.norm is not None else answer
        if self.score is not None:
            answer = self.score(answer)
        elif shape.outputs and self.table is not None:
            answer = layers.linear(tape, answer, self.table, self.bias)
        else:
            return hidden
        if shape.capped:
            answer = layers.scaled(tape, answer)
            answer = layers.activation(tape, answer, "tanh")
            answer = layers.scaled(tape, answer)
        return answer

    def loss(self, answer: Size) -> Size:
        """Return what training starts from: cross entropy over scores, the mean of hidden states."""
        tape = self.build.tape
        return (
            losses.cross_entropy(tape, answer, upcast=self.shape.upcast)
            if self.shape.outputs
            else losses.mean_loss(tape, answer)
        )
