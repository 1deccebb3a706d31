/* Which block takes which items of a persistent launch (kernel.h). */
#include <stdlib.h>

#include "analysis/deal.h"
#include "analysis/fold.h"
#include "analysis/tune.h"
#include "common/error.h"
#include "runtime/kernel.h"

struct sp_heads sp_kernel_heads(const splat_kernel *kernel, int64_t heads, int64_t kv_heads)
{
    const int64_t group = heads / kv_heads, parts = sp_fold_parts(group, kernel->plan->fold);
    return kernel->plan->fold == 1 ? (struct sp_heads){heads, (int)group}
                                   : (struct sp_heads){kv_heads * parts, (int)parts};
}

/* More items than this are dealt out in turn: their mean is what counts, and the list would be long. */
enum { ITEMS_MAX = 1 << 19 };

int64_t sp_item_tiles(const splat_plan *plan, const struct sp_pass *pass, int64_t pairs, int64_t section,
                      int64_t item)
{
    int64_t together = section < pairs ? section : pairs;
    int64_t first_pair = item / (pass->row_tile_count * together) * together;
    int64_t width = pairs - first_pair < together ? pairs - first_pair : together;
    return plan->row_tiles[pass->first_row_tile + (item - first_pair * pass->row_tile_count) / width].tiles;
}

int sp_section_pairs(const splat_kernel *kernel, int group)
{
    int64_t bytes = kernel->plan->kv_len * (kernel->options.head_dim + kernel->options.value_dim) * 2;
    int64_t fit = kernel->l2_bytes * 6 / 10 / bytes;
    int64_t pairs = (fit < 1 ? 1 : fit) * group;
    return pairs > 65536 ? 65536 : (int)pairs;
}

/* Fills owner[item] and counts[block]. */
static enum splat_status deal(const splat_kernel *kernel, const struct sp_pass *pass, int64_t pairs, int64_t items,
                              float *ns, int blocks, int32_t *owner, int32_t *counts)
{
    const struct sp_tune_row *row =
        &sp_tune_table_of(kernel->options.op, kernel->options.arch)->rows[kernel->plan->tune_row];
    int64_t section =
        sp_section_pairs(kernel, sp_kernel_heads(kernel, kernel->options.heads, kernel->options.kv_heads).group);
    double end_ns;
    for (int64_t item = 0; item < items; item++)
        ns[item] =
            (float)(row->row_ns + row->full_ns * (double)sp_item_tiles(kernel->plan, pass, pairs, section, item));
    enum splat_status status = sp_deal(ns, items, blocks, owner, &end_ns);
    for (int64_t item = 0; item < items && status == SPLAT_OK; item++)
        counts[owner[item]]++;
    return status;
}

/* Writes begins and items of one launch to `words`. */
static void write_lists(const int32_t *owner, int64_t items, int32_t *counts, int blocks, int32_t *words)
{
    int32_t at = blocks + 1;
    for (int b = 0; b < blocks; b++) {
        words[b] = at;
        at += counts[b];
        counts[b] = words[b];
    }
    words[blocks] = at;
    for (int64_t item = 0; item < items; item++)
        words[counts[owner[item]]++] = (int32_t)item;
}

enum splat_status sp_schedule_make(splat_kernel *kernel, int32_t **words, int64_t *count)
{
    const splat_plan *plan = kernel->plan;
    const int blocks = kernel->multiprocessors * kernel->blocks_per_sm;
    const int64_t pairs =
        kernel->options.batch * sp_kernel_heads(kernel, kernel->options.heads, kernel->options.kv_heads).heads;
    int64_t total = 0, most = 0;
    *words = NULL;
    *count = 0;
    kernel->schedules = calloc((size_t)plan->launch_count, sizeof *kernel->schedules);
    if (!kernel->schedules)
        return sp_no_memory("a kernel's schedules", (size_t)plan->launch_count * sizeof *kernel->schedules);
    for (int64_t k = 0; k < plan->launch_count && kernel->persistent; k++) {
        int64_t rows = plan->passes[k * plan->mask_count].row_tile_count;
        if (rows == 0 || pairs > ITEMS_MAX / rows || rows * pairs <= blocks)
            continue;
        kernel->schedules[k] = (struct sp_schedule){total, blocks};
        total += blocks + 1 + rows * pairs;
        most = rows * pairs > most ? rows * pairs : most;
    }
    if (total == 0)
        return SPLAT_OK;
    int32_t *made = malloc((size_t)total * sizeof *made), *owner = malloc((size_t)most * sizeof *owner);
    int32_t *counts = malloc((size_t)blocks * sizeof *counts);
    float *ns = malloc((size_t)most * sizeof *ns);
    enum splat_status status = SPLAT_OK;
    if (!made || !owner || !counts || !ns)
        status = sp_no_memory("a kernel's schedules", (size_t)total * sizeof *made);
    for (int64_t k = 0; k < plan->launch_count && status == SPLAT_OK; k++) {
        const struct sp_pass *pass = &plan->passes[k * plan->mask_count];
        if (!kernel->schedules[k].blocks)
            continue;
        for (int b = 0; b < blocks; b++)
            counts[b] = 0;
        status = deal(kernel, pass, pairs, pass->row_tile_count * pairs, ns, blocks, owner, counts);
        if (status != SPLAT_OK)
            break;
        write_lists(owner, pass->row_tile_count * pairs, counts, blocks, made + kernel->schedules[k].offset);
    }
    free(owner);
    free(counts);
    free(ns);
    if (status != SPLAT_OK) {
        free(made);
        return status;
    }
    *words = made;
    *count = total;
    return SPLAT_OK;
}
