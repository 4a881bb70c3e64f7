# SPDX-License-Identifier: Apache-2.0
# The enums of include/nvsym/types.h.
cdef extern from "nvsym/types.h" nogil:
    enum nvsym_dtype:
        NVSYM_BOOL
        NVSYM_INT32
        NVSYM_UINT32
        NVSYM_INT64
        NVSYM_UINT64
        NVSYM_FLOAT32
        NVSYM_FLOAT64
        NVSYM_DTYPE_COUNT

    enum nvsym_op:
        NVSYM_SUM
        NVSYM_PROD
        NVSYM_MIN
        NVSYM_MAX
        NVSYM_AND
        NVSYM_OR
        NVSYM_XOR
        NVSYM_OP_COUNT

    enum nvsym_cmp:
        NVSYM_CMP_EQ
        NVSYM_CMP_NE
        NVSYM_CMP_GT
        NVSYM_CMP_LE
        NVSYM_CMP_LT
        NVSYM_CMP_GE

    enum nvsym_signal_op:
        NVSYM_SIGNAL_SET
        NVSYM_SIGNAL_ADD

    enum nvsym_amo:
        NVSYM_AMO_FETCH
        NVSYM_AMO_SET
        NVSYM_AMO_ADD
        NVSYM_AMO_SWAP
        NVSYM_AMO_COMPARE_SWAP
        NVSYM_AMO_AND
        NVSYM_AMO_OR
        NVSYM_AMO_XOR
