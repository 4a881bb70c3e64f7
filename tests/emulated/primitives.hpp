/* SPDX-License-Identifier: Apache-2.0
 *
 * The accesses of include/nvsym/device.cuh, which includes this inside its namespace, on a CPU. */
inline Words load16(const void *p)
{
    emulated::maybe_leave();
    if ((u64)p & 15u)
        abort();
    Words v;
    memcpy(&v, p, 16);
    return v;
}
inline void store16(void *p, Words v)
{
    emulated::maybe_leave();
    if ((u64)p & 15u)
        abort();
    memcpy(p, &v, 16);
}
inline Words load_flagged(const void *p)
{
    emulated::leave();
    Words v;
    memcpy(&v, p, 16);
    return v;
}
/* The two pairs become visible one after the other. */
inline void store_flagged(void *p, u32 a, u32 b, u32 flag)
{
    const u32 first[2] = {a, flag}, second[2] = {b, flag};
    emulated::maybe_leave();
    memcpy(p, first, 8);
    emulated::maybe_leave();
    memcpy((char *)p + 8, second, 8);
}
/* Each word becomes visible by itself. */
inline void store_words(void *p, Words v)
{
    for (int k = 0; k < 4; k++) {
        emulated::maybe_leave();
        ((u32 *)p)[k] = v.w[k];
    }
}
inline u32 load_byte(const u8 *p)
{
    emulated::leave();
    return *p;
}
inline void store_byte(u8 *p, u32 v)
{
    emulated::maybe_leave();
    *p = (u8)v;
}
inline u32 load_acquire(const u32 *p)
{
    emulated::leave();
    return *p;
}
inline u64 load_acquire(const u64 *p)
{
    emulated::leave();
    return *p;
}
inline void store_release(u32 *p, u32 v)
{
    emulated::maybe_leave();
    *p = v;
}
inline void store_release(u64 *p, u64 v)
{
    emulated::maybe_leave();
    *p = v;
}
inline void add_release(u64 *p, u64 v)
{
    emulated::maybe_leave();
    *p += v;
}
inline u64 now_ns() { return emulated::clock_ns += 1000; }
