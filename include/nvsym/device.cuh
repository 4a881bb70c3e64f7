/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels are built from: element types that convert to the type they are summed in, operators, loads and stores
 * of 16 bytes, flags between PEs. Needs no other header, so that NVRTC compiles it without an include path. */
#ifndef NVSYM_DEVICE_CUH
#define NVSYM_DEVICE_CUH

namespace nvsym {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int MAX_PES = 32;

/* ---- element types ------------------------------------------------------------------------------------------------ */

/* Stored as 16 bits, summed in float32 and rounded once, to nearest even. */
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

template <class T> struct Element {
    typedef T Sum;
    static constexpr bool PAIRS = false; /* has store_pair, of two in a word */
    static __device__ __forceinline__ T load(T x) { return x; }
    static __device__ __forceinline__ T store(T x) { return x; }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define NVSYM_CONVERTS_PAIRS 1 /* and bfloat16 */
#else
#define NVSYM_CONVERTS_PAIRS 0
#endif

#ifndef NVSYM_EMULATED
template <> struct Element<f16> {
    typedef float Sum;
    static constexpr bool PAIRS = NVSYM_CONVERTS_PAIRS;
    static __device__ __forceinline__ float load(f16 x)
    {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
        return f;
    }
    static __device__ __forceinline__ f16 store(float x)
    {
        f16 h;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
        return h;
    }
#if NVSYM_CONVERTS_PAIRS
    static __device__ __forceinline__ u32 store_pair(float x, float y)
    {
        u32 pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
        return pair;
    }
#endif
};
#endif

template <> struct Element<bf16> {
    typedef float Sum;
    static constexpr bool PAIRS = NVSYM_CONVERTS_PAIRS;
    static __device__ __forceinline__ float load(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
#if NVSYM_CONVERTS_PAIRS
    static __device__ __forceinline__ bf16 store(float x)
    {
        bf16 b;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b.bits) : "f"(x));
        return b;
    }
    static __device__ __forceinline__ u32 store_pair(float x, float y)
    {
        u32 pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
        return pair;
    }
#else
    static __device__ __forceinline__ bf16 store(float x)
    {
        u32 u = __float_as_uint(x);
        bf16 b;
        /* NaN stays NaN: the carry of the rounding would make it infinity or zero. */
        b.bits = (u & 0x7fffffffu) > 0x7f800000u ? (u16)((u >> 16) | 0x40u) : (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
        return b;
    }
#endif
};

/* A float8 type of EXPONENT and MANTISSA bits, summed in float32 and rounded once, to nearest even, as ml_dtypes does it. */
enum Float8Kind {
    IEEE,       /* has infinities and NaNs */
    FINITE,     /* the largest code is NaN, there is no infinity */
    UNSIGNED_0  /* the code of -0 is the one NaN */
};
template <int EXPONENT, int MANTISSA, int BIAS, Float8Kind KIND> struct f8 {
    u8 bits;
};
typedef f8<3, 4, 3, IEEE> e3m4;
typedef f8<4, 3, 7, IEEE> e4m3;
typedef f8<4, 3, 7, FINITE> e4m3fn;
typedef f8<4, 3, 8, UNSIGNED_0> e4m3fnuz;
typedef f8<4, 3, 11, UNSIGNED_0> e4m3b11fnuz;
typedef f8<5, 2, 15, IEEE> e5m2;
typedef f8<5, 2, 16, UNSIGNED_0> e5m2fnuz;

template <int EXPONENT, int MANTISSA, int BIAS, Float8Kind KIND> struct Element<f8<EXPONENT, MANTISSA, BIAS, KIND>> {
    typedef float Sum;
    typedef f8<EXPONENT, MANTISSA, BIAS, KIND> Type;
    static constexpr bool PAIRS = false;
    static constexpr u32 INFINITE = ((1u << EXPONENT) - 1u) << MANTISSA; /* the first code with the largest exponent */
    /* The first code that is no finite number, and what becomes of numbers that would round to it or beyond. */
    static constexpr u32 END = KIND == IEEE ? INFINITE : KIND == FINITE ? 0x7fu : 0x80u;

    static __device__ __forceinline__ float load(Type x)
    {
        const u32 magnitude = x.bits & 0x7fu, sign = (u32)(x.bits & 0x80u) << 24;
        if (KIND == UNSIGNED_0 ? x.bits == 0x80u : magnitude > (KIND == IEEE ? INFINITE : END - 1u))
            return __uint_as_float(sign | 0x7fc00000u);
        if (KIND == IEEE && magnitude == INFINITE)
            return __uint_as_float(sign | 0x7f800000u);
        /* As if it were a float32 of the same fields, which has a larger bias; subnormal numbers come out right as well. */
        const float scale = __uint_as_float((u32)(127 + 127 - BIAS) << 23);
        return __uint_as_float(sign | __float_as_uint(__fmul_rn(__uint_as_float(magnitude << (23 - MANTISSA)), scale)));
    }

    static __device__ __forceinline__ Type store(float x)
    {
        const u32 u = __float_as_uint(x) & 0x7fffffffu, sign = (__float_as_uint(x) >> 24) & 0x80u;
        constexpr u32 SMALLEST = (u32)(127 + 1 - BIAS) << 23; /* the smallest normal number */
        u32 code;
        Type out;
        if (u > 0x7f800000u) {
            out.bits = KIND == UNSIGNED_0 ? 0x80u : (u8)(sign | (KIND == IEEE ? INFINITE + (1u << (MANTISSA - 1)) : 0x7fu));
            return out;
        }
        if (u >= SMALLEST) {
            code = (u + ((1u << (22 - MANTISSA)) - 1u) + ((u >> (23 - MANTISSA)) & 1u)) >> (23 - MANTISSA);
            code -= (u32)(127 - BIAS) << MANTISSA;
            if (code >= END) {
                out.bits = KIND == UNSIGNED_0 ? 0x80u : (u8)(sign | END);
                return out;
            }
        } else {
            /* A float32 whose last bit is worth what the last of a subnormal code is: the addition rounds. */
            constexpr u32 MAGIC = (u32)(127 + 1 - BIAS - MANTISSA + 23) << 23;
            code = __float_as_uint(__fadd_rn(__uint_as_float(u), __uint_as_float(MAGIC))) - MAGIC;
        }
        out.bits = KIND == UNSIGNED_0 && code == 0 ? 0u : (u8)(sign | code);
        return out;
    }
};

template <> struct Element<bool> {
    typedef bool Sum;
    static constexpr bool PAIRS = false;
    static __device__ __forceinline__ bool load(bool x) { return x; }
    static __device__ __forceinline__ bool store(bool x) { return x; }
};

/* ---- operators ---------------------------------------------------------------------------------------------------- */

template <class S> __device__ __forceinline__ bool is_nan(S) { return false; }
__device__ __forceinline__ bool is_nan(float x) { return x != x; }
__device__ __forceinline__ bool is_nan(double x) { return x != x; }

struct Sum {
    template <class S> static __device__ __forceinline__ S apply(S a, S b) { return (S)(a + b); }
    static __device__ __forceinline__ float apply(float a, float b) { return __fadd_rn(a, b); }
    static __device__ __forceinline__ double apply(double a, double b) { return __dadd_rn(a, b); }
    static __device__ __forceinline__ bool apply(bool a, bool b) { return a || b; }
};
struct Prod {
    template <class S> static __device__ __forceinline__ S apply(S a, S b) { return (S)(a * b); }
    static __device__ __forceinline__ float apply(float a, float b) { return __fmul_rn(a, b); }
    static __device__ __forceinline__ double apply(double a, double b) { return __dmul_rn(a, b); }
    static __device__ __forceinline__ bool apply(bool a, bool b) { return a && b; }
};
/* NaN if either is, and the first of equal operands, as numpy.minimum and numpy.maximum. */
struct Min {
    template <class S> static __device__ __forceinline__ S apply(S a, S b) { return (is_nan(a) || a <= b) ? a : b; }
};
struct Max {
    template <class S> static __device__ __forceinline__ S apply(S a, S b) { return (is_nan(a) || a >= b) ? a : b; }
};
struct And {
    template <class S> static __device__ __forceinline__ S apply(S a, S b) { return (S)(a & b); }
};
struct Or {
    template <class S> static __device__ __forceinline__ S apply(S a, S b) { return (S)(a | b); }
};
struct Xor {
    template <class S> static __device__ __forceinline__ S apply(S a, S b) { return (S)(a ^ b); }
};

/* ---- launches ----------------------------------------------------------------------------------------------------- */

/* First of all in every kernel of a collective and of a put: one that is launched while the one before it on the stream still runs
 * (programmatic dependent launch) waits until that one is done and what it stored is visible. Then it lets the next one be launched, up
 * to here; so do kernels that are never launched early themselves, as the one behind them may be. Nothing where no launch is early. */
__device__ __forceinline__ void await_predecessor()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

struct alignas(16) Words {
    u32 w[4];
};

#ifdef NVSYM_EMULATED
#include NVSYM_EMULATED /* the same functions for the kernels' tests on a CPU */
#else

/* Weak accesses: ordered by the barriers around them, which release and acquire at system scope. Never the read-only
 * path (ld.global.nc): peers change this memory while kernels run. */
__device__ __forceinline__ Words load16(const void *p)
{
    Words v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store16(void *p, Words v)
{
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}

/* Two pairs of data and flag: each pair is one 8-byte access, so a flag vouches for its data without a barrier. */
__device__ __forceinline__ Words load_flagged(const void *p)
{
    Words v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_flagged(void *p, u32 a, u32 b, u32 flag)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(a), "r"(flag), "r"(b), "r"(flag) : "memory");
}

/* Four words that a peer polls; the store of each is whole. */
__device__ __forceinline__ void store_words(void *p, Words v)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}

/* A byte that a peer polls, or stores. */
__device__ __forceinline__ u32 load_byte(const u8 *p) { return *(const volatile u8 *)p; }
__device__ __forceinline__ void store_byte(u8 *p, u32 v) { *(volatile u8 *)p = (u8)v; }

__device__ __forceinline__ u32 load_acquire(const u32 *p)
{
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ u64 load_acquire(const u64 *p)
{
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void store_release(u32 *p, u32 v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ u64 now_ns()
{
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ void add_release(u64 *p, u64 v)
{
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_release(u64 *p, u64 v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
#endif

} // namespace nvsym

#endif
