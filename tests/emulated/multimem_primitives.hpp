/* SPDX-License-Identifier: Apache-2.0
 *
 * The instructions of include/nvsym/multimem.cuh on emulated PEs, in place of that header. A multicast address is one that nothing
 * is mapped at: any other access ends the process. */
#pragma once
namespace emulated {
inline char *multicast = nullptr;
inline std::vector<char *> members; /* what a multicast address reaches */
} // namespace emulated

namespace nvsym {
namespace multimem {

template <class T, int N> struct alignas(sizeof(T) * N) Vec {
    T at[N];
};
struct Add {
    template <class T> static T apply(T a, T b) { return a + b; }
};
struct Min {};
struct Max {};
struct And {};
struct Or {};
struct Xor {};

/* Not atomic as a whole: 4 bytes of one member at a time. */
template <class Op, class T, int N> Vec<T, N> ld_reduce(const Vec<T, N> *p)
{
    Vec<T, N> v;
    if ((u64)p % sizeof(v))
        abort();
    for (int k = 0; k < N; k++)
        for (size_t m = 0; m < emulated::members.size(); m++) {
            emulated::maybe_leave();
            const T x = ((const T *)(emulated::members[m] + ((const char *)p - emulated::multicast)))[k];
            v.at[k] = m == 0 ? x : Op::apply(v.at[k], x);
        }
    return v;
}
template <class T, int N> void store(Vec<T, N> *p, Vec<T, N> v)
{
    if ((u64)p % sizeof(v))
        abort();
    for (char *member : emulated::members)
        for (int k = 0; k < N; k++) {
            emulated::maybe_leave();
            ((T *)(member + ((char *)p - emulated::multicast)))[k] = v.at[k];
        }
}
inline void fence_alias() {}

} // namespace multimem
} // namespace nvsym
