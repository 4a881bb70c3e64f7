/* SPDX-License-Identifier: Apache-2.0
 *
 * The numbers that nvsym's layers pass to each other in C: element types, reduction operators, comparisons and signal
 * operations. nvsym/dtypes.py holds the same element types with their names; tests/test_dtypes.py compares the two. */
#ifndef NVSYM_TYPES_H
#define NVSYM_TYPES_H

enum nvsym_dtype {
    NVSYM_BOOL = 0,
    NVSYM_INT8,
    NVSYM_UINT8,
    NVSYM_INT16,
    NVSYM_UINT16,
    NVSYM_INT32,
    NVSYM_UINT32,
    NVSYM_INT64,
    NVSYM_UINT64,
    NVSYM_FLOAT16,
    NVSYM_FLOAT32,
    NVSYM_FLOAT64,
    NVSYM_LONGDOUBLE,
    NVSYM_COMPLEX64,
    NVSYM_COMPLEX128,
    NVSYM_CLONGDOUBLE,
    NVSYM_BFLOAT16,
    NVSYM_FLOAT8_E3M4,
    NVSYM_FLOAT8_E4M3,
    NVSYM_FLOAT8_E4M3B11FNUZ,
    NVSYM_FLOAT8_E4M3FN,
    NVSYM_FLOAT8_E4M3FNUZ,
    NVSYM_FLOAT8_E5M2,
    NVSYM_FLOAT8_E5M2FNUZ,
    NVSYM_FLOAT8_E8M0FNU,
    NVSYM_DTYPE_COUNT
};

enum nvsym_op {
    NVSYM_SUM = 0,
    NVSYM_PROD,
    NVSYM_MIN,
    NVSYM_MAX,
    NVSYM_AND,
    NVSYM_OR,
    NVSYM_XOR,
    NVSYM_OP_COUNT
};

/* The values of NVSHMEM_CMP_* and NVSHMEM_SIGNAL_*. */
enum nvsym_cmp { NVSYM_CMP_EQ = 0, NVSYM_CMP_NE, NVSYM_CMP_GT, NVSYM_CMP_LE, NVSYM_CMP_LT, NVSYM_CMP_GE };
enum nvsym_signal_op { NVSYM_SIGNAL_SET = 9, NVSYM_SIGNAL_ADD = 10 };

enum nvsym_amo {
    NVSYM_AMO_FETCH = 0,
    NVSYM_AMO_SET,
    NVSYM_AMO_ADD,
    NVSYM_AMO_SWAP,
    NVSYM_AMO_COMPARE_SWAP,
    NVSYM_AMO_AND,
    NVSYM_AMO_OR,
    NVSYM_AMO_XOR
};

#endif
