/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame of every call of the simulated driver: settings from the environment, counters, the log, injected failures. And the
 * functions nvsym_sim_*, by which a test asks and tells the simulator in its own process.
 */
#include "sim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

sim_settings sim;
_Atomic u64 count_violations, count_misuses, count_injected;

/* ---- settings ----------------------------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t owner;                     /* a forked child may not use its parent's driver */
static _Atomic int forked, exiting;
static int log_fd = -1;

/* 0 where it is no size. */
static u64 size_of(const char *text, char **end)
{
    double value = strtod(text, end);
    static const char units[] = "kKmMgGtT";
    const char *unit = **end ? strchr(units, **end) : NULL;
    if (unit) {
        ++*end;
        value *= (double)(1ull << (10 * ((unit - units) / 2 + 1)));
    }
    return value >= 1 && value < 0x1p62 ? (u64)value : 0;
}

static u64 env_size(const char *name, u64 otherwise)
{
    const char *text = getenv(name);
    char *end;
    if (text == NULL || *text == 0)
        return otherwise;
    u64 value = size_of(text, &end);
    if (value == 0 || *end)
        refuse_setting(name, text, "a number of bytes above 0 is needed, such as 4M");
    return value;
}

/* `text` is the setting or NULL; at most 31 years, so that it can be counted in ns. */
static double seconds_of(const char *name, const char *text)
{
    char *end;
    if (text == NULL || *text == 0)
        return 0;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0 && value <= 1e9))
        refuse_setting(name, text, "a number of seconds from 0 on is needed");
    return value;
}

/* The simulator's own setting, the first of the names, else what a launcher says. */
static int first_env(int least, int most, int otherwise, const char *const *names)
{
    int own = (int)env_number(*names, least, most, -1);
    if (own >= 0)
        return own;
    while (*++names)
        if (getenv(*names) && *getenv(*names))
            return atoi(getenv(*names));
    return otherwise;
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
        refuse_setting("NVSYM_SIM_LOG", path, strerror(errno));
}

static void child(void) { forked = 1; }
static void at_exit(void) { exiting = 1; }
static int known_pes;                   /* 0: not known yet */
static char plan_refusal[256];          /* why the last plan was not taken */
static int set_plan(const char *text);

static void read_settings(void)
{
    static const char *const ranks[] = {"NVSYM_SIM_PE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", NULL};
    static const char *const sizes[] = {"NVSYM_SIM_PES", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", NULL};
    static const char *const nodes[] = {"NVSYM_SIM_NODES", "MPIR_CVAR_NUM_CLIQUES", NULL};
    const char *text;
    char *end;
    owner = getpid();
    sim.pe = first_env(0, INT_MAX, 0, ranks);
    known_pes = first_env(1, INT_MAX, 0, sizes);
    sim.n_pes = known_pes > 0 ? known_pes : 1;
    sim.nodes = first_env(1, 64, 1, nodes);
    if (sim.nodes < 1)
        sim.nodes = 1;
    /* MPICH deals processes to its simulated nodes in turn, unless told to do it by blocks. */
    text = getenv("MPIR_CVAR_CLIQUES_BY_BLOCK");
    sim.node = text && atoi(text) && sim.n_pes >= sim.nodes ? sim.pe / ((sim.n_pes + sim.nodes - 1) / sim.nodes) : sim.pe % sim.nodes;
    sim.node = (int)env_number("NVSYM_SIM_NODE", 0, 63, sim.node);
    sim.physical = (int)env_number("NVSYM_SIM_DEVICES", 0, MAX_DEVICES, 8);
    read_visible();
    sim.mps = env_number("NVSYM_SIM_MPS", 0, 1, 0);
    sim.memory = env_size("NVSYM_SIM_MEMORY", 140ull << 30);
    sim.alloc_minimum = 64 << 10, sim.alloc_recommended = 2 << 20;
    sim.mc_minimum = 2 << 20, sim.mc_recommended = 16 << 20;
    if ((text = getenv("NVSYM_SIM_GRANULARITY")) && *text) {
        u64 *all[] = {&sim.alloc_minimum, &sim.alloc_recommended, &sim.mc_minimum, &sim.mc_recommended};
        const char *at = text;
        for (int i = 0; i < 4; i++) {
            u64 value = *all[i] = size_of(at, &end);
            if (end == at || value < PAGE || value & (value - 1) || *end != (i < 3 ? ',' : 0))
                refuse_setting("NVSYM_SIM_GRANULARITY", text, "four powers of two from 4K on are needed, such as 64K,2M,2M,16M");
            at = end + 1;
        }
    }
    text = getenv("NVSYM_SIM_IMEX");
    sim.imex = text && !strcmp(text, "none") ? -1 : (int)env_number("NVSYM_SIM_IMEX", 0, INT_MAX, sim.nodes > 1 ? 0 : -1);
    sim.clique = (int)env_number("NVSYM_SIM_CLIQUE", 0, INT_MAX, 0);
    sim.slots = (int)env_number("NVSYM_SIM_SLOTS", 0, INT_MAX, 128);
    sim.late_ns = (u64)(seconds_of("NVSYM_SIM_LATE", getenv("NVSYM_SIM_LATE")) * 1e9);
    sim.block_limit = seconds_of("NVSYM_SIM_BLOCK_LIMIT", getenv("NVSYM_SIM_BLOCK_LIMIT"));
    text = getenv("NVSYM_SIM_LATE_IMPORT");
    sim.late_import_empty = text && !strcmp(text, "empty");
    if (text && *text && strcmp(text, "error") && !sim.late_import_empty)
        refuse_setting("NVSYM_SIM_LATE_IMPORT", text, "error or empty is needed");
    if (!sim_attributes_readable())
        refuse_setting("NVSYM_SIM_ATTR", getenv("NVSYM_SIM_ATTR"), "write such as 132=0;75=10@dev1");
    sim.abort_on_misuse = env_number("NVSYM_SIM_ABORT", 0, 1, 0);
    sim.peers = env_number("NVSYM_SIM_PEERS", 0, 1, 1);
    sim.driver_version = (int)env_number("NVSYM_SIM_DRIVER", 0, INT_MAX, 13000);
    read_log();
    if ((text = getenv("NVSYM_SIM_FAIL")) && set_plan(text))
        refuse_setting("NVSYM_SIM_FAIL", text, plan_refusal);
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

static int refuse_plan(const char *format, ...) PRINTF(1, 2);
static int refuse_plan(const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    vsnprintf(plan_refusal, sizeof plan_refusal, format, rest);
    va_end(rest);
    return -1;
}

static bool is_listed(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

/* Whether a call of it can be failed: those of this library, and of the simulated NVSHMEM beside it. */
static bool is_function(const char *name)
{
    Dl_info own;
    char path[PATH_MAX], *slash;
    void *library;
    bool found = true;                  /* without a library to ask, the plan may be right */
    if (strncmp(name, "nvshmem", 7))
        return is_listed(name, __start_sim_calls, (size_t)(__stop_sim_calls - __start_sim_calls));
    if (!dladdr((void *)is_function, &own) || (slash = strrchr(own.dli_fname, '/')) == NULL)
        return true;
    snprintf(path, sizeof path, "%.*s/libnvshmem_host.so.3", (int)(slash - own.dli_fname), own.dli_fname);
    if ((library = dlopen(path, RTLD_LAZY | RTLD_LOCAL)) == NULL)
        return true;
    const char *const *(*functions)(size_t *) = (const char *const *(*)(size_t *))dlsym(library, "nvsym_sim_functions");
    if (functions) {
        size_t n;
        const char *const *names = functions(&n);
        found = is_listed(name, names, n);
    }
    dlclose(library);
    return found;
}

/* NAME:WHICH:ACTION[@peP], by semicolons. WHICH: 2, 2-4, 2+ or *. ACTION: a status, delay=SECONDS, exit or kill. */
static int read_rule(const char *text, size_t length, rule *r)
{
    char copy[256], *which, *action, *at, *end;
    if (length >= sizeof copy)
        return refuse_plan("%.40s... is too long", text);
    memcpy(copy, text, length);
    copy[length] = 0;
    memset(r, 0, sizeof *r);
    r->pe = -1;
    if ((at = strrchr(copy, '@')) != NULL) {
        *at = 0;
        long pe = strncmp(at + 1, "pe", 2) ? -1 : strtol(at + 3, &end, 10);
        if (pe < 0 || pe > INT_MAX || end == at + 3 || *end)
            return refuse_plan("@%s names no PE; write such as @pe1", at + 1);
        if (known_pes > 0 && pe >= known_pes)
            return refuse_plan("the job has %d PEs, there is no PE %ld", known_pes, pe);
        r->pe = (int)pe;
    }
    which = strchr(copy, ':');
    action = which ? strchr(which + 1, ':') : NULL;
    if (action == NULL)
        return refuse_plan("%s is not of the form FUNCTION:WHICH:ACTION", copy);
    *which++ = *action++ = 0;
    if (strlen(copy) >= sizeof r->name || (strcmp(copy, "*") && !is_function(copy)))
        return refuse_plan("%s is no function of the simulated libraries that can fail (names are without _v2)", copy);
    strcpy(r->name, copy);
    if (!strcmp(which, "*")) {
        r->first = 1, r->last = UINT64_MAX;
    } else {
        bool right = strspn(which, "0123456789") > 0;
        r->first = r->last = strtoull(which, &end, 10);
        if (!strcmp(end, "+"))
            r->last = UINT64_MAX;
        else if (*end == '-' && strspn(end + 1, "0123456789") > 0)
            r->last = strtoull(end + 1, &end, 10);
        if (!right || (*end && strcmp(end, "+")) || r->first == 0 || r->last < r->first)
            return refuse_plan("%s says no calls; write 2, 2-4, 2+ or *", which);
    }
    if (!strncmp(action, "delay=", 6)) {
        r->action = DELAY;
        r->seconds = strtod(action + 6, &end);
        return end == action + 6 || *end || !(r->seconds >= 0 && r->seconds <= 1e9) ? refuse_plan("%s: seconds are needed", action) : 0;
    }
    if (!strcmp(action, "exit") || !strcmp(action, "kill")) {
        r->action = *action == 'e' ? EXIT : KILL;
        return 0;
    }
    r->action = STATUS;
    r->status = (int)strtol(action, &end, 10);
    return end == action || *end || r->status <= 0 ? refuse_plan("%s is no status above 0, delay=SECONDS, exit or kill", action) : 0;
}

static int set_plan(const char *text)
{
    rule found[64];
    int n = 0;
    for (; text && *text; text += strspn(text, "; ")) {
        size_t length = strcspn(text, "; ");
        if (n == 64)
            return refuse_plan("there are more than 64 rules");
        if (length && read_rule(text, length, &found[n++]))
            return -1;
        text += length;
    }
    pthread_mutex_lock(&rules_lock);
    memcpy(rules, found, n * sizeof(rule));
    n_rules = n;
    pthread_mutex_unlock(&rules_lock);
    return 0;
}

/* NVSHMEM begins a job: where no launcher has said how many PEs there are, it is known now. */
API void nvsym_sim_job(int n);
API void nvsym_sim_job(int n)
{
    if (known_pes > 0)
        return;
    known_pes = n;
    for (int i = 0; i < n_rules; i++)
        if (rules[i].pe >= n) {
            fprintf(stderr, "nvsym simulator: the plan of failures names PE %d; the job has %d PEs\n", rules[i].pe, n);
            _exit(2);
        }
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
API size_t nvsym_sim_plan_refusal(char *out, size_t size);
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

static size_t copy_text(const char *text, char *out, size_t size)
{
    size_t n = strlen(text);
    if (size) {
        size_t m = n < size ? n : size - 1;
        memcpy(out, text, m);
        out[m] = 0;
    }
    return n;
}

API size_t nvsym_sim_last_violation(char *out, size_t size)
{
    pthread_mutex_lock(&broken_lock);
    size_t n = copy_text(last_broken, out, size);
    pthread_mutex_unlock(&broken_lock);
    return n;
}

/* Why nvsym_sim_fail has refused a plan. */
API size_t nvsym_sim_plan_refusal(char *out, size_t size) { return copy_text(plan_refusal, out, size); }

/* Changes a setting of this process; -1 where there is none of that name, -2 where the value is none of its. */
API int nvsym_sim_set(const char *name, double value)
{
    bool without = !strcmp(name, "imex") && value == -1;
    sim_setup();
    if (!(value >= 0 && value <= 1e9) && !without)
        return -2;
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
