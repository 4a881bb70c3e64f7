/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream in host memory: a first-in first-out queue of operations and one thread that runs them. Only
 * host_runtime.pyx includes this file, so the registry and the counter below exist once.
 *
 * An operation is a function and a block of bytes copied into the queue. The Python object that has to live until the
 * operation is done (`keep`) is never touched by the thread: finished nodes wait on a list that the next caller who
 * holds the GIL empties (hq_reap). So the thread needs no GIL and outlives no interpreter.
 *
 * A forked process has none of the threads, and the locks may be held by nobody who could release them: there, the
 * queues and events of the parent are lost, and are left alone. */
#ifndef NVSYM_HOST_QUEUE_H
#define NVSYM_HOST_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HQ_PAYLOAD 256

typedef int (*hq_fn)(void *payload, void *status);

typedef struct hq_node {
    struct hq_node *next;
    uint64_t seq;
    hq_fn fn;
    hq_fn skip; /* runs in its place on a failed queue; may be NULL. Events, which others wait for, are reached all the same */
    void *keep;
    _Alignas(16) unsigned char payload[HQ_PAYLOAD];
} hq_node;

typedef struct hq {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    hq_node *head, *tail; /* not yet done; the head may be running */
    hq_node *done;        /* done, `keep` still held */
    struct hq *next;      /* registry */
    unsigned generation;  /* forks before it was made */
    void *status;         /* first failure; owned by the creator, freed with the queue */
    size_t status_size;
    int failed;
    int closing; /* drain, then end the thread */
    int ended;   /* the thread is gone */
} hq;

static pthread_mutex_t hq_registry_lock = PTHREAD_MUTEX_INITIALIZER;
static hq *hq_registry = NULL;
static _Atomic uint64_t hq_seq = 1;
static unsigned hq_generation = 0;
static __thread hq *hq_mine = NULL; /* the queue whose operations this thread runs */

static void hq_after_fork(void)
{
    hq_generation++;
    hq_registry = NULL;
    pthread_mutex_init(&hq_registry_lock, NULL);
}

static int hq_watch_forks(void) { return pthread_atfork(NULL, NULL, hq_after_fork); }

static int hq_lost(const hq *q) { return q->generation != hq_generation; }

static void *hq_main(void *arg)
{
    hq *q = (hq *)arg;
    hq_mine = q;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (!q->head && !q->closing)
            pthread_cond_wait(&q->work, &q->lock);
        if (!q->head)
            break;
        hq_node *node = q->head;
        hq_fn fn = q->failed ? node->skip : node->fn; /* after a failure the stream runs nothing more, as a CUDA stream */
        pthread_mutex_unlock(&q->lock);
        unsigned char *status = NULL;
        int rc = 0;
        if (fn) {
            status = (unsigned char *)calloc(1, q->status_size);
            rc = fn(node->payload, status);
        }
        pthread_mutex_lock(&q->lock);
        if (rc && !q->failed) {
            q->failed = 1;
            if (status)
                memcpy(q->status, status, q->status_size);
        }
        free(status);
        q->head = node->next;
        if (!q->head)
            q->tail = NULL;
        if (node->keep) {
            node->next = q->done;
            q->done = node;
        } else {
            free(node); /* nothing to release: who enqueues without the GIL never comes to empty the list */
        }
        pthread_cond_broadcast(&q->idle);
    }
    q->ended = 1; /* hq_reap frees the queue */
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static hq *hq_create(size_t status_size)
{
    hq *q = (hq *)calloc(1, sizeof(hq));
    if (!q)
        return NULL;
    q->status = calloc(1, status_size);
    q->status_size = status_size;
    q->generation = hq_generation;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->idle, NULL);
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int rc = q->status ? pthread_create(&thread, &attr, hq_main, q) : 1;
    pthread_attr_destroy(&attr);
    if (rc) {
        free(q->status);
        free(q);
        return NULL;
    }
    pthread_mutex_lock(&hq_registry_lock);
    q->next = hq_registry;
    hq_registry = q;
    pthread_mutex_unlock(&hq_registry_lock);
    return q;
}

static int hq_push(hq *q, hq_fn fn, hq_fn skip, const void *payload, size_t size, void *keep)
{
    hq_node *node = (hq_node *)malloc(sizeof(hq_node));
    if (!node || size > HQ_PAYLOAD) {
        free(node);
        return -1;
    }
    node->next = NULL;
    node->fn = fn;
    node->skip = skip;
    node->keep = keep;
    memcpy(node->payload, payload, size);
    pthread_mutex_lock(&q->lock);
    node->seq = atomic_fetch_add(&hq_seq, 1);
    if (q->tail)
        q->tail->next = node;
    else
        q->head = node;
    q->tail = node;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    return 0;
}

/* No more operations will come; what is in the queue still runs. Does not block. */
static void hq_close(hq *q)
{
    if (hq_lost(q))
        return;
    pthread_mutex_lock(&q->lock);
    q->closing = 1;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

/* The finished nodes of all queues, for the caller to release (linked by `next`); ended queues are freed. */
static hq_node *hq_reap(void)
{
    hq_node *list = NULL;
    pthread_mutex_lock(&hq_registry_lock);
    for (hq **p = &hq_registry; *p;) {
        hq *q = *p;
        pthread_mutex_lock(&q->lock);
        while (q->done) {
            hq_node *node = q->done;
            q->done = node->next;
            node->next = list;
            list = node;
        }
        int ended = q->ended;
        pthread_mutex_unlock(&q->lock);
        if (!ended) {
            p = &q->next;
            continue;
        }
        *p = q->next;
        pthread_cond_destroy(&q->work);
        pthread_cond_destroy(&q->idle);
        pthread_mutex_destroy(&q->lock);
        free(q->status);
        free(q);
    }
    pthread_mutex_unlock(&hq_registry_lock);
    return list;
}

/* Whether an operation of the queue makes this call; NULL: of any queue. It would wait for itself. */
static int hq_inside(const hq *q) { return q ? hq_mine == q : hq_mine != NULL; }

static int hq_idle(hq *q)
{
    pthread_mutex_lock(&q->lock);
    int idle = q->head == NULL;
    pthread_mutex_unlock(&q->lock);
    return idle;
}

/* The number of the last operation enqueued so far; 0: all are done. */
static uint64_t hq_last(hq *q)
{
    pthread_mutex_lock(&q->lock);
    uint64_t last = q->tail ? q->tail->seq : 0;
    pthread_mutex_unlock(&q->lock);
    return last;
}

static struct timespec hq_in(long milliseconds)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += milliseconds % 1000 * 1000000;
    end.tv_sec += milliseconds / 1000 + end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    return end;
}

/* Wait a while for the operations up to number `last`; 1 if they are done. */
static int hq_drain_for(hq *q, uint64_t last, long milliseconds)
{
    struct timespec end = hq_in(milliseconds);
    pthread_mutex_lock(&q->lock);
    while (q->head && q->head->seq <= last && pthread_cond_timedwait(&q->idle, &q->lock, &end) == 0)
        ;
    int done = !(q->head && q->head->seq <= last);
    pthread_mutex_unlock(&q->lock);
    return done;
}

/* The first failure, taken once; 1 if there was one. The queue runs again afterwards; so not while something is behind the failure, which
 * must not run: -1. */
static int hq_take_failure(hq *q, void *status)
{
    pthread_mutex_lock(&q->lock);
    int failed = !q->failed ? 0 : q->head ? -1 : 1;
    if (failed == 1) {
        memcpy(status, q->status, q->status_size);
        q->failed = 0;
    }
    pthread_mutex_unlock(&q->lock);
    return failed;
}

/* The same of any queue that still exists. */
static int hq_take_any_failure(void *status)
{
    int failed = 0;
    pthread_mutex_lock(&hq_registry_lock);
    for (hq *q = hq_registry; q && !failed; q = q->next)
        failed = hq_take_failure(q, status) == 1;
    pthread_mutex_unlock(&hq_registry_lock);
    return failed;
}

/* A ticket stands for all operations enqueued on any queue so far. */
static uint64_t hq_ticket(void) { return atomic_load(&hq_seq) - 1; }

static int hq_ticket_done(uint64_t ticket)
{
    int done = 1;
    pthread_mutex_lock(&hq_registry_lock);
    for (hq *q = hq_registry; q && done; q = q->next) {
        pthread_mutex_lock(&q->lock);
        if (q->head && q->head->seq <= ticket)
            done = 0;
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&hq_registry_lock);
    return done;
}

/* Wait for what a ticket stands for, on every queue, for so long at most; whether it is done. A queue may end meanwhile, so each step
 * looks anew. */
static int hq_drain_all_for(uint64_t ticket, long milliseconds)
{
    struct timespec end = hq_in(milliseconds), now, pause = {0, 20000};
    while (!hq_ticket_done(ticket)) {
        nanosleep(&pause, NULL);
        clock_gettime(CLOCK_REALTIME, &now);
        if (now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec))
            return 0;
    }
    return 1;
}

static int hq_is_registered(const void *p)
{
    int found = 0;
    pthread_mutex_lock(&hq_registry_lock);
    for (hq *q = hq_registry; q && !found; q = q->next)
        found = (const void *)q == p && !q->closing;
    pthread_mutex_unlock(&hq_registry_lock);
    return found;
}

/* A record of an event: whether its stream has reached it, and when. A wait is for the record that was the last one when the wait was
 * enqueued: a later one, which another stream may reach before, does not end it. */
typedef struct hq_record {
    int refs; /* under the lock of the event, as all of it */
    int reached;
    const hq *by; /* where it was recorded */
    int64_t time_ns;
} hq_record;

/* Shared by the Python object and the operations that use it. */
typedef struct hq_event {
    pthread_mutex_t lock;
    pthread_cond_t reached;
    _Atomic int refs;
    unsigned generation;
    hq_record *last; /* NULL: never recorded */
} hq_event;

static hq_event *hq_event_create(void)
{
    hq_event *e = (hq_event *)calloc(1, sizeof(hq_event));
    if (e) {
        pthread_mutex_init(&e->lock, NULL);
        pthread_cond_init(&e->reached, NULL);
        atomic_store(&e->refs, 1);
        e->generation = hq_generation;
    }
    return e;
}

static int hq_event_lost(const hq_event *e) { return e->generation != hq_generation; }

static void hq_event_drop(hq_event *e)
{
    if (!hq_event_lost(e) && atomic_fetch_sub(&e->refs, 1) == 1) {
        pthread_cond_destroy(&e->reached);
        pthread_mutex_destroy(&e->lock);
        free(e->last); /* who holds a record holds the event */
        free(e);
    }
}

static void hq_record_drop(hq_event *e, hq_record *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&e->lock);
    int left = --r->refs;
    pthread_mutex_unlock(&e->lock);
    if (!left)
        free(r);
}

/* The next record, which the caller holds; NULL without memory. */
static hq_record *hq_event_next(hq_event *e, const hq *by)
{
    hq_record *r = (hq_record *)calloc(1, sizeof(hq_record));
    if (!r)
        return NULL;
    r->refs = 2; /* one is the event's */
    r->by = by;
    pthread_mutex_lock(&e->lock);
    hq_record *before = e->last;
    e->last = r;
    pthread_mutex_unlock(&e->lock);
    hq_record_drop(e, before);
    return r;
}

/* The last record, which the caller holds from now on; NULL if there is none. */
static hq_record *hq_event_last(hq_event *e)
{
    pthread_mutex_lock(&e->lock);
    hq_record *r = e->last;
    if (r)
        r->refs++;
    pthread_mutex_unlock(&e->lock);
    return r;
}

static int hq_event_reached(hq_event *e)
{
    pthread_mutex_lock(&e->lock);
    int reached = !e->last || e->last->reached;
    pthread_mutex_unlock(&e->lock);
    return reached;
}

/* Whether it is recorded behind the operation that makes this call. */
static int hq_event_behind(hq_event *e)
{
    pthread_mutex_lock(&e->lock);
    int behind = e->last && !e->last->reached && e->last->by && e->last->by == hq_mine;
    pthread_mutex_unlock(&e->lock);
    return behind;
}

/* When the last record was reached: nanoseconds, 0 before; -1: never recorded. */
static int64_t hq_event_time(hq_event *e)
{
    pthread_mutex_lock(&e->lock);
    int64_t t = e->last ? e->last->time_ns : -1;
    pthread_mutex_unlock(&e->lock);
    return t;
}

static void hq_event_reach(hq_event *e, hq_record *r)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&e->lock);
    r->reached = 1;
    r->time_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    pthread_cond_broadcast(&e->reached);
    pthread_mutex_unlock(&e->lock);
}

static void hq_event_wait(hq_event *e, const hq_record *r)
{
    pthread_mutex_lock(&e->lock);
    while (!r->reached)
        pthread_cond_wait(&e->reached, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

/* Wait a while; 1 if the record is reached. */
static int hq_event_wait_for(hq_event *e, const hq_record *r, long milliseconds)
{
    struct timespec end = hq_in(milliseconds);
    pthread_mutex_lock(&e->lock);
    while (!r->reached && pthread_cond_timedwait(&e->reached, &e->lock, &end) == 0)
        ;
    int done = r->reached;
    pthread_mutex_unlock(&e->lock);
    return done;
}

typedef struct hq_event_op {
    hq_event *event;
    hq_record *record;
} hq_event_op;

static int hq_do_reach(void *payload, void *status)
{
    hq_event_op *op = (hq_event_op *)payload;
    (void)status;
    hq_event_reach(op->event, op->record);
    hq_record_drop(op->event, op->record);
    hq_event_drop(op->event);
    return 0;
}

static int hq_do_wait(void *payload, void *status)
{
    hq_event_op *op = (hq_event_op *)payload;
    (void)status;
    hq_event_wait(op->event, op->record);
    hq_record_drop(op->event, op->record);
    hq_event_drop(op->event);
    return 0;
}

/* The queue takes over the record, which the caller holds; but not where this fails. */
static int hq_push_event(hq *q, hq_event *e, hq_record *r, int wait)
{
    hq_event_op op = {e, r};
    atomic_fetch_add(&e->refs, 1);
    hq_fn fn = wait ? hq_do_wait : hq_do_reach;
    if (hq_push(q, fn, fn, &op, sizeof op, NULL)) {
        hq_event_drop(e);
        return -1;
    }
    return 0;
}

#endif
