"""Settings of the training frameworks (Hugging Face Trainer, Lightning) found on the call stack of a step."""

import math
from typing import Any, Dict, Optional

from leadline.graphs.torch.worker.loops import read_locals


def framework_settings(frame: Any) -> Dict[str, Any]:
    """Return the loop settings of the framework that runs the current step, or nothing.

    Keys: ``framework``, ``epochs``, ``max_steps``, ``accumulation``, ``batch``, ``evaluation_batches``.
    """
    while frame is not None:
        owner = read_locals(frame).get("self")
        if owner is not None:
            module = type(owner).__module__.partition(".")[0]
            if _is_trainer(owner, "transformers"):
                return _transformers(owner)
            if module in ("lightning", "pytorch_lightning"):
                trainer = owner if _is_trainer(owner, module) else _lightning_trainer(owner)
                if trainer is not None:
                    return _lightning(trainer)
        frame = frame.f_back
    return {}


def validate_after_step(frame: Any) -> None:
    """Let the Lightning trainer that runs the current step validate after it: an epoch cut short has no last batch."""
    while frame is not None:
        owner = read_locals(frame).get("self")
        module = type(owner).__module__.partition(".")[0]
        if module in ("lightning", "pytorch_lightning"):
            trainer = owner if _is_trainer(owner, module) else _lightning_trainer(owner)
            if trainer is not None:
                trainer.val_check_batch = 1
                return
        frame = frame.f_back


def _is_trainer(owner: Any, package: str) -> bool:
    return any(
        kind.__name__ == "Trainer" and kind.__module__.partition(".")[0] == package for kind in type(owner).__mro__
    )


def _lightning_trainer(owner: Any) -> Optional[Any]:
    trainer = owner.__dict__.get("trainer")
    return trainer if trainer is not None and hasattr(trainer, "accumulate_grad_batches") else None


def _transformers(trainer: Any) -> Dict[str, Any]:
    args = trainer.args
    evaluated = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    found = {
        "framework": "Hugging Face Trainer",
        "epochs": args.num_train_epochs,
        "max_steps": args.max_steps if args.max_steps > 0 else None,
        "accumulation": args.gradient_accumulation_steps,
        "batch": args.per_device_train_batch_size,
        "workers": args.dataloader_num_workers,
        "pinned": args.dataloader_pin_memory,
        "prefetch": getattr(args, "dataloader_prefetch_factor", None),
        "precision": "amp-fp16" if args.fp16 else "amp-bf16" if args.bf16 else None,
    }
    held_out = trainer.eval_dataset
    if evaluated == "epoch" and hasattr(held_out, "__len__") and not isinstance(held_out, dict):
        found["evaluation_batches"] = math.ceil(len(held_out) / args.per_device_eval_batch_size)
    return found


def _lightning(trainer: Any) -> Dict[str, Any]:
    batches = getattr(trainer, "num_val_batches", None)
    known = [one for one in batches if isinstance(one, int)] if isinstance(batches, list) else []
    unlimited = trainer.max_epochs in (None, -1)
    return {
        "framework": "Lightning Trainer",
        "epochs": None if unlimited else trainer.max_epochs,
        "max_steps": trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else None,
        "accumulation": trainer.accumulate_grad_batches,
        "evaluation_batches": sum(known) if known and len(known) == len(batches or ()) else None,
    }
