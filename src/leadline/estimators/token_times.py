"""Times of a language model's answers from few passes: the prefill and some decode steps."""

from collections.abc import Callable

from leadline.core.estimate import Interval, TokenTimes
from leadline.core.frozen import Frozen
from leadline.core.graph import BYTES_PER_ELEMENT, OpGraph, OpKind, TracedJob
from leadline.core.hardware import Device
from leadline.core.units import format_duration
from leadline.core.workload import Workload
from leadline.estimators.parallelism.divided_memory import cache_share_bytes


class GraphTime(Frozen):
    """Time of a graph, the seconds of its parts (which overlap), and sentences about them."""

    interval: Interval
    parts: dict[str, float]
    sentences: tuple[str, ...]


class AnswerTimes(Frozen):
    """One batch of whole answers: total, prefill, all decode steps, and the first and last of them."""

    whole: GraphTime
    prefill: Interval
    decode: Interval | None = None
    first: Interval | None = None
    last: Interval | None = None


def predict_answer(job: TracedJob, price: Callable[[OpGraph], GraphTime]) -> AnswerTimes:
    """Return the time of whole answers; ``price`` predicts the prefill and three steps per stretch."""
    # A device model's errors are common to all steps, so the interval bounds are added.
    prefill, generation = price(job.step), job.generation
    if generation is None or not generation.stretches:
        return AnswerTimes(prefill, prefill.interval)
    by_length = {step.length: price(step.graph) for steps in generation.stretches for step in steps}
    by_graph = {id(step.graph): by_length[step.length] for steps in generation.stretches for step in steps}
    first, last = generation.stretches[0][0], generation.stretches[-1][-1]
    decode = Interval(
        *(
            generation.total(lambda graph, end=end: getattr(by_graph[id(graph)].interval, end))  # type: ignore[misc]
            for end in ("point", "low", "high")
        )
    )
    kinds = dict.fromkeys((*prefill.parts, *(kind for graph_time in by_graph.values() for kind in graph_time.parts)))
    parts = {
        kind: prefill.parts.get(kind, 0.0)
        + generation.total(lambda graph, kind=kind: by_graph[id(graph)].parts.get(kind, 0.0))  # type: ignore[misc]
        for kind in kinds
    }
    sentences = (
        *(f"prompt: {text}" for text in prefill.sentences),
        *(f"decoding token {last.length}: {text}" for text in by_length[last.length].sentences),
    )
    whole = GraphTime(prefill.interval.joined(decode), parts, sentences)
    return AnswerTimes(
        whole, prefill.interval, decode, by_length[first.length].interval, by_length[last.length].interval
    )


def token_times(
    answer: AnswerTimes, replayed: AnswerTimes | None, workload: Workload, job: TracedJob
) -> TokenTimes | None:
    """Return prefill, per-token and throughput metrics; ``None`` if nothing is generated.

    ``replayed`` is the same answer by captured kernels, where the device supports them.
    """
    generation = job.generation
    if generation is None:
        return None
    sequences = (workload.batch or job.loop.batch or 1) * workload.parallelism.copies(workload.gpus)
    tokens, whole = float(sequences * generation.generated), answer.whole.interval
    steps = generation.generated - 1
    return TokenTimes(
        prompt_tokens=generation.prompt,
        generated_tokens=generation.generated,
        time_to_first_token_s=answer.prefill,
        time_per_output_token_s=answer.decode.scaled(1 / steps) if answer.decode else None,
        first_decode_step_s=answer.first,
        last_decode_step_s=answer.last,
        output_tokens_per_s=Interval(tokens / whole.point, tokens / whole.high, tokens / whole.low, whole.level),
        kv_cache_bytes=cache_share_bytes(generation.cache_bytes, workload, job.step),
        replayed_answer_s=replayed.whole.interval if replayed else None,
        replayed_per_output_token_s=replayed.decode.scaled(1 / steps) if replayed and replayed.decode else None,
    )


def describe_token_times(token_times: TokenTimes, least_s: float) -> tuple[str, ...]:
    """Return the speed of replayed kernels, and the limit that no engine can beat."""
    if not least_s:
        return ()
    least = f"no engine decodes the last token faster than {format_duration(least_s)}, the reading of weights and cache"
    if token_times.replayed_per_output_token_s is None or token_times.replayed_answer_s is None:
        return (least,)
    per_token, answer = token_times.replayed_per_output_token_s.point, token_times.replayed_answer_s.point
    times = f"{format_duration(per_token)} a token and {format_duration(answer)} an answer"
    return (
        f"with captured and replayed kernels, as in serving engines: {times}",
        least,
    )


def least_decode_s(workload: Workload, job: TracedJob, device: Device) -> float:
    """Return the seconds to read weights and cache once in the last decode step, a lower bound."""
    # Weights are all that the products read but their sources, packed or not. Experts that no token chose are not read.
    generation, plan = job.generation, workload.parallelism
    if generation is None or generation.last is None or not device.memory_bytes_per_s:
        return 0.0
    products = [op for op in generation.last.ops if op.kind is OpKind.GEMM and op.name != "aten.bmm"]
    weights = sum(
        (op.bytes_read - op.dims.get("b", 1) * op.dims["m"] * op.dims["k"] * BYTES_PER_ELEMENT[op.dtype]) * op.count
        for op in products
    )
    cache = plan.pipeline * cache_share_bytes(generation.cache_bytes, workload, job.step)
    return (weights / plan.tensor + cache) / device.memory_bytes_per_s
