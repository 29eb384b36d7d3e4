"""The what-if sliders of the page of estimates: the time until the server has answered a move."""

import json
import random
import re
import time
from collections import defaultdict
from pathlib import Path

import httpx

from benchmarks.interfaces.load import serving
from benchmarks.results import BenchmarkRow, at_most

MOVES = 200
LATEST_MS = 200.0
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000, "torch_dtype": "bfloat16",
}  # fmt: skip
"""The sizes of Llama 2 7B (Touvron et al., 2023)."""
_PLACE = re.compile(r'data-place="([^"]+)"')
_SLIDER = re.compile(r'data-slides="(\w+)" data-steps="([^"]+)"')


def slider_rows(folder: Path, *, quick: bool = False) -> list[BenchmarkRow]:
    """Move the sliders at random, ask as the page does, and return the times of the answers."""
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    rng = random.Random(1)  # noqa: S311 - not secret
    times_ms, whole_ms, shown, refused = defaultdict[str, list[float]](list), list[float](), "", 0
    with serving(folder) as (address, token, _), _client(address, token) as client:
        sliders = {name: ["", *steps.split()] for name, steps in _SLIDER.findall(client.get("").text)}
        form = {"workload": "config.json", "samples": "10000"}
        answer = client.get("estimate", params=form).raise_for_status()  # the first one reads catalog and models
        for _ in range(MOVES // 10 if quick else MOVES):
            name = rng.choice([*sliders])
            form[name] = rng.choice(sliders[name])
            shown = ",".join(_PLACE.findall(answer.text)) or shown
            time_ms, answer = _timed(client, {**form, "shown": shown})
            times_ms[name].append(time_ms)
            refused += answer.status_code != 200 or 'role="alert"' in answer.text
            time_ms, answer = _timed(client, form)
            whole_ms.append(time_ms)
    every = [time_ms for moves in times_ms.values() for time_ms in moves]
    each = ", ".join(f"{name} {_late(moves):.0f}" for name, moves in sorted(times_ms.items()))
    return [
        at_most("move of a slider, 95th percentile", _late(every), LATEST_MS, "ms", n=len(every),
                how=f"a model of 7 billion parameters on the places shown; by slider: {each}"),
        BenchmarkRow("whole answer when a slider rests, 95th percentile", _late(whole_ms), "ms", n=len(whole_ms),
                     how="the same model on the whole catalog, after the answer for the places shown"),
        at_most("moves without an answer", refused, 0, "moves", n=len(every)),
    ]  # fmt: skip


def _timed(client: httpx.Client, form: dict[str, str]) -> tuple[float, httpx.Response]:
    """Return the milliseconds until the answer to a form, and the answer."""
    began = time.monotonic()
    answer = client.get("estimate", params=form)
    return 1000 * (time.monotonic() - began), answer


def _late(times_ms: list[float]) -> float:
    return sorted(times_ms)[int(0.95 * len(times_ms))]


def _client(address: str, token: str) -> httpx.Client:
    return httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=60)
