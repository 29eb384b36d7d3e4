"""Multi-head latent attention (DeepSeek-V2): keys and values grow out of one narrow latent for each token."""

from leadline.graphs.hf_config import attending
from leadline.graphs.hf_config.modules import Build, Linear, Norm
from leadline.graphs.hf_config.shape import AttentionShape, Latent
from leadline.graphs.hf_config.tape import Size


class LatentAttention:
    """Attention whose cache is the latent and the rotated part of the key; all keys and values grow anew each pass."""

    __slots__ = ("build", "direct", "grow", "latent", "narrow", "narrow_norm", "out", "query", "query_norm", "shape")

    def __init__(self, build: Build, shape: AttentionShape, latent: Latent) -> None:
        self.build, self.shape, self.latent = build, shape, latent
        hidden, heads = shape.hidden, shape.heads
        width = heads * (latent.plain + latent.rotary)
        if latent.query_rank is None:
            self.direct, self.query_norm = None, None
            self.query = Linear(build, width, hidden, bias=False)
        else:
            self.direct = Linear(build, latent.query_rank, hidden, bias=shape.query_bias)
            self.query_norm = Norm(build, "rms", latent.query_rank)
            self.query = Linear(build, width, latent.query_rank, bias=False)
        self.narrow = Linear(build, latent.key_value_rank + latent.rotary, hidden, bias=shape.query_bias)
        self.narrow_norm = Norm(build, "rms", latent.key_value_rank)
        self.grow = Linear(build, heads * (latent.plain + latent.value), latent.key_value_rank, bias=False)
        self.out = Linear(build, hidden, heads * latent.value, bias=shape.out_bias)

    def __call__(self, hidden: Size, angles: Size | None) -> Size:
        """Return what each token of ``hidden`` gathered."""
        tape, shape, latent = self.build.tape, self.shape, self.latent
        batch, sequence, _ = hidden.shape
        source = hidden
        if self.direct is not None and self.query_norm is not None:
            source = self.query_norm(self.direct(hidden))
        query = self.query(source).view(batch, shape.heads, sequence, latent.plain + latent.rotary)
        del source
        narrow, turned = attending.split(tape, self.narrow(hidden), (latent.key_value_rank, latent.rotary))
        narrow = self.narrow_norm(narrow)
        turned = turned.view(batch, 1, sequence, latent.rotary)
        if angles is not None:
            query = attending.rotary(tape, query, angles, latent.rotary)
            turned = attending.rotary(tape, turned, angles, latent.rotary)
        narrow, turned = self.build.keep(narrow.view(batch, 1, sequence, latent.key_value_rank), turned)
        keys = turned.shape[2]
        grown = self.grow(narrow.view(batch, keys, latent.key_value_rank))
        plain, value = attending.split(tape, grown, (shape.heads * latent.plain, shape.heads * latent.value))
        del grown, narrow
        key = attending.join_heads(tape, plain.view(batch, shape.heads, keys, latent.plain), turned)
        value = value.view(batch, shape.heads, keys, latent.value)
        del plain, turned
        if tape.autocast:
            query, key, value = (tape.cast(one, tape.autocast) for one in (query, key, value))
        mixed = attending.attention(tape, query, key, value, causal=shape.causal, cuda=self.build.cuda)
        del query, key, value
        return self.out(mixed.view(batch, sequence, shape.heads * latent.value))
