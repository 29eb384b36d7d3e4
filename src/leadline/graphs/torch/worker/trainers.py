"""Settings of the trainers whose own loop makes the steps: Hugging Face, Lightning, Ignite, Ultralytics, agents."""

import math
from typing import Any, Dict, Optional, Tuple

from leadline.graphs.torch.worker.expressions import read_locals


def trainer_settings(frame: Any) -> Dict[str, Any]:
    """Return the settings of the innermost trainer that runs the step of a frame; empty without one."""
    framework, trainer = _running_trainer(frame)
    return SETTINGS[framework](trainer) if framework else {}


def _running_trainer(frame: Any) -> Tuple[str, Any]:
    """Return the innermost trainer that runs the current step, and its framework, which is empty without one."""
    while frame is not None:
        owner = read_locals(frame).get("self")
        if _is_a(owner, "transformers", "Trainer"):
            return "transformers", owner
        trainer = _lightning_trainer(owner)
        if trainer is not None:
            return "lightning", trainer
        for name in ("OnPolicyAlgorithm", "OffPolicyAlgorithm"):
            if _is_a(owner, "stable_baselines3", name) and frame.f_code.co_name == "learn":
                return name, owner
        if _is_a(owner, "ignite", "Engine"):
            return "ignite", owner
        if _is_a(owner, "ultralytics", "BaseTrainer"):
            return "ultralytics", owner
        frame = frame.f_back
    return "", None


def validate_after_step(frame: Any) -> None:
    """Let the trainer of the current step validate after it, where that would come after the traced steps.

    In Lightning, an epoch cut short has no last batch. The Hugging Face Trainer may evaluate every so many steps.
    """
    framework, trainer = _running_trainer(frame)
    if framework == "transformers":
        trainer.control.should_evaluate |= _evaluation_strategy(trainer) == "steps"
    elif framework == "lightning":
        trainer.val_check_batch = 1


def _is_a(owner: Any, package: str, name: str) -> bool:
    kinds = type(owner).__mro__
    return any((kind.__module__.partition(".")[0], kind.__name__) == (package, name) for kind in kinds)


def _lightning_trainer(owner: Any) -> Optional[Any]:
    """Return the Lightning trainer that ``owner`` is or belongs to."""
    package = type(owner).__module__.partition(".")[0]
    if package not in ("lightning", "pytorch_lightning"):
        return None
    if _is_a(owner, package, "Trainer"):
        return owner
    trainer = owner.__dict__.get("trainer")
    return trainer if trainer is not None and hasattr(trainer, "accumulate_grad_batches") else None


def _transformers_settings(trainer: Any) -> Dict[str, Any]:
    args, most = trainer.args, getattr(trainer.state, "max_steps", 0)
    is_whole = args.max_steps <= 0 < most and float(args.num_train_epochs).is_integer()
    # By its release, the last batches of an epoch make a step or none.
    batches = most // int(args.num_train_epochs) * args.gradient_accumulation_steps if is_whole else None
    limited = {"steps_per_epoch": batches} if batches else {}
    return {
        **limited,
        "framework": "Hugging Face Trainer",
        "epochs": args.num_train_epochs,
        "max_steps": args.max_steps if args.max_steps > 0 else None,
        "accumulation": args.gradient_accumulation_steps,
        "batch": args.per_device_train_batch_size,
        "workers": args.dataloader_num_workers,
        "pinned": args.dataloader_pin_memory,
        "prefetch": getattr(args, "dataloader_prefetch_factor", None),
        "precision": "amp-fp16" if args.fp16 else "amp-bf16" if args.bf16 else None,
        "evaluation_batches": _transformers_evaluation(trainer),
    }


def _evaluation_strategy(trainer: Any) -> str:
    strategy = trainer.args.eval_strategy
    return str(getattr(strategy, "value", strategy))


def _transformers_evaluation(trainer: Any) -> Optional[int]:
    """Return the evaluation batches per epoch; ``None`` if the evaluation set has no length."""
    strategy, evaluation_set = _evaluation_strategy(trainer), trainer.eval_dataset
    if strategy == "no" or evaluation_set is None:
        return 0
    sets = list(evaluation_set.values()) if isinstance(evaluation_set, dict) else [evaluation_set]
    if not all(hasattr(data, "__len__") for data in sets):
        return None
    batches: int = sum(math.ceil(len(data) / trainer.args.per_device_eval_batch_size) for data in sets)
    if strategy == "epoch":
        return batches
    state = trainer.state
    between = float(getattr(state, "eval_steps", None) or trainer.args.eval_steps or math.inf)
    between = between * state.max_steps if between < 1 else between  # a share of all steps
    steps_per_epoch: float = state.max_steps / max(state.num_train_epochs, 1)
    return round(batches * steps_per_epoch / between)


def _lightning_settings(trainer: Any) -> Dict[str, Any]:
    batches = getattr(trainer, "num_val_batches", None)
    is_counted = isinstance(batches, list) and all(isinstance(count, int) for count in batches)
    # Less than those of the loader with limit_train_batches, and infinite for a stream.
    batches_per_epoch = getattr(trainer, "num_training_batches", None)
    limited: Dict[str, Any] = {"steps_per_epoch": batches_per_epoch} if isinstance(batches_per_epoch, int) else {}
    averaging = [each for each in trainer.callbacks if type(each).__name__ == "StochasticWeightAveraging"]
    if averaging and getattr(averaging[0], "_model_contains_batch_norm", False):
        limited["note"] = "the pass without gradients that StochasticWeightAveraging adds is not counted"
    epochs = averaging[0]._max_epochs if averaging else trainer.max_epochs
    return {
        **limited,
        "framework": "Lightning Trainer",
        "epochs": None if epochs == -1 else epochs,
        "max_steps": trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else None,
        "accumulation": trainer.accumulate_grad_batches,
        "evaluation_batches": sum(batches) if batches and is_counted else None,
    }


def _ignite_settings(engine: Any) -> Dict[str, Any]:
    state = engine.state
    limited = {"steps_per_epoch": state.epoch_length} if isinstance(state.epoch_length, int) else {}
    limit = getattr(state, "max_iters", None)
    return {**limited, "framework": "Ignite engine", "epochs": state.max_epochs, "max_steps": limit}


def _ultralytics_settings(trainer: Any) -> Dict[str, Any]:
    batches, period = len(trainer.train_loader), max(1, round(trainer.args.nbs / trainer.batch_size))
    note = f"each batch is counted as a step: after its warm-up the trainer makes one every {period} batches"
    return {
        "framework": "Ultralytics trainer",
        "epochs": trainer.epochs,
        "steps_per_epoch": batches,
        "accumulation": 1,
        "evaluation_batches": len(trainer.test_loader) if trainer.args.val else 0,
        "note": note if period > 1 else "",
    }


def _on_policy_settings(agent: Any) -> Dict[str, Any]:
    """Return the settings of an agent of Stable-Baselines3 that trains on each rollout, such as PPO."""
    rollout = agent.n_steps * agent.n_envs
    batch = getattr(agent, "batch_size", rollout)
    rounds = getattr(agent, "n_critic_updates", getattr(agent, "n_epochs", 1))  # those of TRPO, and those of PPO
    passes = rounds * math.ceil(rollout / batch)
    return {**_agent_settings(batch), "steps_per_epoch": passes, "epochs": math.ceil(_timesteps(agent) / rollout)}


def _off_policy_settings(agent: Any) -> Dict[str, Any]:
    """Return the settings of an agent of Stable-Baselines3 that trains on a replay buffer, such as DQN."""
    settings, frequency = _agent_settings(agent.batch_size), agent.train_freq
    if getattr(frequency.unit, "value", frequency.unit) != "step":
        return {**settings, "epochs": None}  # an episode ends by itself
    period = frequency.frequency * agent.n_envs
    rounds = math.ceil(_timesteps(agent) / period) - max(0, agent.learning_starts // period)
    steps = rounds * (agent.gradient_steps if agent.gradient_steps >= 0 else period)
    return {**settings, "epochs": 1, "steps_per_epoch": max(1, steps // getattr(agent, "policy_delay", 1))}


def _timesteps(agent: Any) -> int:
    return int(agent._total_timesteps - agent._num_timesteps_at_start)


def _agent_settings(batch: int) -> Dict[str, Any]:
    return {"framework": "agent of Stable-Baselines3", "accumulation": 1, "batch": batch}


SETTINGS = {
    "transformers": _transformers_settings,
    "lightning": _lightning_settings,
    "ignite": _ignite_settings,
    "ultralytics": _ultralytics_settings,
    "OnPolicyAlgorithm": _on_policy_settings,
    "OffPolicyAlgorithm": _off_policy_settings,
}
