/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated driver's modules and kernels. There is no processor that could run machine code of a GPU: a cubin is refused
 * with CUDA_ERROR_NO_BINARY_FOR_GPU. PTX is run where it is straight-line code of one thread made of loads and stores, atomic
 * operations and a comparison with a constant; another instruction is refused when the module is loaded.
 */
#define cuModuleGetGlobal cuModuleGetGlobal_v2
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Atomic u64 count_modules;

enum { MAX_PARAMETERS = 8, MAX_REGISTERS = 16, MAX_CODE = 32 };
enum { LD_PARAM, LD, ST, ATOM, SETP_NE, SETP_EQ, RET };
enum { EXCH, ADD, AND, OR, XOR, CAS, MIN, MAX };

typedef struct { int what, op, width, guard, to, address, a, b; char type; u64 constant; } instruction;
typedef struct kernel {
    u64 magic;
    char name[96];
    int n_parameters, n_registers, n;
    int widths[MAX_PARAMETERS];
    char parameters[MAX_PARAMETERS][32], registers[MAX_REGISTERS][32];
    instruction code[MAX_CODE];
    struct kernel *next;
} kernel;
typedef struct { u64 magic; kernel *kernels; } module;

#define MODULE_MAGIC 0x656c75646f4d4953ull
#define KERNEL_MAGIC 0x6c656e72654b4953ull

/* ---- reading PTX -------------------------------------------------------------------------------------------------------- */

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    for (char *end = text + strlen(text); end > text && isspace((unsigned char)end[-1]);)
        *--end = 0;
    return text;
}

static int find(char names[][32], int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

/* .u32 -> 4 and 'u' */
static int type_of(const char *text, char *kind)
{
    const char *dot = strrchr(text, '.');
    if (dot == NULL || !strchr("busf", dot[1]))
        return 0;
    *kind = dot[1];
    return atoi(dot + 2) / 8;
}

static bool operand(kernel *k, char *text, int *out)
{
    text = trim(text);
    if (*text == '[') {
        char *end = strchr(++text, ']');
        if (end == NULL)
            return false;
        *end = 0;
        text = trim(text);
    }
    *out = find(k->registers, k->n_registers, text);
    return *out >= 0;
}

static bool read_instruction(kernel *k, char *text)
{
    instruction i = {.guard = -1};
    char *operands[4], *rest;
    int n = 0;
    if (k->n == MAX_CODE)
        return false;
    if (*text == '@') {
        rest = text + strcspn(text, " \t");
        if (*rest == 0)
            return false;
        *rest = 0;
        i.guard = find(k->registers, k->n_registers, text + 1);
        if (i.guard < 0)
            return false;
        text = trim(rest + 1);
    }
    if (!strcmp(text, "ret")) {
        i.what = RET;
        k->code[k->n++] = i;
        return true;
    }
    rest = text + strcspn(text, " \t\n");
    if (*rest == 0)
        return false;
    *rest++ = 0;
    for (char *at = strtok_r(rest, ",", &rest); at && n < 4; at = strtok_r(NULL, ",", &rest))
        operands[n++] = trim(at);
    i.width = type_of(text, &i.type);
    if ((i.width != 4 && i.width != 8) || n < 2)
        return false;
    if (!strncmp(text, "ld.param.", 9)) {
        char *end = strchr(operands[1], ']');
        if (operands[1][0] != '[' || end == NULL)
            return false;
        *end = 0;
        i.what = LD_PARAM;
        i.a = find(k->parameters, k->n_parameters, trim(operands[1] + 1));
        if (i.a < 0 || !operand(k, operands[0], &i.to))
            return false;
    } else if (!strncmp(text, "ld.", 3) && n == 2) {
        i.what = LD;
        if (!operand(k, operands[0], &i.to) || !operand(k, operands[1], &i.address))
            return false;
    } else if (!strncmp(text, "st.", 3) && n == 2) {
        i.what = ST;
        if (!operand(k, operands[0], &i.address) || !operand(k, operands[1], &i.a))
            return false;
    } else if (!strncmp(text, "atom.", 5) && n >= 3) {
        static const struct { const char *name; int op; } ops[] = {
            {".exch.", EXCH}, {".add.", ADD}, {".and.", AND}, {".or.", OR}, {".xor.", XOR}, {".cas.", CAS}, {".min.", MIN}, {".max.", MAX}};
        i.what = ATOM;
        i.op = -1;
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            if (strstr(text, ops[o].name))
                i.op = ops[o].op;
        if (i.op < 0 || (i.op == CAS) != (n == 4) || !operand(k, operands[0], &i.to) || !operand(k, operands[1], &i.address) ||
            !operand(k, operands[2], &i.a) || (n == 4 && !operand(k, operands[3], &i.b)))
            return false;
    } else if ((!strncmp(text, "setp.ne.", 8) || !strncmp(text, "setp.eq.", 8)) && n == 3) {
        char *end;
        i.what = text[5] == 'n' ? SETP_NE : SETP_EQ;
        i.constant = strtoull(operands[2], &end, 0);
        if (*end || !operand(k, operands[0], &i.to) || !operand(k, operands[1], &i.a))
            return false;
    } else
        return false;
    k->code[k->n++] = i;
    return true;
}

static bool read_body(kernel *k, char *body)
{
    for (char *more, *text = strtok_r(body, ";", &more); text; text = strtok_r(NULL, ";", &more)) {
        text = trim(text);
        if (*text == 0)
            continue;
        if (!strncmp(text, ".reg", 4)) {
            char *names = text + 4 + strspn(text + 4, " \t"), *deeper;
            names += strcspn(names, " \t");
            for (char *name = strtok_r(names, ",", &deeper); name; name = strtok_r(NULL, ",", &deeper)) {
                name = trim(name);
                if (k->n_registers == MAX_REGISTERS || strlen(name) > 31)
                    return false;
                strcpy(k->registers[k->n_registers++], name);
            }
        } else if (!read_instruction(k, text))
            return false;
    }
    return true;
}

static bool read_parameters(kernel *k, char *text)
{
    for (char *more, *one = strtok_r(text, ",", &more); one; one = strtok_r(NULL, ",", &more)) {
        char kind, *name, *type;
        one = trim(one);
        if (*one == 0)
            continue;
        name = one + strlen(one);
        while (name > one && !isspace((unsigned char)name[-1]))
            name--;
        type = strstr(one, ".param");
        if (type == NULL || name == one || k->n_parameters == MAX_PARAMETERS || strlen(name) > 31)
            return false;
        strcpy(k->parameters[k->n_parameters], name);
        name[-1] = 0;
        k->widths[k->n_parameters] = type_of(trim(one), &kind);
        if (k->widths[k->n_parameters++] == 0)
            return false;
    }
    return true;
}

static void free_module(module *m)
{
    while (m->kernels) {
        kernel *next = m->kernels->next;
        free(m->kernels);
        m->kernels = next;
    }
    free(m);
}

static CUresult read_ptx(const char *image, module *m)
{
    char *text = strdup(image), *at = text;
    CUresult status = OK;
    while (status == OK && (at = strstr(at, ".entry")) != NULL) {
        char *open = strchr(at, '('), *close = open ? strchr(open, ')') : NULL, *body = close ? strchr(close, '{') : NULL,
             *end = body ? strchr(body, '}') : NULL;
        kernel *k = calloc(1, sizeof *k);
        k->next = m->kernels;
        m->kernels = k;
        k->magic = KERNEL_MAGIC;
        if (end == NULL) {
            status = INVALID_IMAGE;
            break;
        }
        *open = *close = *end = 0;
        snprintf(k->name, sizeof k->name, "%s", trim(at + 6));
        if (!read_parameters(k, open + 1) || !read_body(k, body + 1))
            status = broke(NO_BINARY_FOR_GPU, "cuModuleLoadData: the kernel %s has instructions that the simulator does not know", k->name);
        at = end + 1;
    }
    if (status == OK && m->kernels == NULL)
        status = INVALID_IMAGE;
    free(text);
    return status;
}

/* ---- running ------------------------------------------------------------------------------------------------------------ */

typedef struct { kernel *k; u64 parameters[MAX_PARAMETERS]; } launch;

static u64 combine(const instruction *i, u64 old, u64 a, u64 b)
{
    switch (i->op) {
    case EXCH: return a;
    case AND: return old & a;
    case OR: return old | a;
    case XOR: return old ^ a;
    case CAS: return old == a ? b : old;
    case MIN: return i->type == 's' ? ((int64_t)old < (int64_t)a ? old : a) : old < a ? old : a;
    case MAX: return i->type == 's' ? ((int64_t)old > (int64_t)a ? old : a) : old > a ? old : a;
    }
    if (i->type == 'f' && i->width == 4) {
        float x, y;
        u32 low = (u32)old, other = (u32)a;
        memcpy(&x, &low, 4);
        memcpy(&y, &other, 4);
        x += y;
        memcpy(&low, &x, 4);
        return low;
    }
    if (i->type == 'f') {
        double x, y;
        memcpy(&x, &old, 8);
        memcpy(&y, &a, 8);
        x += y;
        memcpy(&old, &x, 8);
        return old;
    }
    return old + a;
}

static u64 atom(const instruction *i, u64 at, u64 a, u64 b)
{
    if (i->width == 8) {
        u64 old = atomic_load((_Atomic u64 *)at);
        while (!atomic_compare_exchange_weak((_Atomic u64 *)at, &old, combine(i, old, a, b)))
            ;
        return old;
    }
    u32 old = atomic_load((_Atomic u32 *)at);
    while (!atomic_compare_exchange_weak((_Atomic u32 *)at, &old, (u32)combine(i, old, (u32)a, (u32)b)))
        ;
    return old;
}

static void run_kernel(void *argument)
{
    launch *l = argument;
    u64 r[MAX_REGISTERS] = {0};
    for (int at = 0; at < l->k->n; at++) {
        const instruction *i = &l->k->code[at];
        if (i->guard >= 0 && !r[i->guard])
            continue;
        switch (i->what) {
        case LD_PARAM: r[i->to] = l->parameters[i->a]; break;
        case LD: r[i->to] = i->width == 8 ? atomic_load((_Atomic u64 *)r[i->address]) : atomic_load((_Atomic u32 *)r[i->address]); break;
        case ST:
            if (i->width == 8)
                atomic_store((_Atomic u64 *)r[i->address], r[i->a]);
            else
                atomic_store((_Atomic u32 *)r[i->address], (u32)r[i->a]);
            break;
        case ATOM: r[i->to] = atom(i, r[i->address], r[i->a], r[i->b]); break;
        case SETP_NE: r[i->to] = r[i->a] != i->constant; break;
        case SETP_EQ: r[i->to] = r[i->a] == i->constant; break;
        case RET: return;
        }
    }
}

/* ---- the calls ---------------------------------------------------------------------------------------------------------- */

CALL(cuModuleLoadData, AFTER_INIT, (void **out, const void *image), (out, image), "%p", image)
{
    if (sim_current() == NULL)
        return broke(INVALID_CONTEXT, "cuModuleLoadData: no context is current in this thread");
    if (out == NULL || image == NULL)
        return INVALID_VALUE;
    const unsigned char *start = image;
    static const unsigned char fatbin[] = {0x50, 0xed, 0x55, 0xba};
    if (!memcmp(start, "\177ELF", 4) || !memcmp(start, fatbin, 4))
        return broke(NO_BINARY_FOR_GPU, "cuModuleLoadData: the simulator runs no machine code of a GPU");
    sim_drain(); /* as the driver was seen to, on an H200 */
    module *m = calloc(1, sizeof *m);
    m->magic = MODULE_MAGIC;
    CUresult status = read_ptx(image, m);
    if (status != OK) {
        free_module(m);
        return status;
    }
    count_modules++;
    *out = m;
    return OK;
}

CALL(cuModuleUnload, AFTER_INIT, (void *handle), (handle), "%p", handle)
{
    module *m = handle;
    if (m == NULL || m->magic != MODULE_MAGIC)
        return broke(INVALID_HANDLE, "cuModuleUnload: %p is no module", handle);
    sim_drain();
    m->magic = 0;
    count_modules--;
    free_module(m);
    return OK;
}

CALL(cuModuleGetFunction, AFTER_INIT, (void **out, void *handle, const char *name), (out, handle, name), "%s", name ? name : "")
{
    module *m = handle;
    if (out == NULL || name == NULL)
        return INVALID_VALUE;
    if (m == NULL || m->magic != MODULE_MAGIC)
        return broke(INVALID_HANDLE, "cuModuleGetFunction: %p is no module", handle);
    for (kernel *k = m->kernels; k; k = k->next)
        if (!strcmp(k->name, name)) {
            *out = k;
            return OK;
        }
    return NOT_FOUND;
}

CALL(cuModuleGetGlobal, AFTER_INIT, (CUdeviceptr * at, size_t *bytes, void *handle, const char *name), (at, bytes, handle, name), "%s",
     name ? name : "")
{
    (void)at, (void)bytes, (void)handle;
    return NOT_FOUND;
}

CALL(cuLibraryLoadData, AFTER_INIT,
     (void **out, const void *code, void *a, void **b, unsigned c, void *d, void **e, unsigned f), (out, code, a, b, c, d, e, f), "%p", code)
{
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return cuModuleLoadData(out, code);
}
CALL(cuLibraryUnload, AFTER_INIT, (void *library), (library), "%p", library) { return cuModuleUnload(library); }
CALL(cuLibraryGetModule, AFTER_INIT, (void **out, void *library), (out, library), "%p", library)
{
    if (out == NULL || library == NULL || ((module *)library)->magic != MODULE_MAGIC)
        return INVALID_VALUE;
    *out = library;
    return OK;
}

CALL(cuFuncGetAttribute, AFTER_INIT, (int *out, int attribute, void *function), (out, attribute, function), "attribute=%d", attribute)
{
    if (out == NULL || function == NULL || ((kernel *)function)->magic != KERNEL_MAGIC)
        return INVALID_VALUE;
    *out = attribute == 0 ? 1024 : attribute == 4 ? MAX_REGISTERS : 0;
    return OK;
}

CALL(cuFuncSetAttribute, AFTER_INIT, (void *function, int attribute, int value), (function, attribute, value), "attribute=%d value=%d",
     attribute, value)
{
    return function && ((kernel *)function)->magic == KERNEL_MAGIC ? OK : INVALID_HANDLE;
}

static CUresult start_kernel(kernel *k, u64 threads, void *stream, void **parameters, const char *what)
{
    launch l = {k, {0}};
    if (k == NULL || k->magic != KERNEL_MAGIC)
        return broke(INVALID_HANDLE, "%s: not a function", what);
    if (threads != 1)
        return broke(NOT_SUPPORTED, "%s: %llu threads; the simulator runs kernels of one thread", what, (unsigned long long)threads);
    for (int i = 0; i < k->n_parameters; i++)
        memcpy(&l.parameters[i], parameters[i], (size_t)k->widths[i]);
    return sim_enqueue(stream, run_kernel, &l, sizeof l);
}

CALL(cuLaunchKernel, AFTER_INIT,
     (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
      void **parameters, void **extra),
     (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra), "grid=%u block=%u %p", gx, bx, stream)
{
    if (extra || parameters == NULL || !gx || !gy || !gz || !bx || !by || !bz)
        return broke(INVALID_VALUE, "cuLaunchKernel: no parameters, or an empty grid");
    return start_kernel(function, (u64)gx * gy * gz * bx * by * bz, stream, parameters, "cuLaunchKernel");
}

CALL(cuLaunchCooperativeKernel, AFTER_INIT,
     (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
      void **parameters),
     (function, gx, gy, gz, bx, by, bz, shared, stream, parameters), "grid=%u block=%u %p", gx, bx, stream)
{
    if (parameters == NULL || !gx || !gy || !gz || !bx || !by || !bz)
        return broke(INVALID_VALUE, "cuLaunchCooperativeKernel: no parameters, or an empty grid");
    return start_kernel(function, (u64)gx * gy * gz * bx * by * bz, stream, parameters, "cuLaunchCooperativeKernel");
}

CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, AFTER_INIT, (int *out, void *function, int threads, size_t shared),
     (out, function, threads, shared), "threads=%d", threads)
{
    if (out == NULL || function == NULL || threads < 1)
        return INVALID_VALUE;
    *out = 2048 / (threads < 64 ? 64 : threads);
    return OK;
}
