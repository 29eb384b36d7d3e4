"""Weights that a method of peft adds to a frozen (n, k) product, and how the product uses them.

Sizes are those of peft's layers (github.com/huggingface/peft, version 0.19).
"""

import math
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from leadline.core.errors import InvalidInput
from leadline.core.workload import AdapterSetting

Shape = tuple[int, ...]
LARGEST = 10**9
"""Numbers of a setting above this are typing errors."""


class Use(Enum):
    """How an adapted product uses the weights of its adapter."""

    LOW_RANK = auto()  # products down to `inner` and up again, added to the result
    UPDATE = auto()  # an (n, k) update with a product of its own, added to the result
    WEIGHT = auto()  # a new (n, k) weight in place of the frozen one
    SCALE_INPUT = auto()  # vectors times the source
    SCALE_OUTPUT = auto()  # vectors times the result
    SHIFT = auto()  # a vector added to the result
    ROTATE = auto()  # blocks of the source times small matrices


class Factor(Enum):
    """Origin of one of the two factors of a low-rank product."""

    TRAINED = auto()
    FROZEN = auto()
    SHARED = auto()  # frozen, and the same in all layers
    FORMED = auto()  # computed from the other trained weights
    SUMMED = auto()  # no weight: blocks of the source are summed


class Parts(NamedTuple):
    """Weights of an adapter.

    Attributes:
        trained: Trained weights besides the two factors.
        shared: Trained weights that layers share, by a name.
        frozen: Frozen weights (peft's buffers).
        inner: Width between the two factors.
        mixes: The inner result meets a square matrix that is formed from the trained weights.
        scales: A trained vector scales the inner result, and another the update.
        rescales: A trained vector scales the sum of result and update by their norm (DoRA).
        forming: Inner width of the product that forms an (n, k) weight; 0 for steps without a product.
        saves: Whether the source in float32 is saved although no product needs it.
        narrow: The new weight has the type of the frozen one.
    """

    use: Use = Use.LOW_RANK
    trained: tuple[Shape, ...] = ()
    shared: tuple[tuple[str, Shape], ...] = ()
    frozen: tuple[Shape, ...] = ()
    inner: int = 0
    down: Factor = Factor.TRAINED
    up: Factor = Factor.TRAINED
    mixes: bool = False
    scales: bool = False
    rescales: bool = False
    forming: int = 0
    saves: bool = False
    narrow: bool = False


class Layer(NamedTuple):
    """A linear layer: its name, the number of its block, its (n, k) weight, and whether it has a bias."""

    name: str
    number: int
    n: int
    k: int
    bias: bool


class Settings(NamedTuple):
    """Settings of a method, the given ones over peft's defaults."""

    method: str
    values: Mapping[str, AdapterSetting]

    def whole(self, name: str, least: int = 1) -> int:
        """Return a whole number of at least ``least``."""
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise self.error(name, f"a whole number from {least}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether a setting is present and not false."""
        return bool(self.values.get(name))

    def share(self, name: str) -> float:
        """Return a number from 0 to 1."""
        value = self.values[name]
        if isinstance(value, str) or not 0 <= value <= 1:
            raise self.error(name, "a number from 0 to 1")
        return float(value)

    def divide(self, size: int, name: str) -> int:
        """Return the width of a layer divided by the setting ``name``."""
        parts = self.whole(name)
        if size % parts:
            raise self.error(name, f"a divisor of {size}, the width of a layer")
        return size // parts

    def choose(self, name: str, shapes: Mapping[AdapterSetting, tuple[Shape, ...]]) -> tuple[Shape, ...]:
        """Return the shapes that belong to the value of a setting."""
        if self.values[name] not in shapes:
            raise self.error(name, f"one of {', '.join(map(str, shapes))}")
        return shapes[self.values[name]]

    def error(self, name: str, kind: str) -> InvalidInput:
        """Return the error about a value."""
        return InvalidInput(f"--peft {self.method} has {name}={self.values[name]}, but it must be {kind}")


def lora_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of LoRA (Hu et al. 2021) and its variants."""
    r, n, k = settings.whole("r"), layer.n, layer.k
    if settings.flag("use_bdlora"):
        # One factor is block-diagonal: that of outputs, or that of inputs in the second layer of a block.
        blocks = settings.whole("nblocks")
        second = layer.name in ("o_proj", "down_proj")
        shapes = ((r, k // blocks), (n, r)) if second else ((r, k), (n, r // blocks))
        return Parts(trained=shapes, inner=r, down=Factor.FORMED, up=Factor.FORMED)
    if settings.flag("use_qalora"):
        return Parts(trained=((r, settings.divide(k, "qalora_group_size")),), inner=r, down=Factor.FORMED)
    trained: tuple[Shape, ...] = ()
    if settings.flag("monteclora_config"):
        trained = ((r,), (settings.whole("num_samples"),))
    if settings.flag("kasa_config"):
        trained = ((r,),)
    if settings.flag("use_dora"):
        return Parts(inner=r, rescales=True)
    down = Factor.FROZEN if settings.flag("lora_fa") else Factor.TRAINED
    up = Factor.FROZEN if settings.values.get("init_lora_weights") == "mica" else Factor.TRAINED
    return Parts(trained=trained, inner=r, down=down, up=up)


def adalora_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of AdaLoRA (Zhang et al. 2023): factors with singular values."""
    r = settings.whole("init_r")
    return Parts(trained=((r, layer.k), (r, 1)), inner=r, down=Factor.FORMED, frozen=((1,),))


def vera_parts(settings: Settings, _: Layer) -> Parts:
    """Return the weights of VeRA (Kopiczko et al. 2024) or PVeRA: vectors around frozen factors of all layers."""
    r = settings.whole("r") * (2 if settings.method == "pvera" else 1)
    return Parts(inner=r, down=Factor.SHARED, up=Factor.SHARED, scales=True)


def delora_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of DeLoRA (Bini et al. 2025)."""
    return Parts(trained=((1,),), inner=settings.whole("r"), frozen=((layer.k,),))


def gralora_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of GraLoRA (Jung et al. 2025): low rank in each of k × k blocks."""
    settings.divide(layer.n, "gralora_k"), settings.divide(layer.k, "gralora_k")
    return Parts(inner=settings.whole("r") + settings.whole("hybrid_r", least=0))


def lily_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of Lily (Zhong et al. 2024): factors that layers share, weighted by a router."""
    r, experts = settings.whole("r"), settings.whole("num_B")
    group = layer.number // settings.whole("stride_A")
    shared = (
        (f"{layer.name} A {group} {layer.k}", (r, layer.k)),
        (f"{layer.name} B {layer.n}", (experts * r, layer.n)),
    )
    return Parts(trained=((experts, r),), shared=shared, inner=r, down=Factor.FORMED, up=Factor.FORMED)


def randlora_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of RandLoRA (Albert et al. 2025): scaled sums of random bases."""
    r, smaller = settings.whole("r"), min(layer.n, layer.k)
    bases = math.ceil(smaller / r)
    return Parts(trained=((r, bases), (bases, smaller)), inner=r * bases, down=Factor.SHARED, up=Factor.FORMED)


def vblora_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of VB-LoRA (Li et al. 2024): factors of vectors from one bank."""
    r, vectors, length = settings.whole("r"), settings.whole("num_vectors"), settings.whole("vector_length")
    logits = (
        (r, settings.divide(layer.k, "vector_length"), vectors),
        (settings.divide(layer.n, "vector_length"), r, vectors),
    )
    bank = (("bank", (vectors, length)),)
    return Parts(trained=logits, shared=bank, inner=r, down=Factor.FORMED, up=Factor.FORMED)


def unilora_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of Uni-LoRA (Li et al. 2025): factors projected from one vector."""
    r = settings.whole("r")
    # Indices of 8 bytes and scales of 4, for each element of the two factors.
    shared, indices = (("theta", (settings.whole("theta_d_length"),)),), (3 * r * (layer.n + layer.k),)
    return Parts(shared=shared, frozen=(indices,), inner=r, down=Factor.FORMED, up=Factor.FORMED)


def tinylora_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of TinyLoRA: a small mix of frozen singular vectors."""
    r, u, tying = settings.whole("r"), settings.whole("u"), settings.share("weight_tying")
    if tying not in (0, 1):
        raise InvalidInput(f"--peft tinylora has weight_tying={tying:g}, but only 0 and 1 are estimated")
    name = "v" if tying else f"v {layer.number} {layer.name}"
    return Parts(shared=((name, (u,)),), frozen=((u, r, r),), inner=r, down=Factor.FROZEN, up=Factor.FROZEN, mixes=True)


def adamss_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of AdaMSS: low-rank updates of subspaces."""
    r, rank = settings.whole("r"), settings.whole("subspace_rank")
    trained = ((settings.whole("num_subspaces") * rank, r), (layer.n, rank))
    return Parts(trained=trained, inner=r, down=Factor.FROZEN, up=Factor.FORMED)


def deft_parts(settings: Settings, _: Layer) -> Parts:
    """Return the weights of DEFT: a projector and its replacement."""
    down = Factor.FORMED if settings.flag("para") else Factor.TRAINED
    return Parts(inner=settings.whole("r"), down=down, trained=())


def psoft_parts(settings: Settings, _: Layer) -> Parts:
    """Return the weights of PSOFT: a rotation within frozen singular vectors."""
    r = settings.whole("r")
    rotation = (r * (r - 1) // 2,) if settings.flag("psoft_orth") else (r, r)
    vectors = tuple((r,) for name in ("psoft_mag_a", "psoft_mag_b") if settings.flag(name))
    return Parts(trained=(rotation, *vectors), inner=r, down=Factor.FROZEN, up=Factor.FROZEN, mixes=True)


def poly_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of Polytropon (Ponti et al. 2023): a mix of low-rank skills."""
    r, skills, splits = settings.whole("r"), settings.whole("n_skills"), settings.whole("n_splits")
    trained = ((skills, layer.k, r), (skills, r, layer.n), (settings.whole("n_tasks"), splits * skills))
    return Parts(trained=trained, inner=r, down=Factor.FORMED, up=Factor.FORMED)


def frod_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of FRoD: a sparse rotation between frozen bases."""
    sparse = int(settings.share("sparse_rate") * layer.k * layer.k)
    return Parts(trained=((layer.k,), (sparse,)), inner=layer.k, down=Factor.SHARED, up=Factor.FROZEN)


def miss_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of MiSS, earlier Bone (Kang et al. 2024): one block for all blocks of the source."""
    r = settings.whole("r")
    if settings.values["init_weights"] == "bat":
        return Parts(Use.WEIGHT, trained=((layer.n // r, r, r),), forming=r)
    if settings.values["init_weights"] == "mini":
        return Parts(trained=((r, settings.whole("mini_r")),), inner=r, down=Factor.SUMMED, up=Factor.FORMED)
    return Parts(inner=r, down=Factor.SUMMED)


def c3a_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of C3A (Chen et al. 2024): circular convolutions of blocks."""
    settings.divide(layer.n, "block_size")
    return Parts(inner=settings.divide(layer.k, "block_size"), down=Factor.SUMMED, saves=True)


def loha_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of LoHa (Hyeon-Woo et al. 2022): the Hadamard product of two low-rank weights."""
    r = settings.whole("r")
    return Parts(Use.UPDATE, trained=((layer.n, r), (r, layer.k), (layer.n, r), (r, layer.k)), forming=2 * r)


def lokr_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of LoKr (Yeh et al. 2024): a Kronecker product."""
    r = settings.whole("r")
    factor = settings.values["decompose_factor"]
    rows, columns = (_factors(size, factor if isinstance(factor, int) else -1) for size in (layer.n, layer.k))
    trained: list[Shape] = []
    for side, splits in ((0, settings.flag("decompose_both")), (1, True)):
        shape = rows[side], columns[side]
        low = splits and r < max(shape) / 2
        trained += [(shape[0], r), (r, shape[1])] if low else [shape]
    return Parts(Use.UPDATE, trained=tuple(trained))


def _factors(size: int, target: int) -> tuple[int, int]:
    """Return two factors of ``size``, the smaller first: ``target`` if it divides, else nearly equal ones up to it."""
    if target > 0 and size % target == 0:
        return target, size // target
    most = size if target < 0 else target
    small = max(factor for factor in range(1, math.isqrt(size) + 1) if size % factor == 0 and factor <= most)
    return small, size // small


def fourier_parts(settings: Settings, _: Layer) -> Parts:
    """Return the weights of FourierFT (Gao et al. 2024) or WaveFT: some frequencies of the update."""
    return Parts(Use.UPDATE, trained=((settings.whole("n_frequency"),),))


def hira_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of HiRA (Huang et al. 2025): a low-rank weight times the frozen one."""
    r = settings.whole("r")
    return Parts(Use.UPDATE, trained=((r, layer.k), (layer.n, r)), forming=r)


def peanut_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of PEANuT: a small network of the frozen weight."""
    r = settings.whole("r")
    inside = ((r, r),) * (2 * settings.whole("depth", least=0))
    return Parts(Use.UPDATE, trained=((r, layer.n), *inside, (layer.n, r)), forming=2 * r)


def hra_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of HRA (Yuan et al. 2024): Householder reflections."""
    r = settings.whole("r")
    return Parts(Use.WEIGHT, trained=((layer.k, r),), forming=2 * r)


def shira_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of SHiRA (Bhardwaj et al. 2024): chosen elements of the weight."""
    return Parts(Use.WEIGHT, trained=((settings.whole("r") * (layer.n + layer.k),),), narrow=True)


def supertuning_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of Super-Tuning: chosen elements of the weight, and a low-rank update."""
    chosen = int(layer.n * layer.k * (1 - settings.share("sparsity")))
    r = settings.whole("r", least=0)
    low_rank = ((r, layer.k), (layer.n, r)) if r else ()
    return Parts(Use.WEIGHT, trained=((chosen,), *low_rank), frozen=((chosen,),), forming=r, narrow=True)


def glora_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of GLoRA (Chavan et al. 2023): a scale and a shift of weight and bias."""
    r, n, k = settings.whole("r"), layer.n, layer.k
    paths: dict[AdapterSetting, tuple[Shape, ...]] = {
        "lora": ((n, r), (r, k)), "vector": ((n, 1),), "constant": ((1,),), "none": (),
    }  # fmt: skip
    trained = 2 * settings.choose("config_A_B", paths)
    if layer.bias:
        inputs: dict[AdapterSetting, tuple[Shape, ...]] = {"lora": ((k, r), (r, 1)), "vector": ((k, 1),), "none": ()}
        outputs: dict[AdapterSetting, tuple[Shape, ...]] = {"vector": ((n,),), "constant": ((1,),), "none": ()}
        trained += settings.choose("config_C", inputs) + 2 * settings.choose("config_D_E", outputs)
    return Parts(Use.WEIGHT, trained=trained, forming=2 * r, narrow=True)


def boft_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of BOFT (Liu et al. 2024): butterfly factors, in peft whole (k, k) matrices."""
    factors = settings.whole("boft_n_butterfly_factor")
    if settings.flag("boft_block_num"):
        blocks, size = settings.whole("boft_block_num"), settings.divide(layer.k, "boft_block_num")
    else:
        blocks, size = settings.divide(layer.k, "boft_block_size"), settings.whole("boft_block_size")
    trained = ((factors, blocks, size, size), (layer.n, 1))
    return Parts(Use.WEIGHT, trained=trained, frozen=((factors, layer.k, layer.k),), forming=layer.k)


def oft_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of OFT (Qiu et al. 2023): rotations of blocks."""
    # peft reads one of the number and the size of blocks, and the default of the size gives way to a number.
    size = settings.divide(layer.k, "r") if settings.flag("r") else settings.whole("oft_block_size")
    blocks = layer.k // size
    rows = 1 if settings.flag("block_share") else blocks
    return Parts(Use.ROTATE, trained=((rows, size * (size - 1) // 2),), inner=size)


def osf_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of OSF: the small singular values, with their vectors."""
    smaller = min(layer.n, layer.k)
    kept = settings.whole("effective_rank", least=0) or smaller // 2
    if kept >= smaller:
        raise settings.error("effective_rank", f"below {smaller}, the rank of a layer")
    low = smaller - kept
    trained, frozen = (((layer.n, rank), (rank,), (rank, layer.k)) for rank in (low, kept))
    return Parts(Use.WEIGHT, trained=trained, frozen=frozen, forming=smaller, narrow=True)


def ia3_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of IA³ (Liu et al. 2022): a scale of keys, values and inner activations."""
    inside = layer.name in str(settings.values["feedforward_modules"]).split("+")
    return Parts(Use.SCALE_INPUT, ((1, layer.k),)) if inside else Parts(Use.SCALE_OUTPUT, ((layer.n, 1),))


def road_parts(settings: Settings, layer: Layer) -> Parts:
    """Return the weights of RoAd (Liao et al. 2024): rotations of pairs of outputs."""
    settings.divide(layer.n, "group_size")
    sizes: dict[AdapterSetting, tuple[Shape, ...]] = {
        "road_1": ((layer.n // 2,),), "road_2": ((layer.n,),), "road_4": ((2 * layer.n,),),
    }  # fmt: skip
    return Parts(Use.SCALE_OUTPUT, trained=2 * settings.choose("variant", sizes))


def beft_parts(_: Settings, layer: Layer) -> Parts:
    """Return the weights of BEFT: a bias."""
    return Parts(Use.SHIFT, trained=((1, layer.n),))
