/* SPDX-License-Identifier: Apache-2.0
 *
 * Element-wise reduction of arrays in host memory.
 *
 * out[i] = ((src0[i] op src1[i]) op src2[i]) ..., strictly in this order, stored to every destination. The bits of a
 * result depend on nothing but the operands: not on the alignment, the length, or the vector instructions of the
 * machine. Only which NaN results from two NaNs is left open. */
#ifndef NVSYM_HOST_REDUCE_H
#define NVSYM_HOST_REDUCE_H

#include <stddef.h>
#include <stdint.h>

/* Reduce `nsrc` >= 1 arrays of `n` elements to `ndst` >= 1 equal ones. Pointers need the alignment of a number (of a
 * part, for complex). A destination may be one of the sources; in any other way they must not overlap.
 *
 * float16, bfloat16 and float8 are reduced in float32 and rounded once, to nearest even. Integers wrap. On bool, sum
 * and max mean or, prod and min mean and. min and max give NaN if an operand is NaN, and the first of equal ones. */
typedef void (*nvsym_reduce_fn)(void *const *dst, int ndst, const void *const *src, int nsrc, size_t n);

/* The function for an enum nvsym_dtype and an enum nvsym_op; NULL if this operator is not defined for the type, or if
 * the type is a float8 whose tables have not been given. */
nvsym_reduce_fn nvsym_host_reduce(int dtype, int op);

/* Give the tables of a float8 type; only the first time has an effect. `decode` has the values of the 256 codes. Of a
 * float32 with the bits m, its sign cleared, the code is that in `positive`, or `negative` if the sign was set, at the
 * number of the `n` ascending `thresholds` that are not greater than m; both have n + 1 codes. Not for two threads at
 * once. Returns 0, or -1 if the type is no float8 or the thresholds are more, or closer, than those of a float8 with up
 * to 4 bits of mantissa. nvsym.dtypes.float8_tables() makes the tables. */
int nvsym_f8_table(int dtype, const float *decode, const uint32_t *thresholds, const uint8_t *positive,
                   const uint8_t *negative, int n);

#endif
