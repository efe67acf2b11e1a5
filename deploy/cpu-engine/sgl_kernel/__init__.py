"""Stands where SGLang's compiled kernels would, on CPUs without AMX.

SGLang's CPU path imports names from here at module top and calls none of them with the torch_native attention backend.
"""

import torch

# Named through torch.ops at module top of the Qwen3.5 model, which the Qwen-VL image processor imports.
_OPERATORS = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)
_LIBRARY = torch.library.Library("sgl_kernel", "DEF")
for _operator in _OPERATORS:
    _LIBRARY.define(f"{_operator}(Tensor a, Tensor b) -> Tensor")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} needs a CPU with AMX or a GPU")

    absent.__name__ = name
    return absent
