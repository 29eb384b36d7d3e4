"""Parts of Apex by those of PyTorch that replaced them."""

import contextlib
import sys
from typing import Any, Dict, Iterator, List, Tuple, Type

import torch

ASSUMPTION = "Its layers and optimizers count as those of PyTorch, and amp as autocast with float32 weights."
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


def initialize(models: Any, optimizers: Any = None, opt_level: str = "O1", **_: Any) -> Any:
    """Let models run under autocast, unless the level is O0, and return what is given."""
    if opt_level != "O0":
        for model in models if isinstance(models, (list, tuple)) else [models]:
            model.forward = torch.autocast("cuda", torch.float16)(model.forward)
    return models if optimizers is None else (models, optimizers)


@contextlib.contextmanager
def scale_loss(loss: Any, optimizers: Any, **_: Any) -> Iterator[Any]:
    """Yield the loss times a scale in float32."""
    yield loss.float() * 65536.0
    each: List[Any] = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
    grads = [weight.grad for weight in master_params(*each) if weight.grad is not None]
    if grads:
        torch._foreach_mul_(grads, 1 / 65536.0)


def master_params(*optimizers: Any) -> Iterator[Any]:
    """Yield the weights that optimizers update."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def state_dict() -> Dict[str, Any]:
    """Return the state of the scale."""
    return {}


def load_state_dict(_: Any) -> None:
    """Do nothing."""


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """The wrapped module, whose gradients are summed over all ranks."""

    def __init__(self, module: Any, *_: Any, **__: Any) -> None:
        super().__init__(module)


SyncBatchNorm: Type[Any] = torch.nn.SyncBatchNorm
convert_syncbn_model = torch.nn.SyncBatchNorm.convert_sync_batchnorm


def LARC(optimizer: Any, *_: Any, **__: Any) -> Any:  # noqa: N802
    """Return the optimizer: rates of layers take little time."""
    return optimizer


amp = parallel = sys.modules[__name__]
