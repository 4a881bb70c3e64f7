# SPDX-License-Identifier: Apache-2.0
# nvsym for other Cython extensions: cimport nvsym (docs/cimport.md). Functions that are nogil touch no Python object; they are
# those of nvsym/nvsym.h, where each is described. An extension calls import_nvsym() once, when it is loaded.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "nvsym/nvsym.h":
    enum:
        NVSYM_ABI_MAJOR
        NVSYM_ABI_MINOR

    # Element types, operators, comparisons, operations on signals
    enum:
        NVSYM_BOOL
        NVSYM_INT8
        NVSYM_UINT8
        NVSYM_INT16
        NVSYM_UINT16
        NVSYM_INT32
        NVSYM_UINT32
        NVSYM_INT64
        NVSYM_UINT64
        NVSYM_FLOAT16
        NVSYM_FLOAT32
        NVSYM_FLOAT64
        NVSYM_LONGDOUBLE
        NVSYM_COMPLEX64
        NVSYM_COMPLEX128
        NVSYM_CLONGDOUBLE
        NVSYM_BFLOAT16
        NVSYM_FLOAT8_E3M4
        NVSYM_FLOAT8_E4M3
        NVSYM_FLOAT8_E4M3B11FNUZ
        NVSYM_FLOAT8_E4M3FN
        NVSYM_FLOAT8_E4M3FNUZ
        NVSYM_FLOAT8_E5M2
        NVSYM_FLOAT8_E5M2FNUZ
        NVSYM_FLOAT8_E8M0FNU
    enum:
        NVSYM_SUM
        NVSYM_PROD
        NVSYM_MIN
        NVSYM_MAX
        NVSYM_AND
        NVSYM_OR
        NVSYM_XOR
    enum:
        NVSYM_CMP_EQ
        NVSYM_CMP_NE
        NVSYM_CMP_GT
        NVSYM_CMP_LE
        NVSYM_CMP_LT
        NVSYM_CMP_GE
    enum:
        NVSYM_SIGNAL_SET
        NVSYM_SIGNAL_ADD

    # What the functions return
    enum:
        NVSYM_OK
        NVSYM_ERROR_BACKEND
        NVSYM_ERROR_COLLECTIVE
        NVSYM_ERROR_TIMEOUT
        NVSYM_ERROR_EXITED
        NVSYM_ERROR_UNREACHABLE
        NVSYM_ERROR_MEMORY
        NVSYM_ERROR_CLOSED
        NVSYM_ERROR_INTERRUPTED
        NVSYM_ERROR_ARGUMENT

    ctypedef void *nvsym_stream_t       # NULL: the stream of the context

    ctypedef struct nvsym_team:
        int32_t         my_pe
        int32_t         n_pes
        const int32_t * pes
    ctypedef const nvsym_team *nvsym_team_t     # NULL: TEAM_WORLD

    # The objects. Read their fields, and check first that they are live: nvsym_data does.
    ctypedef class nvsym.SHMEMBuffer [object nvsym_SHMEMBuffer, check_size ignore]:
        cdef char * ptr             # symmetric address
        cdef size_t count           # elements
        cdef size_t item            # bytes of one
        cdef int    type_id

    ctypedef class nvsym.Buffer [object nvsym_Buffer, check_size ignore]:
        cdef size_t num_elements
        cdef size_t itemsize
        cdef char * ptr

    ctypedef class nvsym.Stream [object nvsym_Stream, check_size ignore]:
        cdef void * ptr

    ctypedef class nvsym.Team [object nvsym_Team, check_size ignore]:
        pass

    ctypedef class nvsym.SymmetricPool [object nvsym_SymmetricPool, check_size ignore]:
        cdef size_t byte_size       # on each device

    int import_nvsym "nvsym_import"() except -1
    int nvsym_raise(int status) except -1

    void *nvsym_buffer_data(object buffer, int dtype, size_t *count) except NULL
    int nvsym_stream_of(object stream, nvsym_stream_t *raw) except -1
    int nvsym_team_of(object team, nvsym_team_t *raw) except -1
    void *nvsym_pool_unicast(object pool, object device) except NULL
    void *nvsym_pool_multicast(object pool) except NULL

cdef extern from "nvsym/nvsym.h" nogil:
    int    nvsym_my_pe() noexcept
    int    nvsym_n_pes() noexcept
    void * nvsym_peer_ptr(const void *ptr, int pe) noexcept

    int nvsym_put(void *dest, const void *source, size_t nbytes, int pe, nvsym_stream_t stream) noexcept
    int nvsym_get(void *dest, const void *source, size_t nbytes, int pe, nvsym_stream_t stream) noexcept
    int nvsym_put_signal(void *dest, const void *source, size_t nbytes, uint64_t *signal, uint64_t value, int op, int pe,
                         nvsym_stream_t stream) noexcept
    int nvsym_signal_op "nvsym_signal_update"(uint64_t *signal, uint64_t value, int op, int pe,
                                              nvsym_stream_t stream) noexcept
    uint64_t nvsym_signal_fetch(const uint64_t *signal) noexcept
    int nvsym_signal_wait_until(uint64_t *signal, int cmp, uint64_t value, nvsym_stream_t stream) noexcept
    int nvsym_fence(nvsym_stream_t stream) noexcept
    int nvsym_quiet(nvsym_stream_t stream) noexcept

    int nvsym_barrier_all(nvsym_stream_t stream) noexcept
    int nvsym_barrier(nvsym_team_t team, nvsym_stream_t stream) noexcept
    int nvsym_sync(nvsym_team_t team, nvsym_stream_t stream) noexcept
    int nvsym_allreduce(nvsym_team_t team, void *dest, const void *source, size_t count, int dtype, int op,
                        nvsym_stream_t stream) noexcept

    int          nvsym_stream_synchronize(nvsym_stream_t stream) noexcept
    const char * nvsym_last_error() noexcept


# A code as an exception: nvsym_check(nvsym_put(...)). Takes the GIL only where there is one to raise.
cdef inline int nvsym_check(int status) except -1 nogil:
    if status != NVSYM_OK:
        with gil:
            nvsym_raise(status)
    return 0


ctypedef long double longdouble
ctypedef float complex floatcomplex
ctypedef double complex doublecomplex

# The element types that C has.
ctypedef fused nvsym_element:
    int8_t
    uint8_t
    int16_t
    uint16_t
    int32_t
    uint32_t
    int64_t
    uint64_t
    short
    int
    long
    float
    double
    longdouble
    floatcomplex
    doublecomplex


# The data of a live SHMEMBuffer as T *: nvsym_data[float](buffer). TypeError if its element type is not T.
cdef inline nvsym_element *nvsym_data(SHMEMBuffer buffer, nvsym_element *unused=NULL) except NULL:
    return <nvsym_element *> nvsym_buffer_data(buffer, nvsym_dtype_of(<nvsym_element *> NULL), NULL)


# enum nvsym_dtype of a C type, given by a pointer.
cdef inline int nvsym_dtype_of(nvsym_element *unused) noexcept nogil:
    if nvsym_element is float:
        return NVSYM_FLOAT32
    elif nvsym_element is double:
        return NVSYM_FLOAT64
    elif nvsym_element is longdouble:
        return NVSYM_LONGDOUBLE
    elif nvsym_element is floatcomplex:
        return NVSYM_COMPLEX64
    elif nvsym_element is doublecomplex:
        return NVSYM_COMPLEX128
    else:
        return nvsym_integer(sizeof(nvsym_element), <nvsym_element> -1 < 0)


cdef inline int nvsym_integer(size_t size, bint signed_) noexcept nogil:
    if size == 1:
        return NVSYM_INT8 if signed_ else NVSYM_UINT8
    if size == 2:
        return NVSYM_INT16 if signed_ else NVSYM_UINT16
    if size == 4:
        return NVSYM_INT32 if signed_ else NVSYM_UINT32
    return NVSYM_INT64 if signed_ else NVSYM_UINT64
