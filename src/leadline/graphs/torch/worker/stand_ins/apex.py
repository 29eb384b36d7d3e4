"""Fused layers and optimizers of Apex by those of PyTorch that are fused too."""

from typing import Any, Tuple

import torch

ASSUMPTION = "Its fused layers and optimizers count as those of PyTorch."
FusedLayerNorm = MixedFusedLayerNorm = torch.nn.LayerNorm
FusedRMSNorm = MixedFusedRMSNorm = getattr(torch.nn, "RMSNorm", None)


class FusedAdam(torch.optim.AdamW):
    """AdamW in one kernel for lists of weights."""

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, adam_w_mode: bool = True, weight_decay: float = 0.0, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


class FusedLAMB(FusedAdam):
    """LAMB, which keeps what Adam keeps."""


class FusedSGD(torch.optim.SGD):
    """SGD in one kernel for lists of weights."""

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, fused=True)
