"""Virtual tokens that prompt learning trains: before the input, or before the keys and values of each layer.

Lester et al. 2021 (prompt tuning), Liu et al. 2022 (P-tuning), Li and Liang 2021 (prefix tuning), Wang et al. 2023
(multitask prompt tuning). Sizes are those of peft's prompt encoders.
"""

from leadline.core.graph import OpKind
from leadline.graphs.hf_config.adapters import AdapterWeights, form
from leadline.graphs.hf_config.peft_methods import AdapterPlan
from leadline.graphs.hf_config.peft_weights import Settings, Shape
from leadline.graphs.hf_config.tape import Tape, TapeTensor


class VirtualTokens:
    """Trained tokens (tokens, width), with the weights that compute them."""

    def __init__(self, tape: Tape, settings: Settings, width: int, weights: AdapterWeights) -> None:
        self.tape, self.tokens, self.width = tape, settings.whole("num_virtual_tokens"), width
        keys = settings.method in ("prefix-tuning", "cartridge")
        shapes = (_key_shapes if keys else _input_shapes)(settings, self.tokens, width)
        self.weights = [weights.make(*shape) for shape in shapes]
        if settings.flag("prefix_projection"):
            inner = settings.whole("encoder_hidden_size", least=0) or width
            for shape in ((self.tokens, width), (inner, width), (inner,)):
                self.weights.append(weights.share(f"prefix {shape}", shape))
        if settings.method == "cpt":
            weights.make(self.tokens, width, trained=False)
        if settings.method == "cartridge":
            weights.make(settings.whole("num_frozen_tokens"), width, trained=False)

    def prepend(self, source: TapeTensor, axis: int) -> TapeTensor:
        """Return ``source`` with the tokens before its ``axis``."""
        tape = self.tape
        prompt = form(tape, (self.tokens, self.width), self.weights)
        shape = (*source.shape[:axis], self.tokens + source.shape[axis], *source.shape[axis + 1 :])
        joined = tape.compute("cat", OpKind.COPY, [prompt, source], shape, source.dtype)
        slot, source_shape, prompt_slot = source.slot, source.shape, prompt.slot

        def backward(gradient: TapeTensor) -> None:
            if slot is not None:
                part = TapeTensor(source_shape, gradient.dtype, gradient.storage)
                tape.send(slot, part)
            tape.send(prompt_slot, tape.sum_to(gradient, (self.tokens, self.width), self.weights[0].dtype))

        return tape.node(joined, backward, prompt)


def virtual_tokens(
    tape: Tape, plan: AdapterPlan | None, weights: AdapterWeights, place: str, width: int
) -> VirtualTokens | None:
    """Make trained tokens at a place of the model (``input`` or ``keys``), if the method has them there."""
    if plan is None or plan.method.place != place:
        return None
    plan.adapted.add(place)
    return VirtualTokens(tape, plan.settings, width, weights)


def _input_shapes(settings: Settings, tokens: int, width: int) -> list[Shape]:
    shapes: list[Shape] = [(tokens, width)]
    if settings.method == "multitask-prompt-tuning":
        tasks, ranks = settings.whole("num_tasks"), settings.whole("num_ranks")
        shapes += [(tasks, tokens, ranks), (tasks, ranks, width)]
    if settings.method == "p-tuning":
        inner = settings.whole("encoder_hidden_size", least=0) or width
        kind = settings.values["encoder_reparameterization_type"]
        if kind not in ("MLP", "LSTM"):
            raise settings.error("encoder_reparameterization_type", "MLP or LSTM")
        if kind == "LSTM":
            for layer in range(settings.whole("encoder_num_layers")):
                # Four gates in two directions, each with two biases.
                shapes += 2 * [(4 * inner, 2 * inner if layer else width), (4 * inner, inner), (8 * inner,)]
            inner *= 2
            sides = [(inner, inner), (width, inner)]
        else:
            sides = [(inner, width), (inner, inner), (width, inner)]
        shapes += [shape for rows, columns in sides for shape in ((rows, columns), (rows,))]
    return shapes


def _key_shapes(settings: Settings, tokens: int, width: int) -> list[Shape]:
    """Return the weights of one layer's keys or values."""
    if settings.method == "cartridge":
        tokens -= settings.whole("num_frozen_tokens")
    if settings.flag("prefix_projection"):
        return [(width, settings.whole("encoder_hidden_size", least=0) or width), (width,)]
    return [(tokens, width)]
