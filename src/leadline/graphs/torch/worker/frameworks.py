"""Settings of the training frameworks (Hugging Face Trainer, Lightning) on the call stack of a step."""

import math
from typing import Any, Dict, Optional

from leadline.graphs.torch.worker.loops import read_locals


def framework_settings(frame: Any) -> Dict[str, Any]:
    """Return the loop settings of the framework that runs the current step, or nothing.

    Keys: ``framework``, ``epochs``, ``max_steps``, ``accumulation``, ``batch``, ``evaluation_batches``.
    """
    while frame is not None:
        owner = read_locals(frame).get("self")
        if _is_trainer(owner, "transformers"):
            return _transformers_settings(owner)
        trainer = _lightning_trainer(owner)
        if trainer is not None:
            return _lightning_settings(trainer)
        frame = frame.f_back
    return {}


def validate_after_step(frame: Any) -> None:
    """Let the Lightning trainer of the current step validate after it: an epoch cut short has no last batch."""
    while frame is not None:
        trainer = _lightning_trainer(read_locals(frame).get("self"))
        if trainer is not None:
            trainer.val_check_batch = 1
            return
        frame = frame.f_back


def _is_trainer(owner: Any, package: str) -> bool:
    return any(
        kind.__name__ == "Trainer" and kind.__module__.partition(".")[0] == package for kind in type(owner).__mro__
    )


def _lightning_trainer(owner: Any) -> Optional[Any]:
    """Return the Lightning trainer that ``owner`` is or belongs to."""
    package = type(owner).__module__.partition(".")[0]
    if package not in ("lightning", "pytorch_lightning"):
        return None
    if _is_trainer(owner, package):
        return owner
    trainer = owner.__dict__.get("trainer")
    return trainer if trainer is not None and hasattr(trainer, "accumulate_grad_batches") else None


def _transformers_settings(trainer: Any) -> Dict[str, Any]:
    args = trainer.args
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    settings = {
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
    evaluation_set = trainer.eval_dataset
    if strategy == "epoch" and hasattr(evaluation_set, "__len__") and not isinstance(evaluation_set, dict):
        settings["evaluation_batches"] = math.ceil(len(evaluation_set) / args.per_device_eval_batch_size)
    return settings


def _lightning_settings(trainer: Any) -> Dict[str, Any]:
    batches = getattr(trainer, "num_val_batches", None)
    counts = [count for count in batches if isinstance(count, int)] if isinstance(batches, list) else []
    unlimited = trainer.max_epochs in (None, -1)
    return {
        "framework": "Lightning Trainer",
        "epochs": None if unlimited else trainer.max_epochs,
        "max_steps": trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else None,
        "accumulation": trainer.accumulate_grad_batches,
        "evaluation_batches": sum(counts) if counts and len(counts) == len(batches or ()) else None,
    }
