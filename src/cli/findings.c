/* Counts over a plan's tiles and a sample of the mask's rows, and the words for them. */
#include "cli/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/plan.h"
#include "common/error.h"
#include "common/strbuf.h"

enum { SAMPLED_ROWS = 256 };

/* ---- Tiles ---- */

struct tile_walk {
    struct sp_findings *findings;
    int64_t pass, row_tile, tiles; /* of the row tile being walked */
};

static void add_predicate(struct sp_findings *f, const char *name, int64_t tiles)
{
    int p = 0;
    while (p < f->predicate_count && strcmp(f->predicates[p].name, name) != 0)
        p++;
    if (p == SP_PREDICATES_MAX)
        return;
    if (p == f->predicate_count) {
        f->predicates[p].name = name;
        f->predicates[p].tiles = 0;
        f->predicate_count++;
    }
    f->predicates[p].tiles += tiles;
}

static int visit_tiles(const splat_tile_stretch *stretch, void *user)
{
    struct tile_walk *walk = user;
    struct sp_findings *f = walk->findings;
    if (stretch->pass != walk->pass || stretch->row_tile != walk->row_tile) {
        walk->pass = stretch->pass;
        walk->row_tile = stretch->row_tile;
        walk->tiles = 0;
        f->row_tiles++;
    }
    walk->tiles += stretch->tiles;
    if (walk->tiles > f->longest_row_tile)
        f->longest_row_tile = walk->tiles;
    if (stretch->kind == SPLAT_TILE_PARTIAL)
        add_predicate(f, stretch->predicate, stretch->tiles);
    return 0;
}

static void sort_predicates(struct sp_findings *f)
{
    for (int a = 1; a < f->predicate_count; a++)
        for (int b = a; b > 0 && f->predicates[b].tiles > f->predicates[b - 1].tiles; b--) {
            const char *name = f->predicates[b].name;
            int64_t tiles = f->predicates[b].tiles;
            f->predicates[b] = f->predicates[b - 1];
            f->predicates[b - 1].name = name;
            f->predicates[b - 1].tiles = tiles;
        }
}

/* ---- Rows ---- */

struct shape_count {
    int64_t width, stride, columns;
};

enum { SHAPES_MAX = 64 };

/* Adds the runs of one row to the tally of shapes; shapes beyond the tally's size only count as blocks. */
static void tally_row(const splat_acsr_run *runs, int64_t count, struct shape_count *shapes, int *shape_count,
                      double *blocks)
{
    for (int64_t r = 0; r < count; r++) {
        int s = 0;
        while (s < *shape_count && (shapes[s].width != runs[r].width || shapes[s].stride != runs[r].stride))
            s++;
        if (s == *shape_count && s < SHAPES_MAX)
            shapes[(*shape_count)++] = (struct shape_count){runs[r].width, runs[r].stride, 0};
        if (s < *shape_count)
            shapes[s].columns += (int64_t)runs[r].width * runs[r].count;
        *blocks += runs[r].count;
    }
}

static enum splat_status sample_texture(const splat_acsr *acsr, struct sp_texture *texture)
{
    struct shape_count shapes[SHAPES_MAX] = {{0}};
    int shape_count = 0;
    int64_t rows = splat_acsr_q_len(acsr), samples = rows < SAMPLED_ROWS ? rows : SAMPLED_ROWS, capacity = 0;
    splat_acsr_run *runs = NULL;
    enum splat_status status = SPLAT_OK;
    double blocks = 0;
    for (int64_t s = 0; s < samples && status == SPLAT_OK; s++) {
        int64_t row = s * rows / samples, count = 0;
        status = splat_acsr_row(acsr, row, runs, capacity, &count);
        if (status == SPLAT_OK && count > capacity) {
            free(runs);
            capacity = count;
            runs = malloc((size_t)capacity * sizeof *runs);
            if (!runs)
                return sp_no_memory("runs of a row", (size_t)capacity * sizeof *runs);
            status = splat_acsr_row(acsr, row, runs, capacity, &count);
        }
        if (status == SPLAT_OK)
            tally_row(runs, count, shapes, &shape_count, &blocks);
    }
    free(runs);
    *texture = (struct sp_texture){.blocks = blocks / (double)samples};
    int64_t most = 0;
    for (int s = 0; s < shape_count; s++) {
        if (shapes[s].columns > most) {
            most = shapes[s].columns;
            texture->width = shapes[s].width;
            texture->stride = shapes[s].stride;
        }
    }
    return status;
}

/* ---- All of it ---- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

enum splat_status sp_findings_make(const splat_mask *mask, const splat_plan *plan, struct sp_findings *f)
{
    *f = (struct sp_findings){0};
    splat_plan_info_init(&f->info);
    enum splat_status status = splat_plan_get_info(plan, &f->info);
    if (status != SPLAT_OK)
        return status;
    const splat_plan_info *info = &f->info;
    f->all_tiles = ceil_div(info->q_len, info->tile_rows) * ceil_div(info->kv_len, info->tile_cols) * info->masks;
    f->computed_tiles = info->full_tiles + info->partial_tiles;
    for (int64_t p = 0; p < plan->pass_count; p++) {
        f->lattice |= plan->passes[p].row_view.zones > 1;
        f->split |= plan->split_count > 0;
        for (int32_t v = 0; v < plan->passes[p].column_view_count; v++)
            f->lattice |= plan->views[plan->passes[p].column_view + v].zones > 1;
    }
    f->packed_tiles = ceil_div(info->allowed_pairs, info->tile_rows * info->tile_cols);
    for (int64_t m = 0; m < info->masks && status == SPLAT_OK; m++) {
        struct tile_walk walk = {f, -1, -1, 0};
        status = splat_plan_visit_tiles(plan, m, visit_tiles, &walk);
    }
    sort_predicates(f);
    splat_acsr *acsr = NULL;
    if (status == SPLAT_OK)
        status = splat_acsr_create(mask, &acsr);
    if (status == SPLAT_OK)
        status = sample_texture(acsr, &f->texture);
    if (status == SPLAT_OK && sp_kron_match(acsr, &f->kron) != SPLAT_OK)
        f->kron.a = 0;
    splat_acsr_destroy(acsr);
    return status;
}

/* ---- Words ---- */

struct text {
    char *at;
    size_t left;
};

__attribute__((format(printf, 2, 3))) static void say(struct text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(t->at, t->left, format, arguments);
    va_end(arguments);
    size_t step = used < 0 ? 0 : (size_t)used < t->left ? (size_t)used : t->left - 1;
    t->at += step;
    t->left -= step;
}

/* Why a strided mask wastes work: its stride against the width of a tile. */
static void say_stride(const struct sp_findings *f, struct text *t)
{
    const struct sp_texture *texture = &f->texture;
    int64_t cols = f->info.tile_cols;
    say(t, " A typical row allows %lld column%s in every %lld,", (long long)texture->width,
        sp_plural(texture->width), (long long)texture->stride);
    if (texture->stride <= 2 * cols)
        say(t, " so a tile of %lld consecutive columns is seldom empty and mostly masked out;", (long long)cols);
    else
        say(t, " and a tile of %lld consecutive columns that holds some is mostly masked out;", (long long)cols);
    say(t, " the candidates below say what tiles that step along that stride would take.");
}

static void say_waste(const struct sp_findings *f, struct text *t)
{
    const splat_plan_info *info = &f->info;
    double share = 100.0 / info->waste;
    if (info->waste <= 1.25) {
        say(t, " %.1f %% of the computed pairs are allowed: little work is wasted.", share);
    } else if (info->waste <= 4) {
        say(t,
            " %.1f %% of the computed pairs are allowed; the rest is work in partial tiles that the mask then "
            "drops.",
            share);
    } else {
        int small = info->q_len < info->tile_rows || info->kv_len < info->tile_cols;
        say(t, "%s %.1f %% of the computed pairs are allowed.", small ? " Only" : " Slow for what it allows: only",
            share);
        if (small)
            say(t, " The mask is smaller than a tile of %lld x %lld, the rest of which is computed and dropped.",
                (long long)info->tile_rows, (long long)info->tile_cols);
        else if (f->texture.stride > 0 && f->texture.width * 2 <= f->texture.stride && !f->lattice)
            say_stride(f, t);
    }
}

static void say_balance(const struct sp_findings *f, struct text *t)
{
    double mean = (double)f->computed_tiles / (double)(f->row_tiles ? f->row_tiles : 1);
    if (f->row_tiles > 1 && (double)f->longest_row_tile > 4 * mean)
        say(t, " The longest row of tiles has %lld of them, the mean row %.1f: %s.", (long long)f->longest_row_tile,
            mean,
            f->split ? "it is dealt to parts that run side by side"
                     : "it starts first, but with few heads the launch waits for it");
}

void sp_findings_verdict(const struct sp_findings *f, char *text, size_t size)
{
    struct text t = {text, size};
    text[0] = '\0';
    if (f->info.allowed_pairs == 0) {
        say(&t, "Nothing is allowed: nothing is computed, every output row is 0 and every lse is -inf.");
        return;
    }
    if (f->all_tiles == 1)
        say(&t, "One tile covers the whole mask: there is none to skip.");
    else if (f->computed_tiles == f->all_tiles && !f->lattice)
        say(&t, "All %lld tiles hold allowed pairs, so none is skipped.", (long long)f->all_tiles);
    else if (f->computed_tiles >= f->all_tiles)
        say(&t, "%lld tiles are computed, where tiles of consecutive tokens would be %lld in all.",
            (long long)f->computed_tiles, (long long)f->all_tiles);
    else
        say(&t, "%lld of %lld tiles %s computed; the other %.1f %% are never touched.",
            (long long)f->computed_tiles, (long long)f->all_tiles,
            f->computed_tiles == 1 ? "holds an allowed pair and is" : "hold an allowed pair and are",
            100.0 * (double)(f->all_tiles - f->computed_tiles) / (double)f->all_tiles);
    say_waste(f, &t);
    say_balance(f, &t);
}
