/* malloc and its kin, replaced in this program: the n-th call can be made to fail, and what a stretch of calls
 * leaves behind is known.
 *
 * Calls made by the OpenMP runtime are let through: it ends the process when it gets no memory, which no caller can
 * prevent.
 */
#ifndef ALLOC_FAULTS_H
#define ALLOC_FAULTS_H

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

enum { ALLOC_SLOTS = 1 << 14 };

/* Only what is made between alloc_begin and alloc_end counts. */
static struct {
    int armed, made, fail_at, failed; /* calls so far, and which of them fails, from 1 */
    int forever;                      /* all from that one on */
    int live, lock;
    struct {
        void *memory;
        int call;
    } slots[ALLOC_SLOTS]; /* open addressing; a freed slot keeps `gone` */
} alloc_state;
static char alloc_gone;

static uintptr_t openmp_begin, openmp_end;

static int find_openmp(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size, (void)user;
    if (!strstr(info->dlpi_name, "libgomp") && !strstr(info->dlpi_name, "libomp"))
        return 0;
    openmp_begin = UINTPTR_MAX;
    for (int k = 0; k < info->dlpi_phnum; k++) {
        uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[k].p_vaddr, end = begin + info->dlpi_phdr[k].p_memsz;
        if (info->dlpi_phdr[k].p_type != PT_LOAD)
            continue;
        openmp_begin = begin < openmp_begin ? begin : openmp_begin;
        openmp_end = end > openmp_end ? end : openmp_end;
    }
    return 1;
}

static void alloc_lock(void)
{
    while (__atomic_exchange_n(&alloc_state.lock, 1, __ATOMIC_ACQUIRE))
        ;
}

static void alloc_unlock(void)
{
    __atomic_store_n(&alloc_state.lock, 0, __ATOMIC_RELEASE);
}

static size_t alloc_slot(const void *memory)
{
    return (size_t)((uintptr_t)memory / 16 * 0x9E3779B1u) % ALLOC_SLOTS;
}

static void alloc_forget(void *memory)
{
    if (!memory || !alloc_state.armed)
        return;
    alloc_lock();
    for (size_t at = alloc_slot(memory); alloc_state.slots[at].memory; at = (at + 1) % ALLOC_SLOTS)
        if (alloc_state.slots[at].memory == memory) {
            alloc_state.slots[at].memory = &alloc_gone;
            alloc_state.live--;
            break;
        }
    alloc_unlock();
}

static void *alloc_remember(void *memory, int call)
{
    if (!memory || !call)
        return memory;
    alloc_lock();
    size_t at = alloc_slot(memory), looked = 0;
    while (alloc_state.slots[at].memory && alloc_state.slots[at].memory != &alloc_gone && looked++ < ALLOC_SLOTS)
        at = (at + 1) % ALLOC_SLOTS;
    if (looked >= ALLOC_SLOTS)
        abort();
    alloc_state.slots[at].memory = memory;
    alloc_state.slots[at].call = call;
    alloc_state.live++;
    alloc_unlock();
    return memory;
}

/* The number of the call, 0 when it does not count, -1 when it is to fail. */
static int alloc_call(const void *caller)
{
    if (!alloc_state.armed || ((uintptr_t)caller >= openmp_begin && (uintptr_t)caller < openmp_end))
        return 0;
    int call = __atomic_add_fetch(&alloc_state.made, 1, __ATOMIC_RELAXED);
    if (alloc_state.fail_at &&
        (call == alloc_state.fail_at || (alloc_state.forever && call > alloc_state.fail_at))) {
        __atomic_add_fetch(&alloc_state.failed, 1, __ATOMIC_RELAXED);
        errno = ENOMEM;
        return -1;
    }
    return call;
}

void *malloc(size_t size)
{
    int call = alloc_call(__builtin_return_address(0));
    return call < 0 ? NULL : alloc_remember(__libc_malloc(size), call);
}

void *calloc(size_t count, size_t size)
{
    int call = alloc_call(__builtin_return_address(0));
    return call < 0 ? NULL : alloc_remember(__libc_calloc(count, size), call);
}

void *realloc(void *memory, size_t size)
{
    int call = alloc_call(__builtin_return_address(0));
    if (call < 0)
        return NULL;
    alloc_forget(memory);
    return alloc_remember(__libc_realloc(memory, size), call);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    int call = alloc_call(__builtin_return_address(0));
    return call < 0 ? NULL : alloc_remember(__libc_memalign(alignment, size), call);
}

void free(void *memory)
{
    int kept = errno;
    alloc_forget(memory);
    __libc_free(memory);
    errno = kept;
}

static void alloc_begin(int fail_at, int forever)
{
    if (!openmp_end)
        dl_iterate_phdr(find_openmp, NULL);
    memset(alloc_state.slots, 0, sizeof alloc_state.slots);
    alloc_state.made = alloc_state.failed = alloc_state.live = 0;
    alloc_state.fail_at = fail_at;
    alloc_state.forever = forever;
    __atomic_store_n(&alloc_state.armed, 1, __ATOMIC_SEQ_CST);
}

/* The number of pieces that were made and are still there; *call: which call made one of them. */
static int alloc_end(int *call)
{
    __atomic_store_n(&alloc_state.armed, 0, __ATOMIC_SEQ_CST);
    *call = 0;
    for (size_t k = 0; k < ALLOC_SLOTS && !*call; k++)
        if (alloc_state.slots[k].memory && alloc_state.slots[k].memory != &alloc_gone)
            *call = alloc_state.slots[k].call;
    return alloc_state.live;
}

#endif
