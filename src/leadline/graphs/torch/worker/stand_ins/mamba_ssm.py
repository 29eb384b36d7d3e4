"""Selective state-space layers, with the scan over positions as one kernel each way."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from leadline.graphs.torch.worker.kernels import SelectiveScan

ASSUMPTION = "Its blocks run their layers one by one and keep the results, which the real ones partly compute again."


def selective_scan_fn(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None,  # noqa: N803
    delta_softplus: bool = False, return_last_state: bool = False,
) -> Any:  # fmt: skip
    """Scan. ``u`` and ``delta`` are batch × channels × positions, ``A`` is channels × states."""
    out = SelectiveScan.apply(u, delta, A, B, C, D, z, delta_bias)
    return (out, u.new_zeros((u.shape[0], *A.shape))) if return_last_state else out


class Mamba(nn.Module):
    """The block of the paper (arXiv 2312.00752, figure 3)."""

    def __init__(
        self, d_model: int, d_state: int = 16, d_conv: int = 4, expand: int = 2, dt_rank: Any = "auto",
        conv_bias: bool = True, bias: bool = False, device: Any = None, dtype: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        options = {"device": device, "dtype": dtype}
        inner = int(expand * d_model)
        self.rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        self.d_state = d_state
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=bias, **options)
        self.conv1d = nn.Conv1d(inner, inner, d_conv, padding=d_conv - 1, groups=inner, bias=conv_bias, **options)
        self.x_proj = nn.Linear(inner, self.rank + 2 * d_state, bias=False, **options)
        self.dt_proj = nn.Linear(self.rank, inner, **options)
        self.A_log = nn.Parameter(torch.zeros(inner, d_state, device=device))
        self.D = nn.Parameter(torch.ones(inner, device=device))
        self.out_proj = nn.Linear(inner, d_model, bias=bias, **options)

    def forward(self, hidden_states: Any, *_: Any, **__: Any) -> Any:
        """Return batch × positions × width, as the input is."""
        positions = hidden_states.shape[1]
        x, z = self.in_proj(hidden_states).transpose(1, 2).chunk(2, dim=1)
        x = functional.silu(self.conv1d(x)[..., :positions])
        delta, b, c = self.x_proj(x.transpose(1, 2)).split([self.rank, self.d_state, self.d_state], dim=-1)
        delta = functional.linear(delta, self.dt_proj.weight).transpose(1, 2)
        b, c = b.transpose(1, 2).contiguous(), c.transpose(1, 2).contiguous()
        out = selective_scan_fn(x, delta, -torch.exp(self.A_log), b, c, self.D, z, self.dt_proj.bias)
        return self.out_proj(out.transpose(1, 2))
