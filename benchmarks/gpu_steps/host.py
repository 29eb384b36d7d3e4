"""Host seconds of an op in models of transformers, over those in the plain modules that ``leadline calibrate`` times.

Run as ``python -m benchmarks.gpu_steps.host`` on an idle CPU with PyTorch and transformers: the tensors are so small
that only the host's work remains.
"""

import sys
import time
from collections.abc import Callable

import torch

from leadline.catalog.probes.overheads import count_operators, overhead_figures
from leadline.catalog.probes.stopwatch import Stopwatch
from leadline.core.hardware import Calibration

LAYERS = {"num_hidden_layers": 8, "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 64}
GATED = {**LAYERS, "intermediate_size": 64, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, int]] = {
    "llama": GATED, "qwen3": {**GATED, "head_dim": 16}, "gpt_neox": {**LAYERS, "intermediate_size": 64},
    "gpt2": {"n_embd": 32, "n_layer": 8, "n_head": 2, "vocab_size": 64},
    "opt": {**LAYERS, "ffn_dim": 64, "word_embed_proj_dim": 32},
}  # fmt: skip
REPEATS, STEPS = 7, 5


def training_step(name: str) -> Callable[[], None]:
    """Return a function that runs one training step of a tiny model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **MODELS[name]))
    optimizer, tokens = torch.optim.AdamW(model.parameters(), foreach=True), torch.randint(0, 60, (1, 8))

    def step() -> None:
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def host_seconds(call: Callable[[], None]) -> float:
    """Return the lower quartile of a call's seconds."""
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for _ in range(STEPS):
            call()
        seconds.append((time.perf_counter() - begun) / STEPS)
    return sorted(seconds)[REPEATS // 4]


def main() -> int:
    """Print the seconds of an op in each model, and their ratio to those in plain modules."""
    torch.set_num_threads(1)
    plain_s = Calibration("", "", 1, figures=overhead_figures(Stopwatch("cpu", call_budget_s=0.5))).launch_s or 0.0
    sys.stdout.write(f"plain modules {1e6 * plain_s:.1f} us an op\n")
    for name in MODELS:
        step = training_step(name)
        step()
        op_s = host_seconds(step) / count_operators(step)
        sys.stdout.write(f"{name:10} {1e6 * op_s:.1f} us an op, {op_s / plain_s:.2f} times\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
