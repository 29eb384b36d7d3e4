"""The storage events of one step of a transformer: what is held, saved for backward, and let go."""

from leadline.core.graph import StorageCategory as Category
from leadline.core.graph import StorageEvent
from leadline.graphs.hf_config.layers import StepSizes
from leadline.graphs.hf_config.shape import TransformerShape


def step_events(shape: TransformerShape, sizes: StepSizes) -> list[StorageEvent]:
    """Return the storage events of one optimizer step, or of one forward pass in inference.

    Parameters and optimizer state are there from the start; each layer saves its activations in forward and gives
    them back in backward, where its weights' gradients appear; the logits and their float32 copy stand at the turn.
    """
    events = _Events()
    layer, rest = shape.layer_parameters(), shape.parameters() - shape.layers * shape.layer_parameters()
    blocks = [layer] * shape.layers + [rest]
    for size in blocks:
        events.take(size * sizes.weight_width, Category.PARAMETER)
    if not sizes.training:
        _inference(events, shape, sizes)
        return events.list
    for size in blocks * sizes.optimizer.states:
        events.take(size * sizes.weight_width, Category.OPTIMIZER_STATE)
    _training(events, shape, sizes, blocks)
    return events.list


def saved_bytes_per_token(shape: TransformerShape, sizes: StepSizes) -> int:
    """Return what one layer saves for backward, per token, with a fused attention kernel.

    Counted from the operations of the transformers implementations: each norm its input (and for an RMS norm the
    normalised value) and its output; queries, keys, values and the attention's output; the feed-forward inputs of
    the activation and of the last product; a byte for each dropout mask.
    """
    width, stream = sizes.width, sizes.stream_width
    norm = shape.hidden * (4 + stream + width if shape.rms_norm else stream + width)
    attention = width * (2 * shape.q_width + 2 * shape.kv_width)
    if not sizes.fused_attention:
        attention += 2 * width * shape.heads * sizes.sequence
    tensors = 4 if shape.gated else 6 if sizes.activation == "gelu_new" else 2
    feed_forward = tensors * width * shape.ffn * shape.experts_used
    masks = 2 * shape.hidden * bool(shape.dropout)
    return shape.norms_per_layer * norm + attention + feed_forward + masks


def _training(events: "_Events", shape: TransformerShape, sizes: StepSizes, blocks: list[int]) -> None:
    """Add forward and backward of one micro-step, and the update; ``blocks`` are the weights layer by layer."""
    casts = [events.take(size * 2, Category.TEMPORARY) for size in blocks if sizes.precision.autocast]
    kept = sizes.accumulation > 1
    gradients = [events.take(size * sizes.weight_width, Category.GRADIENT) for size in blocks if kept]
    saved = saved_bytes_per_token(shape, sizes) * sizes.tokens
    held = sizes.tokens * shape.hidden * sizes.stream_width if sizes.checkpointing else saved
    saves = [events.take(held, Category.ACTIVATION) for _ in range(shape.layers)]
    _turn(events, shape, sizes)
    if not kept:
        gradients.append(events.take(blocks[-1] * sizes.weight_width, Category.GRADIENT))
    for activation in reversed(saves):
        again = [events.take(saved, Category.ACTIVATION)] if sizes.checkpointing else []
        working = events.take(_working_bytes(shape, sizes), Category.TEMPORARY)
        if not kept:
            gradients.append(events.take(blocks[0] * sizes.weight_width, Category.GRADIENT))
        for storage in (working, *again, activation):
            events.give(storage)
    events.give_all(casts)
    if sizes.optimizer.states:
        events.give_all([events.take(size * sizes.weight_width, Category.TEMPORARY) for size in blocks])
    events.give_all(gradients)


def _turn(events: "_Events", shape: TransformerShape, sizes: StepSizes) -> None:
    """Add the logits: their compute-dtype value, float32 copy, log-softmax and its gradient at the turn to backward."""
    logits = sizes.tokens * (shape.vocab if shape.head != "none" else 0)
    if not logits:
        return
    low = events.take(logits * sizes.width, Category.ACTIVATION)
    copy = events.take(logits * 4, Category.ACTIVATION) if sizes.width < 4 else None
    softmax = events.take(logits * 4, Category.ACTIVATION)
    gradient = events.take(logits * 4, Category.TEMPORARY)
    events.give(softmax)
    if copy is not None:
        events.give(copy)
    events.give(gradient)
    events.give(low)


def _working_bytes(shape: TransformerShape, sizes: StepSizes) -> int:
    """Return the gradients of activations alive at once in a layer's backward: the feed-forward's and the stream's."""
    return sizes.tokens * (sizes.width * shape.ffn * shape.experts_used * (1 + shape.gated)
                           + 2 * sizes.stream_width * shape.hidden)  # fmt: skip


def _inference(events: "_Events", shape: TransformerShape, sizes: StepSizes) -> None:
    """Add a forward pass: the key-value cache of a causal model, one layer's working set, and the logits."""
    for _ in range(shape.layers):
        if shape.causal:
            events.take(2 * sizes.tokens * shape.kv_width * sizes.width, Category.OTHER)
        events.give(events.take(_working_bytes(shape, sizes), Category.TEMPORARY))
    if shape.head != "none":
        events.give(events.take(sizes.tokens * shape.vocab * sizes.width, Category.ACTIVATION))


class _Events:
    """A growing list of events that numbers its storages."""

    def __init__(self) -> None:
        self.list: list[StorageEvent] = []
        self._sizes: list[tuple[int, Category]] = []

    def take(self, size_bytes: int, category: Category) -> int:
        storage = len(self._sizes)
        self._sizes.append((size_bytes, category))
        self.list.append(StorageEvent(0, storage, size_bytes, category))
        return storage

    def give_all(self, storages: list[int]) -> None:
        for storage in storages:
            self.give(storage)

    def give(self, storage: int) -> None:
        size_bytes, category = self._sizes[storage]
        self.list.append(StorageEvent(0, storage, -size_bytes, category))
