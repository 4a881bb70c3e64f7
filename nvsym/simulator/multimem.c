/* SPDX-License-Identifier: Apache-2.0
 *
 * The instructions multimem.ld_reduce, multimem.st and multimem.red, and ordinary loads and stores with memory order, called
 * from the host. Forms and alignment as in the PTX ISA, "Data Movement and Conversion Instructions: multimem".
 *
 * Processors of the x86 kind hide what is missing in a protocol: they keep stores in order. In the deferred mode of a thread its
 * stores wait, and the newest comes first, until a release or a fence lets all of them out; and its weak loads see memory as it
 * was at its last acquire, by a journal that each allocation keeps of what was overwritten. So data that is announced by a
 * relaxed store, or read behind a relaxed load, is wrong at once.
 */
#include "floats.h"
#include "objects.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- forms -------------------------------------------------------------------------------------------------------------- */

enum { OP_ADD = 1, OP_MIN = 2, OP_MAX = 4, OP_AND = 8, OP_OR = 16, OP_XOR = 32 };
enum { V1 = 1, V2 = 2, V4 = 4, V8 = 8 };
enum { WEAK, RELAXED, ACQUIRE, RELEASE };

typedef struct { const char *name; int kind, width, packed, vectors, loads, red_vectors, reds; } form;
#define ARITHMETIC (OP_ADD | OP_MIN | OP_MAX)
#define BITWISE (OP_AND | OP_OR | OP_XOR)
static const form forms[] = {
    {"f32", F32, 4, 1, V1 | V2 | V4, OP_ADD, V1 | V2 | V4, OP_ADD},
    {"f64", F64, 8, 1, V1, OP_ADD, V1, OP_ADD},
    {"f16", F16, 2, 1, V2 | V4 | V8, ARITHMETIC, V2 | V4 | V8, OP_ADD},
    {"bf16", BF16, 2, 1, V2 | V4 | V8, ARITHMETIC, V2 | V4 | V8, OP_ADD},
    {"f16x2", F16, 2, 2, V1 | V2 | V4, ARITHMETIC, V1 | V2 | V4, OP_ADD},
    {"bf16x2", BF16, 2, 2, V1 | V2 | V4, ARITHMETIC, V1 | V2 | V4, OP_ADD},
    {"u32", UNSIGNED, 4, 1, V1, ARITHMETIC, V1, ARITHMETIC},
    {"s32", SIGNED, 4, 1, V1, ARITHMETIC, V1, ARITHMETIC},
    {"u64", UNSIGNED, 8, 1, V1, ARITHMETIC, V1, ARITHMETIC},
    {"s64", SIGNED, 8, 1, V1, OP_MIN | OP_MAX, V1, OP_MIN | OP_MAX},
    {"b32", BITS, 4, 1, V1, BITWISE, V1, BITWISE},
    {"b64", BITS, 8, 1, V1, BITWISE, V1, BITWISE},
    {"e4m3", E4M3, 1, 1, V4 | V8, ARITHMETIC, 0, 0},
    {"e5m2", E5M2, 1, 1, V4 | V8, ARITHMETIC, 0, 0},
    {"e4m3x2", E4M3, 1, 2, V2 | V4 | V8, ARITHMETIC, 0, 0},
    {"e5m2x2", E5M2, 1, 2, V2 | V4 | V8, ARITHMETIC, 0, 0},
    {"e4m3x4", E4M3, 1, 4, V1 | V2 | V4, ARITHMETIC, 0, 0},
    {"e5m2x4", E5M2, 1, 4, V1 | V2 | V4, ARITHMETIC, 0, 0},
};

static int op_of(const char *name)
{
    static const struct { const char *name; int op; } ops[] = {{"add", OP_ADD}, {"min", OP_MIN}, {"max", OP_MAX},
                                                               {"and", OP_AND}, {"or", OP_OR},   {"xor", OP_XOR}};
    for (size_t i = 0; name && i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(ops[i].name, name))
            return ops[i].op;
    return 0;
}

static const form *form_of(const char *name)
{
    for (size_t i = 0; name && i < sizeof forms / sizeof *forms; i++)
        if (!strcmp(forms[i].name, name))
            return &forms[i];
    return NULL;
}

static CUresult check_form(const char *what, const form *f, const char *type, const char *op, int vectors, int ops, int vector, int device)
{
    if (f == NULL)
        return broke(INVALID_VALUE, "%s: no type %s", what, type ? type : "NULL");
    if (device < 0 || device >= sim.devices)
        return broke(INVALID_DEVICE, "%s: device %d: there are %d", what, device, sim.devices);
    if (sim_attribute(75, device) < (f->kind == E4M3 || f->kind == E5M2 ? 10 : 9))
        return broke(NOT_SUPPORTED, "%s: .%s needs compute capability %s", what, type, f->width == 1 ? "10.0" : "9.0");
    if (vector < 1 || vector > 8 || vector & (vector - 1) || !(vectors & vector))
        return broke(INVALID_VALUE, "%s: .%s has no form with %d element(s)", what, type, vector);
    if (op && !(ops & op_of(op)))
        return broke(INVALID_VALUE, "%s: .%s has no .%s", what, type, op);
    return OK;
}

/* ---- the members' memory ------------------------------------------------------------------------------------------------ */

typedef struct { ino_t inode; char *at; size_t size, whole; journal *log; } region;
typedef struct { uuid_t device; u64 offset, size, memory_offset; region *of; } segment;
struct view { u64 generation; int n_regions, n_segments; region regions[MAX_BINDS]; segment segments[MAX_BINDS]; };

static pthread_mutex_t view_lock = PTHREAD_MUTEX_INITIALIZER;   /* taken before memory_lock is given back, never the other way */

void free_view(struct view *v)
{
    if (v == NULL)
        return;
    for (int i = 0; i < v->n_regions; i++)
        munmap(v->regions[i].at, v->regions[i].whole);
    free(v);
}

static bool open_region(region *r, int fd)
{
    struct stat found;
    char *at = MAP_FAILED;
    if (fstat(fd, &found) == 0)
        at = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return false;
    label *tag = (label *)(at + found.st_size - PAGE);
    *r = (region){found.st_ino, at, tag->size, (size_t)found.st_size, (journal *)(at + tag->journal_at)};
    return true;
}

static CUresult refresh(object *o, const char *what)
{
    CUresult status = OK;
    if (o->view && o->view->generation == o->team->generation)
        return OK;
    free_view(o->view);
    o->view = NULL;
    struct view *v = calloc(1, sizeof *v);
    lock_control(o->team);
    v->generation = o->team->generation;
    for (int i = 0; i < MAX_BINDS && status == OK; i++) {
        bind_record *b = &o->team->binds[i];
        region *r = NULL;
        if (!b->used)
            continue;
        if (b->stale) {
            status = misuse(ILLEGAL_ADDRESS, "%s: memory that is bound was given back", what);
            break;
        }
        for (int k = 0; k < v->n_regions; k++)
            if (v->regions[k].inode == b->inode)
                r = &v->regions[k];
        if (r == NULL) {
            int fd = open_elsewhere(b->pid, b->fd, b->inode);
            if (fd < 0 || !open_region(&v->regions[v->n_regions], fd))
                status = misuse(ILLEGAL_ADDRESS, "%s: the memory that process %d bound is gone", what, (int)b->pid);
            else
                r = &v->regions[v->n_regions++];
            if (fd >= 0)
                close(fd);
        }
        v->segments[v->n_segments++] = (segment){b->device, b->offset, b->size, b->memory_offset, r};
    }
    pthread_mutex_unlock(&o->team->lock);
    if (status != OK) {
        free_view(v);
        return status;
    }
    o->view = v;
    return OK;
}

typedef struct { char *at; journal *log; ino_t inode; u64 offset; } place;
typedef struct { object *o; place members[MAX_TEAM]; int n; } access_to;

/* Where [at, at + size) is in each member's memory. On success the view lock is held, and the object kept. */
static CUresult reach(int device, CUdeviceptr at, size_t size, int width, bool write, const char *what, access_to *out)
{
    CUresult status = OK;
    pthread_mutex_lock(&memory_lock);
    mapping *m = mapping_at(at);
    if (m == NULL || m->of->kind != KIND_MULTICAST)
        status = misuse(ILLEGAL_ADDRESS, "%s: %#llx is not a multicast address", what, (unsigned long long)at);
    else if (at - m->at + size > m->size)
        status = broke(ILLEGAL_ADDRESS, "%s: %zu bytes at %#llx go beyond the mapping", what, size, (unsigned long long)at);
    else if (at % (unsigned)width)
        status = broke(MISALIGNED_ADDRESS, "%s: %#llx is not aligned to the %d bytes of the access", what, (unsigned long long)at, width);
    else if ((m->access[device] & (write ? 2 : 1)) == 0)
        status = broke(ILLEGAL_ADDRESS, "%s: device %d has no right to %s the multicast address (cuMemSetAccess)", what, device,
                       write ? "write" : "read");
    if (status != OK) {
        pthread_mutex_unlock(&memory_lock);
        return status;
    }
    object *o = m->of;
    u64 offset = at - m->at;
    o->mappings++;
    pthread_mutex_lock(&view_lock);
    status = refresh(o, what);
    out->o = o;
    out->n = 0;
    for (unsigned d = 0; d < o->team->n_devices && status == OK; d++) {
        segment *found = NULL;
        for (int i = 0; i < o->view->n_segments; i++) {
            segment *s = &o->view->segments[i];
            if (d < o->team->added && same_uuid(&s->device, &o->team->devices[d]) && s->offset <= offset && offset + size <= s->offset + s->size)
                found = s;
        }
        if (found == NULL) {
            status = broke(ILLEGAL_ADDRESS, "%s: nothing is bound at offset %llu (+%zu) for member %u of the team", what,
                           (unsigned long long)offset, size, d);
            break;
        }
        u64 in_memory = found->memory_offset + offset - found->offset;
        out->members[out->n++] = (place){found->of->at + in_memory, found->of->log, found->of->inode, in_memory};
    }
    if (status != OK) {
        pthread_mutex_unlock(&view_lock);
        o->mappings--;
        drop_object(o);
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

static void leave(access_to *a)
{
    pthread_mutex_unlock(&view_lock);
    pthread_mutex_lock(&memory_lock);
    a->o->mappings--;
    drop_object(a->o);
    pthread_mutex_unlock(&memory_lock);
}

/* ---- one store ---------------------------------------------------------------------------------------------------------- */

typedef struct { place to; u64 value; int width, op, kind; bool multicast; } store;     /* op 0: plain */

static u64 get(const char *at, int width)
{
    switch (width) {
    case 1: return *(volatile const unsigned char *)at;
    case 2: return *(volatile const uint16_t *)at;
    case 4: return atomic_load_explicit((_Atomic const u32 *)at, memory_order_relaxed);
    }
    return atomic_load_explicit((_Atomic const u64 *)at, memory_order_relaxed);
}

static void set(char *at, int width, u64 value)
{
    switch (width) {
    case 1: *(volatile unsigned char *)at = (unsigned char)value; return;
    case 2: *(volatile uint16_t *)at = (uint16_t)value; return;
    case 4: atomic_store_explicit((_Atomic u32 *)at, (u32)value, memory_order_relaxed); return;
    }
    atomic_store_explicit((_Atomic u64 *)at, value, memory_order_relaxed);
}

static u64 add_word(u64 a, u64 b, int width, int kind)
{
    if (kind == F32) {
        float x, y;
        u32 u = (u32)a, v = (u32)b;
        memcpy(&x, &u, 4), memcpy(&y, &v, 4);
        x += y;
        memcpy(&u, &x, 4);
        return u;
    }
    if (kind == F64) {
        double x, y;
        memcpy(&x, &a, 8), memcpy(&y, &b, 8);
        x += y;
        memcpy(&a, &x, 8);
        return a;
    }
    if (kind == F16 || kind == BF16) {
        u64 sum = 0;
        for (int i = 0; i < width * 8; i += 16)
            sum |= (u64)encode(decode(a >> i & 0xffff, layouts[kind]) + decode(b >> i & 0xffff, layouts[kind]), layouts[kind]) << i;
        return sum;
    }
    return a + b;
}

static u64 combine(u64 a, u64 b, int width, int kind, int op)
{
    bool less = kind == SIGNED ? (width == 4 ? (int32_t)a < (int32_t)b : (int64_t)a < (int64_t)b)
                               : width == 4 ? (u32)a < (u32)b : a < b;
    switch (op) {
    case OP_ADD: return add_word(a, b, width, kind);
    case OP_MIN: return less ? a : b;
    case OP_MAX: return less ? b : a;
    case OP_AND: return a & b;
    case OP_OR: return a | b;
    case OP_XOR: return a ^ b;
    }
    return b;
}

static void record(place to, int width, u64 old)
{
    if (to.log == NULL)
        return;
    journal_entry *e = &to.log->entries[to.log->written % JOURNAL];
    e->time = sim_now();
    e->offset = to.offset;
    e->width = (u64)width;
    memcpy(e->old, &old, (size_t)width);
    to.log->written++;
}

static void apply(const store *s, bool journaled)
{
    char *at = s->to.at;
    u64 old = 0;
    if (journaled && s->to.log && pthread_mutex_lock(&s->to.log->lock) != 0)
        pthread_mutex_consistent(&s->to.log->lock);
    if (s->op == 0) {
        old = get(at, s->width);
        set(at, s->width, s->value);
    } else if (s->width == 4) {
        u32 now = (u32)get(at, 4);
        while (!atomic_compare_exchange_weak((_Atomic u32 *)at, &now, (u32)combine(now, s->value, 4, s->kind, s->op)))
            ;
        old = now;
    } else {
        u64 now = get(at, 8);
        while (!atomic_compare_exchange_weak((_Atomic u64 *)at, &now, combine(now, s->value, 8, s->kind, s->op)))
            ;
        old = now;
    }
    if (journaled && s->to.log) {
        record(s->to, s->width, old);
        pthread_mutex_unlock(&s->to.log->lock);
    }
}

/* ---- the deferred mode of a thread -------------------------------------------------------------------------------------- */

enum { MOST_PENDING = 1 << 16 };
static const u64 STALE_FOR = 500000000; /* ns that a weak load may lag: whoever only polls weakly comes on at last */

static __thread struct {
    bool on;
    u64 acquired;                       /* the time that its weak loads see */
    store *pending;                     /* oldest first */
    int n;
} mode;

static void flush(void)
{
    for (int i = 0; i < mode.n; i++)
        apply(&mode.pending[i], true);
    mode.n = 0;
}

static bool overlap(const store *s, ino_t inode, u64 offset, u64 size)
{
    return s->to.inode == inode && s->to.offset < offset + size && offset < s->to.offset + (u64)s->width;
}

/* The newest store goes out; those before it to the same place first, as coherence wants. */
static void flush_newest(void)
{
    if (mode.n == 0)
        return;
    store newest = mode.pending[--mode.n];
    int kept = 0;
    for (int i = 0; i < mode.n; i++)
        if (overlap(&mode.pending[i], newest.to.inode, newest.to.offset, (u64)newest.width))
            apply(&mode.pending[i], true);
        else
            mode.pending[kept++] = mode.pending[i];
    mode.n = kept;
    apply(&newest, true);
}

/* A thread sees its own stores, if they were made through the same alias. */
static void flush_own(ino_t inode, u64 offset, u64 size, bool multicast)
{
    int kept = 0;
    for (int i = 0; i < mode.n; i++)
        if (mode.pending[i].multicast == multicast && overlap(&mode.pending[i], inode, offset, size))
            apply(&mode.pending[i], true);
        else
            mode.pending[kept++] = mode.pending[i];
    mode.n = kept;
}

static void put(const store *s, int order)
{
    if (!mode.on) {
        if (order == RELEASE)
            atomic_thread_fence(memory_order_release);
        apply(s, false);
        return;
    }
    if (order == RELEASE) {
        apply(s, true);
        return;
    }
    if (mode.pending == NULL)
        mode.pending = malloc(MOST_PENDING * sizeof(store));
    if (mode.n == MOST_PENDING)
        flush();
    mode.pending[mode.n++] = *s;
}

/* The bytes at a place as a weak load of this thread may see them. */
static void look(place from, size_t size, int width, int order, char *out)
{
    memcpy(out, from.at, size);
    if (!mode.on || order != WEAK || from.log == NULL)
        return;
    u64 now = sim_now(), since = mode.acquired + STALE_FOR > now ? mode.acquired : now - STALE_FOR;
    if (pthread_mutex_lock(&from.log->lock) != 0)
        pthread_mutex_consistent(&from.log->lock);
    memcpy(out, from.at, size);
    /* From the newest back: what each store since then has overwritten. */
    for (u64 i = from.log->written; i > 0 && from.log->written - i < JOURNAL; i--) {
        journal_entry *e = &from.log->entries[(i - 1) % JOURNAL];
        if (e->time <= since)
            break;
        for (u64 b = 0; b < e->width; b++)
            if (e->offset + b >= from.offset && e->offset + b < from.offset + size)
                out[e->offset + b - from.offset] = (char)e->old[b];
    }
    pthread_mutex_unlock(&from.log->lock);
    (void)width;
}

API void nvsym_sim_deferred(int on);
API void nvsym_sim_fence(void);
API void nvsym_sim_fence_alias(void);

API void nvsym_sim_deferred(int on)
{
    flush();
    mode.on = on != 0;
    mode.acquired = sim_now();
}

/* fence.acq_rel.sys */
API void nvsym_sim_fence(void)
{
    flush();
    atomic_thread_fence(memory_order_seq_cst);
    mode.acquired = sim_now();
}

/* fence.proxy.alias */
API void nvsym_sim_fence_alias(void) { flush(); }

/* ---- the instructions --------------------------------------------------------------------------------------------------- */

static u32 random_number(void)
{
    static __thread u32 x;
    if (x == 0)
        x = (u32)sim_now() | 1;
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    return x;
}

static CUresult check_order(const char *what, int order, int bad)
{
    return order < WEAK || order > RELEASE || order == bad ? broke(INVALID_VALUE, "%s: no such memory order", what) : OK;
}

#define REDUCE(T, START, EXPRESSION)                                                                                     \
    for (size_t i = 0; i < n; i++) {                                                                                     \
        T x = START(T, 0, i);                                                                                            \
        for (int d = 1; d < members; d++) {                                                                              \
            T y = START(T, d, i);                                                                                        \
            x = EXPRESSION;                                                                                              \
        }                                                                                                                \
        ((T *)out)[i] = x;                                                                                               \
    }
#define AT(T, d, i) (((const T *)from[d])[i])
#define INTEGER(T)                                                                                                       \
    switch (op) {                                                                                                        \
    case OP_ADD: REDUCE(T, AT, (T)((u64)x + (u64)y)) break;                                                              \
    case OP_MIN: REDUCE(T, AT, x < y ? x : y) break;                                                                     \
    case OP_MAX: REDUCE(T, AT, x > y ? x : y) break;                                                                     \
    case OP_AND: REDUCE(T, AT, x & y) break;                                                                             \
    case OP_OR: REDUCE(T, AT, x | y) break;                                                                              \
    case OP_XOR: REDUCE(T, AT, x ^ y) break;                                                                             \
    }

/* Floats are added in a wider type and rounded once: the switch's order and width are not specified. */
static void reduce(const form *f, int op, char *const *from, int members, size_t n, char *out)
{
    switch (f->kind) {
    case UNSIGNED:
    case BITS:
        if (f->width == 4) INTEGER(u32) else INTEGER(u64)
        return;
    case SIGNED:
        if (f->width == 4) INTEGER(int32_t) else INTEGER(int64_t)
        return;
    case F32:
        for (size_t i = 0; i < n; i++) {
            double sum = 0;
            for (int d = 0; d < members; d++)
                sum += (double)AT(float, d, i);
            ((float *)out)[i] = (float)sum;
        }
        return;
    case F64:
        for (size_t i = 0; i < n; i++) {
            long double sum = 0;
            for (int d = 0; d < members; d++)
                sum += AT(double, d, i);
            ((double *)out)[i] = (double)sum;
        }
        return;
    }
    layout l = layouts[f->kind];
    for (size_t i = 0; i < n; i++) {
        double x = 0;
        for (int d = 0; d < members; d++) {
            double y = decode(f->width == 2 ? AT(uint16_t, d, i) : AT(unsigned char, d, i), l);
            x = op == OP_ADD ? x + y : d == 0 ? y : op == OP_MIN ? fmin(x, y) : fmax(x, y);
        }
        u32 bits = encode(x, l);
        if (f->width == 2)
            ((uint16_t *)out)[i] = (uint16_t)bits;
        else
            ((unsigned char *)out)[i] = (unsigned char)bits;
    }
}

/* `count` instructions on consecutive addresses, each of `vector` operands of `type`. */
API CUresult nvsym_sim_ld_reduce(int device, CUdeviceptr at, const char *type, const char *op, int vector, int order, size_t count, void *out);
API CUresult nvsym_sim_multimem_st(int device, CUdeviceptr at, const char *type, int vector, int order, size_t count, const void *in);
API CUresult nvsym_sim_multimem_red(int device, CUdeviceptr at, const char *type, const char *op, int vector, int order, size_t count,
                                    const void *in);
API CUresult nvsym_sim_load(int device, CUdeviceptr at, int width, int order, size_t count, void *out);
API CUresult nvsym_sim_store(int device, CUdeviceptr at, int width, int order, size_t count, const void *in);

API CUresult nvsym_sim_ld_reduce(int device, CUdeviceptr at, const char *type, const char *op, int vector, int order, size_t count, void *out)
{
    enum { PIECE = 4096 };              /* looked at together: a multiple of every width */
    const form *f = form_of(type);
    access_to a;
    CUresult status = check_form("multimem.ld_reduce", f, type, op, f ? f->vectors : 0, f ? f->loads : 0, vector, device);
    if (status == OK)
        status = check_order("multimem.ld_reduce", order, RELEASE);
    if (status != OK || count == 0)
        return status;
    int width = f->width * f->packed * vector;
    size_t size = count * (size_t)width;
    status = reach(device, at, size, width, false, "multimem.ld_reduce", &a);
    if (status != OK)
        return status;
    char *from[MAX_TEAM], *copies = NULL;
    if (mode.on) {
        flush_newest();
        copies = malloc((size_t)a.n * PIECE);
    }
    for (size_t done = 0; done < size; done += PIECE) {
        size_t piece = size - done < PIECE ? size - done : PIECE;
        for (int d = 0; d < a.n; d++) {
            place p = {a.members[d].at + done, a.members[d].log, a.members[d].inode, a.members[d].offset + done};
            from[d] = p.at;
            if (mode.on) {
                flush_own(p.inode, p.offset, piece, true);
                from[d] = copies + (size_t)d * PIECE;
                look(p, piece, f->width, order == ACQUIRE ? RELAXED : WEAK, from[d]);
            }
        }
        reduce(f, op_of(op), from, a.n, piece / (size_t)f->width, (char *)out + done);
    }
    free(copies);
    if (order == ACQUIRE) {
        atomic_thread_fence(memory_order_acquire);
        mode.acquired = sim_now();
    }
    leave(&a);
    return OK;
}

static CUresult multimem_store(const char *what, int device, CUdeviceptr at, const form *f, int op, int vector, int order, size_t count,
                               const char *in)
{
    access_to a;
    int width = f->width * f->packed * vector, word = width % 8 == 0 && (op == 0 || f->width == 8) ? 8 : 4;
    size_t size = count * (size_t)width;
    CUresult status = check_order(what, order, ACQUIRE);
    if (status != OK || count == 0)
        return status;
    status = reach(device, at, size, width, true, what, &a);
    if (status != OK)
        return status;
    if (order == RELEASE)
        flush();
    for (size_t done = 0; done < size; done += (size_t)width) {
        /* The members are reached in no order, and not at the same time. */
        unsigned first = a.n > 1 ? random_number() % (unsigned)a.n : 0;
        for (int k = 0; k < a.n; k++) {
            place *p = &a.members[((unsigned)k + first) % (unsigned)a.n];
            for (int b = 0; b < width; b += word) {
                u64 value = 0;
                memcpy(&value, in + done + b, (size_t)word);
                store s = {{p->at + done + b, p->log, p->inode, p->offset + done + (u64)b}, value, word, op, f->kind, true};
                put(&s, order);
            }
            if (random_number() % 4096 == 0)
                sched_yield();
        }
    }
    leave(&a);
    return OK;
}

API CUresult nvsym_sim_multimem_st(int device, CUdeviceptr at, const char *type, int vector, int order, size_t count, const void *in)
{
    const form *f = form_of(type);
    CUresult status = check_form("multimem.st", f, type, NULL, f ? f->vectors : 0, 0, vector, device);
    return status == OK ? multimem_store("multimem.st", device, at, f, 0, vector, order, count, in) : status;
}

API CUresult nvsym_sim_multimem_red(int device, CUdeviceptr at, const char *type, const char *op, int vector, int order, size_t count,
                                    const void *in)
{
    const form *f = form_of(type);
    CUresult status = check_form("multimem.red", f, type, op ? op : "", f ? f->red_vectors : 0, f ? f->reds : 0, vector, device);
    if (status == OK && order == WEAK)
        status = broke(INVALID_VALUE, "multimem.red: there is no weak form");
    return status == OK ? multimem_store("multimem.red", device, at, f, op_of(op), vector, order, count, in) : status;
}

/* Ordinary accesses: through an address of memory, which must be accessible to the device. */
static CUresult unicast(const char *what, int device, CUdeviceptr at, int width, size_t size, bool write, place *out)
{
    CUresult status = OK;
    if (width != 1 && width != 2 && width != 4 && width != 8)
        return broke(INVALID_VALUE, "%s: %d bytes: one of 1, 2, 4, 8", what, width);
    if (device < 0 || device >= sim.devices)
        return broke(INVALID_DEVICE, "%s: device %d: there are %d", what, device, sim.devices);
    if (at % (unsigned)width)
        return broke(MISALIGNED_ADDRESS, "%s: %#llx is not aligned to %d bytes", what, (unsigned long long)at, width);
    pthread_mutex_lock(&memory_lock);
    mapping *m = mapping_at(at);
    if (m && m->of->kind == KIND_MULTICAST)
        status = misuse(ILLEGAL_ADDRESS, "%s: %#llx is a multicast address, for multimem instructions only", what, (unsigned long long)at);
    else if (m == NULL || at - m->at + size > m->size || !(m->access[device] & (write ? 2 : 1)))
        status = broke(ILLEGAL_ADDRESS, "%s: device %d may not %s %#llx", what, device, write ? "write" : "read", (unsigned long long)at);
    else
        *out = (place){(char *)at, NULL, m->of->inode, at - m->at};
    /* The journal of the allocation, where it is needed. */
    if (status == OK && mode.on) {
        static __thread struct { ino_t inode; journal *log; } last;
        if (last.inode != m->of->inode) {
            if (last.log)
                munmap(last.log, sizeof(journal));
            last.log = mmap(NULL, sizeof(journal), PROT_READ | PROT_WRITE, MAP_SHARED, m->of->fd, (off_t)m->of->tag->journal_at);
            last.inode = m->of->inode;
            if (last.log == MAP_FAILED)
                last.log = NULL, last.inode = 0;
        }
        out->log = last.log;
    }
    pthread_mutex_unlock(&memory_lock);
    return status;
}

API CUresult nvsym_sim_load(int device, CUdeviceptr at, int width, int order, size_t count, void *out)
{
    place p;
    CUresult status = check_order("ld", order, RELEASE);
    if (status == OK && count)
        status = unicast("ld", device, at, width, count * (size_t)width, false, &p);
    if (status != OK || count == 0)
        return status;
    if (mode.on) {
        flush_newest();
        flush_own(p.inode, p.offset, count * (size_t)width, false);
    }
    look(p, count * (size_t)width, width, order, out);
    if (order == ACQUIRE) {
        atomic_thread_fence(memory_order_acquire);
        mode.acquired = sim_now();
    }
    return OK;
}

API CUresult nvsym_sim_store(int device, CUdeviceptr at, int width, int order, size_t count, const void *in)
{
    place p;
    CUresult status = check_order("st", order, ACQUIRE);
    if (status == OK && count)
        status = unicast("st", device, at, width, count * (size_t)width, true, &p);
    if (status != OK)
        return status;
    if (order == RELEASE)
        flush();
    for (size_t i = 0; i < count; i++) {
        u64 value = 0, offset = (u64)i * (unsigned)width;
        memcpy(&value, (const char *)in + offset, (size_t)width);
        store s = {{p.at + offset, p.log, p.inode, p.offset + offset}, value, width, 0, UNSIGNED, false};
        put(&s, order);
    }
    return OK;
}
