/* SPDX-License-Identifier: Apache-2.0
 *
 * The file is read once for itself and then, included by itself, once for each instruction set, with LEVEL and NAME()
 * set: that part has the kernels. */
#ifndef LEVEL

/* Results must not depend on the machine, so a * b + c is not to become one rounding; -O2 alone leaves loops scalar. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic ignored "-Wpass-failed" /* where it has no vectors of a type, or does not optimise */
#define LOOP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#ifdef __OPTIMIZE__
#pragma GCC optimize("O3")
#endif
#pragma GCC optimize("fp-contract=off")
#define LOOP _Pragma("GCC ivdep")
#else
#pragma STDC FP_CONTRACT OFF
#define LOOP
#endif

#include <stdatomic.h>
#include <string.h>

#include "host_reduce.h"
#include "nvsym/types.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define X86_LEVELS 1
#include <cpuid.h>
#include <immintrin.h>
#endif

#define BLOCK 8192 /* bytes of an accumulator: it stays in the first-level cache, with room for a source */

/* d[i] = a[i] op b[i]; to e[i] too unless e is NULL. d and e may be a or b. */
typedef void (*pair_fn)(void *d, void *e, const void *a, const void *b, size_t n);

/* A float8 type. rank[] holds, for each pattern of the 12 bits after the sign of a float32, the number of thresholds up
 * to there times 2^20, and below it what makes the remaining 19 bits carry at the next threshold. */
typedef struct f8_table {
    float decode[256];
    uint32_t rank[4096];
    uint8_t code[2][512];
    atomic_int ready;
} f8_table;

enum { F8_FIRST = NVSYM_FLOAT8_E3M4, F8_COUNT = NVSYM_DTYPE_COUNT - F8_FIRST };
static f8_table f8_tables[F8_COUNT];

/* Types that are reduced in float32. */
typedef struct wide {
    void (*widen)(float *d, const void *s, size_t n, const f8_table *table);
    void (*narrow)(void *d, const float *s, size_t n, const f8_table *table);
} wide;

typedef struct level {
    pair_fn pair[NVSYM_DTYPE_COUNT][NVSYM_OP_COUNT];
    wide half, bfloat16, float8;
} level;

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float widen_bfloat16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static inline uint16_t narrow_bfloat16(float x)
{
    const uint32_t u = bits_of(x);
    const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    const uint32_t nan = (u >> 16 & 0x8000) | 0x7fc0;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* The same results as the F16C instructions, which make every NaN quiet and keep the rest of its payload. Subnormals
 * are done with arithmetic that stays clear of float32's own, which a program may have switched off. */
static inline float widen_half(uint16_t h)
{
    const uint32_t m = h & 0x7fff;
    const uint32_t normal = (m << 13) + (112u << 23);
    const uint32_t subnormal = bits_of((float)(int32_t)m * 0x1p-24f);
    const uint32_t special = m << 13 | 0x7f800000 | (m > 0x7c00 ? 0x400000u : 0);
    const uint32_t magnitude = m < 0x400 ? subnormal : m < 0x7c00 ? normal : special;
    return float_of(magnitude | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t narrow_half(float x)
{
    const uint32_t u = bits_of(x), m = u & 0x7fffffff;
    const uint32_t normal = (m - (112u << 23) + 0xfff + (m >> 13 & 1)) >> 13;
    const uint32_t subnormal = bits_of(float_of(m) + 0.5f) - 0x3f000000; /* 0.5 has the step of float16's subnormals */
    const uint32_t special = m > 0x7f800000 ? 0x7e00 | (m >> 13 & 0x3ff) : 0x7c00;
    const uint32_t magnitude = m < 0x38800000 ? subnormal : m < 0x47800000 ? normal : special;
    return (uint16_t)(magnitude | (u >> 16 & 0x8000));
}

static inline void copy(void *d, const void *s, size_t nbytes)
{
    if (d != s && nbytes)
        memcpy(d, s, nbytes);
}

#define ADD(a, b) ((a) + (b))
#define MUL(a, b) ((a) * (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define XOR(a, b) ((a) ^ (b))
#define MUL16(a, b) ((unsigned)(a) * (b)) /* the product of two uint16_t may not fit in an int */
#define ALL(a, b) (((a) != 0) & ((b) != 0))
#define ANY(a, b) (((a) != 0) | ((b) != 0))
#define ODD(a, b) (((a) != 0) ^ ((b) != 0))
#define FMIN(a, b) ((((a) <= (b)) | ((a) != (a))) ? (a) : (b))
#define FMAX(a, b) ((((a) >= (b)) | ((a) != (a))) ? (a) : (b))

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)

/* The same loop with one store and with two. */
#define STORES(...) \
    if (e) { LOOP for (size_t i = 0; i < n; i++) { __VA_ARGS__ d[i] = e[i] = r; } } \
    else { LOOP for (size_t i = 0; i < n; i++) { __VA_ARGS__ d[i] = r; } }

#define KERNEL(name, T, op) \
    static void NAME(name)(void *d_, void *e_, const void *a_, const void *b_, size_t n) \
    { \
        T *d = d_, *e = e_; \
        const T *a = a_, *b = b_; \
        STORES(const T x = a[i]; const T y = b[i]; const T r = (T)op(x, y);) \
    }

/* Complex numbers as pairs: a sum is that of twice as many reals. */
#define COMPLEX_SUM(name, real_sum) \
    static void NAME(name)(void *d, void *e, const void *a, const void *b, size_t n) \
    { \
        NAME(real_sum)(d, e, a, b, 2 * n); \
    }

/* The products pass through memory: GCC 12 makes vfmaddsub of a * b -+ c * d even with fp-contract=off. */
#define COMPLEX_PROD(name, T) \
    static void NAME(name)(void *d_, void *e_, const void *a_, const void *b_, size_t n) \
    { \
        enum { STEP = BLOCK / 4 / (2 * sizeof(T)) }; \
        T *d = d_, *e = e_ ? e_ : d_; \
        const T *a = a_, *b = b_; \
        T left[2 * STEP], right[2 * STEP]; \
        for (size_t m; n; n -= m, a += 2 * m, b += 2 * m, d += 2 * m, e += 2 * m) { \
            m = n < STEP ? n : STEP; \
            LOOP for (size_t i = 0; i < m; i++) { \
                const T ar = a[2 * i], ai = a[2 * i + 1], br = b[2 * i], bi = b[2 * i + 1]; \
                left[2 * i] = ar * br; \
                left[2 * i + 1] = ar * bi; \
                right[2 * i] = ai * bi; \
                right[2 * i + 1] = ai * br; \
            } \
            LOOP for (size_t i = 0; i < m; i++) { \
                d[2 * i] = left[2 * i] - right[2 * i]; \
                d[2 * i + 1] = left[2 * i + 1] + right[2 * i + 1]; \
            } \
            copy(e, d, m * 2 * sizeof(T)); \
        } \
    }

/* Two operands of a 16-bit float. */
#define WIDE_KERNEL(name, type, op) \
    static void NAME(name)(void *d_, void *e_, const void *a_, const void *b_, size_t n) \
    { \
        uint16_t *d = d_, *e = e_; \
        const uint16_t *a = a_, *b = b_; \
        STORES(const float x = widen_##type(a[i]); const float y = widen_##type(b[i]); \
               const uint16_t r = narrow_##type(op(x, y));) \
    }

#define WIDE_CONVERSIONS(type) \
    static void NAME(PASTE(widen, type))(float *d, const void *s_, size_t n, const f8_table *table) \
    { \
        const uint16_t *s = s_; \
        (void)table; \
        LOOP for (size_t i = 0; i < n; i++) d[i] = widen_##type(s[i]); \
    } \
    static void NAME(PASTE(narrow, type))(void *d_, const float *s, size_t n, const f8_table *table) \
    { \
        uint16_t *d = d_; \
        (void)table; \
        LOOP for (size_t i = 0; i < n; i++) d[i] = narrow_##type(s[i]); \
    }

/* ---- the instruction sets ---- */

/* The baseline, of whatever machine this is compiled for. */
#define LEVEL 0
#define NAME(x) PASTE(x, base)
#include "host_reduce.c"
#undef LEVEL
#undef NAME

#ifdef X86_LEVELS
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
#define LEVEL 1
#define NAME(x) PASTE(x, avx2)
#include "host_reduce.c"
#undef LEVEL
#undef NAME
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("f16c,avx512f,avx512bw,avx512vl,avx512dq"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("f16c,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=256") /* best from L2 on */
#endif
#define LEVEL 2
#define NAME(x) PASTE(x, avx512)
#include "host_reduce.c"
#undef LEVEL
#undef NAME
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

static const level *const levels[] = {
    &level_base,
#ifdef X86_LEVELS
    &level_avx2,
    &level_avx512,
#endif
};

static _Atomic(const level *) active; /* set before a function that uses it is handed out */

static int best_level(void)
{
#ifdef X86_LEVELS
    unsigned a, b, c = 0, d;
    const int f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    __builtin_cpu_init();
    if (f16c && __builtin_cpu_supports("avx2")) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") ? 2 : 1;
    }
#endif
    return 0;
}

/* ---- sources and destinations ---- */

static void reduce_pairs(pair_fn pair, size_t item, void *const *dst, int ndst, const void *const *src, int nsrc,
                         size_t n)
{
    _Alignas(64) char acc[BLOCK];
    if (nsrc == 1) {
        for (int k = 0; k < ndst; k++)
            copy(dst[k], src[0], n * item);
        return;
    }
    const size_t step = nsrc == 2 && ndst <= 2 ? n : BLOCK / item;
    for (size_t done = 0, m; done < n; done += m) {
        const size_t at = done * item;
        const void *left = (const char *)src[0] + at;
        char *first = (char *)dst[0] + at;
        m = n - done < step ? n - done : step;
        /* The last operand is combined on the way to the destinations, after all others have been read. */
        for (int k = 1; k < nsrc - 1; k++, left = acc)
            pair(acc, NULL, left, (const char *)src[k] + at, m);
        pair(first, ndst > 1 ? (char *)dst[1] + at : NULL, left, (const char *)src[nsrc - 1] + at, m);
        for (int k = 2; k < ndst; k++)
            copy((char *)dst[k] + at, first, m * item);
    }
}

static void reduce_wide(const wide *type, pair_fn float_pair, size_t item, const f8_table *table, void *const *dst,
                        int ndst, const void *const *src, int nsrc, size_t n)
{
    enum { STEP = BLOCK / sizeof(float) };
    _Alignas(64) float acc[STEP];
    _Alignas(64) float next[STEP];
    for (size_t done = 0, m; done < n; done += m) {
        const size_t at = done * item;
        char *first = (char *)dst[0] + at;
        m = n - done < STEP ? n - done : STEP;
        type->widen(acc, (const char *)src[0] + at, m, table);
        for (int k = 1; k < nsrc; k++) {
            type->widen(next, (const char *)src[k] + at, m, table);
            float_pair(acc, NULL, acc, next, m);
        }
        type->narrow(first, acc, m, table);
        for (int k = 1; k < ndst; k++)
            copy((char *)dst[k] + at, first, m * item);
    }
}

/* Called with constants, one case of it is left in each function below. */
static inline void reduce(int dtype, int op, size_t item, void *const *dst, int ndst, const void *const *src, int nsrc,
                          size_t n)
{
    const level *at = atomic_load_explicit(&active, memory_order_relaxed);
    const pair_fn float_pair = at->pair[NVSYM_FLOAT32][op];
    if (dtype >= F8_FIRST && nsrc > 1)
        reduce_wide(&at->float8, float_pair, item, &f8_tables[dtype - F8_FIRST], dst, ndst, src, nsrc, n);
    else if (dtype == NVSYM_FLOAT16 && nsrc > 2)
        reduce_wide(&at->half, float_pair, item, NULL, dst, ndst, src, nsrc, n);
    else if (dtype == NVSYM_BFLOAT16 && nsrc > 2)
        reduce_wide(&at->bfloat16, float_pair, item, NULL, dst, ndst, src, nsrc, n);
    else
        reduce_pairs(at->pair[dtype][op], item, dst, ndst, src, nsrc, n);
}

/* ---- one function for each type and operator ---- */

#define FUNCTION(dtype, item, op) \
    static void reduce_##dtype##_##op(void *const *dst, int ndst, const void *const *src, int nsrc, size_t n) \
    { \
        reduce(NVSYM_##dtype, NVSYM_##op, item, dst, ndst, src, nsrc, n); \
    }

#define RING(F, dtype, item) F(dtype, item, SUM) F(dtype, item, PROD)
#define ORDERED(F, dtype, item) RING(F, dtype, item) F(dtype, item, MIN) F(dtype, item, MAX)
#define BITS(F, dtype, item) ORDERED(F, dtype, item) F(dtype, item, AND) F(dtype, item, OR) F(dtype, item, XOR)
#define ALL_TYPES(F) \
    BITS(F, BOOL, 1) \
    BITS(F, INT8, 1) \
    BITS(F, UINT8, 1) \
    BITS(F, INT16, 2) \
    BITS(F, UINT16, 2) \
    BITS(F, INT32, 4) \
    BITS(F, UINT32, 4) \
    BITS(F, INT64, 8) \
    BITS(F, UINT64, 8) \
    ORDERED(F, FLOAT16, 2) \
    ORDERED(F, FLOAT32, 4) \
    ORDERED(F, FLOAT64, 8) \
    ORDERED(F, LONGDOUBLE, sizeof(long double)) \
    RING(F, COMPLEX64, 8) \
    RING(F, COMPLEX128, 16) \
    RING(F, CLONGDOUBLE, 2 * sizeof(long double)) \
    ORDERED(F, BFLOAT16, 2) \
    ORDERED(F, FLOAT8_E3M4, 1) \
    ORDERED(F, FLOAT8_E4M3, 1) \
    ORDERED(F, FLOAT8_E4M3B11FNUZ, 1) \
    ORDERED(F, FLOAT8_E4M3FN, 1) \
    ORDERED(F, FLOAT8_E4M3FNUZ, 1) \
    ORDERED(F, FLOAT8_E5M2, 1) \
    ORDERED(F, FLOAT8_E5M2FNUZ, 1) \
    ORDERED(F, FLOAT8_E8M0FNU, 1)

ALL_TYPES(FUNCTION)

#define ENTRY(dtype, item, op) [NVSYM_##dtype][NVSYM_##op] = reduce_##dtype##_##op,
static const nvsym_reduce_fn functions[NVSYM_DTYPE_COUNT][NVSYM_OP_COUNT] = {ALL_TYPES(ENTRY)};

nvsym_reduce_fn nvsym_host_reduce(int dtype, int op)
{
    if (dtype < 0 || dtype >= NVSYM_DTYPE_COUNT || op < 0 || op >= NVSYM_OP_COUNT)
        return NULL;
    if (dtype >= F8_FIRST && !atomic_load_explicit(&f8_tables[dtype - F8_FIRST].ready, memory_order_acquire))
        return NULL;
    if (atomic_load_explicit(&active, memory_order_relaxed) == NULL)
        atomic_store_explicit(&active, levels[best_level()], memory_order_relaxed);
    return functions[dtype][op];
}

int nvsym_f8_table(int dtype, const float *decode, const uint32_t *thresholds, const uint8_t *positive,
                   const uint8_t *negative, int n)
{
    if (dtype < F8_FIRST || dtype >= NVSYM_DTYPE_COUNT || n < 0 || n >= (int)sizeof f8_tables->code[0])
        return -1;
    f8_table *table = &f8_tables[dtype - F8_FIRST];
    if (atomic_load_explicit(&table->ready, memory_order_acquire))
        return 0;
    int rank = 0;
    for (uint32_t bucket = 0; bucket < 4096; bucket++) {
        const uint32_t start = bucket << 19;
        while (rank < n && thresholds[rank] <= start)
            rank++;
        table->rank[bucket] = (uint32_t)rank << 20;
        if (rank < n && thresholds[rank] - start < 1u << 19) {
            if (rank + 1 < n && thresholds[rank + 1] - start < 1u << 19)
                return -1;
            table->rank[bucket] += (1u << 20) - (thresholds[rank] - start);
        }
    }
    memcpy(table->decode, decode, sizeof table->decode);
    memcpy(table->code[0], positive, (size_t)n + 1);
    memcpy(table->code[1], negative, (size_t)n + 1);
    atomic_store_explicit(&table->ready, 1, memory_order_release);
    return 0;
}

#else /* LEVEL: the kernels of one instruction set */

KERNEL(any_bool, uint8_t, ANY)
KERNEL(all_bool, uint8_t, ALL)
KERNEL(odd_bool, uint8_t, ODD)

KERNEL(sum_u8, uint8_t, ADD)
KERNEL(prod_u8, uint8_t, MUL)
KERNEL(min_i8, int8_t, MIN)
KERNEL(max_i8, int8_t, MAX)
KERNEL(min_u8, uint8_t, MIN)
KERNEL(max_u8, uint8_t, MAX)
KERNEL(and_u8, uint8_t, AND)
KERNEL(or_u8, uint8_t, OR)
KERNEL(xor_u8, uint8_t, XOR)

KERNEL(sum_u16, uint16_t, ADD)
KERNEL(prod_u16, uint16_t, MUL16)
KERNEL(min_i16, int16_t, MIN)
KERNEL(max_i16, int16_t, MAX)
KERNEL(min_u16, uint16_t, MIN)
KERNEL(max_u16, uint16_t, MAX)
KERNEL(and_u16, uint16_t, AND)
KERNEL(or_u16, uint16_t, OR)
KERNEL(xor_u16, uint16_t, XOR)

KERNEL(sum_u32, uint32_t, ADD)
KERNEL(prod_u32, uint32_t, MUL)
KERNEL(min_i32, int32_t, MIN)
KERNEL(max_i32, int32_t, MAX)
KERNEL(min_u32, uint32_t, MIN)
KERNEL(max_u32, uint32_t, MAX)
KERNEL(and_u32, uint32_t, AND)
KERNEL(or_u32, uint32_t, OR)
KERNEL(xor_u32, uint32_t, XOR)

KERNEL(sum_u64, uint64_t, ADD)
KERNEL(prod_u64, uint64_t, MUL)
KERNEL(min_i64, int64_t, MIN)
KERNEL(max_i64, int64_t, MAX)
KERNEL(min_u64, uint64_t, MIN)
KERNEL(max_u64, uint64_t, MAX)
KERNEL(and_u64, uint64_t, AND)
KERNEL(or_u64, uint64_t, OR)
KERNEL(xor_u64, uint64_t, XOR)

KERNEL(sum_float, float, ADD)
KERNEL(prod_float, float, MUL)
KERNEL(min_float, float, FMIN)
KERNEL(max_float, float, FMAX)

KERNEL(sum_double, double, ADD)
KERNEL(prod_double, double, MUL)
KERNEL(min_double, double, FMIN)
KERNEL(max_double, double, FMAX)

COMPLEX_SUM(sum_cfloat, sum_float)
COMPLEX_SUM(sum_cdouble, sum_double)
COMPLEX_PROD(prod_cfloat, float)
COMPLEX_PROD(prod_cdouble, double)

#if LEVEL == 0 /* there are no vectors of these */
KERNEL(sum_long_double, long double, ADD)
KERNEL(prod_long_double, long double, MUL)
KERNEL(min_long_double, long double, FMIN)
KERNEL(max_long_double, long double, FMAX)
COMPLEX_SUM(sum_clong_double, sum_long_double)
COMPLEX_PROD(prod_clong_double, long double)
#endif

WIDE_KERNEL(sum_bfloat16, bfloat16, ADD)
WIDE_KERNEL(prod_bfloat16, bfloat16, MUL)
WIDE_KERNEL(min_bfloat16, bfloat16, FMIN)
WIDE_KERNEL(max_bfloat16, bfloat16, FMAX)
WIDE_CONVERSIONS(bfloat16)

#if LEVEL == 0
WIDE_KERNEL(sum_half, half, ADD)
WIDE_KERNEL(prod_half, half, MUL)
WIDE_KERNEL(min_half, half, FMIN)
WIDE_KERNEL(max_half, half, FMAX)
WIDE_CONVERSIONS(half)
#else
static inline __m256 NAME(widen8)(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline __m128i NAME(narrow8)(__m256 x)
{
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

static inline __m256 NAME(sum8)(__m256 a, __m256 b)
{
    return _mm256_add_ps(a, b);
}

static inline __m256 NAME(prod8)(__m256 a, __m256 b)
{
    return _mm256_mul_ps(a, b);
}

static inline __m256 NAME(min8)(__m256 a, __m256 b)
{
    return _mm256_blendv_ps(b, a, _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_LE_OQ), _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}

static inline __m256 NAME(max8)(__m256 a, __m256 b)
{
    return _mm256_blendv_ps(b, a, _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ), _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}

/* The last few elements go through a full vector too. */
#define HALF_KERNEL(name, op8) \
    static void NAME(name)(void *d_, void *e_, const void *a_, const void *b_, size_t n) \
    { \
        uint16_t *d = d_, *e = e_; \
        const uint16_t *a = a_, *b = b_; \
        size_t i = 0; \
        for (; i + 8 <= n; i += 8) { \
            const __m128i r = NAME(narrow8)(NAME(op8)(NAME(widen8)(a + i), NAME(widen8)(b + i))); \
            _mm_storeu_si128((__m128i *)(d + i), r); \
            if (e) \
                _mm_storeu_si128((__m128i *)(e + i), r); \
        } \
        if (i < n) { \
            uint16_t x[8] = {0}, y[8] = {0}; \
            memcpy(x, a + i, (n - i) * 2); \
            memcpy(y, b + i, (n - i) * 2); \
            _mm_storeu_si128((__m128i *)x, NAME(narrow8)(NAME(op8)(NAME(widen8)(x), NAME(widen8)(y)))); \
            memcpy(d + i, x, (n - i) * 2); \
            if (e) \
                memcpy(e + i, x, (n - i) * 2); \
        } \
    }

HALF_KERNEL(sum_half, sum8)
HALF_KERNEL(prod_half, prod8)
HALF_KERNEL(min_half, min8)
HALF_KERNEL(max_half, max8)
#undef HALF_KERNEL

static void NAME(widen_half)(float *d, const void *s_, size_t n, const f8_table *table)
{
    const uint16_t *s = s_;
    size_t i = 0;
    (void)table;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(d + i, NAME(widen8)(s + i));
    for (; i < n; i++)
        d[i] = widen_half(s[i]);
}

static void NAME(narrow_half)(void *d_, const float *s, size_t n, const f8_table *table)
{
    uint16_t *d = d_;
    size_t i = 0;
    (void)table;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(d + i), NAME(narrow8)(_mm256_loadu_ps(s + i)));
    for (; i < n; i++)
        d[i] = narrow_half(s[i]);
}
#endif

static void NAME(widen_float8)(float *d, const void *s_, size_t n, const f8_table *table)
{
    const uint8_t *s = s_;
    LOOP for (size_t i = 0; i < n; i++) d[i] = table->decode[s[i]];
}

static void NAME(narrow_float8)(void *d_, const float *s, size_t n, const f8_table *table)
{
    uint8_t *d = d_;
    LOOP for (size_t i = 0; i < n; i++)
    {
        const uint32_t u = bits_of(s[i]), m = u & 0x7fffffff;
        d[i] = table->code[u >> 31][(table->rank[m >> 19] + (m & 0x7ffff)) >> 20];
    }
}

#define BITS_ROW(u, s) \
    {NAME(sum_##u), NAME(prod_##u), NAME(min_##s), NAME(max_##s), NAME(and_##u), NAME(or_##u), NAME(xor_##u)}
#define FLOAT_ROW(f) {NAME(sum_##f), NAME(prod_##f), NAME(min_##f), NAME(max_##f)}

static const level NAME(level) = {
    .pair = {
        [NVSYM_BOOL] = {NAME(any_bool), NAME(all_bool), NAME(all_bool), NAME(any_bool), NAME(all_bool), NAME(any_bool),
                        NAME(odd_bool)},
        [NVSYM_INT8] = BITS_ROW(u8, i8),
        [NVSYM_UINT8] = BITS_ROW(u8, u8),
        [NVSYM_INT16] = BITS_ROW(u16, i16),
        [NVSYM_UINT16] = BITS_ROW(u16, u16),
        [NVSYM_INT32] = BITS_ROW(u32, i32),
        [NVSYM_UINT32] = BITS_ROW(u32, u32),
        [NVSYM_INT64] = BITS_ROW(u64, i64),
        [NVSYM_UINT64] = BITS_ROW(u64, u64),
        [NVSYM_FLOAT16] = FLOAT_ROW(half),
        [NVSYM_FLOAT32] = FLOAT_ROW(float),
        [NVSYM_FLOAT64] = FLOAT_ROW(double),
        [NVSYM_LONGDOUBLE] = {sum_long_double_base, prod_long_double_base, min_long_double_base, max_long_double_base},
        [NVSYM_COMPLEX64] = {NAME(sum_cfloat), NAME(prod_cfloat)},
        [NVSYM_COMPLEX128] = {NAME(sum_cdouble), NAME(prod_cdouble)},
        [NVSYM_CLONGDOUBLE] = {sum_clong_double_base, prod_clong_double_base},
        [NVSYM_BFLOAT16] = FLOAT_ROW(bfloat16),
    },
    .half = {NAME(widen_half), NAME(narrow_half)},
    .bfloat16 = {NAME(widen_bfloat16), NAME(narrow_bfloat16)},
    .float8 = {NAME(widen_float8), NAME(narrow_float8)},
};

#undef BITS_ROW
#undef FLOAT_ROW
#endif
