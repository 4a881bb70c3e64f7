# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    DLPACK_CPU       = 1
    DLPACK_CUDA      = 2
    DLPACK_CUDA_HOST = 3

cdef struct DLDevice:
    int32_t device_type
    int32_t device_id

cdef struct DLDataType:
    uint8_t  code
    uint8_t  bits
    uint16_t lanes

cdef struct DLTensor:
    void *     data
    DLDevice   device
    int32_t    ndim
    DLDataType dtype
    int64_t *  shape
    int64_t *  strides
    uint64_t   byte_offset

# An exported tensor: `owner` is released when the consumer is done with it.
cdef object export_tensor(object owner, void *data, object dtype, tuple shape, int device_type, int device_id,
                          object max_version, bint readonly, bint copied)

# A tensor of another library: fills `tensor` and returns the object that keeps it alive. `stream`: DLPack's name of the stream
# that is to wait for the producer's work.
cdef object import_tensor(object producer, DLTensor *tensor, bint *readonly, object stream=*)
