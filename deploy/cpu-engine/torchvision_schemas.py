"""Lets the pure-Python part of torchvision import where its compiled `_C` cannot load: a CUDA wheel beside a CPU torch.

torchvision's import fails there because two operators have no schema. Their schemas are defined here, just before
torchvision is imported; the operators themselves stay absent. Where `_C` loads, nothing is defined.

Every Python of the environment imports this at its start (`torchvision_schemas.pth`), spawned workers included, so
this imports next to nothing until torchvision is asked for.
"""

import importlib.machinery
import importlib.util
import sys

__all__ = ["define_missing_schemas"]

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_libraries = []


class _BeforeTorchvision:
    """A finder that finds nothing: it only sees torchvision's import begin."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            define_missing_schemas()


def define_missing_schemas():
    """Defines the schemas, unless torchvision is absent or its compiled operators load."""
    import torch  # noqa: PLC0415 - every Python of the environment would pay for it

    spec = importlib.util.find_spec("torchvision")
    if spec is None:
        return
    for folder in spec.submodule_search_locations:
        compiled = importlib.machinery.PathFinder.find_spec("_C", [folder])
        if compiled is None:
            continue
        try:
            torch.ops.load_library(compiled.origin)
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS.values():
        library.define(schema)
    _libraries.append(library)  # a library takes its definitions with it when it is collected


sys.meta_path.insert(0, _BeforeTorchvision())
