# SPDX-License-Identifier: Apache-2.0
# What nvsym uses of NVSHMEM's host library, in the order in which nvshmem_host.h includes its parts. The inline
# functions of the headers (nvshmem_init) are not among it: they need device code, and end the process on an error.
from libc.stdint cimport int32_t, uint64_t

from .libcuda cimport CUlibrary, CUmodule

#  Types  ------------------------------------------------------------------------------------------------------------

ctypedef void     *cudaStream_t

ctypedef struct nvshmemx_uniqueid_t:
    int                       version
    char                      internal[124]

ctypedef struct nvshmemx_uniqueid_args_t:
    int                       version
    nvshmemx_uniqueid_t      *id              # kept, not copied: must live until the end of the initialisation
    int                       myrank
    int                       nranks

ctypedef uint64_t  nvshmemx_team_uniqueid_t
ctypedef int32_t   nvshmem_team_t

# From NVSHMEM 3.5 on; before, the bytes of cuda_device_id are padding and the version of the structure is 1.
ctypedef struct nvshmemx_init_args_t:
    int                       version
    nvshmemx_uniqueid_args_t  uid_args
    int                       cuda_device_id
    char                      content[92]

ctypedef struct nvshmemx_init_attr_t:
    int                       version
    void                     *mpi_comm        # MPI_Comm *
    nvshmemx_init_args_t      args

ctypedef struct nvshmem_team_config_t:
    int                       version
    int                       num_contexts
    nvshmemx_team_uniqueid_t  uniqueid
    char                      padding[48]

#  Constants  --------------------------------------------------------------------------------------------------------

cdef enum:
    NVSHMEM_CMP_EQ = 0
    NVSHMEM_CMP_NE = 1
    NVSHMEM_CMP_GT = 2
    NVSHMEM_CMP_LE = 3
    NVSHMEM_CMP_LT = 4
    NVSHMEM_CMP_GE = 5

cdef enum:
    NVSHMEM_THREAD_SINGLE     = 0
    NVSHMEM_THREAD_FUNNELED   = 1
    NVSHMEM_THREAD_SERIALIZED = 2
    NVSHMEM_THREAD_MULTIPLE   = 3

cdef enum:
    NVSHMEM_STATUS_NOT_INITIALIZED = 0
    NVSHMEM_STATUS_IS_BOOTSTRAPPED = 1
    NVSHMEM_STATUS_IS_INITIALIZED  = 2
    NVSHMEM_STATUS_LIMITED_MPG     = 3   # PEs share a GPU without MPS: of the collectives only barrier_all, sync_all
    NVSHMEM_STATUS_FULL_MPG        = 4

cdef enum:
    NVSHMEM_SIGNAL_SET = 9
    NVSHMEM_SIGNAL_ADD = 10

cdef enum:
    NVSHMEM_TEAM_CONFIG_MASK_NUM_CONTEXTS = 1
    NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID     = 2

cdef enum:
    NVSHMEM_TEAM_INVALID         = -1
    NVSHMEM_TEAM_WORLD           = 0
    NVSHMEM_TEAM_SHARED          = 1
    NVSHMEMX_TEAM_NODE           = 2
    NVSHMEMX_TEAM_SAME_MYPE_NODE = 3
    NVSHMEM_TEAM_MC_SHARED       = 6     # from NVSHMEM 3.7 on

cdef enum:
    NVSHMEMX_SUCCESS                        = 0
    NVSHMEMX_ERROR_INVALID_VALUE            = 1
    NVSHMEMX_ERROR_OUT_OF_MEMORY            = 2
    NVSHMEMX_ERROR_NOT_SUPPORTED            = 3
    NVSHMEMX_ERROR_SYMMETRY                 = 4
    NVSHMEMX_ERROR_GPU_NOT_SELECTED         = 5
    NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED = 6
    NVSHMEMX_ERROR_INTERNAL                 = 7

cdef enum:
    NVSHMEMX_INIT_WITH_MPI_COMM = 2
    NVSHMEMX_INIT_WITH_UNIQUEID = 8

# The bounds of the tables of reductions.
cdef extern from "nvsym/types.h":
    enum:
        NVSYM_DTYPE_COUNT
        NVSYM_OP_COUNT

#  Functions  --------------------------------------------------------------------------------------------------------

ctypedef int (*nvshmemx_reduction_on_stream)(nvshmem_team_t team, void *dest, const void *src, size_t nreduce,
                                             cudaStream_t stream) noexcept nogil

cdef struct NVSHMEM:
    # Collectives, on the host
    void     (*nvshmem_barrier_all)() noexcept nogil

    # State, versions, PEs
    int      (*nvshmemx_init_status)() noexcept nogil
    void     (*nvshmem_query_thread)(int *provided) noexcept nogil
    int      (*nvshmem_my_pe)() noexcept nogil
    int      (*nvshmem_n_pes)() noexcept nogil
    void     (*nvshmem_info_get_version)(int *major, int *minor) noexcept nogil
    void     (*nvshmemx_vendor_get_version_info)(int *major, int *minor, int *patch) noexcept nogil

    # The symmetric heap
    void    *(*nvshmem_malloc)(size_t size) noexcept nogil
    void    *(*nvshmem_calloc)(size_t count, size_t size) noexcept nogil
    void    *(*nvshmem_align)(size_t alignment, size_t size) noexcept nogil
    void     (*nvshmem_free)(void *ptr) noexcept nogil
    void    *(*nvshmem_ptr)(const void *ptr, int pe) noexcept nogil
    void    *(*nvshmemx_mc_ptr)(nvshmem_team_t team, const void *ptr) noexcept nogil

    # Ordering
    void     (*nvshmem_quiet)() noexcept nogil
    void     (*nvshmem_fence)() noexcept nogil

    # Teams
    int      (*nvshmem_team_my_pe)(nvshmem_team_t team) noexcept nogil
    int      (*nvshmem_team_n_pes)(nvshmem_team_t team) noexcept nogil
    void     (*nvshmem_team_get_config)(nvshmem_team_t team, nvshmem_team_config_t *config) noexcept nogil
    int      (*nvshmem_team_translate_pe)(nvshmem_team_t src_team, int src_pe, nvshmem_team_t dest_team) noexcept nogil
    int      (*nvshmem_team_split_strided)(nvshmem_team_t parent_team, int PE_start, int PE_stride, int PE_size,
                                           const nvshmem_team_config_t *config, long config_mask,
                                           nvshmem_team_t *new_team) noexcept nogil
    int      (*nvshmemx_team_get_uniqueid)(nvshmemx_team_uniqueid_t *uniqueid) noexcept nogil
    int      (*nvshmemx_team_init)(nvshmem_team_t *team, nvshmem_team_config_t *config, long config_mask, int npes,
                                   int pe_idx_in_team) noexcept nogil
    int      (*nvshmem_team_split_2d)(nvshmem_team_t parent_team, int xrange,
                                      const nvshmem_team_config_t *xaxis_config, long xaxis_mask,
                                      nvshmem_team_t *xaxis_team,
                                      const nvshmem_team_config_t *yaxis_config, long yaxis_mask,
                                      nvshmem_team_t *yaxis_team) noexcept nogil
    void     (*nvshmem_team_destroy)(nvshmem_team_t team) noexcept nogil

    # Collectives on a stream; counts of the mem functions are bytes
    int      (*nvshmemx_alltoallmem_on_stream)(nvshmem_team_t team, void *dest, const void *src, size_t nelem,
                                               cudaStream_t stream) noexcept nogil
    int      (*nvshmemx_barrier_on_stream)(nvshmem_team_t team, cudaStream_t stream) noexcept nogil
    void     (*nvshmemx_barrier_all_on_stream)(cudaStream_t stream) noexcept nogil
    int      (*nvshmemx_team_sync_on_stream)(nvshmem_team_t team, cudaStream_t stream) noexcept nogil
    void     (*nvshmemx_sync_all_on_stream)(cudaStream_t stream) noexcept nogil
    int      (*nvshmemx_broadcastmem_on_stream)(nvshmem_team_t team, void *dest, const void *src, size_t nelem,
                                                int PE_root, cudaStream_t stream) noexcept nogil
    int      (*nvshmemx_fcollectmem_on_stream)(nvshmem_team_t team, void *dest, const void *src, size_t nelem,
                                               cudaStream_t stream) noexcept nogil

    # nvshmemx_{type}_{op}_reduce_on_stream and ..._reducescatter_on_stream, by nvsym_dtype and nvsym_op of
    # nvsym/types.h. A pair that NVSHMEM does not have, in any version, is NULL.
    nvshmemx_reduction_on_stream reduce_on_stream[NVSYM_DTYPE_COUNT][NVSYM_OP_COUNT]
    nvshmemx_reduction_on_stream reducescatter_on_stream[NVSYM_DTYPE_COUNT][NVSYM_OP_COUNT]

    # Registered memory
    int      (*nvshmemx_buffer_register)(void *addr, size_t length) noexcept nogil
    int      (*nvshmemx_buffer_unregister)(void *addr) noexcept nogil

    # Initialisation
    int      (*nvshmemx_hostlib_init_attr)(unsigned int flags, nvshmemx_init_attr_t *attr) noexcept nogil
    void     (*nvshmemx_hostlib_finalize)() noexcept nogil
    int      (*nvshmemx_set_attr_uniqueid_args)(int myrank, int nranks, const nvshmemx_uniqueid_t *uniqueid,
                                                nvshmemx_init_attr_t *attr) noexcept nogil
    int      (*nvshmemx_set_attr_mpi_comm_args)(void *mpi_comm, nvshmemx_init_attr_t *nvshmem_attr) noexcept nogil
    int      (*nvshmemx_get_uniqueid)(nvshmemx_uniqueid_t *uniqueid) noexcept nogil

    # Device code
    int      (*nvshmemx_cumodule_init)(CUmodule module) noexcept nogil
    int      (*nvshmemx_cumodule_finalize)(CUmodule module) noexcept nogil

    # Memory of the caller in the symmetric heap
    void    *(*nvshmemx_buffer_register_symmetric)(void *buf_ptr, size_t size, int flags) noexcept nogil
    void    *(*nvshmemx_buffer_register_symmetric_at_preferred_address)(void *buf_ptr, size_t size,
                                                                        void *preferred_addr, int flags) noexcept nogil
    int      (*nvshmemx_buffer_unregister_symmetric)(void *mmap_ptr, size_t size) noexcept nogil

    # Device code, as a library
    int      (*nvshmemx_culibrary_init)(CUlibrary library) noexcept nogil
    int      (*nvshmemx_culibrary_finalize)(CUlibrary library) noexcept nogil

    # Put and get on a stream
    void     (*nvshmemx_putmem_on_stream)(void *dest, const void *source, size_t bytes, int pe,
                                          cudaStream_t cstrm) noexcept nogil
    void     (*nvshmemx_putmem_signal_on_stream)(void *dest, const void *source, size_t bytes, uint64_t *sig_addr,
                                                 uint64_t signal, int sig_op, int pe,
                                                 cudaStream_t cstrm) noexcept nogil
    void     (*nvshmemx_putmem_signal_nbi_on_stream)(void *dest, const void *source, size_t bytes, uint64_t *sig_addr,
                                                     uint64_t signal, int sig_op, int pe,
                                                     cudaStream_t cstrm) noexcept nogil
    void     (*nvshmemx_putmem_nbi_on_stream)(void *dest, const void *source, size_t bytes, int pe,
                                              cudaStream_t cstrm) noexcept nogil
    void     (*nvshmemx_getmem_on_stream)(void *dest, const void *source, size_t bytes, int pe,
                                          cudaStream_t cstrm) noexcept nogil
    void     (*nvshmemx_getmem_nbi_on_stream)(void *dest, const void *source, size_t bytes, int pe,
                                              cudaStream_t cstrm) noexcept nogil

    # Ordering and signals on a stream
    void     (*nvshmemx_quiet_on_stream)(cudaStream_t cstrm) noexcept nogil
    void     (*nvshmemx_flush_on_stream)(cudaStream_t cstrm) noexcept nogil
    void     (*nvshmemx_signal_op_on_stream)(uint64_t *sig_addr, uint64_t signal, int sig_op, int pe,
                                             cudaStream_t cstrm) noexcept nogil
    void     (*nvshmemx_signal_wait_until_on_stream)(uint64_t *sig_addr, int cmp, uint64_t cmp_value,
                                                     cudaStream_t cstream) noexcept nogil
