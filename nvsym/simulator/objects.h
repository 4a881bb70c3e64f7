/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations, multicast objects, reservations and mappings of a process, and what of them other processes share.
 *
 * An allocation is a memfd: its bytes, then the journal of stores (multimem.c), then a page with the label. A multicast object is
 * a memfd with its control block, shared by all that have imported it. Others reach bound memory through /proc/PID/fd: what a
 * process that died held is gone, and nothing is left behind in a file system.
 */
#ifndef NVSYM_SIMULATOR_OBJECTS_H
#define NVSYM_SIMULATOR_OBJECTS_H

#include "sim.h"

#include <sys/types.h>

enum { JOURNAL = 4096 };                /* stores remembered of an allocation */

typedef struct { u64 time, offset, width; unsigned char old[16]; } journal_entry;
typedef struct {
    pthread_mutex_t lock;
    u64 written;                        /* stores ever */
    journal_entry entries[JOURNAL];
} journal;

#define LABEL_MAGIC 0x6e7673796d53494dull
enum { KIND_MEMORY = 1, KIND_MULTICAST = 2 };

/* The last page of the file of a shareable object. */
typedef struct {
    u64 magic, size, handle_types, journal_at;
    int kind, node;
    uuid_t device;
    _Atomic int objects;                /* processes (and imports) that have it */
} label;

typedef struct {
    int used, stale;                    /* stale: the memory was given back while it was bound */
    uuid_t device;
    u64 offset, size, memory_offset;
    pid_t pid;
    int fd;
    ino_t inode;
} bind_record;

typedef struct {
    pthread_mutex_t lock;               /* robust: a process that dies holding it leaves it to the next */
    u64 size, handle_types;
    unsigned n_devices, added;
    uuid_t devices[MAX_TEAM];
    _Atomic u64 generation;             /* changes with every bind and unbind */
    bind_record binds[MAX_BINDS];
} control;

typedef struct object {
    int kind;
    CUhandle handle;
    int handles, mappings;              /* references; the object goes with the last of both */
    size_t size;
    u64 handle_types;
    int device;                         /* its number here, -1: of another process's sight */
    bool imported, exported, binding;
    int fd;
    ino_t inode;
    label *tag;
    control *team;                      /* of a multicast object */
    struct view *view;                  /* of one: its members' memory as mapped here (multimem.c) */
    struct object *next;
} object;

typedef struct mapping {
    CUdeviceptr at;
    size_t size;
    object *of;
    unsigned char access[MAX_DEVICES];  /* by device of this process: 0, 1 read, 3 read and write */
    struct mapping *next;
} mapping;

typedef struct reservation { CUdeviceptr at; size_t size; struct reservation *next; } reservation;

extern pthread_mutex_t memory_lock;     /* over all lists; nothing blocks under it */
extern object *objects;
extern mapping *mappings;

object *find_object(CUhandle handle, int kind, const char *what, CUresult *status);
mapping *mapping_at(CUdeviceptr at);
object *new_object(int kind, int fd, label *tag);
void drop_object(object *o);
int new_file(const char *name, size_t bytes, label **tag);
void init_shared_lock(pthread_mutex_t *lock);
CUresult check_types(const char *what, u64 types, int device);
void lock_control(control *team);
void forget_binds_of(object *memory);
int open_elsewhere(pid_t pid, int fd, ino_t inode);
void free_view(struct view *v);
CUresult wait_complete(object *o, const char *what);
static inline size_t page_up(size_t n) { return (n + PAGE - 1) / PAGE * PAGE; }
static inline bool aligned(u64 value, u64 to) { return (value & (to - 1)) == 0; }
static inline bool same_uuid(const uuid_t *a, const uuid_t *b) { return !__builtin_memcmp(a, b, sizeof *a); }

#endif
