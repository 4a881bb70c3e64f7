# SPDX-License-Identifier: Apache-2.0
"""PyTorch over symmetric memory: tensors that are symmetric buffers, and a backend of ``torch.distributed``.

Importing it registers the backend "nvsym" and the init method "nvsym://"::

    import torch.distributed as dist
    import nvsym.torch

    dist.init_process_group("nvsym", init_method="nvsym://")

It needs PyTorch 2.6 or later. docs/interop.md says more.
"""

from ._register import register
from .options import Options
from .process_group import ProcessGroup
from .tensors import buffer, empty, numpy_dtype, tensor, torch_dtype

register()

__all__ = [
    "Options",
    "ProcessGroup",
    "buffer",
    "empty",
    "numpy_dtype",
    "tensor",
    "torch_dtype",
]
