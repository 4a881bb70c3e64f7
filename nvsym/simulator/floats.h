/* SPDX-License-Identifier: Apache-2.0
 *
 * Floating-point numbers of 16 and 8 bits, to and from double.
 */
#ifndef NVSYM_SIMULATOR_FLOATS_H
#define NVSYM_SIMULATOR_FLOATS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef uint64_t u64;
typedef uint32_t u32;

enum { F32, F64, F16, BF16, E4M3, E5M2, UNSIGNED, SIGNED, BITS };
typedef struct { int exponent, mantissa; bool finite; } layout;  /* finite: no infinities, NaN is all ones (e4m3) */
static const layout layouts[] = {[F16] = {5, 10, false}, [BF16] = {8, 7, false}, [E4M3] = {4, 3, true}, [E5M2] = {5, 2, false}};

static inline double decode(u32 bits, layout l)
{
    int bias = (1 << (l.exponent - 1)) - 1, e = (int)(bits >> l.mantissa) & ((1 << l.exponent) - 1);
    u32 m = bits & ((1u << l.mantissa) - 1), top = (1u << l.exponent) - 1;
    double sign = bits >> (l.exponent + l.mantissa) & 1 ? -1.0 : 1.0;
    if ((u32)e == top && (l.finite ? m == (1u << l.mantissa) - 1 : m != 0))
        return (double)NAN;
    if ((u32)e == top && !l.finite)
        return sign * (double)INFINITY;
    if (e == 0)
        return sign * ldexp((double)m, 1 - bias - l.mantissa);
    return sign * ldexp((double)(m | 1u << l.mantissa), e - bias - l.mantissa);
}

/* To the nearest, ties to even, rounded once. */
static inline u32 encode(double value, layout l)
{
    int bias = (1 << (l.exponent - 1)) - 1, e;
    u32 sign = (u32)(signbit(value) != 0) << (l.exponent + l.mantissa), top = (1u << l.exponent) - 1;
    u32 infinity = l.finite ? top << l.mantissa | ((1u << l.mantissa) - 1) : top << l.mantissa;
    value = fabs(value);
    if (isnan(value))
        return l.finite ? sign | infinity : sign | infinity | 1u << (l.mantissa - 1);
    if (value == 0)
        return sign;
    if (isinf(value))
        return sign | infinity;
    frexp(value, &e);                   /* value in [2^(e-1), 2^e) */
    e -= 1;
    if (e < 1 - bias)
        e = 1 - bias;
    /* In units of the last place; the default rounding is to nearest, ties to even. */
    double units = nearbyint(ldexp(value, l.mantissa - e));
    u64 m = (u64)units;
    if (m >> (l.mantissa + 1)) {
        m >>= 1;
        e++;
    }
    u32 bits = m >> l.mantissa ? (u32)(e + bias) << l.mantissa | (u32)(m & ((1u << l.mantissa) - 1)) : (u32)m;
    if (bits >= infinity)
        bits = infinity;
    return sign | bits;
}

#endif
