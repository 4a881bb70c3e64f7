/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame of every call of the simulated driver: settings from the environment, counters, the log, injected failures. And the
 * functions nvsym_sim_*, by which a test asks and tells the simulator in its own process.
 */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

sim_settings sim;
_Atomic u64 count_violations, count_misuses, count_injected;

/* ---- settings ----------------------------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t owner;                     /* a forked child may not use its parent's driver */
static _Atomic int forked, exiting;
static int log_fd = -1;

long sim_env(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static u64 size_of(const char *text, char **end)
{
    double value = strtod(text, end);
    static const char units[] = "kKmMgGtT";
    const char *unit = **end ? strchr(units, **end) : NULL;
    if (unit) {
        ++*end;
        value *= (double)(1ull << (10 * ((unit - units) / 2 + 1)));
    }
    return (u64)value;
}

static u64 env_size(const char *name, u64 otherwise)
{
    const char *text = getenv(name);
    char *end;
    return text && *text ? size_of(text, &end) : otherwise;
}

static int first_env(int otherwise, const char *const *names)
{
    for (; *names; names++)
        if (getenv(*names) && *getenv(*names))
            return atoi(getenv(*names));
    return otherwise;
}

static void refuse_setting(const char *name, const char *text)
{
    fprintf(stderr, "nvsym simulator: %s=%s cannot be read\n", name, text);
    _exit(2);
}

/* The GPUs that CUDA_VISIBLE_DEVICES leaves; as with CUDA the first entry that names none ends the list. */
static void read_visible(void)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    sim.devices = 0;
    if (text == NULL) {
        while (sim.devices < sim.physical) {
            sim.ordinal[sim.devices] = sim.devices;
            sim.devices++;
        }
        return;
    }
    while (*text && sim.devices < MAX_DEVICES) {
        char *end;
        long number = strtol(text, &end, 10);
        bool twice = false;
        if (end == text || number < 0 || number >= sim.physical)
            break;
        for (int i = 0; i < sim.devices; i++)
            twice |= sim.ordinal[i] == number;
        if (twice) {
            sim.devices = 0;
            break;
        }
        sim.ordinal[sim.devices++] = (int)number;
        text = end + strspn(end, " ");
        if (*text++ != ',')
            break;
    }
}

static void read_log(void)
{
    const char *path = getenv("NVSYM_SIM_LOG");
    char name[PATH_MAX];
    struct stat found;
    if (path == NULL || *path == 0)
        return;
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        snprintf(name, sizeof name, "%s/pe%d-%d.log", path, sim.pe, getpid());
    else
        snprintf(name, sizeof name, "%s.pe%d-%d.log", path, sim.pe, getpid());
    log_fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0)
        refuse_setting("NVSYM_SIM_LOG", path);
}

static void child(void) { forked = 1; }
static void at_exit(void) { exiting = 1; }
static int set_plan(const char *text);

static void read_settings(void)
{
    static const char *const ranks[] = {"NVSYM_SIM_PE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", NULL};
    static const char *const sizes[] = {"NVSYM_SIM_PES", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", NULL};
    static const char *const nodes[] = {"NVSYM_SIM_NODES", "MPIR_CVAR_NUM_CLIQUES", NULL};
    const char *text;
    char *end;
    owner = getpid();
    sim.pe = first_env(0, ranks);
    sim.n_pes = first_env(1, sizes);
    sim.nodes = first_env(1, nodes);
    if (sim.nodes < 1)
        sim.nodes = 1;
    /* MPICH deals processes to its simulated nodes in turn, unless told to do it by blocks. */
    sim.node = (int)sim_env("NVSYM_SIM_NODE", sim_env("MPIR_CVAR_CLIQUES_BY_BLOCK", 0) && sim.n_pes >= sim.nodes
                                                  ? sim.pe / ((sim.n_pes + sim.nodes - 1) / sim.nodes)
                                                  : sim.pe % sim.nodes);
    sim.physical = (int)sim_env("NVSYM_SIM_DEVICES", 8);
    if (sim.physical < 0 || sim.physical > MAX_DEVICES)
        refuse_setting("NVSYM_SIM_DEVICES", getenv("NVSYM_SIM_DEVICES"));
    read_visible();
    sim.mps = sim_env("NVSYM_SIM_MPS", 0) != 0;
    sim.memory = env_size("NVSYM_SIM_MEMORY", 140ull << 30);
    sim.alloc_minimum = 64 << 10, sim.alloc_recommended = 2 << 20;
    sim.mc_minimum = 2 << 20, sim.mc_recommended = 16 << 20;
    if ((text = getenv("NVSYM_SIM_GRANULARITY")) && *text) {
        u64 *all[] = {&sim.alloc_minimum, &sim.alloc_recommended, &sim.mc_minimum, &sim.mc_recommended};
        const char *at = text;
        for (int i = 0; i < 4; i++) {
            u64 value = *all[i] = size_of(at, &end);
            if (end == at || value < PAGE || value & (value - 1) || *end != (i < 3 ? ',' : 0))
                refuse_setting("NVSYM_SIM_GRANULARITY", text);
            at = end + 1;
        }
    }
    text = getenv("NVSYM_SIM_IMEX");
    sim.imex = text && *text ? (strcmp(text, "none") ? atoi(text) : -1) : sim.nodes > 1 ? 0 : -1;
    sim.clique = (int)sim_env("NVSYM_SIM_CLIQUE", 0);
    sim.slots = (int)sim_env("NVSYM_SIM_SLOTS", 128);
    text = getenv("NVSYM_SIM_LATE");
    sim.late_ns = text && *text ? (u64)(strtod(text, NULL) * 1e9) : 0;
    text = getenv("NVSYM_SIM_BLOCK_LIMIT");
    sim.block_limit = text && *text ? strtod(text, NULL) : 0;
    text = getenv("NVSYM_SIM_LATE_IMPORT");
    sim.late_import_empty = text && !strcmp(text, "empty");
    sim.abort_on_misuse = sim_env("NVSYM_SIM_ABORT", 0) != 0;
    sim.peers = sim_env("NVSYM_SIM_PEERS", 1) != 0;
    sim.driver_version = (int)sim_env("NVSYM_SIM_DRIVER", 13000);
    read_log();
    if ((text = getenv("NVSYM_SIM_FAIL")) && set_plan(text))
        refuse_setting("NVSYM_SIM_FAIL", text);
    pthread_atfork(NULL, NULL, child);
    atexit(at_exit);
}

void sim_setup(void) { pthread_once(&once, read_settings); }

u64 sim_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000u + (u64)now.tv_nsec;
}

void sim_nap(int *tries)
{
    if (++*tries < 100) {
        sched_yield();
        return;
    }
    struct timespec pause = {0, *tries < 300 ? 50000 : 500000};
    nanosleep(&pause, NULL);
}

/* ---- injected failures -------------------------------------------------------------------------------------------------- */

enum { STATUS, DELAY, EXIT, KILL };
typedef struct { char name[64]; u64 first, last, seen; int pe, action, status; double seconds; } rule;
static rule rules[64];
static int n_rules;
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;

/* NAME:WHICH:ACTION[@peP], by semicolons. WHICH: 2, 2-4, 2+ or *. ACTION: a status, delay=SECONDS, exit or kill. */
static int read_rule(const char *text, size_t length, rule *r)
{
    char copy[256], *which, *action, *at, *end;
    if (length >= sizeof copy)
        return -1;
    memcpy(copy, text, length);
    copy[length] = 0;
    memset(r, 0, sizeof *r);
    r->pe = -1;
    if ((at = strrchr(copy, '@')) != NULL) {
        *at = 0;
        if (strncmp(at + 1, "pe", 2))
            return -1;
        r->pe = (int)strtol(at + 3, &end, 10);
        if (end == at + 3 || *end)
            return -1;
    }
    which = strchr(copy, ':');
    action = which ? strchr(which + 1, ':') : NULL;
    if (action == NULL || which - copy >= (ptrdiff_t)sizeof r->name)
        return -1;
    *which++ = *action++ = 0;
    strcpy(r->name, copy);
    if (!strcmp(which, "*")) {
        r->first = 1, r->last = UINT64_MAX;
    } else {
        r->first = r->last = strtoull(which, &end, 10);
        if (end == which || r->first == 0)
            return -1;
        if (!strcmp(end, "+"))
            r->last = UINT64_MAX;
        else if (*end == '-') {
            char *start = end + 1;
            r->last = strtoull(start, &end, 10);
            if (end == start || *end || r->last < r->first)
                return -1;
        } else if (*end)
            return -1;
    }
    if (!strncmp(action, "delay=", 6)) {
        r->action = DELAY;
        r->seconds = strtod(action + 6, &end);
        return end == action + 6 || *end ? -1 : 0;
    }
    if (!strcmp(action, "exit") || !strcmp(action, "kill")) {
        r->action = *action == 'e' ? EXIT : KILL;
        return 0;
    }
    r->action = STATUS;
    r->status = (int)strtol(action, &end, 10);
    return end == action || *end || r->status <= 0 ? -1 : 0;
}

static int set_plan(const char *text)
{
    rule found[64];
    int n = 0;
    for (; text && *text; text += strspn(text, "; ")) {
        size_t length = strcspn(text, "; ");
        if (n == 64 || (length && read_rule(text, length, &found[n++])))
            return -1;
        text += length;
    }
    pthread_mutex_lock(&rules_lock);
    memcpy(rules, found, n * sizeof(rule));
    n_rules = n;
    pthread_mutex_unlock(&rules_lock);
    return 0;
}

static CUresult injected(const char *name)
{
    CUresult status = OK;
    double pause = 0;
    int ending = -1;
    if (n_rules == 0)
        return OK;
    pthread_mutex_lock(&rules_lock);
    for (int i = 0; i < n_rules; i++) {
        rule *r = &rules[i];
        if ((r->pe >= 0 && r->pe != sim.pe) || (strcmp(r->name, name) && strcmp(r->name, "*")))
            continue;
        r->seen++;
        if (r->seen < r->first || r->seen > r->last)
            continue;
        count_injected++;
        if (r->action == STATUS && status == OK)
            status = r->status;
        else if (r->action == DELAY)
            pause += r->seconds;
        else if (r->action == EXIT || r->action == KILL)
            ending = r->action;
    }
    pthread_mutex_unlock(&rules_lock);
    if (ending == EXIT)
        _exit(97);
    if (ending == KILL)
        raise(SIGKILL);
    if (pause > 0) {
        struct timespec t = {(time_t)pause, (long)((pause - (double)(time_t)pause) * 1e9)};
        while (nanosleep(&t, &t) && errno == EINTR)
            ;
    }
    return status;
}

/* ---- the frame ---------------------------------------------------------------------------------------------------------- */

static sim_site *sites;
static pthread_mutex_t sites_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread char broken[512];       /* the rule that the present call broke */
static char last_broken[512];
static pthread_mutex_t broken_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct { u64 began; int injected; } frame[4];
static __thread int depth;

static void know(sim_site *site)
{
    pthread_mutex_lock(&sites_lock);
    if (!site->known) {
        site->next = sites;
        sites = site;
        site->known = 1;
    }
    pthread_mutex_unlock(&sites_lock);
}

CUresult sim_enter(sim_site *site)
{
    CUresult status = OK;
    sim_setup();
    if (!site->known)
        know(site);
    site->calls++;
    depth++;
    broken[0] = 0;
    if (depth <= 4)
        frame[depth - 1].began = log_fd >= 0 ? sim_now() : 0, frame[depth - 1].injected = 0;
    if (forked)
        return broke(NOT_INITIALIZED, "%s in a forked child of the process that initialised CUDA", site->name);
    if (site->kind & AFTER_INIT) {
        if (exiting)
            return DEINITIALIZED;
        if (!sim_initialized())
            return broke(NOT_INITIALIZED, "%s before cuInit", site->name);
    }
    status = injected(site->name);
    if (status != OK) {
        if (depth <= 4)
            frame[depth - 1].injected = 1;
        return status;
    }
    if ((site->kind & UNSAFE) == UNSAFE && sim_unsafe_now()) {
        sim_invalidate_captures();
        return broke(CAPTURE_UNSUPPORTED, "%s while a stream is captured", site->name);
    }
    return OK;
}

CUresult sim_leave(sim_site *site, CUresult result, const char *format, ...)
{
    int at = depth <= 4 ? depth - 1 : 3;
    depth--;
    if (log_fd < 0)
        return result;
    char line[1024];
    va_list rest;
    int n = snprintf(line, sizeof line, "%.6f %.6f %ld %s %d ", frame[at].began * 1e-9, sim_now() * 1e-9,
                     syscall(SYS_gettid), site->name, result);
    va_start(rest, format);
    n += vsnprintf(line + n, sizeof line - n - 2, format, rest);
    va_end(rest);
    if (n > (int)sizeof line - 3)
        n = sizeof line - 3;
    if (frame[at].injected)
        n += snprintf(line + n, sizeof line - n, " # injected");
    else if (broken[0])
        n += snprintf(line + n, sizeof line - n, " # %s", broken);
    if (n > (int)sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    if (write(log_fd, line, n) < 0)
        log_fd = -1;                    /* a full disk ends the log, not the program */
    return result;
}

static CUresult keep(CUresult status, const char *format, va_list rest)
{
    vsnprintf(broken, sizeof broken, format, rest);
    pthread_mutex_lock(&broken_lock);
    memcpy(last_broken, broken, sizeof broken);
    pthread_mutex_unlock(&broken_lock);
    return status;
}

CUresult broke(CUresult status, const char *format, ...)
{
    va_list rest;
    count_violations++;
    va_start(rest, format);
    keep(status, format, rest);
    va_end(rest);
    return status;
}

CUresult misuse(CUresult status, const char *format, ...)
{
    va_list rest;
    count_misuses++;
    va_start(rest, format);
    keep(status, format, rest);
    va_end(rest);
    if (sim.abort_on_misuse) {
        fprintf(stderr, "nvsym simulator: undefined behaviour: %s\n", broken);
        abort();
    }
    return status;
}

/* ---- for tests ---------------------------------------------------------------------------------------------------------- */

API int nvsym_sim_version(void);
API int nvsym_sim_fail(const char *plan);
API void nvsym_sim_counters(sim_counters *out);
API u64 nvsym_sim_calls(const char *name);
API size_t nvsym_sim_call_names(char *out, size_t size);
API size_t nvsym_sim_last_violation(char *out, size_t size);
API int nvsym_sim_set(const char *name, double value);
API void nvsym_sim_place(int *pe, int *n_pes, int *node, int *nodes);

API int nvsym_sim_version(void) { return 1; }

/* Replaces the plan of failures; NULL or "" ends it. -1 where it cannot be read, and nothing changed. */
API int nvsym_sim_fail(const char *plan)
{
    sim_setup();
    return set_plan(plan ? plan : "");
}

API void nvsym_sim_counters(sim_counters *out)
{
    memset(out, 0, sizeof *out);
    sim_count_memory(out);
    out->contexts = count_contexts, out->streams = count_streams, out->events = count_events;
    out->graphs = count_graphs, out->modules = count_modules;
    out->violations = count_violations, out->misuses = count_misuses, out->injected = count_injected;
}

API u64 nvsym_sim_calls(const char *name)
{
    u64 n = 0;
    pthread_mutex_lock(&sites_lock);
    for (sim_site *site = sites; site; site = site->next)
        if (!strcmp(site->name, name))
            n = site->calls;
    pthread_mutex_unlock(&sites_lock);
    return n;
}

/* The functions called so far, a line each with the number of calls; returns the bytes that it takes. */
API size_t nvsym_sim_call_names(char *out, size_t size)
{
    size_t n = 0;
    char line[128];
    pthread_mutex_lock(&sites_lock);
    for (sim_site *site = sites; site; site = site->next) {
        int length = snprintf(line, sizeof line, "%s %llu\n", site->name, (unsigned long long)site->calls);
        if (n + length < size)
            memcpy(out + n, line, length + 1);
        n += length;
    }
    pthread_mutex_unlock(&sites_lock);
    return n;
}

API size_t nvsym_sim_last_violation(char *out, size_t size)
{
    pthread_mutex_lock(&broken_lock);
    size_t n = strlen(last_broken);
    if (size) {
        size_t m = n < size ? n : size - 1;
        memcpy(out, last_broken, m);
        out[m] = 0;
    }
    pthread_mutex_unlock(&broken_lock);
    return n;
}

/* Changes a setting of this process; -1 where there is none of that name. */
API int nvsym_sim_set(const char *name, double value)
{
    sim_setup();
    if (!strcmp(name, "late")) sim.late_ns = (u64)(value * 1e9);
    else if (!strcmp(name, "slots")) sim.slots = (int)value;
    else if (!strcmp(name, "block_limit")) sim.block_limit = value;
    else if (!strcmp(name, "imex")) sim.imex = (int)value;
    else if (!strcmp(name, "clique")) sim.clique = (int)value;
    else if (!strcmp(name, "late_import_empty")) sim.late_import_empty = value != 0;
    else if (!strcmp(name, "node")) sim.node = (int)value;
    else if (!strcmp(name, "peers")) sim.peers = value != 0;
    else return -1;
    return 0;
}

/* For the simulated NVSHMEM: the frame of its calls. The status of an injected failure, or 0. */
API int nvsym_sim_begin(const char *name);
API void nvsym_sim_end(const char *name, int status, const char *text);

static sim_site *site_named(const char *name)
{
    sim_site *site;
    pthread_mutex_lock(&sites_lock);
    for (site = sites; site && site->name != name; site = site->next)
        ;
    pthread_mutex_unlock(&sites_lock);
    if (site == NULL) {
        site = calloc(1, sizeof *site);
        site->name = name;
        know(site);
    }
    return site;
}

API int nvsym_sim_begin(const char *name) { return sim_enter(site_named(name)); }
API void nvsym_sim_end(const char *name, int status, const char *text) { sim_leave(site_named(name), status, "%s", text); }

API void nvsym_sim_place(int *pe, int *n_pes, int *node, int *nodes)
{
    sim_setup();
    *pe = sim.pe, *n_pes = sim.n_pes, *node = sim.node, *nodes = sim.nodes;
}
