# SPDX-License-Identifier: Apache-2.0
"""Tensors over symmetric buffers, and buffers under tensors; nothing is copied in either direction."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import nvsym
from nvsym.dtypes import DTYPES, as_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

# PyTorch calls its element types as NumPy and ml_dtypes do; long double has none there.
_TORCH = {d.name: getattr(torch, d.name) for d in DTYPES if isinstance(getattr(torch, d.name, None), torch.dtype)}
_NUMPY = {_TORCH[d.name]: d.numpy for d in DTYPES if d.name in _TORCH}


buffer_class: Any = nvsym.SHMEMBuffer  # subscripted by element types that are values here


def torch_dtype(dtype: Any) -> torch.dtype:
    """PyTorch's element type for one of nvsym's.

    Raises
    ------
    TypeError
        If this PyTorch has no such type.
    """
    element = as_dtype(dtype)
    found = _TORCH.get(element.name)
    if found is None:
        raise TypeError(f"dtype: PyTorch {torch.__version__} has no element type {element.name}")
    return found


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's (or ml_dtypes') element type for one of PyTorch's.

    Raises
    ------
    TypeError
        If it is no type of PyTorch's, or nvsym has no such type.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype: expected a torch.dtype such as torch.float32, not {dtype!r}")
    found = _NUMPY.get(dtype)
    if found is None:
        raise TypeError(f"dtype: nvsym has no element type for {dtype}")
    return found


def _lengths(given):
    """The lengths of the axes, from numbers or from one sequence of them."""
    try:
        shape = tuple(operator.index(n) for n in given)
    except TypeError:
        try:
            (only,) = given
            shape = tuple(operator.index(n) for n in only)
        except (TypeError, ValueError):
            raise TypeError(f"shape: expected whole numbers, or one sequence of them, not {given!r}") from None
    if min(shape, default=0) < 0:
        raise ValueError(f"shape: {shape} has a length below zero")
    return shape


def tensor(buffer: nvsym.SHMEMBuffer[Any] | nvsym.Buffer, shape: Sequence[int] | int | None = None) -> torch.Tensor:
    """The memory of a buffer as a tensor, without a copy.

    PyTorch's current stream waits for what is enqueued on the context's stream so far; for other streams, and in the other
    direction, ordering is the caller's. The tensor keeps the memory from being handed out again, also after
    ``buffer.free()``.

    Parameters
    ----------
    buffer : SHMEMBuffer or Buffer
        A slice, and the memory of another PE (``buffer.peer(pe)``), too.
    shape : int or sequence of int, optional
        Default: the buffer's, which is one dimension for a SHMEMBuffer.

    Raises
    ------
    TypeError
        If PyTorch has no such element type.
    ValueError
        If the shape does not have as many elements as the buffer.
    """
    if isinstance(buffer, nvsym.SHMEMBuffer):
        # As bytes, since DLPack's consumers do not know every element type.
        view = buffer.peer(nvsym.my_pe())
    elif isinstance(buffer, nvsym.Buffer):
        view = buffer
    else:
        raise TypeError(f"buffer: expected a SHMEMBuffer or a Buffer, not {type(buffer).__name__}")
    shape = view.shape if shape is None else _lengths((shape,))
    if math.prod(shape) != view.num_elements:
        raise ValueError(f"shape: {shape} is {math.prod(shape)} elements, the buffer has {view.num_elements}")
    kind = torch_dtype(view.dtype)
    return torch.from_dlpack(view.view(np.uint8)).view(kind).view(shape)


def empty(*shape: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A new tensor in symmetric memory, not initialised; collective over the job, with the same shape on every PE.

    Its memory comes back once every PE has dropped its tensor and all views of it.

    Parameters
    ----------
    *shape : int, or one sequence of int
    dtype : torch.dtype, optional
        Default: ``torch.get_default_dtype()``.

    Raises
    ------
    TypeError, ValueError
        If the shape is none, or nvsym has no such type.
    CollectiveError, HeapExhaustedError
        As for ``SHMEMBuffer[dtype](n)``, on every PE.
    """
    lengths = _lengths(shape)
    kind = numpy_dtype(torch.get_default_dtype() if dtype is None else dtype)
    return tensor(buffer_class[kind](math.prod(lengths)), lengths)


def buffer(tensor: torch.Tensor) -> nvsym.SHMEMBuffer[Any]:
    """The symmetric buffer that a tensor's memory is, for nvsym's operations; not collective.

    It keeps the tensor alive. For operations on other PEs their tensors must be at the same place of the symmetric heap,
    as those are that were made by the same calls.

    Parameters
    ----------
    tensor : torch.Tensor
        Contiguous, and in symmetric memory: made by `tensor` or `empty`, or a view of such a one, but not one that
        PyTorch conjugates or negates when it is read.

    Raises
    ------
    ValueError
        If it is not contiguous, conjugated or negated when it is read (`conj()`), or not in the symmetric heap.
    TypeError
        If it is no tensor, or of an element type that nvsym does not have.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor: expected a torch.Tensor, not {type(tensor).__name__}")
    if not tensor.is_contiguous():
        raise ValueError(f"tensor: strides {tuple(tensor.stride())} of shape {tuple(tensor.shape)} are not contiguous")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            "tensor: its elements are conjugated or negated when they are read; resolve_conj() or resolve_neg()"
        )
    kind = numpy_dtype(tensor.dtype)
    try:
        return buffer_class[kind].adopt(tensor.data_ptr(), tensor.numel(), owner=tensor)
    except ValueError as error:
        raise ValueError(
            f"tensor: its memory is not in the symmetric heap ({error}); nvsym.torch.empty makes one that is"
        ) from None
