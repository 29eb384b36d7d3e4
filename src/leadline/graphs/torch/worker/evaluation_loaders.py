"""The loaders that a script evaluates on, and their batches per epoch."""

from typing import Any, List, Optional


def evaluation_batches(
    observed: Any, training: Any, steps_per_epoch: Optional[int], notes: List[str]
) -> Optional[float]:
    """Return the evaluation batches of an epoch: as the framework says, else of the loaders read without gradients.

    A loader that was not read is no evaluation. Only its name may say that there is one later, which is a note.
    """
    if observed.framework.get("evaluation_batches") is not None:
        return float(observed.framework["evaluation_batches"])
    training_loaders = [step.loader for step in observed.all_steps + observed.updates] + [training]
    trained = {id(loader) for loader in training_loaders}
    others = [loader for loader in observed.loaders if id(loader) not in trained]
    used = [loader for loader in others if id(loader) in observed.evaluated]
    if used:
        try:
            batches = sum(len(loader) for loader in used)
        except TypeError:
            return None
        every = observed.steps_to_evaluation
        if every and steps_per_epoch and not observed.framework.get("framework"):
            first = "" if observed.evaluation_period else f"first evaluated after step {every}: assuming that it "
            notes.append(f"the loop {first}evaluates every {every} steps")
            return float(batches * steps_per_epoch / every)
        return batches
    if observed.evaluation_calls:
        if observed.evaluation_period and steps_per_epoch:
            notes.append(f"the loop evaluates every {observed.evaluation_period} steps")
            return float(observed.evaluation_calls * steps_per_epoch / observed.evaluation_period)
        notes.append("evaluation is not counted: how often the model is called for it is unknown")
        return None
    data = {id(getattr(loader, "dataset", None)) for loader in training_loaders}
    for loader in others:
        name = observed.loader_names.get(id(loader), "")
        # Accelerate makes each loader again, over the same data.
        if id(loader.dataset) not in data and any(word in name.lower() for word in ("val", "dev", "eval")):
            notes.append(f"evaluation is not counted: {name} was not read after the traced steps")
            break
    return None
