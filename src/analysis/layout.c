/* Which layouts a mask suggests (layout.h).
 *
 * A stride that holds a good share of the pairs suggests, with n0 the stride: residue views for rows and columns;
 * grid views, when its blocks are wide; and cutting the mask into the runs of that stride and the rest, the rest
 * under linear views, the runs under residue views in a pass of their own or, by a comb view of the columns, in the
 * same pass. Rows much longer than the others, at regular places, suggest a pass of their own.
 */
#include "analysis/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/ints.h"
#include "common/error.h"

enum { TALLY_MAX = 32, STRIDES_TRIED = 2, WIDEST_ZONE = 32 };

/* A stride below this share of the pairs does not pay for a view. */
static const double least_share = 0.04;

/* ---- Strides ---- */

/* What one (stride, width) of runs holds. */
struct tally_entry {
    int64_t stride, width;
    double pairs, blocks;
};

struct tally {
    struct tally_entry at[TALLY_MAX];
    int count;
    double pairs;
};

static void tally_run(struct tally *tally, const struct sp_run_template *run, double rows)
{
    double middle = (rows - 1) / 2, count = run->count + middle * run->d_count,
           width = run->width + middle * run->d_width;
    double pairs = rows * count * width;
    tally->pairs += pairs;
    if (run->stride == 0)
        return;
    int at = 0;
    while (at < tally->count && (tally->at[at].stride != run->stride || tally->at[at].width != run->width))
        at++;
    if (at == TALLY_MAX)
        return;
    if (at == tally->count)
        tally->at[tally->count++] = (struct tally_entry){.stride = run->stride, .width = run->width};
    tally->at[at].pairs += pairs;
    tally->at[at].blocks += rows * count;
}

static void tally_masks(const struct sp_mask_set *set, struct tally *tally)
{
    for (int64_t m = 0; m < set->count; m++) {
        const splat_acsr *acsr = set->acsr[m];
        for (int64_t f = 0; f < acsr->family_count; f++) {
            const struct sp_family *family = &acsr->families[f];
            for (int32_t k = 0; k < family->run_count; k++)
                tally_run(tally, &acsr->templates[family->first + (uint64_t)k], family->row_count);
        }
    }
}

/* The strides with the most pairs, each with the width of most of its blocks; at most `most`. */
static int leading_strides(struct tally *tally, struct tally_entry *found, int most)
{
    int count = 0;
    while (count < most) {
        struct tally_entry best = {0};
        for (int k = 0; k < tally->count; k++) {
            struct tally_entry sum = {.stride = tally->at[k].stride};
            double widest = 0;
            for (int j = 0; j < tally->count; j++) {
                if (tally->at[j].stride != sum.stride)
                    continue;
                sum.pairs += tally->at[j].pairs;
                if (tally->at[j].blocks > widest) {
                    widest = tally->at[j].blocks;
                    sum.width = tally->at[j].width;
                }
            }
            if (sum.pairs > best.pairs)
                best = sum;
        }
        if (best.pairs < least_share * tally->pairs || best.pairs <= 0)
            break;
        found[count++] = best;
        for (int k = 0; k < tally->count; k++)
            if (tally->at[k].stride == best.stride)
                tally->at[k].pairs = tally->at[k].blocks = 0;
    }
    return count;
}

/* ---- Layouts ---- */

/* The widest zone of a view with this n0, at most `most`: a power of two that divides n0, since ranks of a narrower
 * last zone would hold no tokens. */
static int64_t zone_width(int64_t n0, int64_t most)
{
    int64_t c = 1;
    while (2 * c <= most && 2 * c <= WIDEST_ZONE && n0 % (2 * c) == 0)
        c *= 2;
    return c;
}

static struct sp_layout one_pass(enum sp_view_kind kind, int64_t n0, int64_t c, const struct sp_mask_set *set)
{
    struct sp_layout layout = {.pass_count = 1};
    layout.passes[0].part_count = 1;
    layout.passes[0].rows = sp_view_make(kind, n0, c, set->q_len);
    layout.passes[0].columns[0] = sp_view_make(kind, n0, c, set->kv_len);
    return layout;
}

static struct sp_layout linear_layout(const struct sp_mask_set *set)
{
    struct sp_layout layout = one_pass(SP_VIEW_LINEAR, 1, 1, set);
    snprintf(layout.name, sizeof layout.name, "linear view");
    return layout;
}

/* The strided part under (row view, column view), beside or after the rest. */
static struct sp_layout split_layout(const struct tally_entry *lead, struct sp_view rows, struct sp_view columns,
                                     const struct sp_mask_set *set)
{
    struct sp_layout layout = linear_layout(set);
    bool own_pass = rows.kind != SP_VIEW_LINEAR;
    layout.pass_count = own_pass ? 2 : 1;
    struct sp_layout_pass *strided = &layout.passes[own_pass];
    int part = own_pass ? 0 : 1;
    layout.passes[0].parts[0] = (struct sp_part){SP_PART_REST, lead->stride, lead->width};
    strided->rows = rows;
    strided->part_count = part + 1;
    strided->columns[part] = columns;
    strided->parts[part] = (struct sp_part){SP_PART_STRIDED, lead->stride, lead->width};
    return layout;
}

struct suggestions {
    struct sp_layout *layouts;
    int count;
};

static void suggest(struct suggestions *s, struct sp_layout layout)
{
    if (s->count < SP_LAYOUTS_MAX)
        s->layouts[s->count++] = layout;
}

static void suggest_for_stride(struct suggestions *s, const struct tally *tally, const struct tally_entry *lead,
                               const struct sp_mask_set *set)
{
    const int64_t d = lead->stride;
    const int64_t zone = zone_width(d, sp_min64(d / 2, 2 * lead->width - 1));
    const bool alone = lead->pairs > 0.999 * tally->pairs;
    const struct sp_view linear = sp_view_make(SP_VIEW_LINEAR, 1, 1, set->q_len);
    const struct sp_view comb = sp_view_make(SP_VIEW_COMB, d, zone, set->kv_len);
    struct sp_layout layout = split_layout(lead, linear, comb, set);
    snprintf(layout.name, sizeof layout.name, "linear and comb %lld by %lld", (long long)d, (long long)zone);
    suggest(s, layout);
    if (!alone) {
        layout = split_layout(lead, sp_view_make(SP_VIEW_RESIDUE, d, 1, set->q_len),
                              sp_view_make(SP_VIEW_RESIDUE, d, 1, set->kv_len), set);
        snprintf(layout.name, sizeof layout.name, "linear, then residue %lld", (long long)d);
        suggest(s, layout);
    }
    const int64_t widest = zone_width(d, sp_min64(16, d / 2));
    for (int64_t c = sp_max64(widest / 2, 4); c <= widest && lead->width > 1; c *= 2) {
        layout = one_pass(SP_VIEW_GRID, d, c, set);
        snprintf(layout.name, sizeof layout.name, "grid %lld by %lld", (long long)d, (long long)c);
        suggest(s, layout);
    }
    layout = one_pass(SP_VIEW_RESIDUE, d, 1, set);
    snprintf(layout.name, sizeof layout.name, "residue %lld", (long long)d);
    suggest(s, layout);
}

/* ---- Long rows ---- */

/* Pairs of the middle row of a family. */
static double family_row_pairs(const splat_acsr *acsr, const struct sp_family *family)
{
    double pairs = 0, middle = (family->row_count - 1) / 2;
    for (int32_t k = 0; k < family->run_count; k++) {
        const struct sp_run_template *run = &acsr->templates[family->first + (uint64_t)k];
        pairs += (run->count + middle * run->d_count) * (run->width + middle * run->d_width);
    }
    return pairs;
}

/* Rows of some classes much longer than the mean row: a comb of rows. */
static void suggest_for_long_rows(struct suggestions *s, const struct sp_mask_set *set)
{
    const splat_acsr *acsr = set->acsr[0];
    const int64_t n0 = acsr->row_stride;
    const double threshold = 2.0 * (double)acsr->pairs / (double)acsr->q_len;
    if (set->count > 1 || n0 < 4 || acsr->bit_words > 0)
        return;
    int64_t run = 0, widest = 0;
    for (int64_t class = 0; class < n0; class ++) {
        double most = 0;
        for (int64_t f = acsr->class_first[class]; f < acsr->class_first[class + 1]; f++)
            most = family_row_pairs(acsr, &acsr->families[f]) > most ? family_row_pairs(acsr, &acsr->families[f])
                                                                     : most;
        run = most > threshold ? run + 1 : 0;
        widest = sp_max64(widest, run);
    }
    if (widest == 0 || widest > n0 / 2)
        return;
    int64_t c = zone_width(n0, widest);
    struct sp_layout layout = linear_layout(set);
    layout.pass_count = 2;
    layout.passes[0].parts[0] = (struct sp_part){SP_PART_SHORT, 0, (int64_t)threshold};
    layout.passes[1] = layout.passes[0];
    layout.passes[1].parts[0].kind = SP_PART_LONG;
    layout.passes[1].rows = sp_view_make(SP_VIEW_COMB, n0, c, set->q_len);
    snprintf(layout.name, sizeof layout.name, "linear, then rows by comb %lld by %lld", (long long)n0,
             (long long)c);
    suggest(s, layout);
}

int sp_layouts_suggest(const struct sp_mask_set *set, struct sp_layout layouts[SP_LAYOUTS_MAX])
{
    struct suggestions s = {layouts, 0};
    struct tally tally = {.count = 0};
    struct tally_entry leads[STRIDES_TRIED];
    suggest(&s, linear_layout(set));
    tally_masks(set, &tally);
    int count = leading_strides(&tally, leads, STRIDES_TRIED);
    for (int k = 0; k < count; k++)
        suggest_for_stride(&s, &tally, &leads[k], set);
    suggest_for_long_rows(&s, set);
    return s.count;
}

/* ---- Masks of positions ---- */

void sp_layout_free(struct sp_layout *layout)
{
    for (int64_t k = 0; layout->acsr && k < layout->mask_count * SP_PASSES_MAX * SP_PARTS_MAX; k++)
        splat_acsr_destroy(layout->acsr[k]);
    free(layout->acsr);
    layout->acsr = NULL;
}

static splat_acsr **place_of(struct sp_layout *layout, int64_t mask, int pass, int part)
{
    return &layout->acsr[(mask * SP_PASSES_MAX + pass) * SP_PARTS_MAX + part];
}

/* Makes one part of one pass of every mask, as long as the views suit. */
static enum splat_status realise_part(struct sp_layout *layout, const struct sp_mask_set *set, int p, int k,
                                      bool *suited)
{
    const struct sp_layout_pass *pass = &layout->passes[p];
    const bool whole = pass->parts[k].kind == SP_PART_ALL && pass->rows.zones == 1 && pass->columns[k].zones == 1;
    enum splat_status status = SPLAT_OK;
    *suited = true;
    for (int64_t m = 0; m < set->count && *suited && status == SPLAT_OK; m++) {
        splat_acsr **made = place_of(layout, m, p, k);
        if (whole)
            *made = sp_acsr_retain(set->acsr[m]);
        else
            status = sp_lattice_acsr(set->acsr[m], &pass->rows, &pass->columns[k], &pass->parts[k], made);
        *suited = *made != NULL;
    }
    return status;
}

/* The same, without the last grid row of the columns where it cuts a zone in two and no pair needs it. */
static enum splat_status realise_shorter(struct sp_layout *layout, const struct sp_mask_set *set, int p, int k,
                                         bool *suited)
{
    struct sp_view *columns = &layout->passes[p].columns[k];
    const struct sp_view given = *columns;
    *suited = false;
    if (!sp_view_is_cut(columns) || columns->whole == 0)
        return SPLAT_OK;
    *columns = sp_view_make((enum sp_view_kind)given.kind, given.n0, given.c, (int64_t)given.whole * given.n0);
    enum splat_status status = realise_part(layout, set, p, k, suited);
    if (*suited)
        return status;
    *columns = given;
    for (int64_t m = 0; m < set->count; m++) {
        splat_acsr_destroy(*place_of(layout, m, p, k));
        *place_of(layout, m, p, k) = NULL;
    }
    return status;
}

enum splat_status sp_layout_realise(struct sp_layout *layout, const struct sp_mask_set *set, bool *suited)
{
    size_t count = (size_t)set->count * SP_PASSES_MAX * SP_PARTS_MAX;
    *suited = true;
    layout->mask_count = set->count;
    layout->acsr = calloc(count, sizeof *layout->acsr);
    if (!layout->acsr)
        return sp_no_memory("the masks of a layout", count * sizeof *layout->acsr);
    enum splat_status status = SPLAT_OK;
    for (int p = 0; p < layout->pass_count; p++)
        for (int k = 0; k < layout->passes[p].part_count && *suited && status == SPLAT_OK; k++) {
            status = realise_shorter(layout, set, p, k, suited);
            if (status == SPLAT_OK && !*suited)
                status = realise_part(layout, set, p, k, suited);
        }
    if (status != SPLAT_OK || !*suited)
        sp_layout_free(layout);
    return status;
}
