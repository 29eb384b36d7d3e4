"""Read what ``model.fit`` of Keras runs, from its frame on the stack of a step."""

from typing import Any, Dict

from leadline.graphs.torch.worker.expressions import is_count, read_locals


def fit_settings(frame: Any) -> Dict[str, Any]:
    """Return framework, optimizer, epochs and steps per epoch of the ``fit`` that runs a step; empty without one."""
    while frame is not None:
        if frame.f_code.co_name == "fit" and str(frame.f_globals.get("__name__")).startswith("keras."):
            names = read_locals(frame)
            epochs = names.get("epochs", 1) - names.get("initial_epoch", 0)
            # The iterator knows the length of arrays, data sets and generators alike; None for an endless one.
            batches: Any = names.get("steps_per_epoch") or getattr(names.get("epoch_iterator"), "num_batches", None)
            optimizer = type(names["self"].optimizer).__name__.lower()
            settings = {"framework": "fit of Keras", "epochs": epochs, "optimizer": optimizer}
            return {**settings, "steps_per_epoch": int(batches)} if is_count(batches) else settings
        frame = frame.f_back
    return {}
