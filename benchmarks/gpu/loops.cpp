// SPDX-License-Identifier: Apache-2.0
// The C++ loops that nvsym's calls are compared with: the same functions of the same libraries, through pointers. Each returns
// nanoseconds per call.
#include <chrono>
#include <cstddef>
#include <cstdint>

template <class F> static double timed(int n, F call)
{
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < n; i++)
        call();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / n;
}

extern "C" {
double loop_rma(void (*f)(void *, const void *, size_t, int, void *), void *to, void *from, size_t size, int pe, void *stream, int n)
{
    return timed(n, [=] { f(to, from, size, pe, stream); });
}
double loop_put_signal(void (*f)(void *, const void *, size_t, uint64_t *, uint64_t, int, int, void *), void *to, void *from,
                       size_t size, uint64_t *signal, int pe, void *stream, int n)
{
    return timed(n, [=] { f(to, from, size, signal, 1, 9, pe, stream); });
}
double loop_signal_op(void (*f)(uint64_t *, uint64_t, int, int, void *), uint64_t *signal, int pe, void *stream, int n)
{
    return timed(n, [=] { f(signal, 1, 9, pe, stream); });
}
double loop_stream(void (*f)(void *), void *stream, int n)
{
    return timed(n, [=] { f(stream); });
}
double loop_reduce(int (*f)(int, void *, const void *, size_t, void *), void *to, void *from, size_t count, void *stream, int n)
{
    return timed(n, [=] { f(0, to, from, count, stream); });
}
// Seconds of one copy, completed.
double copy(int (*f)(uint64_t, uint64_t, size_t, void *), int (*wait)(void *), uint64_t to, uint64_t from, size_t size, void *stream)
{
    return 1e-9 * timed(1, [=] { f(to, from, size, stream); wait(stream); });
}
}
