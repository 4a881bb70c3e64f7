# SPDX-License-Identifier: Apache-2.0
# A user of the tables from another extension, as the test sees them from Python.
from libc.string cimport memset

from nvsym._driver cimport CHECK_CUDA, cuda, cuda_has, cuda_version, load_cuda
from nvsym._nvshmem cimport (
    CHECK_NVSHMEM, NEED_NVSHMEM, init_attr_initializer, load_nvshmem, nvshmem, nvshmem_has, nvshmem_version,
    team_config_initializer, uniqueid_initializer)
from nvsym.libcuda cimport *
from nvsym.libnvshmem cimport *

cdef extern from "nvsym/types.h":
    enum:
        NVSYM_BOOL, NVSYM_FLOAT32, NVSYM_SUM, NVSYM_AND


def cuda_load():
    with nogil:
        load_cuda()
    return cuda_version()


def cuda_init(unsigned int flags):
    with nogil:
        CHECK_CUDA(cuda.cuInit(flags), b"cuInit")


def cuda_mem_alloc(size_t nbytes):
    cdef CUdeviceptr address = 0
    CHECK_CUDA(cuda.cuMemAlloc(&address, nbytes), b"cuMemAlloc")
    return address


def cuda_multicast_create():
    cdef CUmulticastObjectProp prop
    cdef CUmemGenericAllocationHandle handle = 0
    memset(&prop, 0, sizeof(prop))
    with nogil:
        CHECK_CUDA(cuda.cuMulticastCreate(&handle, &prop), b"cuMulticastCreate")


def cuda_presence():
    return cuda_has(<void *> cuda.cuInit), cuda_has(<void *> cuda.cuMulticastCreate)


def nvshmem_load():
    with nogil:
        load_nvshmem()
    return nvshmem_version()


def nvshmem_state():
    return nvshmem.nvshmemx_init_status(), nvshmem.nvshmem_my_pe(), nvshmem.nvshmem_n_pes()


def nvshmem_thread_level():
    cdef int level = -1
    nvshmem.nvshmem_query_thread(&level)
    return level


def nvshmem_specification():
    cdef int major = -1, minor = -1
    nvshmem.nvshmem_info_get_version(&major, &minor)
    return major, minor


def nvshmem_vendor_version():
    cdef int major = -1, minor = -1, patch = -1
    nvshmem.nvshmemx_vendor_get_version_info(&major, &minor, &patch)
    return major, minor, patch


def nvshmem_buffer_register(size_t length):
    with nogil:
        CHECK_NVSHMEM(nvshmem.nvshmemx_buffer_register(NULL, length), b"nvshmemx_buffer_register")


def nvshmem_team_init():
    CHECK_NVSHMEM(nvshmem.nvshmemx_team_init(NULL, NULL, 0, 0, 0), b"nvshmemx_team_init")


def nvshmem_need_flush():
    with nogil:
        NEED_NVSHMEM(<void *> nvshmem.nvshmemx_flush_on_stream, b"nvshmemx_flush_on_stream")


def nvshmem_presence():
    return nvshmem_has(<void *> nvshmem.nvshmem_malloc), nvshmem_has(<void *> nvshmem.nvshmemx_flush_on_stream)


def nvshmem_reduce(size_t count):
    CHECK_NVSHMEM(nvshmem.reduce_on_stream[<int> NVSYM_FLOAT32][<int> NVSYM_SUM](0, NULL, NULL, count, NULL),
                  b"nvshmemx_float_sum_reduce_on_stream")


def nvshmem_absent_reductions():
    """How many entries of each table are NULL, and whether two that NVSHMEM does not have are among them."""
    cdef int dtype, op, reduce = 0, reducescatter = 0
    for dtype in range(NVSYM_DTYPE_COUNT):
        for op in range(NVSYM_OP_COUNT):
            reduce += nvshmem.reduce_on_stream[dtype][op] == NULL
            reducescatter += nvshmem.reducescatter_on_stream[dtype][op] == NULL
    return (NVSYM_DTYPE_COUNT * NVSYM_OP_COUNT - reduce, NVSYM_DTYPE_COUNT * NVSYM_OP_COUNT - reducescatter,
            nvshmem.reduce_on_stream[<int> NVSYM_BOOL][<int> NVSYM_SUM] == NULL,
            nvshmem.reduce_on_stream[<int> NVSYM_FLOAT32][<int> NVSYM_AND] == NULL)


def nvshmem_initializers(int device):
    cdef nvshmemx_init_attr_t attr
    cdef nvshmemx_uniqueid_t uid
    cdef nvshmem_team_config_t config
    init_attr_initializer(&attr, device)
    uniqueid_initializer(&uid)
    team_config_initializer(&config)
    return (bytes((<char *> &attr)[:sizeof(attr)]), bytes((<char *> &uid)[:sizeof(uid)]),
            bytes((<char *> &config)[:sizeof(config)]))


def nvshmem_uniqueid():
    """Get a unique id, put it into the attributes: (version, 124 bytes, rank, ranks, whether the id is pointed to)."""
    cdef nvshmemx_uniqueid_t uid
    cdef nvshmemx_init_attr_t attr
    uniqueid_initializer(&uid)
    init_attr_initializer(&attr, -1)
    with nogil:
        CHECK_NVSHMEM(nvshmem.nvshmemx_get_uniqueid(&uid), b"nvshmemx_get_uniqueid")
        CHECK_NVSHMEM(nvshmem.nvshmemx_set_attr_uniqueid_args(2, 5, &uid, &attr), b"nvshmemx_set_attr_uniqueid_args")
    return (uid.version, bytes(uid.internal[:sizeof(uid.internal)]), attr.args.uid_args.myrank,
            attr.args.uid_args.nranks, attr.args.uid_args.id == &uid)


def nvshmem_initialize():
    """Initialise a job of this one process, by a unique id."""
    cdef nvshmemx_uniqueid_t uid
    cdef nvshmemx_init_attr_t attr
    uniqueid_initializer(&uid)
    init_attr_initializer(&attr, 0)
    with nogil:
        CHECK_NVSHMEM(nvshmem.nvshmemx_get_uniqueid(&uid), b"nvshmemx_get_uniqueid")
        CHECK_NVSHMEM(nvshmem.nvshmemx_set_attr_uniqueid_args(0, 1, &uid, &attr), b"nvshmemx_set_attr_uniqueid_args")
        CHECK_NVSHMEM(nvshmem.nvshmemx_hostlib_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr),
                      b"nvshmemx_hostlib_init_attr")
