"""Leave PyTorch's compiler unloaded until something of it is really used.

Fake tensors read a setting of ``torch._dynamo`` and optimizers tell it to stay away. That alone would load it: a second
of every trace. In its place stands a package that answers those two, and gives way to the real one as soon as it is
asked for anything else.
"""

import importlib
import importlib.util
import sys
import types
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from typing import Any, List, Optional

import torch

DYNAMO = "torch._dynamo"
DYNAMO_LIGHT_PARTS = (f"{DYNAMO}.config",)
"""Parts that load without the rest."""


class _Stand(types.ModuleType):
    """Stands for the package: nothing is compiled, so nothing needs to be kept from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(load_compiler(), name)

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        """Return the function as it is."""
        return function if function is not None else lambda function: function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing: there is no graph to break."""

    @staticmethod
    def is_compiling() -> bool:
        """Say that nothing is compiled."""
        return False


class _Finder:
    """Loads the whole package before any of its parts but the light ones."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Return how to give out a part that the whole package has just loaded; ``None`` for all other modules."""
        if not name.startswith(DYNAMO + ".") or name in DYNAMO_LIGHT_PARTS:
            return None
        load_compiler()
        return ModuleSpec(name, _Loaded()) if name in sys.modules else None


class _Loaded(Loader):
    """Gives out a module that is there already."""

    def create_module(self, spec: ModuleSpec) -> Any:
        """Return the module as it is."""
        return sys.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Do nothing: it has run."""


_finder = _Finder()


def postpone_compiler() -> None:
    """Put the stand in the package's place, unless the package is loaded already or this torch has none."""
    spec = None if DYNAMO in sys.modules else importlib.util.find_spec(DYNAMO)
    if spec is None:
        return
    stand = _Stand(DYNAMO)
    stand.__path__ = list(spec.submodule_search_locations or ())
    stand.__spec__ = spec
    sys.modules[DYNAMO] = stand
    torch._dynamo = stand
    sys.meta_path.insert(0, _finder)


def load_compiler() -> Any:
    """Return the real package, loaded now if it is not yet."""
    if not isinstance(sys.modules.get(DYNAMO), _Stand):
        return importlib.import_module(DYNAMO)
    del sys.modules[DYNAMO]
    sys.meta_path[:] = [one for one in sys.meta_path if one is not _finder]
    real = importlib.import_module(DYNAMO)
    torch._dynamo = real
    return real


TORCHVISION_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    (
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    ),
    (
        "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor"
    ),
    (
        "ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio) -> (Tensor, Tensor)"
    ),
    (
        "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
        "SymInt pooled_height, SymInt pooled_width, int sampling_ratio, SymInt batch_size, SymInt channels, "
        "SymInt height, SymInt width) -> Tensor"
    ),
    (
        "roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
        "-> (Tensor, Tensor)"
    ),
    (
        "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, "
        "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor"
    ),
    (
        "ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
        "-> (Tensor, Tensor)"
    ),
    (
        "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
        "SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) "
        "-> Tensor"
    ),
    (
        "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
        "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
        "SymInt offset_groups, bool use_mask) -> Tensor"
    ),
    (
        "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
        "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
        "SymInt groups, SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
_libraries: List[Any] = []


def define_torchvision_ops() -> None:
    """Define the signatures of torchvision's ops if its extension cannot be loaded; its Python needs no more."""
    found = importlib.util.find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return
    import torch

    for extension in _extensions(found.submodule_search_locations[0]):
        try:
            torch.ops.load_library(extension)
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "DEF")
    _libraries.append(library)
    for schema in TORCHVISION_SCHEMAS:
        library.define(schema)


def _extensions(folder: str) -> List[str]:
    from pathlib import Path

    return [str(path) for path in sorted(Path(folder).glob("_C*.so"))]
