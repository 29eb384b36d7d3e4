"""The methods of peft by name: the weights that each trains, and peft's defaults.

Names and defaults are those of peft's configuration classes (github.com/huggingface/peft, version 0.19).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import Adapters, AdapterSetting
from leadline.graphs.hf_config import peft_weights
from leadline.graphs.hf_config.peft_weights import Layer, Parts, Settings
from leadline.graphs.hf_config.quantization import ModulePatterns


class Method(NamedTuple):
    """A method: the weights of an adapted layer, peft's defaults, and the layers it adapts by default.

    ``place`` is where the trained weights are: linear layers, norms, the input (virtual tokens), or keys and values.
    """

    parts: Callable[[Settings, Layer], Parts] | None
    defaults: Mapping[str, AdapterSetting]
    targets: tuple[str, ...] = ("q_proj", "v_proj", "qkv_proj")
    place: str = "layers"
    rank: str = "r"


_LORA: dict[str, AdapterSetting] = {
    "r": 8, "use_dora": False, "use_bdlora": False, "nblocks": 1, "use_qalora": False, "qalora_group_size": 16,
    "monteclora_config": False, "num_samples": 8, "kasa_config": False, "lora_fa": False, "init_lora_weights": True,
}  # fmt: skip
_TOKENS: dict[str, AdapterSetting] = {"num_virtual_tokens": 20}
_EVERY = ("all-linear",)

METHODS: dict[str, Method] = {
    **{name: Method(peft_weights.lora_parts, _LORA) for name in
       ("lora", "rslora", "pissa", "olora", "eva", "corda", "loftq", "lora-ga", "alora", "velora")},
    "dora": Method(peft_weights.lora_parts, {**_LORA, "use_dora": True}),
    "lora-fa": Method(peft_weights.lora_parts, {**_LORA, "lora_fa": True}),
    "mica": Method(peft_weights.lora_parts, {**_LORA, "init_lora_weights": "mica"}),
    "bdlora": Method(peft_weights.lora_parts, {**_LORA, "use_bdlora": True, "nblocks": 2}),
    "qalora": Method(peft_weights.lora_parts, {**_LORA, "use_qalora": True}),
    "kasa": Method(peft_weights.lora_parts, {**_LORA, "kasa_config": True}),
    "monteclora": Method(peft_weights.lora_parts, {**_LORA, "monteclora_config": True}),
    "adalora": Method(peft_weights.adalora_parts, {"init_r": 12, "target_r": 8}, rank="init_r"),
    "vera": Method(peft_weights.vera_parts, {"r": 256}),
    "pvera": Method(peft_weights.vera_parts, {"r": 256}),
    "delora": Method(peft_weights.delora_parts, {"r": 8}),
    "gralora": Method(peft_weights.gralora_parts, {"r": 32, "hybrid_r": 0, "gralora_k": 2}),
    "lily": Method(peft_weights.lily_parts, {"r": 32, "stride_A": 1, "num_B": 2}),
    "randlora": Method(peft_weights.randlora_parts, {"r": 32}),
    "vblora": Method(peft_weights.vblora_parts, {"r": 4, "num_vectors": 256, "vector_length": 256}),
    "unilora": Method(peft_weights.unilora_parts, {"r": 4, "theta_d_length": 256}),
    "tinylora": Method(peft_weights.tinylora_parts, {"r": 2, "u": 64, "weight_tying": 0.0}),
    "adamss": Method(peft_weights.adamss_parts, {"r": 100, "num_subspaces": 5, "subspace_rank": 1}),
    "deft": Method(peft_weights.deft_parts, {"r": 8, "para": False}),
    "psoft": Method(peft_weights.psoft_parts, {"r": 32, "psoft_orth": True, "psoft_mag_a": True, "psoft_mag_b": True}),
    "poly": Method(peft_weights.poly_parts, {"r": 8, "n_tasks": 1, "n_skills": 4, "n_splits": 1}),
    "frod": Method(peft_weights.frod_parts, {"sparse_rate": 0.01}, rank=""),
    "miss": Method(peft_weights.miss_parts, {"r": 64, "mini_r": 1, "init_weights": True}),
    "c3a": Method(peft_weights.c3a_parts, {"block_size": 256}, rank=""),
    "loha": Method(peft_weights.loha_parts, {"r": 8}),
    "lokr": Method(peft_weights.lokr_parts, {"r": 8, "decompose_both": False, "decompose_factor": -1}),
    "fourierft": Method(peft_weights.fourier_parts, {"n_frequency": 1000}, rank=""),
    "waveft": Method(peft_weights.fourier_parts, {"n_frequency": 2592}, rank=""),
    "hira": Method(peft_weights.hira_parts, {"r": 32}),
    "peanut": Method(peft_weights.peanut_parts, {"r": 32, "depth": 0}),
    "hra": Method(peft_weights.hra_parts, {"r": 8}),
    "shira": Method(peft_weights.shira_parts, {"r": 32}),
    "supertuning": Method(peft_weights.supertuning_parts, {"sparsity": 0.99, "r": 0}),
    "glora": Method(peft_weights.glora_parts, {
        "r": 8, "config_A_B": "lora", "config_C": "lora", "config_D_E": "constant",
    }),
    "boft": Method(peft_weights.boft_parts, {
        "boft_block_size": 4, "boft_block_num": 0, "boft_n_butterfly_factor": 1,
    }, rank=""),
    "oft": Method(peft_weights.oft_parts, {"r": 0, "oft_block_size": 32, "block_share": False}),
    "osf": Method(peft_weights.osf_parts, {"effective_rank": 0}, _EVERY, rank=""),
    "ia3": Method(
        peft_weights.ia3_parts, {"feedforward_modules": "down_proj"}, ("k_proj", "v_proj", "qkv_proj", "down_proj"),
        rank="",
    ),
    "road": Method(peft_weights.road_parts, {"variant": "road_1", "group_size": 64}, rank=""),
    "beft": Method(peft_weights.beft_parts, {}, ("v_proj", "qkv_proj"), rank=""),
    "ln-tuning": Method(None, {}, (), "norms", rank=""),
    "prompt-tuning": Method(None, _TOKENS, (), "input", rank=""),
    "multitask-prompt-tuning": Method(None, {**_TOKENS, "num_tasks": 1, "num_ranks": 1}, (), "input", rank=""),
    "cpt": Method(None, _TOKENS, (), "input", rank=""),
    "p-tuning": Method(
        None, {**_TOKENS, "encoder_hidden_size": 0, "encoder_reparameterization_type": "MLP", "encoder_num_layers": 2},
        (), "input", rank="",
    ),
    "prefix-tuning": Method(
        None, {**_TOKENS, "prefix_projection": False, "encoder_hidden_size": 0}, (), "keys", rank="",
    ),
    "cartridge": Method(None, {**_TOKENS, "num_frozen_tokens": 1}, (), "keys", rank=""),
}  # fmt: skip
"""Method → its weights. Names are those of peft's ``peft_type`` or of a variant of LoRA, in small letters."""


ALIASES = {
    "qkv_proj": "query_key_value c_attn Wqkv W_pack qkv in_proj attn.c_attn att_proj",
    "q_proj": "query q q_lin query_proj",
    "k_proj": "key k k_lin key_proj",
    "v_proj": "value v v_lin value_proj",
    "o_proj": "dense out_proj o out_lin c_proj attn.c_proj attention.dense self_attention.dense attention.output.dense",
    "gate_proj": "wi_0 w1",
    "up_proj": "dense dense_h_to_4h fc_in fc1 c_fc wi wi_1 w3 lin1 intermediate.dense mlp.dense_h_to_4h",
    "down_proj": "dense dense_4h_to_h fc_out fc2 c_proj mlp.c_proj wo w2 lin2 output.dense mlp.dense_4h_to_h",
}
"""Layer → its names in other families, so that target modules written for them match."""


COMMON: Mapping[str, AdapterSetting] = {
    "dropout": 0.0, "autocast": True, "autocast_adapter_dtype": True, "deepspeed": False,
    "reduce_bucket_size": 500_000_000,
}  # fmt: skip
"""Settings of all methods: dropout of the source, training under autocast, and adapters in float32 beside weights in 16
bits. DeepSpeed's mixed precision replaces the last two. Its buckets are in elements."""


class AdapterPlan:
    """A method with its settings, and the layers it adapts. It records the layers that a model has.

    Raises:
        UnknownName: Unknown method, or a setting that the method has not.
        InvalidInput: A rank for a method without one, or target modules that cannot be searched.
    """

    def __init__(self, adapters: Adapters) -> None:
        self.embeddings = adapters.embeddings
        self.method = find_method(adapters.method)
        self.settings = _read_settings(adapters, self.method)
        self.dropout = self.settings.share("dropout")
        self.deepspeed = self.settings.flag("deepspeed")
        self.widened = self.settings.flag("autocast_adapter_dtype") and not self.deepspeed
        self.autocast = self.settings.flag("autocast") and not self.deepspeed
        self.bucket = self.settings.whole("reduce_bucket_size") if self.deepspeed else 0
        self.dtype = "float32"
        self.targets = adapters.targets or self.method.targets
        canonical = [name for target in self.targets for name in _canonical(target)]
        self.patterns = None if self.targets == _EVERY else ModulePatterns(canonical, "--lora-targets")
        self.names: set[str] = set()
        self.adapted: set[str] = set()

    def trains(self, part: str) -> bool:
        """Return whether ``tables`` (embedding and output layer) or ``norms`` are trained."""
        return self.embeddings if part == "tables" else self.method.place == part

    def parts(self, path: Sequence[str], name: str, weight: tuple[int, int], *, bias: bool) -> Parts | None:
        """Return the weights beside a layer's (n, k) weight, or ``None`` if it is not adapted."""
        self.names.add(name)
        if self.method.parts is None or (self.patterns and not self.patterns.match(".".join((*path, name)))):
            return None
        self.adapted.add(name)
        number = next((int(word) for word in path if word.isdecimal()), 0)
        return self.method.parts(self.settings, Layer(name, number, *weight, bias))

    def require_layers(self, reference: str) -> None:
        """Raise ``InvalidInput`` if the method adapts no layer of the model that was made."""
        if self.adapted or self.method.place == "norms":
            return
        if self.method.place == "keys":
            raise InvalidInput(f"{reference} has no keys and values for the tokens of {self.settings.method}")
        names, targets = ", ".join(sorted(filter(None, self.names))), ",".join(self.targets).removeprefix("re:")
        raise InvalidInput(f"--lora-targets {targets} matches no layer of {reference}: its layers are {names}")

    def describe(self, trained: int) -> str:
        """Return a note about the method, its layers and its number of ``trained`` weights."""
        places = {"norms": "the norms", "input": "tokens before the input", "keys": "tokens before keys and values"}
        layers = ", ".join(sorted(self.adapted)) if self.patterns else "all linear layers but the output layer"
        where = places.get(self.method.place, layers)
        tables = ", and the embedding and output layers" if self.embeddings else ""
        note = f"{self.settings.method} trains {trained:,} weights: {where}{tables}"
        how = ", as peft keeps them by default" if self.widened else ""
        return f"{note}; {self.dtype}{', with float32 copies in the optimizer' if self.deepspeed else how}"


def _canonical(target: str) -> list[str]:
    """Return the layers that a name of any family means, or the expression itself."""
    names = [name for name, others in ALIASES.items() if target in others.split()]
    return names if names and not target.startswith("re:") else [target]


def _read_settings(adapters: Adapters, method: Method) -> Settings:
    """Return the settings of a method with peft's defaults."""
    values: dict[str, AdapterSetting] = {**method.defaults, **COMMON}
    if adapters.rank:
        if not method.rank:
            raise InvalidInput(f"--lora gives a rank, but {adapters.method} has none: leave --lora out")
        values[method.rank] = adapters.rank
    for name, value in adapters.settings:
        if name.endswith("_dropout") and method.parts is not None:  # peft names it by the method
            values["dropout"] = value
        elif name not in values:
            raise UnknownName(f"setting of {adapters.method}", name, values)
        else:
            values[name] = value
    return Settings(adapters.method, values)


def find_method(name: str) -> Method:
    """Return the method of a name.

    Raises:
        InvalidInput: A method that is not estimated.
        UnknownName: Unknown method.
    """
    if name == "xlora":
        raise InvalidInput(
            "--peft xlora is not estimated, since its router runs each batch twice: choose another method"
        )
    if name not in METHODS:
        raise UnknownName("PEFT method", name, METHODS)
    return METHODS[name]
