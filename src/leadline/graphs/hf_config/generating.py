"""Generation of text: which models can do it, and the decode steps that stand for all of them."""

from collections.abc import Callable

from leadline.core.errors import InvalidInput
from leadline.core.graph import DecodeStep, Generation, OpGraph
from leadline.graphs.hf_config.caching import Layout
from leadline.graphs.hf_config.shape import ModelShape, PairShape

Decode = Callable[[Layout, int], OpGraph]


def require_generator(shape: ModelShape, what: str) -> None:
    """Refuse a model that cannot generate, or whose generation is not expanded.

    Raises:
        InvalidInput: it is an encoder, has no scores for the next token, or is an encoder with a decoder.
    """
    instead = "leave --generate out, or name a decoder such as llama"
    if isinstance(shape, PairShape):
        raise InvalidInput(
            f"{what} is an encoder with a decoder ({shape.family}), whose generation is not expanded: {instead}"
        )
    if not shape.layers[0].attention.causal:
        raise InvalidInput(f"{what} is an encoder ({shape.family}), which cannot generate: {instead}")
    if shape.head.outputs != shape.vocab:
        raise InvalidInput(f"{what} has no head that scores its vocabulary, so it cannot generate: {instead}")


def generation(decode: Decode, layout: Layout, prompt: int, generated: int) -> Generation:
    """Expand the decode steps that follow a prompt: the first, the last and the middle one of each stretch.

    The prompt's own pass makes the first token, so that ``generated - 1`` steps follow, of lengths from ``prompt + 1``.
    A stretch ends where a sliding window is full, from which on its layers read no more.
    """
    end = prompt + generated - 1
    fulls = [window for window in layout.windows if prompt < window < end]
    begins = [prompt + 1, *(window + 1 for window in fulls)]
    ends = [*fulls, end]
    stretches = tuple(
        tuple(DecodeStep(length, decode(layout, length)) for length in _lengths(first, last))
        for first, last in zip(begins, ends, strict=True)
        if first <= last
    )
    return Generation(prompt, generated, stretches, layout.size_bytes(end))


def _lengths(first: int, last: int) -> list[int]:
    return sorted({first, (first + last) // 2, last})
