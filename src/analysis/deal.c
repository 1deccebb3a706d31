/* List scheduling (deal.h). */
#include "analysis/deal.h"

#include <stdlib.h>

#include "common/error.h"

/* A slot and when it is free; a heap with the earliest on top. */
struct slot {
    double free_ns;
    int32_t number;
};

static int earlier(const struct slot *a, const struct slot *b)
{
    return a->free_ns != b->free_ns ? a->free_ns < b->free_ns : a->number < b->number;
}

static void sink_top(struct slot *heap, int count)
{
    for (int at = 0;;) {
        int least = at;
        for (int child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            if (earlier(&heap[child], &heap[least]))
                least = child;
        if (least == at)
            return;
        struct slot swap = heap[at];
        heap[at] = heap[least];
        heap[least] = swap;
        at = least;
    }
}

static double share_ns(const float *ns, int64_t count, int slots)
{
    double sum = 0;
    for (int64_t k = 0; k < count; k++)
        sum += ns[k];
    return sum / slots;
}

enum splat_status sp_deal(const float *ns, int64_t count, int slots, int32_t *owner, double *end_ns)
{
    struct slot *heap = malloc((size_t)slots * sizeof *heap);
    if (!heap)
        return sp_no_memory("a schedule", (size_t)slots * sizeof *heap);
    for (int32_t s = 0; s < slots; s++)
        heap[s] = (struct slot){0, s};
    const double long_ns = share_ns(ns, count, slots) / 4;
    *end_ns = 0;
    for (int turn = 0; turn < 2; turn++)
        for (int64_t k = 0; k < count; k++) {
            if ((ns[k] > long_ns) != (turn == 0))
                continue;
            heap[0].free_ns += ns[k];
            if (heap[0].free_ns > *end_ns)
                *end_ns = heap[0].free_ns;
            if (owner)
                owner[k] = heap[0].number;
            sink_top(heap, slots);
        }
    free(heap);
    return SPLAT_OK;
}
