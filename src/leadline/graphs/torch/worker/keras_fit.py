"""Read from the stack what ``model.fit`` of Keras runs, and which of its variables are weights."""

from typing import Any, Dict, List, Mapping

from leadline.graphs.torch.worker.expressions import is_count, read_locals


def fit_settings(frame: Any) -> Dict[str, Any]:
    """Return framework, optimizer, epochs and steps per epoch of the ``fit`` that runs a step; empty without one."""
    names = _fit_names(frame)
    if not names:
        return {}
    epochs = names.get("epochs", 1) - names.get("initial_epoch", 0)
    # The iterator knows the length of arrays, data sets and generators alike; None for an endless one.
    batches: Any = names.get("steps_per_epoch") or getattr(names.get("epoch_iterator"), "num_batches", None)
    optimizer = type(names["self"].optimizer).__name__.lower()
    settings = {"framework": "fit of Keras", "epochs": epochs, "optimizer": optimizer}
    return {**settings, "steps_per_epoch": int(batches)} if is_count(batches) else settings


def uncompiled_layers(frame: Any) -> List[str]:
    """Return the classes of layers for which the ``fit`` that runs a step runs each operation by itself."""
    model = _fit_names(frame).get("self")
    layers = model._flatten_layers() if model is not None and not model.jit_compile else []
    return sorted({type(layer).__name__ for layer in layers if not getattr(layer, "supports_jit", True)})


def _fit_names(frame: Any) -> Mapping[str, Any]:
    """Return the variables of the ``fit`` around a frame; none without one."""
    while frame is not None:
        if frame.f_code.co_name == "fit" and str(frame.f_globals.get("__name__")).startswith("keras."):
            return read_locals(frame)
        frame = frame.f_back
    return {}


def makes_state(frame: Any) -> bool:
    """Return whether the call makes the tensor of a variable of Keras that is no weight.

    Its PyTorch backend makes a parameter for each slot of an optimizer, metric, random state and batch statistic, too.
    """
    if frame.f_code.co_name != "_initialize" or not str(frame.f_globals.get("__name__")).startswith("keras."):
        return False
    return not getattr(read_locals(frame).get("self"), "trainable", True)
