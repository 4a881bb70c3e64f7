/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated driver's streams, events, copies, host functions and graphs.
 *
 * A stream is a thread that does what is enqueued, in order. With NVSYM_SIM_LATE it lets its work lie for that long, unless
 * somebody waits for it: what reads a result without having waited finds the old one. One lock is over all streams; operations
 * run outside it.
 */
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
#define cuMemcpyHtoD cuMemcpyHtoD_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemcpyDtoD cuMemcpyDtoD_v2
#define cuMemsetD8 cuMemsetD8_v2
#define cuMemsetD16 cuMemsetD16_v2
#define cuMemsetD32 cuMemsetD32_v2
#define cuStreamBeginCapture cuStreamBeginCapture_v2
#define cuStreamGetCaptureInfo cuStreamGetCaptureInfo_v2
#define cuStreamDestroy cuStreamDestroy_v2
#define cuEventDestroy cuEventDestroy_v2
#define cuStreamWaitValue64 cuStreamWaitValue64_v2
#define cuStreamWaitValue32 cuStreamWaitValue32_v2
#define cuStreamWriteValue32 cuStreamWriteValue32_v2
#define cuStreamWriteValue64 cuStreamWriteValue64_v2
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

_Atomic u64 count_streams, count_events, count_graphs;

typedef struct op { struct op *next; op_run run; u64 due; size_t size; _Alignas(16) char argument[]; } op;

enum { MODE_GLOBAL, MODE_THREAD, MODE_RELAXED };

typedef struct capture {
    struct graph *graph;
    struct stream *origin;
    int mode;
    bool broken;
    u64 id;
    pthread_t thread;
} capture;

struct stream {
    context *of;
    bool blocking, legacy, stopping, started;
    pthread_cond_t work;
    op *head, *tail;
    u64 enqueued, done, eager;          /* operations ever; those to be done without delay */
    capture *in;
    u64 captured, joined;               /* positions in the graph: of the last operation, and of what the origin waited for */
    struct stream *next;
};
typedef struct graph { u64 magic; op *head, *tail; u64 n; } graph;
typedef struct { u64 magic; op **ops; u64 n; } graph_exec;

typedef struct event {
    u64 magic;
    int references;
    unsigned flags;
    void *of;                           /* its context */
    u64 recorded, done;                 /* the number of the last record, enqueued and reached */
    u64 time;
    struct stream *on;
    u64 behind;                         /* the operation of `on` that reaches it */
    capture *in;                        /* recorded in a capture */
    struct stream *in_stream;
    u64 position;
} event;

#define EVENT_MAGIC 0x746e657645534d49ull
#define GRAPH_MAGIC 0x6870617247534d49ull
#define EXEC_MAGIC 0x6365784547534d49ull

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static struct stream *streams;          /* the live ones */
static int captures[3];                 /* going on, by mode */
static __thread int captures_here;      /* of this thread, not relaxed */
static u64 capture_ids;
static __thread struct stream *per_thread[MAX_DEVICES];

static void prepare(void)
{
    pthread_condattr_t how;
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&progress, &how);
    pthread_condattr_destroy(&how);
}

typedef struct { event *e; u64 number; } event_op;
static void reached(event_op *o);
static void run_record(void *argument);

/* ---- the engine --------------------------------------------------------------------------------------------------------- */

/* A stream is never freed: events name it after its end, and its handle stays one of nothing. */
static void unlink_stream(struct stream *s)
{
    for (struct stream **at = &streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
}

static void *work(void *argument)
{
    struct stream *s = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        op *o = s->head;
        if (o == NULL) {
            if (s->stopping)
                break;
            pthread_cond_wait(&s->work, &lock);
            continue;
        }
        if (o->due && s->done + 1 > s->eager && sim_now() < o->due) {
            struct timespec until = {(time_t)(o->due / 1000000000u), (long)(o->due % 1000000000u)};
            pthread_cond_timedwait(&s->work, &lock, &until);
            continue;
        }
        /* An event and the stream that it ends come to be done at the same time. */
        if (o->run == run_record)
            reached((event_op *)o->argument);
        else {
            pthread_mutex_unlock(&lock);
            o->run(o->argument);
            pthread_mutex_lock(&lock);
        }
        s->head = o->next;
        if (s->head == NULL)
            s->tail = NULL;
        s->done++;
        pthread_cond_broadcast(&progress);
        free(o);
    }
    unlink_stream(s);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct stream *new_stream(context *of, bool blocking, bool legacy)
{
    pthread_condattr_t how;
    struct stream *s = calloc(1, sizeof *s);
    pthread_once(&prepared, prepare);
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &how);
    pthread_condattr_destroy(&how);
    s->of = of;
    s->blocking = blocking;
    s->legacy = legacy;
    s->next = streams;
    streams = s;
    return s;
}

static bool start(struct stream *s)
{
    pthread_t thread;
    pthread_attr_t how;
    if (s->started)
        return true;
    pthread_attr_init(&how);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    s->started = pthread_create(&thread, &how, work, s) == 0;
    pthread_attr_destroy(&how);
    return s->started;
}

static op *new_op(op_run run, const void *argument, size_t size)
{
    op *o = malloc(sizeof *o + size);
    if (o) {
        o->next = NULL;
        o->run = run;
        o->due = 0;
        o->size = size;
        memcpy(o->argument, argument, size);
    }
    return o;
}

/* Under the lock. */
static CUresult append(struct stream *s, op *o)
{
    if (o == NULL || !start(s)) {
        free(o);
        return OUT_OF_MEMORY;
    }
    if (sim.late_ns)
        o->due = sim_now() + sim.late_ns;
    if (s->tail)
        s->tail->next = o;
    else
        s->head = o;
    s->tail = o;
    s->enqueued++;
    pthread_cond_signal(&s->work);
    return OK;
}

static void hurry(struct stream *s, u64 to)
{
    if (s->eager < to) {
        s->eager = to;
        pthread_cond_signal(&s->work);
    }
}

static bool alive(const struct stream *wanted)
{
    for (struct stream *s = streams; s; s = s->next)
        if (s == wanted)
            return !s->stopping;
    return false;
}

/* Under the lock. */
static void wait_for(struct stream *s, u64 to)
{
    hurry(s, to);
    while (s->done < to)
        pthread_cond_wait(&progress, &lock);
}

typedef struct { struct stream *on; u64 to; } dependency;
static void run_dependency(void *argument)
{
    dependency *d = argument;
    pthread_mutex_lock(&lock);
    wait_for(d->on, d->to);
    pthread_mutex_unlock(&lock);
}

/* The legacy default stream and the blocking ones of its context wait for each other. */
static CUresult order_with_legacy(struct stream *s)
{
    CUresult status = OK;
    if (s->legacy) {
        for (struct stream *other = streams; other && status == OK; other = other->next)
            if (other != s && other->of == s->of && other->blocking && other->done < other->enqueued)
                status = append(s, new_op(run_dependency, &(dependency){other, other->enqueued}, sizeof(dependency)));
    } else if (s->blocking && s->of->legacy && s->of->legacy->done < s->of->legacy->enqueued)
        status = append(s, new_op(run_dependency, &(dependency){s->of->legacy, s->of->legacy->enqueued}, sizeof(dependency)));
    return status;
}

static struct stream *legacy_of(context *c)
{
    if (c->legacy == NULL)
        c->legacy = new_stream(c, true, true);
    return c->legacy;
}

/* The stream that a handle means; under the lock. */
static struct stream *resolve(void *handle, const char *what, CUresult *status)
{
    context *c = sim_current();
    pthread_once(&prepared, prepare);
    *status = OK;
    if ((uintptr_t)handle <= 2) {
        if (c == NULL) {
            *status = broke(INVALID_CONTEXT, "%s: no context is current in this thread", what);
            return NULL;
        }
        if ((uintptr_t)handle < 2)
            return legacy_of(c);
        if (per_thread[c->device] == NULL)
            per_thread[c->device] = new_stream(c, true, false);
        return per_thread[c->device];
    }
    if (alive(handle))
        return handle;
    *status = misuse(INVALID_HANDLE, "%s: %p is no stream, or was destroyed (the driver leaves this undefined)", what, handle);
    return NULL;
}

static void free_ops(op *o)
{
    while (o) {
        op *next = o->next;
        free(o);
        o = next;
    }
}

/* A capture ends without a graph. It stays itself: events may still name it. */
static void end_capture(capture *c)
{
    for (struct stream *s = streams; s; s = s->next)
        if (s->in == c)
            s->in = NULL;
    captures[c->mode]--;
    captures_here -= c->mode != MODE_RELAXED;
    if (c->graph) {
        free_ops(c->graph->head);
        free(c->graph);
        c->graph = NULL;
    }
}

bool sim_unsafe_now(void) { return captures[MODE_GLOBAL] > 0 || (captures[MODE_THREAD] > 0 && captures_here > 0); }

void sim_invalidate_captures(void)
{
    pthread_mutex_lock(&lock);
    for (struct stream *s = streams; s; s = s->next)
        if (s->in && s->in->mode == MODE_GLOBAL)
            s->in->broken = true;
    pthread_mutex_unlock(&lock);
}

/* Under the lock: put an operation where the stream is, in its queue or its capture. */
static CUresult place(struct stream *s, const char *what, op_run run, const void *argument, size_t size)
{
    CUresult status;
    if (s->in) {
        if (s->in->broken)
            return CAPTURE_INVALIDATED;
        op *o = new_op(run, argument, size);
        if (o == NULL)
            return OUT_OF_MEMORY;
        graph *g = s->in->graph;
        if (g->tail)
            g->tail->next = o;
        else
            g->head = o;
        g->tail = o;
        s->captured = ++g->n;
        return OK;
    }
    if (s->legacy && captures[MODE_GLOBAL])
        for (struct stream *other = streams; other; other = other->next)
            if (other->in && other->blocking && other->of == s->of) {
                other->in->broken = true;
                return broke(CAPTURE_IMPLICIT, "%s: the legacy default stream would wait for a stream that is captured", what);
            }
    status = order_with_legacy(s);
    return status == OK ? append(s, new_op(run, argument, size)) : status;
}

static CUresult enqueue(void *handle, const char *what, op_run run, const void *argument, size_t size)
{
    CUresult status;
    pthread_mutex_lock(&lock);
    struct stream *s = resolve(handle, what, &status);
    if (s)
        status = place(s, what, run, argument, size);
    pthread_mutex_unlock(&lock);
    return status;
}

API CUresult nvsym_sim_enqueue(void *stream, op_run run, const void *argument, size_t size);
API CUresult nvsym_sim_enqueue(void *stream, op_run run, const void *argument, size_t size)
{
    return enqueue(stream, "nvsym_sim_enqueue", run, argument, size);
}
CUresult sim_enqueue(void *stream, op_run run, const void *argument, size_t size)
{
    return enqueue(stream, "an operation", run, argument, size);
}

CUresult sim_wait_stream(void *handle)
{
    CUresult status;
    pthread_mutex_lock(&lock);
    struct stream *s = resolve(handle, "cuStreamSynchronize", &status);
    if (s && s->in) {
        s->in->broken = true;
        status = broke(CAPTURE_UNSUPPORTED, "cuStreamSynchronize of a stream that is captured");
    } else if (s) {
        if (s->legacy)
            status = order_with_legacy(s);
        wait_for(s, s->enqueued);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

bool sim_is_capturing(void *handle)
{
    CUresult status;
    pthread_mutex_lock(&lock);
    struct stream *s = resolve(handle, "", &status);
    bool is = s && s->in;
    pthread_mutex_unlock(&lock);
    return is;
}

/* All that is on streams of a context, or of any. */
static void drain(const context *of)
{
    pthread_once(&prepared, prepare);
    pthread_mutex_lock(&lock);
    for (struct stream *s = streams; s; s = s->next)
        if (of == NULL || s->of == of)
            hurry(s, s->enqueued);
    /* A stream may go while this thread waits for another: begin anew after each wait. */
    for (struct stream *s = streams; s;) {
        if ((of == NULL || s->of == of) && s->done < s->eager && s->eager <= s->enqueued) {
            wait_for(s, s->eager);
            s = streams;
        } else
            s = s->next;
    }
    pthread_mutex_unlock(&lock);
}

void sim_drain(void) { drain(NULL); }

CALL(cuCtxSynchronize, UNSAFE, (void), (), "%s", "")
{
    context *c = sim_current();
    if (c == NULL)
        return broke(INVALID_CONTEXT, "cuCtxSynchronize: no context is current in this thread");
    drain(c);
    return OK;
}

/* ---- streams ------------------------------------------------------------------------------------------------------------ */

static CUresult create(void **out, unsigned flags, const char *what)
{
    context *c = sim_current();
    if (c == NULL)
        return broke(INVALID_CONTEXT, "%s: no context is current in this thread", what);
    if (out == NULL || flags > 1)
        return broke(INVALID_VALUE, "%s: flags %u are neither 0 nor 1", what, flags);
    pthread_mutex_lock(&lock);
    *out = new_stream(c, flags == 0, false);
    pthread_mutex_unlock(&lock);
    count_streams++;
    return OK;
}

CALL(cuStreamCreate, AFTER_INIT, (void **out, unsigned flags), (out, flags), "flags=%u", flags)
{
    return create(out, flags, "cuStreamCreate");
}

CALL(cuStreamCreateWithPriority, AFTER_INIT, (void **out, unsigned flags, int priority), (out, flags, priority),
     "flags=%u priority=%d", flags, priority)
{
    return create(out, flags, "cuStreamCreateWithPriority");
}

CALL(cuStreamDestroy, AFTER_INIT, (void *handle), (handle), "%p", handle)
{
    CUresult status = OK;
    pthread_mutex_lock(&lock);
    struct stream *s = (uintptr_t)handle <= 2 ? NULL : resolve(handle, "cuStreamDestroy", &status);
    if ((uintptr_t)handle <= 2)
        status = broke(INVALID_VALUE, "cuStreamDestroy: a default stream is not destroyed");
    if (s) {
        if (s->in && s->in->origin == s)
            end_capture(s->in);
        else if (s->in)
            s->in->broken = true;
        /* What is on it runs on; the thread ends after it. */
        s->stopping = true;
        if (s->started)
            pthread_cond_signal(&s->work);
        else
            unlink_stream(s);
        count_streams--;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuStreamSynchronize, AFTER_INIT, (void *handle), (handle), "%p", handle) { return sim_wait_stream(handle); }

CALL(cuStreamQuery, AFTER_INIT, (void *handle), (handle), "%p", handle)
{
    CUresult status;
    pthread_mutex_lock(&lock);
    struct stream *s = resolve(handle, "cuStreamQuery", &status);
    if (s && s->in) {
        s->in->broken = true;
        status = broke(CAPTURE_UNSUPPORTED, "cuStreamQuery of a stream that is captured");
    } else if (s && s->done < s->enqueued)
        status = NOT_READY;
    for (struct stream *other = streams; s && s->legacy && other; other = other->next)
        if (other->of == s->of && other->blocking && other->done < other->enqueued)
            status = NOT_READY;
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuStreamGetCtx, AFTER_INIT, (void *handle, void **out), (handle, out), "%p", handle)
{
    CUresult status;
    if (out == NULL)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct stream *s = resolve(handle, "cuStreamGetCtx", &status);
    if (s)
        *out = s->of;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- events ------------------------------------------------------------------------------------------------------------- */

static event *valid_event(void *handle, const char *what, CUresult *status)
{
    event *e = handle;
    if (e && e->magic == EVENT_MAGIC)
        return e;
    *status = e ? misuse(INVALID_HANDLE, "%s: %p is no event, or was destroyed", what, handle)
                : broke(INVALID_HANDLE, "%s: the event is NULL", what);
    return NULL;
}

static void drop_event(event *e)
{
    if (--e->references == 0)
        free(e);
}

CALL(cuEventCreate, AFTER_INIT, (void **out, unsigned flags), (out, flags), "flags=%u", flags)
{
    if (sim_current() == NULL)
        return broke(INVALID_CONTEXT, "cuEventCreate: no context is current in this thread");
    if (out == NULL || flags > 7 || ((flags & 4) && !(flags & 2)))
        return broke(INVALID_VALUE, "cuEventCreate: flags %u", flags);
    event *e = calloc(1, sizeof *e);
    e->magic = EVENT_MAGIC;
    e->references = 1;
    e->flags = flags;
    e->of = sim_current();
    *out = e;
    count_events++;
    return OK;
}

CALL(cuEventDestroy, AFTER_INIT, (void *handle), (handle), "%p", handle)
{
    CUresult status = OK;
    pthread_mutex_lock(&lock);
    event *e = valid_event(handle, "cuEventDestroy", &status);
    if (e) {
        e->magic = 0;
        drop_event(e);
        count_events--;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static void reached(event_op *o)
{
    if (o->e->done < o->number) {
        o->e->done = o->number;
        o->e->time = sim_now();
    }
    drop_event(o->e);
}

/* Only its address counts: a stream's thread does it under the lock. */
static void run_record(void *argument) { (void)argument; }

static CUresult record(void *handle, void *stream, const char *what)
{
    CUresult status = OK;
    pthread_mutex_lock(&lock);
    event *e = valid_event(handle, what, &status);
    struct stream *s = e ? resolve(stream, what, &status) : NULL;
    if (s && s->of != e->of)
        status = broke(INVALID_HANDLE, "%s: the event and the stream are of two contexts", what);
    else if (s && s->in) {
        if (s->in->broken)
            status = CAPTURE_INVALIDATED;
        else {
            e->in = s->in;
            e->in_stream = s;
            e->position = s->captured;
        }
    } else if (s) {
        e->in = NULL;
        e->recorded++;
        e->references++;
        status = place(s, what, run_record, &(event_op){e, e->recorded}, sizeof(event_op));
        if (status == OK)
            e->on = s, e->behind = s->enqueued;
        else
            e->recorded--, e->references--;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuEventRecord, AFTER_INIT, (void *handle, void *stream), (handle, stream), "%p %p", handle, stream)
{
    return record(handle, stream, "cuEventRecord");
}

CALL(cuEventRecordWithFlags, AFTER_INIT, (void *handle, void *stream, unsigned flags), (handle, stream, flags), "%p %p %u", handle,
     stream, flags)
{
    if (flags)
        return broke(flags == 1 ? NOT_SUPPORTED : INVALID_VALUE, "cuEventRecordWithFlags: flags %u: external records are not simulated", flags);
    return record(handle, stream, "cuEventRecordWithFlags");
}

CALL(cuEventQuery, UNSAFE, (void *handle), (handle), "%p", handle)
{
    CUresult status = OK;
    pthread_mutex_lock(&lock);
    event *e = valid_event(handle, "cuEventQuery", &status);
    if (e && e->in)
        status = broke(CAPTURED_EVENT, "cuEventQuery of an event that was recorded in a capture");
    else if (e && e->done < e->recorded)
        status = NOT_READY;
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuEventSynchronize, UNSAFE, (void *handle), (handle), "%p", handle)
{
    CUresult status = OK;
    pthread_once(&prepared, prepare);
    pthread_mutex_lock(&lock);
    event *e = valid_event(handle, "cuEventSynchronize", &status);
    if (e && e->in)
        status = broke(CAPTURED_EVENT, "cuEventSynchronize of an event that was recorded in a capture");
    else if (e && e->on)
        wait_for(e->on, e->behind);
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuEventElapsedTime, AFTER_INIT, (float *ms, void *start_, void *end_), (ms, start_, end_), "%p %p", start_, end_)
{
    CUresult status = OK;
    if (ms == NULL)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    event *a = valid_event(start_, "cuEventElapsedTime", &status);
    event *b = a ? valid_event(end_, "cuEventElapsedTime", &status) : NULL;
    if (b && ((a->flags | b->flags) & 2 || a->recorded == 0 || b->recorded == 0))
        status = broke(INVALID_HANDLE, "cuEventElapsedTime: an event without timing, or that was never recorded");
    else if (b && (a->done < a->recorded || b->done < b->recorded))
        status = NOT_READY;
    else if (b)
        *ms = (float)((double)(int64_t)(b->time - a->time) * 1e-6);
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuStreamWaitEvent, AFTER_INIT, (void *stream, void *handle, unsigned flags), (stream, handle, flags), "%p %p", stream, handle)
{
    CUresult status = OK;
    if (flags)
        return broke(flags == 1 ? NOT_SUPPORTED : INVALID_VALUE, "cuStreamWaitEvent: flags %u: external waits are not simulated", flags);
    pthread_mutex_lock(&lock);
    event *e = valid_event(handle, "cuStreamWaitEvent", &status);
    struct stream *s = e ? resolve(stream, "cuStreamWaitEvent", &status) : NULL;
    if (s && e->in) {
        /* The wait takes the stream into the capture, or joins a branch with it. */
        if (e->in->graph == NULL)
            status = broke(CAPTURED_EVENT, "cuStreamWaitEvent: the event was recorded in a capture that has ended");
        else if (s->in && s->in != e->in)
            status = broke(CAPTURE_MERGE, "cuStreamWaitEvent: the stream and the event are in two captures");
        else if (s->legacy)
            status = broke(CAPTURE_IMPLICIT, "cuStreamWaitEvent: the legacy default stream cannot be captured");
        else {
            if (s->in == NULL) {
                s->in = e->in;
                s->captured = s->joined = e->position;
            }
            if (alive(e->in_stream) && e->in_stream->in == e->in && e->in_stream->joined < e->position)
                e->in_stream->joined = e->position;
        }
    } else if (s && s->in) {
        if (e->recorded)
            status = broke(CAPTURE_ISOLATION, "cuStreamWaitEvent: a captured stream cannot wait for an event from outside the capture");
        if (status != OK)
            s->in->broken = true;
    } else if (s && e->done < e->recorded)  /* for this record: another stream may reach a later one before */
        status = place(s, "cuStreamWaitEvent", run_dependency, &(dependency){e->on, e->behind}, sizeof(dependency));
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- captures and graphs ------------------------------------------------------------------------------------------------ */

CALL(cuStreamBeginCapture, AFTER_INIT, (void *stream, int mode), (stream, mode), "%p mode=%d", stream, mode)
{
    CUresult status;
    if (mode < 0 || mode > 2)
        return broke(INVALID_VALUE, "cuStreamBeginCapture: mode %d", mode);
    pthread_mutex_lock(&lock);
    struct stream *s = resolve(stream, "cuStreamBeginCapture", &status);
    if (s && s->legacy)
        status = broke(CAPTURE_UNSUPPORTED, "cuStreamBeginCapture: the legacy default stream cannot be captured");
    else if (s && s->in)
        status = broke(ILLEGAL_STATE, "cuStreamBeginCapture: the stream is captured already");
    else if (s) {
        capture *c = calloc(1, sizeof *c);
        c->graph = calloc(1, sizeof *c->graph);
        c->graph->magic = GRAPH_MAGIC;
        c->origin = s;
        c->mode = mode;
        c->id = ++capture_ids;
        c->thread = pthread_self();
        s->in = c;
        s->captured = s->joined = 0;
        captures[mode]++;
        captures_here += mode != MODE_RELAXED;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuStreamEndCapture, AFTER_INIT, (void *stream, void **out), (stream, out), "%p", stream)
{
    CUresult status;
    if (out == NULL)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct stream *s = resolve(stream, "cuStreamEndCapture", &status);
    capture *c = s ? s->in : NULL;
    if (s && c == NULL)
        status = broke(ILLEGAL_STATE, "cuStreamEndCapture: the stream is not captured");
    else if (s && c->origin != s)
        status = broke(CAPTURE_UNMATCHED, "cuStreamEndCapture: the capture began in another stream");
    else if (s && c->mode != MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        status = broke(CAPTURE_WRONG_THREAD, "cuStreamEndCapture: the capture began in another thread");
    else if (s) {
        status = c->broken ? CAPTURE_INVALIDATED : OK;
        for (struct stream *other = streams; other && status == OK; other = other->next)
            if (other->in == c && other != s && other->joined < other->captured)
                status = broke(CAPTURE_UNJOINED, "cuStreamEndCapture: a stream that joined the capture did not end in the first one");
        *out = NULL;
        if (status == OK) {
            *out = c->graph;
            c->graph = NULL;
            count_graphs++;
        }
        end_capture(c);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuStreamIsCapturing, AFTER_INIT, (void *stream, int *out), (stream, out), "%p %d", stream, out ? *out : -1)
{
    CUresult status;
    if (out == NULL)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct stream *s = resolve(stream, "cuStreamIsCapturing", &status);
    if (s && s->legacy && captures[MODE_GLOBAL])
        status = broke(CAPTURE_IMPLICIT, "cuStreamIsCapturing: the legacy default stream, while another is captured");
    else if (s)
        *out = s->in == NULL ? 0 : s->in->broken ? 2 : 1;
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuStreamGetCaptureInfo, AFTER_INIT,
     (void *stream, int *out, u64 *id, void **g, const void ***dependencies, size_t *n), (stream, out, id, g, dependencies, n), "%p",
     stream)
{
    CUresult status;
    if (out == NULL)
        return INVALID_VALUE;
    if (g || dependencies || n)
        return broke(NOT_SUPPORTED, "cuStreamGetCaptureInfo: the nodes of a graph are not simulated");
    pthread_mutex_lock(&lock);
    struct stream *s = resolve(stream, "cuStreamGetCaptureInfo", &status);
    if (s) {
        *out = s->in == NULL ? 0 : s->in->broken ? 2 : 1;
        if (id && s->in)
            *id = s->in->id;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

CALL(cuGraphInstantiateWithFlags, AFTER_INIT, (void **out, void *handle, u64 flags), (out, handle, flags), "%p", handle)
{
    graph *g = handle;
    if (out == NULL || g == NULL || g->magic != GRAPH_MAGIC)
        return broke(INVALID_VALUE, "cuGraphInstantiateWithFlags: %p is no graph", handle);
    graph_exec *e = calloc(1, sizeof *e);
    e->magic = EXEC_MAGIC;
    e->ops = calloc(g->n + 1, sizeof *e->ops);
    for (op *o = g->head; o; o = o->next)
        e->ops[e->n++] = new_op(o->run, o->argument, o->size);
    count_graphs++;
    *out = e;
    return OK;
}

static void run_graph(void *argument)
{
    graph_exec *e = *(graph_exec **)argument;
    for (u64 i = 0; i < e->n; i++)
        e->ops[i]->run(e->ops[i]->argument);
}

CALL(cuGraphLaunch, AFTER_INIT, (void *handle, void *stream), (handle, stream), "%p %p", handle, stream)
{
    graph_exec *e = handle;
    if (e == NULL || e->magic != EXEC_MAGIC)
        return broke(INVALID_VALUE, "cuGraphLaunch: %p is no executable graph", handle);
    return enqueue(stream, "cuGraphLaunch", run_graph, &e, sizeof e);
}

CALL(cuGraphExecDestroy, AFTER_INIT, (void *handle), (handle), "%p", handle)
{
    graph_exec *e = handle;
    if (e == NULL || e->magic != EXEC_MAGIC)
        return broke(INVALID_VALUE, "cuGraphExecDestroy: %p is no executable graph", handle);
    e->magic = 0;
    count_graphs--;
    /* A launch may still be running: what it does stays, as the driver keeps it. */
    return OK;
}

CALL(cuGraphDestroy, AFTER_INIT, (void *handle), (handle), "%p", handle)
{
    graph *g = handle;
    if (g == NULL || g->magic != GRAPH_MAGIC)
        return broke(INVALID_VALUE, "cuGraphDestroy: %p is no graph", handle);
    g->magic = 0;
    free_ops(g->head);
    free(g);
    count_graphs--;
    return OK;
}

/* ---- copies ------------------------------------------------------------------------------------------------------------- */

typedef struct { void *to; const void *from; size_t size; void *staged; } copy_op;
static void run_copy(void *argument)
{
    copy_op *c = argument;
    memmove(c->to, c->staged ? c->staged : c->from, c->size);
    free(c->staged);
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream, const char *what)
{
    int to_kind, from_kind;
    CUresult status = sim_check_range(what, to, size, true, &to_kind);
    if (status == OK)
        status = sim_check_range(what, from, size, false, &from_kind);
    if (status != OK || size == 0)
        return status;
    copy_op c = {(void *)to, (const void *)from, size, NULL};
    bool pageable = to_kind == PAGEABLE || from_kind == PAGEABLE;
    if (pageable && sim_is_capturing(stream))
        return broke(CAPTURE_UNSUPPORTED, "%s: pageable host memory in a capture", what);
    /* The source may be changed once the call has returned. */
    if (from_kind == PAGEABLE) {
        if ((c.staged = malloc(size)) == NULL)
            return OUT_OF_MEMORY;
        memcpy(c.staged, c.from, size);
    }
    status = enqueue(stream, what, run_copy, &c, sizeof c);
    if (status != OK)
        free(c.staged);
    /* Into pageable memory the driver keeps the caller until it is done. */
    return status == OK && to_kind == PAGEABLE ? sim_wait_stream(stream) : status;
}

#define COPY(stem, kind, T, F)                                                                                           \
    CALL(stem##kind##Async, AFTER_INIT, (T to, F from, size_t size, void *stream), (to, from, size, stream),             \
         "to=%#llx from=%#llx size=%zu %p", (unsigned long long)to, (unsigned long long)from, size, stream)              \
    {                                                                                                                    \
        return copy((CUdeviceptr)to, (CUdeviceptr)from, size, stream, #stem #kind "Async");                              \
    }                                                                                                                    \
    CALL(stem##kind, UNSAFE, (T to, F from, size_t size), (to, from, size), "to=%#llx from=%#llx size=%zu",              \
         (unsigned long long)to, (unsigned long long)from, size)                                                         \
    {                                                                                                                    \
        CUresult status = copy((CUdeviceptr)to, (CUdeviceptr)from, size, NULL, #stem #kind);                             \
        return status == OK ? sim_wait_stream(NULL) : status;                                                            \
    }
COPY(cuMemcpy, , CUdeviceptr, CUdeviceptr)
COPY(cuMemcpy, HtoD, CUdeviceptr, const void *)
COPY(cuMemcpy, DtoH, void *, CUdeviceptr)
COPY(cuMemcpy, DtoD, CUdeviceptr, CUdeviceptr)

typedef struct { void *to; size_t n; u32 value; int width; } fill_op;
static void run_fill(void *argument)
{
    fill_op *f = argument;
    if (f->width == 1)
        memset(f->to, (int)f->value, f->n);
    for (size_t i = 0; i < f->n && f->width == 2; i++)
        ((uint16_t *)f->to)[i] = (uint16_t)f->value;
    for (size_t i = 0; i < f->n && f->width == 4; i++)
        ((u32 *)f->to)[i] = f->value;
}

static CUresult fill(CUdeviceptr to, u32 value, size_t n, int width, void *stream, const char *what)
{
    int kind;
    CUresult status = sim_check_range(what, to, n * (size_t)width, true, &kind);
    if (status != OK || n == 0)
        return status;
    if (to % (unsigned)width)
        return broke(INVALID_VALUE, "%s: %#llx is not aligned to %d bytes", what, (unsigned long long)to, width);
    if (kind == PAGEABLE)
        return broke(INVALID_VALUE, "%s: %#llx is pageable host memory", what, (unsigned long long)to);
    return enqueue(stream, what, run_fill, &(fill_op){(void *)to, n, value, width}, sizeof(fill_op));
}

#define FILL(bits, T)                                                                                                    \
    CALL(cuMemsetD##bits##Async, AFTER_INIT, (CUdeviceptr to, T value, size_t n, void *stream), (to, value, n, stream),  \
         "to=%#llx n=%zu %p", (unsigned long long)to, n, stream)                                                         \
    {                                                                                                                    \
        return fill(to, value, n, bits / 8, stream, "cuMemsetD" #bits "Async");                                          \
    }                                                                                                                    \
    CALL(cuMemsetD##bits, UNSAFE, (CUdeviceptr to, T value, size_t n), (to, value, n), "to=%#llx n=%zu",                 \
         (unsigned long long)to, n)                                                                                      \
    {                                                                                                                    \
        CUresult status = fill(to, value, n, bits / 8, NULL, "cuMemsetD" #bits);                                         \
        return status == OK ? sim_wait_stream(NULL) : status;                                                            \
    }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)

/* ---- host functions, and operations on words ---------------------------------------------------------------------------- */

typedef struct { void (*function)(void *); void *data; } host_op;
static void run_host(void *argument)
{
    host_op *h = argument;
    h->function(h->data);
}

CALL(cuLaunchHostFunc, AFTER_INIT, (void *stream, void (*function)(void *), void *data), (stream, function, data), "%p", stream)
{
    if (function == NULL)
        return INVALID_VALUE;
    return enqueue(stream, "cuLaunchHostFunc", run_host, &(host_op){function, data}, sizeof(host_op));
}

typedef struct { void *at; u64 value; unsigned flags; int width; } word_op;
static void run_write(void *argument)
{
    word_op *w = argument;
    if (w->width == 8)
        atomic_store((_Atomic u64 *)w->at, w->value);
    else
        atomic_store((_Atomic u32 *)w->at, (u32)w->value);
}
static void run_await_word(void *argument)
{
    word_op *w = argument;
    for (int tries = 0;; sim_nap(&tries)) {
        u64 now = w->width == 8 ? atomic_load((_Atomic u64 *)w->at) : atomic_load((_Atomic u32 *)w->at);
        int64_t ahead = w->width == 8 ? (int64_t)(now - w->value) : (int32_t)((u32)now - (u32)w->value);
        switch (w->flags & 3) {
        case 0: if (ahead >= 0) return; break;
        case 1: if (now == w->value) return; break;
        case 2: if (now & w->value) return; break;
        case 3: if (~(now | w->value)) return; break;
        }
    }
}

static CUresult word(void *stream, CUdeviceptr at, u64 value, unsigned flags, int width, bool wait, const char *what)
{
    int kind;
    CUresult status = sim_check_range(what, at, (size_t)width, !wait, &kind);
    if (status != OK)
        return status;
    if (at % (unsigned)width || kind == PAGEABLE || (wait ? flags & ~0x40000003u : flags & ~1u))
        return broke(INVALID_VALUE, "%s: address %#llx, flags %#x", what, (unsigned long long)at, flags);
    return enqueue(stream, what, wait ? run_await_word : run_write, &(word_op){(void *)at, value, flags, width}, sizeof(word_op));
}

#define WORD(bits, T)                                                                                                    \
    CALL(cuStreamWaitValue##bits, AFTER_INIT, (void *stream, CUdeviceptr at, T value, unsigned flags),                   \
         (stream, at, value, flags), "%p at=%#llx flags=%u", stream, (unsigned long long)at, flags)                      \
    {                                                                                                                    \
        return word(stream, at, value, flags, bits / 8, true, "cuStreamWaitValue" #bits);                                \
    }                                                                                                                    \
    CALL(cuStreamWriteValue##bits, AFTER_INIT, (void *stream, CUdeviceptr at, T value, unsigned flags),                  \
         (stream, at, value, flags), "%p at=%#llx flags=%u", stream, (unsigned long long)at, flags)                      \
    {                                                                                                                    \
        return word(stream, at, value, flags, bits / 8, false, "cuStreamWriteValue" #bits);                              \
    }
WORD(32, u32)
WORD(64, u64)
