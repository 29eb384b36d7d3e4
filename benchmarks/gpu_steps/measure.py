"""Measure the time and memory of single steps on a GPU, one JSON row for each configuration.

Usage: python -m benchmarks.gpu_steps.measure OUT.jsonl [SECONDS]. The same command again goes on where it ended; a
configuration that ended the process is not tried again. Weights and inputs are random, and nothing is downloaded. Step
times come from CUDA events between steps that nothing waits for, as in a training loop that does not read its loss.
Needs torch, transformers, peft, torchao, bitsandbytes and liger-kernel.
"""

import gc
import itertools
import json
import signal
import statistics
import sys
import time
from importlib.metadata import version

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BitsAndBytesConfig,
)
from transformers.cache_utils import DynamicCache, StaticCache

from benchmarks.gpu_steps.configurations import MODELS, configurations
from leadline.kit.machine import machine_header, open_meters, set_tf32

WARM_UP, FEWEST, MOST, TIMED_S = 3, 4, 20, 0.25
VARIED_STEPS = 16
LIMIT_S, GRACE_S = 15, 10
IMAGE_MODELS = ("vit", "resnet", "convnext")
PACKAGES = ("peft", "torchao", "bitsandbytes", "liger-kernel")


def main(path, seconds="600"):
    """Measure what the file does not hold yet, until the seconds are over."""
    deadline = time.monotonic() + float(seconds)
    nvml, reason = open_meters("cuda")
    if nvml is None:
        sys.exit(f"the GPU cannot be measured: {reason}")
    with open(path, "a+", encoding="utf-8") as out:
        out.seek(0)
        rows = [json.loads(line) for line in out]
        if not rows:
            packages = {name: version(name) for name in PACKAGES}
            write(out, {"machine": {**machine_header("cuda", nvml, reason), "packages": packages}})
        done = [row["configuration"] for row in rows if "configuration" in row]
        for configuration in configurations():
            if configuration in done:
                continue
            if time.monotonic() > deadline:
                return
            write(out, {"configuration": configuration, "outcome": "begun"})
            write(out, {"configuration": configuration, **outcome_of(configuration, nvml)})


def write(out, row):
    """Append a row that survives the end of the process."""
    out.write(json.dumps(row) + "\n")
    out.flush()


def outcome_of(configuration, nvml):
    """Return the measurements of one configuration, or how it failed."""
    begin = time.monotonic()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_S)
    try:
        measured = {"outcome": "ok", **measure(configuration, nvml)}
    except torch.OutOfMemoryError:
        measured = {"outcome": "out of memory"}
    except Exception as error:  # noqa: BLE001 - a row says how its configuration failed, and the next one begins
        measured = {"outcome": "error", "error": f"{type(error).__name__}: {error}"[:400]}
    signal.alarm(0)
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return {**measured, "elapsed_s": round(time.monotonic() - begin, 2)}


def give_up(_number, _frame):
    """End a configuration that takes too long; one that does not hear of it ends the process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(GRACE_S)
    raise TimeoutError(f"took over {LIMIT_S} s")


def measure(configuration, nvml):
    """Build the model, warm up, time steps, and profile one more."""
    torch.manual_seed(0)
    set_tf32(enabled=configuration["precision"] != "fp32")
    model, config = build(configuration)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    built_bytes = torch.cuda.memory_allocated()
    step = training(configuration, model, config) if configuration["phase"] == "training" else answering(
        configuration, model, config)  # fmt: skip
    for _ in range(WARM_UP):
        step()
    if configuration["execution"] == "graph":
        step = captured(step)
    torch.cuda.synchronize()
    times_ms, state = timed(step, configuration, nvml)
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    free, total = torch.cuda.mem_get_info()
    host_ms = until_launched(step)
    busy_ms, kernels = profiled(step)
    ordered = sorted(times_ms)
    return {
        "step_ms": statistics.median(times_ms), "fastest_ms": ordered[0], "slowest_ms": ordered[-1],
        "steps": len(times_ms), "host_ms": host_ms, "busy_ms": busy_ms, "kernels": kernels,
        "allocated_bytes": allocated, "reserved_bytes": reserved, "device_bytes": total - free,
        "built_bytes": built_bytes, "parameters": sum(each.numel() for each in model.parameters()),
        "experts": getattr(config, "_experts_implementation", None), **state,
    }  # fmt: skip


def build(configuration):
    """Return the model on the GPU, with its adapter and in its precision, and its configuration."""
    shape = MODELS[configuration["model"]]
    config = AutoConfig.for_model(**shape)
    config.use_cache = configuration["phase"] == "decode"
    convolutional = shape["model_type"] in ("resnet", "convnext")
    attention = {} if convolutional else {"attn_implementation": configuration["attention"]}
    with torch.device("cuda"):
        model = model_class(shape["model_type"]).from_config(config, dtype=dtype_of(configuration), **attention)
    model.train(configuration["phase"] == "training")
    if configuration["weights"]:
        model = quantized(model, configuration["weights"])
    if configuration["precision"].startswith("fp8"):
        to_fp8(model, configuration["precision"])
    if configuration["fused"]:
        from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model)
    if configuration["recompute"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if configuration["adapter"]:
        model = adapted(model, configuration)
    if configuration["execution"] == "compiled":
        for layer in blocks(model):
            layer.compile()
    return model, config


def dtype_of(configuration):
    """Return the dtype of the weights and of pictures."""
    return torch.float32 if configuration["precision"] in ("fp32", "tf32", "amp") else torch.bfloat16


def model_class(model_type):
    """Return the class with the head that this family is trained with."""
    if model_type in IMAGE_MODELS:
        return AutoModelForImageClassification
    return {"bert": AutoModelForMaskedLM, "t5": AutoModelForSeq2SeqLM}.get(model_type, AutoModelForCausalLM)


def blocks(model):
    """Return the repeated layers of a model: the longest list of modules."""
    lists = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    return max(lists, key=len)


def quantized(model, weights):
    """Return the model with the linear layers of its blocks quantized."""
    if weights in ("nf4", "llm-int8"):
        from transformers.integrations import replace_with_bnb_linear

        kind = (BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
                if weights == "nf4" else BitsAndBytesConfig(load_in_8bit=True))  # fmt: skip
        return by_bitsandbytes(model, replace_with_bnb_linear, kind)
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, Int8WeightOnlyConfig, quantize_

    kind = Float8DynamicActivationFloat8WeightConfig() if weights == "fp8" else Int8WeightOnlyConfig()
    quantize_(model, kind, filter_fn=inside_blocks)
    return model


def by_bitsandbytes(model, replace, kind):
    """Return the model with bitsandbytes' linear layers, each quantized from the weight that it replaces."""
    import bitsandbytes

    plain = {name: module.weight.data for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    model = replace(model, modules_to_not_convert=["lm_head"], quantization_config=kind)
    for name, module in model.named_modules():
        weight = plain.pop(name, None)
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            packed = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=module)
            module.weight = packed.to("cuda")
        elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
            # Unlike 4-bit weights, these are quantized only on their way from the host.
            module.weight = bitsandbytes.nn.Int8Params(weight.cpu(), requires_grad=False).to("cuda")
    return model


def inside_blocks(module, name):
    """Say whether a module is a linear layer that is not the output head."""
    return isinstance(module, torch.nn.Linear) and "lm_head" not in name


def to_fp8(model, precision):
    """Convert the linear layers of a model to FP8 training, scaled by tensor or by row."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe = Float8LinearConfig.from_recipe_name("rowwise" if precision == "fp8-rowwise" else "tensorwise")
    convert_to_float8_training(model, config=recipe, module_filter_fn=inside_blocks)


def adapted(model, configuration):
    """Return the model with a PEFT adapter."""
    from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model, prepare_model_for_kbit_training

    if configuration["weights"]:
        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=configuration["recompute"],
            gradient_checkpointing_kwargs={"use_reentrant": False})  # fmt: skip
    elif configuration["recompute"]:
        model.enable_input_require_grads()
    adapter, rank = configuration["adapter"], configuration["rank"]
    if adapter == "ia3":
        return get_peft_model(model, IA3Config(task_type="CAUSAL_LM"))
    if adapter == "prompt":
        return get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=rank))
    targets = "all-linear" if adapter in ("all-linear", "dora") else adapter.split(",")
    lora = LoraConfig(task_type="CAUSAL_LM", r=rank, use_dora=adapter == "dora", target_modules=targets)
    return get_peft_model(model, lora)


def optimizer_of(configuration, parameters):
    """Return the optimizer that a configuration names."""
    name = configuration["optimizer"]
    if name == "adamw-8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(parameters, lr=1e-5)
    if name == "adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-5)
    if name in ("sgd", "momentum"):
        return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9 if name == "momentum" else 0.0)
    options = {"adamw-fused": {"fused": True}, "adamw-loop": {"foreach": False, "fused": False}}.get(name, {})
    return torch.optim.AdamW(parameters, lr=1e-5, capturable=configuration["execution"] == "graph", **options)


def training(configuration, model, config):
    """Return a function that takes one optimizer step."""
    optimizer = optimizer_of(configuration, [each for each in model.parameters() if each.requires_grad])
    draw = inputs_of(configuration, config)
    fixed = draw() if configuration["lengths"] == "fixed" else None
    amp = configuration["precision"] == "amp"

    def step():
        optimizer.zero_grad(set_to_none=configuration["execution"] != "graph")
        for _ in range(configuration["accumulation"]):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=amp):
                loss = model(**(fixed or draw())).loss
            loss.backward()
        optimizer.step()

    return step


def inputs_of(configuration, config):
    """Return a function that makes one batch on the GPU."""
    batch, length = configuration["batch"], configuration["length"]

    def images():
        return {"pixel_values": torch.randn(batch, 3, length, length, device="cuda", dtype=dtype_of(configuration)),
                "labels": torch.randint(0, 1000, (batch,), device="cuda")}  # fmt: skip

    def tokens():
        width = length if configuration["lengths"] == "fixed" else int(torch.randint(length // 8, length + 1, (1,)))
        drawn = torch.randint(0, config.vocab_size, (batch, width), device="cuda")
        return {"input_ids": drawn, "labels": drawn}

    return images if config.model_type in IMAGE_MODELS else tokens


def answering(configuration, model, config):
    """Return a function that reads a prompt, or that makes one token after a context that is cached."""
    batch = inputs_of(configuration, config)()
    batch.pop("labels")
    if configuration["phase"] == "prefill":

        @torch.no_grad()
        def prefill():
            model(**batch)

        return prefill
    return decoding(configuration, model, config, batch["input_ids"])


def decoding(configuration, model, config, prompt):
    """Return a function that makes one token; a graph needs a cache of fixed size, written at a fixed place."""
    length = configuration["length"]
    graph = configuration["execution"] == "graph"
    cache = StaticCache(config=config, max_cache_len=length + 128) if graph else DynamicCache(config=config)
    with torch.no_grad():
        model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
    token = prompt[:, -1:].clone()
    position = torch.tensor([[length]], device="cuda")
    torch.cuda.reset_peak_memory_stats()

    @torch.no_grad()
    def decode():
        places = {"position_ids": position, "cache_position": position[0]} if graph else {}
        model(input_ids=token, past_key_values=cache, use_cache=True, **places)

    return decode


def captured(step):
    """Return a function that replays the step as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def timed(step, configuration, nvml):
    """Return the milliseconds between the ends of successive steps, and the state of the board near the end."""
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    begin = time.monotonic()
    steps = VARIED_STEPS if configuration["lengths"] == "varied" else MOST
    for count in range(1, steps + 1):
        step()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if count % FEWEST == 0 and configuration["lengths"] == "fixed":
            events[-2].synchronize()  # bounds the steps in flight, so that a slow configuration ends in time
            if time.monotonic() - begin > TIMED_S:
                break
    state = {"power_w": nvml.power_w(), **nvml.state()}
    torch.cuda.synchronize()
    return [first.elapsed_time(last) for first, last in itertools.pairwise(events)], state


def until_launched(step):
    """Return the milliseconds that the host needs to launch one step on an idle GPU."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return (launched - begin) * 1e3


def profiled(step):
    """Return the milliseconds that the GPU was busy in one step, and the number of its kernels."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    kernels = [each for each in profiler.profiler.kineto_results.events() if each.device_type().name == "CUDA"]
    return sum(each.duration_ns() for each in kernels) / 1e6, len(kernels)


if __name__ == "__main__":
    main(*sys.argv[1:])
