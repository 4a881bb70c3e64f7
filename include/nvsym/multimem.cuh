/* SPDX-License-Identifier: Apache-2.0
 *
 * The multimem instructions, on addresses of a multicast object (SymmetricPool.multicast_view): a reducing load combines what all
 * members hold at an address, a store goes to all of them, a reduction combines a value with what each of them holds. The NVLink
 * switch does it. PTX ISA, "Data Movement and Conversion Instructions: multimem".
 *
 *     using namespace nvsym::multimem;
 *     auto *mc = (Vec<bf16x2, 4> *)multicast + i;          // 16 bytes
 *     store(mc, ld_reduce<Add>(mc));
 *
 * Only these instructions may touch a multicast address, and they may touch no other; addresses are aligned to the access. Every
 * access is relaxed at system scope, or acquires (ld_reduce) or releases (store, red), never weak: the members are other GPUs. It
 * is not atomic as a whole: each member's part is, in pieces of at most 8 bytes. Between accesses to a place through its multicast
 * address and through its other one stands fence_alias(), or the end of a kernel.
 *
 * Sums of 16-bit floats are accumulated in float32, of 8-bit floats in float16; in which order is the switch's, so that the bits
 * may differ from a sum in order of the members. What an architecture or the instruction set lacks is an error of the compiler.
 *
 * Needs no other header, so that NVRTC compiles it without an include path. */
#ifndef NVSYM_MULTIMEM_CUH
#define NVSYM_MULTIMEM_CUH

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define NVSYM_MULTIMEM_HAS 0
#else
#define NVSYM_MULTIMEM_HAS 1
#endif

/* 8-bit floats: in the features of an architecture or of a family of them, never in what later ones have for granted. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM101_ALL) ||                       \
    defined(__CUDA_ARCH_FEAT_SM103_ALL) || defined(__CUDA_ARCH_FEAT_SM110_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL) ||           \
    defined(__CUDA_ARCH_FEAT_SM121_ALL)
#define NVSYM_MULTIMEM_HAS_FP8 1
#elif defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#define NVSYM_MULTIMEM_HAS_FP8 (__CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000 && __CUDA_ARCH_FAMILY_SPECIFIC__ < 1200)
#else
#define NVSYM_MULTIMEM_HAS_FP8 0
#endif

namespace nvsym {
namespace multimem {

/* ---- what is accessed ---------------------------------------------------------------------------------------------- */

/* float, double, int, unsigned, long long and unsigned long long are themselves; these are packed into 32 bits. */
struct f16x2 { unsigned bits; };
struct bf16x2 { unsigned bits; };
struct e4m3x4 { unsigned bits; };
struct e5m2x4 { unsigned bits; };

template <class T, int N> struct alignas(sizeof(T) * N) Vec {
    T at[N];
};

struct Add {};
struct Min {};
struct Max {};
struct And {};
struct Or {};
struct Xor {};

struct Relaxed {};
struct Acquire {};
struct Release {};

template <class T> struct IsFp8 { static constexpr bool value = false; };
template <> struct IsFp8<e4m3x4> { static constexpr bool value = true; };
template <> struct IsFp8<e5m2x4> { static constexpr bool value = true; };

/* ---- forms --------------------------------------------------------------------------------------------------------- */

/* One specialisation for each form that the instruction set has; there is no other. */
template <class Op, class Order, class T, int N> struct LdReduce { static constexpr bool exists = false; };
template <class Order, class T, int N> struct Store { static constexpr bool exists = false; };
template <class Op, class Order, class T, int N> struct Red { static constexpr bool exists = false; };

#define NVSYM_MM_OUT_1(C, V) C(V(0))
#define NVSYM_MM_OUT_2(C, V) C(V(0)), C(V(1))
#define NVSYM_MM_OUT_4(C, V) C(V(0)), C(V(1)), C(V(2)), C(V(3))
#define NVSYM_MM_LIST_1 "%0"
#define NVSYM_MM_LIST_2 "{%0, %1}"
#define NVSYM_MM_LIST_4 "{%0, %1, %2, %3}"
#define NVSYM_MM_AT_1 "[%1]"
#define NVSYM_MM_AT_2 "[%2]"
#define NVSYM_MM_AT_4 "[%4]"
/* In a store the address comes first, as the operand behind the values. */
#define NVSYM_MM_VEC_1 ""
#define NVSYM_MM_VEC_2 ".v2"
#define NVSYM_MM_VEC_4 ".v4"
#define NVSYM_MM_SELF(i) v.at[i]
#define NVSYM_MM_BITS(i) v.at[i].bits

#define NVSYM_MM_LD_1(OP, ORDER, SEM, T, N, OPTEXT, TYPE, CON, V)                                                                  \
    template <> struct LdReduce<OP, ORDER, T, N> {                                                                                 \
        static constexpr bool exists = true;                                                                                       \
        static __device__ __forceinline__ Vec<T, N> run(const void *p)                                                             \
        {                                                                                                                          \
            Vec<T, N> v;                                                                                                           \
            asm volatile("multimem.ld_reduce." SEM ".sys.global." OPTEXT NVSYM_MM_VEC_##N "." TYPE " " NVSYM_MM_LIST_##N           \
                         ", " NVSYM_MM_AT_##N ";"                                                                                  \
                         : NVSYM_MM_OUT_##N(CON, V)                                                                                \
                         : "l"(p)                                                                                                  \
                         : "memory");                                                                                              \
            return v;                                                                                                              \
        }                                                                                                                          \
    };
#define NVSYM_MM_ST_1(ORDER, SEM, T, N, TYPE, CON, V)                                                                              \
    template <> struct Store<ORDER, T, N> {                                                                                        \
        static constexpr bool exists = true;                                                                                       \
        static __device__ __forceinline__ void run(void *p, Vec<T, N> v)                                                           \
        {                                                                                                                          \
            asm volatile("multimem.st." SEM ".sys.global" NVSYM_MM_VEC_##N "." TYPE " " NVSYM_MM_AT_##N ", " NVSYM_MM_LIST_##N ";" \
                         ::NVSYM_MM_OUT_##N(CON, V), "l"(p)                                                                        \
                         : "memory");                                                                                              \
        }                                                                                                                          \
    };
#define NVSYM_MM_RED_1(OP, ORDER, SEM, T, N, OPTEXT, TYPE, CON, V)                                                                 \
    template <> struct Red<OP, ORDER, T, N> {                                                                                      \
        static constexpr bool exists = true;                                                                                       \
        static __device__ __forceinline__ void run(void *p, Vec<T, N> v)                                                           \
        {                                                                                                                          \
            asm volatile("multimem.red." SEM ".sys.global." OPTEXT NVSYM_MM_VEC_##N "." TYPE " " NVSYM_MM_AT_##N                   \
                         ", " NVSYM_MM_LIST_##N ";" ::NVSYM_MM_OUT_##N(CON, V),                                                    \
                         "l"(p)                                                                                                    \
                         : "memory");                                                                                              \
        }                                                                                                                          \
    };

#define NVSYM_MM_LD(OP, T, N, OPTEXT, TYPE, CON, V)                                                                                \
    NVSYM_MM_LD_1(OP, Relaxed, "relaxed", T, N, OPTEXT, TYPE, CON, V)                                                              \
    NVSYM_MM_LD_1(OP, Acquire, "acquire", T, N, OPTEXT, TYPE, CON, V)
#define NVSYM_MM_ST(T, N, TYPE, CON, V)                                                                                            \
    NVSYM_MM_ST_1(Relaxed, "relaxed", T, N, TYPE, CON, V)                                                                          \
    NVSYM_MM_ST_1(Release, "release", T, N, TYPE, CON, V)
#define NVSYM_MM_RED(OP, T, N, OPTEXT, TYPE, CON, V)                                                                               \
    NVSYM_MM_RED_1(OP, Relaxed, "relaxed", T, N, OPTEXT, TYPE, CON, V)                                                             \
    NVSYM_MM_RED_1(OP, Release, "release", T, N, OPTEXT, TYPE, CON, V)
#define NVSYM_MM_BOTH(OP, T, OPTEXT, TYPE, CON)                                                                                    \
    NVSYM_MM_LD(OP, T, 1, OPTEXT, TYPE, "=" CON, NVSYM_MM_SELF)                                                                    \
    NVSYM_MM_RED(OP, T, 1, OPTEXT, TYPE, CON, NVSYM_MM_SELF)

#if NVSYM_MULTIMEM_HAS
/* Floats of 32 and 64 bits: sums only. */
#define NVSYM_MM_F32(N)                                                                                                            \
    NVSYM_MM_LD(Add, float, N, "add", "f32", "=f", NVSYM_MM_SELF)                                                                  \
    NVSYM_MM_ST(float, N, "f32", "f", NVSYM_MM_SELF)                                                                               \
    NVSYM_MM_RED(Add, float, N, "add", "f32", "f", NVSYM_MM_SELF)
NVSYM_MM_F32(1)
NVSYM_MM_F32(2)
NVSYM_MM_F32(4)
NVSYM_MM_BOTH(Add, double, "add", "f64", "d")
NVSYM_MM_ST(double, 1, "f64", "d", NVSYM_MM_SELF)

/* Pairs of 16-bit floats. */
#define NVSYM_MM_16(T, N, TYPE)                                                                                                    \
    NVSYM_MM_LD_SUM(T, N, TYPE)                                                                                                    \
    NVSYM_MM_LD(Min, T, N, "min", TYPE, "=r", NVSYM_MM_BITS)                                                                       \
    NVSYM_MM_LD(Max, T, N, "max", TYPE, "=r", NVSYM_MM_BITS)                                                                       \
    NVSYM_MM_ST(T, N, TYPE, "r", NVSYM_MM_BITS)                                                                                    \
    NVSYM_MM_RED(Add, T, N, "add", TYPE, "r", NVSYM_MM_BITS)
#define NVSYM_MM_LD_SUM(T, N, TYPE)                                                                                                \
    NVSYM_MM_LD(Add, T, N, "add.acc::f32", TYPE, "=r", NVSYM_MM_BITS)
NVSYM_MM_16(f16x2, 1, "f16x2")
NVSYM_MM_16(f16x2, 2, "f16x2")
NVSYM_MM_16(f16x2, 4, "f16x2")
NVSYM_MM_16(bf16x2, 1, "bf16x2")
NVSYM_MM_16(bf16x2, 2, "bf16x2")
NVSYM_MM_16(bf16x2, 4, "bf16x2")

/* Integers. A sum of long long is one of unsigned long long: the instruction set has no other. */
#define NVSYM_MM_INT(T, TYPE, BITS, CON)                                                                                           \
    NVSYM_MM_BOTH(Min, T, "min", TYPE, CON)                                                                                        \
    NVSYM_MM_BOTH(Max, T, "max", TYPE, CON)                                                                                        \
    NVSYM_MM_BOTH(And, T, "and", BITS, CON)                                                                                        \
    NVSYM_MM_BOTH(Or, T, "or", BITS, CON)                                                                                          \
    NVSYM_MM_BOTH(Xor, T, "xor", BITS, CON)                                                                                        \
    NVSYM_MM_ST(T, 1, TYPE, CON, NVSYM_MM_SELF)
NVSYM_MM_INT(unsigned, "u32", "b32", "r")
NVSYM_MM_INT(int, "s32", "b32", "r")
NVSYM_MM_INT(unsigned long long, "u64", "b64", "l")
NVSYM_MM_INT(long long, "s64", "b64", "l")
NVSYM_MM_BOTH(Add, unsigned, "add", "u32", "r")
NVSYM_MM_BOTH(Add, int, "add", "s32", "r")
NVSYM_MM_BOTH(Add, unsigned long long, "add", "u64", "l")
NVSYM_MM_BOTH(Add, long long, "add", "u64", "l")
#endif

#if NVSYM_MULTIMEM_HAS_FP8
/* Fours of 8-bit floats: loads and stores, no reductions in place. */
#define NVSYM_MM_8(T, N, TYPE)                                                                                                     \
    NVSYM_MM_LD(Add, T, N, "add.acc::f16", TYPE, "=r", NVSYM_MM_BITS)                                                              \
    NVSYM_MM_LD(Min, T, N, "min", TYPE, "=r", NVSYM_MM_BITS)                                                                       \
    NVSYM_MM_LD(Max, T, N, "max", TYPE, "=r", NVSYM_MM_BITS)                                                                       \
    NVSYM_MM_ST(T, N, TYPE, "r", NVSYM_MM_BITS)
NVSYM_MM_8(e4m3x4, 1, "e4m3x4")
NVSYM_MM_8(e4m3x4, 2, "e4m3x4")
NVSYM_MM_8(e4m3x4, 4, "e4m3x4")
NVSYM_MM_8(e5m2x4, 1, "e5m2x4")
NVSYM_MM_8(e5m2x4, 2, "e5m2x4")
NVSYM_MM_8(e5m2x4, 4, "e5m2x4")
#endif

/* ---- what is called ------------------------------------------------------------------------------------------------ */

#define NVSYM_MM_CHECK(FORM)                                                                                                       \
    static_assert(NVSYM_MULTIMEM_HAS || sizeof(T) == 0, "multimem instructions need sm_90 or later");                             \
    static_assert(!IsFp8<T>::value || NVSYM_MULTIMEM_HAS_FP8 || sizeof(T) == 0,                                                    \
                  "multimem instructions on 8-bit floats need sm_100a, or another architecture with its own features (sm_103a, "  \
                  "sm_120a, ...)");                                                                                                \
    static_assert(!NVSYM_MULTIMEM_HAS || (IsFp8<T>::value && !NVSYM_MULTIMEM_HAS_FP8) || FORM::exists,                             \
                  "the instruction set has no such multimem form: see the table in multimem.cuh");

/*  type                       | N       | ld_reduce                     | store | red
 *  ---------------------------|---------|-------------------------------|-------|------------------------------
 *  float                      | 1, 2, 4 | Add                           | yes   | Add
 *  double                     | 1       | Add                           | yes   | Add
 *  f16x2, bf16x2              | 1, 2, 4 | Add, Min, Max                 | yes   | Add
 *  unsigned, int,             | 1       | Add, Min, Max, And, Or, Xor   | yes   | Add, Min, Max, And, Or, Xor
 *  (unsigned) long long       |         |                               |       |
 *  e4m3x4, e5m2x4             | 1, 2, 4 | Add, Min, Max                 | yes   | none                            */

/* What all members hold at `p`, combined. Order: Relaxed or Acquire. */
template <class Op, class Order = Relaxed, class T, int N> __device__ __forceinline__ Vec<T, N> ld_reduce(const Vec<T, N> *p)
{
    typedef LdReduce<Op, Order, T, N> Form;
    NVSYM_MM_CHECK(Form)
    return Form::run(p);
}

/* `v` to `p` of all members. Order: Relaxed or Release. */
template <class Order = Relaxed, class T, int N> __device__ __forceinline__ void store(Vec<T, N> *p, Vec<T, N> v)
{
    typedef Store<Order, T, N> Form;
    NVSYM_MM_CHECK(Form)
    Form::run(p, v);
}

/* Combine `v` with what each member holds at `p`. Order: Relaxed or Release. */
template <class Op, class Order = Relaxed, class T, int N> __device__ __forceinline__ void red(Vec<T, N> *p, Vec<T, N> v)
{
    typedef Red<Op, Order, T, N> Form;
    NVSYM_MM_CHECK(Form)
    Form::run(p, v);
}

/* The same of one element. */
template <class Op, class Order = Relaxed, class T> __device__ __forceinline__ T ld_reduce(const T *p)
{
    return ld_reduce<Op, Order>((const Vec<T, 1> *)p).at[0];
}
template <class Order = Relaxed, class T> __device__ __forceinline__ void store(T *p, T v)
{
    store<Order>((Vec<T, 1> *)p, Vec<T, 1>{{v}});
}
template <class Op, class Order = Relaxed, class T> __device__ __forceinline__ void red(T *p, T v)
{
    red<Op, Order>((Vec<T, 1> *)p, Vec<T, 1>{{v}});
}

/* Orders accesses of this thread through a multicast address and through the other address of the same memory. */
__device__ __forceinline__ void fence_alias() { asm volatile("fence.proxy.alias;" ::: "memory"); }

} // namespace multimem
} // namespace nvsym

#endif
