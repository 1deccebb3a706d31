/* Plans: every allowed pair is computed exactly once and no other; tiles are what they are called; the tables
 * depend on the mask's pairs alone; large plans stay small. */
#include "brute.h"

#include "analysis/plan.h"
#include "analysis/view.h"

static splat_options options_of(int64_t head_dim)
{
    splat_options options;
    splat_options_init(&options);
    options.head_dim = head_dim;
    return options;
}

static splat_plan *plan_of(const splat_mask *mask, const splat_options *options)
{
    splat_plan *plan = NULL;
    OK(splat_plan_create(mask, options, &plan));
    return plan;
}

/* ---- Walking a plan's tables ---- */

/* The token at a position of a view, or -1: token n0*y + x is in zone x / c at rank c*y + x % c; where the last
 * grid row ends within a zone, tokens in columns beyond its end are one zone further. */
static int64_t token_at(const struct sp_view *view, int64_t position)
{
    const int64_t n0 = view->n0, c = view->c, rest = view->len % n0, zone = position / view->pitch;
    const int64_t rank = position % view->pitch;
    for (int64_t x = rank % c; x < n0; x += c) {
        int64_t token = n0 * (rank / c) + x;
        if (x / c + (rest % c != 0 && x >= rest) == zone)
            return zone < view->zones && token < view->len ? token : -1;
    }
    return -1;
}

/* Whether ranks of a row tile hold nothing because the last grid row's end cuts its zone. These rows allow nothing,
 * so that no tile of theirs is FULL. */
static bool row_holes(const struct sp_pass *pass, int64_t row0, int64_t rows)
{
    const struct sp_view *view = &pass->row_view;
    int64_t tokens = 0;
    for (int64_t r = row0; r < row0 + rows; r++)
        tokens += token_at(view, r) >= 0;
    return tokens > 0 && tokens < rows && view->len % view->n0 % view->c != 0;
}

struct walk {
    const splat_plan *plan;
    const struct dense *mask;
    const char *what;
    uint8_t *covered; /* q x kv */
    int64_t full, partial;
};

/* Kernels evaluate a predicate on the whole tile: it must refuse keys that do not exist, and where the mask is
 * split into parts it may refuse what another part allows. */
static void walk_tile(struct walk *walk, const struct sp_pass *pass, const struct sp_segment *segment, int32_t t,
                      int64_t row0)
{
    const splat_plan *plan = walk->plan;
    const struct dense *mask = walk->mask;
    const struct sp_view *view = &plan->views[pass->column_view + SP_SEGMENT_VIEW(segment->code)];
    const int kind = SP_SEGMENT_KIND(segment->code);
    const int64_t col0 = (int64_t)(segment->first + t) * plan->tile_cols;
    int64_t allowed = 0, refused = 0;
    if (kind != SP_PRED_NONE && !(plan->predicate_mask >> kind & 1))
        FAIL("%s: predicate %s is used but not in predicate_mask", walk->what,
             sp_predicate_name((enum sp_pred_kind)kind));
    if (kind != SP_PRED_TABLE && kind != SP_PRED_BITS) {
        const struct sp_predicate *p = &plan->predicates[segment->predicate];
        assert_true(segment->predicate >= 0 && segment->predicate < plan->predicate_count);
        if (kind == SP_PRED_PERIODIC)
            assert_true(p->stride > 0 && p->width > 0 && p->phase_offset >= 0 && p->phase_offset < p->stride);
    }
    for (int64_t r = row0; r < row0 + plan->tile_rows; r++)
        for (int64_t c = col0; c < col0 + plan->tile_cols; c++) {
            int64_t i = token_at(&pass->row_view, r), j = token_at(view, c), at = i * mask->kv + j;
            if (i < 0)
                continue;
            int said = kind == SP_PRED_NONE || sp_predicate_allows(plan, segment, t, row0, col0, r, c);
            allowed += said;
            refused += !said;
            if (!said)
                continue;
            if (j < 0)
                FAIL("%s: %s allows row %lld a key behind the last (%lld)", walk->what,
                     sp_predicate_name((enum sp_pred_kind)kind), (long long)i, (long long)mask->kv - 1);
            if (!mask->bytes[at])
                FAIL("%s: pair (%lld, %lld) is allowed by the %s tile at column position %lld, not by the mask",
                     walk->what, (long long)i, (long long)j, sp_predicate_name((enum sp_pred_kind)kind),
                     (long long)col0);
            if (walk->covered[at]++)
                FAIL("%s: pair (%lld, %lld) is computed twice", walk->what, (long long)i, (long long)j);
        }
    if (kind != SP_PRED_NONE && refused == 0 && !row_holes(pass, row0, plan->tile_rows))
        FAIL("%s: the tile at (%lld, %lld) is full but runs predicate %s", walk->what, (long long)row0,
             (long long)col0, sp_predicate_name((enum sp_pred_kind)kind));
    if (allowed == 0)
        FAIL("%s: the tile at (%lld, %lld) is empty but computed", walk->what, (long long)row0, (long long)col0);
    walk->full += kind == SP_PRED_NONE;
    walk->partial += kind != SP_PRED_NONE;
}

static void walk_row_tile(struct walk *walk, const struct sp_pass *pass, const struct sp_row_tile *row_tile)
{
    int64_t row0 = (int64_t)row_tile->tile * walk->plan->tile_rows, tiles = 0;
    if (token_at(&pass->row_view, row0) < 0 && !row_holes(pass, row0, walk->plan->tile_rows))
        FAIL("%s: row tile %d begins behind the last query", walk->what, row_tile->tile);
    for (int32_t s = 0; s < row_tile->segment_count; s++) {
        const struct sp_segment *segment = &walk->plan->segments[row_tile->segment + s];
        int view = SP_SEGMENT_VIEW(segment->code);
        assert_true(row_tile->segment + s < walk->plan->segment_count);
        assert_true(view >= 0 && view < pass->column_view_count);
        assert_true(segment->count >= 1);
        if (SP_SEGMENT_STEP(segment->code))
            assert_int_equal(SP_SEGMENT_KIND(segment->code), SP_PRED_BITS);
        for (int32_t t = 0; t < segment->count; t++)
            walk_tile(walk, pass, segment, t, row0);
        tiles += segment->count;
    }
    if (tiles != row_tile->tiles)
        FAIL("%s: row tile %d says %d tiles, its segments hold %lld", walk->what, row_tile->tile, row_tile->tiles,
             (long long)tiles);
}

/* Whether the row tile is whole, or the first of its parts; the slots of parts are those of the tile's split. */
static bool begins_rows(const struct walk *walk, const struct sp_pass *pass, const struct sp_row_tile *row_tile)
{
    const splat_plan *plan = walk->plan;
    if (row_tile->slot == 0)
        return true;
    for (int64_t s = 0; s < plan->split_count; s++) {
        const struct sp_split *split = &plan->splits[s];
        const int32_t part = row_tile->slot - 1 - split->first_slot;
        if (split->launch == pass->launch && split->tile == row_tile->tile) {
            assert_true(part >= 0 && part < split->parts && split->first_slot + split->parts <= plan->slot_count);
            return part == 0;
        }
    }
    FAIL("%s: row tile %d has slot %d, but it is not split", walk->what, row_tile->tile, row_tile->slot);
    return false;
}

/* One pass: longest row tile first, ties by number. The launch that initialises has every query in just one tile,
 * or in all its parts.
 */
static void walk_pass(struct walk *walk, const struct sp_pass *pass)
{
    const struct sp_row_tile *tiles = &walk->plan->row_tiles[pass->first_row_tile];
    int32_t n = pass->row_tile_count;
    uint8_t *seen = need((size_t)walk->mask->q);
    memset(seen, 0, (size_t)walk->mask->q);
    for (int32_t k = 0; k < n; k++) {
        const bool begins = begins_rows(walk, pass, &tiles[k]);
        for (int32_t other = 0; other < k && tiles[k].slot; other++)
            assert_true(tiles[other].slot != tiles[k].slot);
        for (int64_t r = 0; r < walk->plan->tile_rows && begins; r++) {
            int64_t i = token_at(&pass->row_view, (int64_t)tiles[k].tile * walk->plan->tile_rows + r);
            if (i >= 0 && seen[i]++)
                FAIL("%s: row %lld is launched twice", walk->what, (long long)i);
        }
        if (k && (tiles[k].tiles > tiles[k - 1].tiles ||
                  (tiles[k].tiles == tiles[k - 1].tiles && tiles[k].tile < tiles[k - 1].tile)))
            FAIL("%s: row tile %d (%d tiles) is launched after %d (%d tiles)", walk->what, tiles[k].tile,
                 tiles[k].tiles, tiles[k - 1].tile, tiles[k - 1].tiles);
        walk_row_tile(walk, pass, &tiles[k]);
    }
    for (int64_t i = 0; i < walk->mask->q && !pass->merge; i++)
        if (!seen[i])
            FAIL("%s: row %lld is in no tile of the launch that initialises", walk->what, (long long)i);
    free(seen);
}

/* A mask of `index` (of several in a map), with the pairs `mask`. */
static void check_cover_of(const splat_plan *plan, int64_t index, const struct dense *mask, const char *what,
                           struct walk *walk)
{
    int64_t passes = 0, cells = mask->q * mask->kv;
    walk->plan = plan;
    walk->mask = mask;
    walk->what = what;
    walk->covered = need((size_t)cells);
    memset(walk->covered, 0, (size_t)cells);
    for (int64_t p = 0; p < plan->pass_count; p++)
        if (plan->passes[p].mask_index == index) {
            assert_int_equal(plan->passes[p].merge, passes > 0); /* the first initialises, the others merge */
            passes++;
            walk_pass(walk, &plan->passes[p]);
        }
    if (passes == 0)
        FAIL("%s: distinct mask %lld has no pass", what, (long long)index);
    for (int64_t at = 0; at < cells; at++)
        if (walk->covered[at] != mask->bytes[at])
            FAIL("%s: pair (%lld, %lld) is never computed", what, (long long)(at / mask->kv),
                 (long long)(at % mask->kv));
    free(walk->covered);
}

static void check_plan(const splat_plan *plan, const struct dense *mask, const char *what)
{
    static struct walk walk;
    memset(&walk, 0, sizeof walk);
    check_cover_of(plan, 0, mask, what, &walk);
    splat_plan_info info;
    splat_plan_info_init(&info);
    OK(splat_plan_get_info(plan, &info));
    int64_t area = plan->tile_rows * plan->tile_cols, pairs = dense_pairs(mask);
    assert_int_equal(info.allowed_pairs, pairs);
    assert_int_equal(info.full_tiles, walk.full);
    assert_int_equal(info.partial_tiles, walk.partial);
    assert_int_equal(info.computed_pairs, (walk.full + walk.partial) * area);
    assert_int_equal(info.masks, 1);
    assert_int_equal(info.passes, plan->launch_count);
    assert_int_equal(plan->pass_count, plan->launch_count);
    assert_int_equal(info.tile_rows, plan->tile_rows);
    assert_int_equal(info.tile_cols, plan->tile_cols);
    assert_true(info.q_len == mask->q && info.kv_len == mask->kv);
    double density = (double)pairs / (double)(mask->q * mask->kv);
    double waste = pairs ? (double)info.computed_pairs / (double)pairs : 0;
    assert_true(info.density > density * (1 - 1e-12) - 1e-300 && info.density < density * (1 + 1e-12) + 1e-300);
    assert_true(info.waste >= waste * (1 - 1e-12) && info.waste <= waste * (1 + 1e-12));
    assert_true(info.descriptor_bytes > 0 && info.predicted_us > 0 && info.plan_ms >= 0);
}

/* ---- Row tiles that heads share, and that come in parts ---- */

static struct dense dense_of(const splat_mask *mask)
{
    splat_acsr *acsr = acsr_of(mask);
    struct dense made = dense_new(splat_mask_q_len(mask), splat_mask_kv_len(mask));
    dense_expand(&made, acsr);
    splat_acsr_destroy(acsr);
    return made;
}

/* The mask with every row `fold` times. */
static struct dense folded(const struct dense *mask, int64_t fold)
{
    struct dense made = dense_new(mask->q * fold, mask->kv);
    for (int64_t r = 0; r < made.q; r++)
        memcpy(made.bytes + r * mask->kv, mask->bytes + r / fold * mask->kv, (size_t)mask->kv);
    return made;
}

static int sum_tiles(const splat_tile_stretch *stretch, void *user)
{
    int64_t *sum = user;
    sum[0] += stretch->tiles;
    sum[1] =
        stretch->rows.start + stretch->rows.width > sum[1] ? stretch->rows.start + stretch->rows.width : sum[1];
    return 0;
}

static void heads_of_a_group_share_row_tiles(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "causal", "full", "causal & window(50, 0)", "comb(16, 4)", "strided(3)", "full - full", "rows(0, 2)"};
    static const int64_t sizes[][2] = {{1, 300}, {3, 500}, {16, 900}, {20, 60}};
    static const int64_t groups[] = {2, 3, 8, 70};
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
                char what[120];
                snprintf(what, sizeof what, "%s at %lld x %lld, %lld heads to a key head", patterns[p],
                         (long long)sizes[s][0], (long long)sizes[s][1], (long long)groups[g]);
                splat_mask *mask = mask_of(patterns[p], sizes[s][0], sizes[s][1], SPLAT_ALIGN_BOTTOM_RIGHT);
                struct dense truth = dense_of(mask);
                splat_options options = options_of(64);
                options.heads = 2 * groups[g];
                options.kv_heads = 2;
                splat_plan *plan = plan_of(mask, &options);
                if (sizes[s][0] == 1 && plan->fold == 1)
                    FAIL("%s: heads do not share row tiles", what);
                struct dense rows = folded(&truth, plan->fold);
                static struct walk walk;
                memset(&walk, 0, sizeof walk);
                check_cover_of(plan, 0, &rows, what, &walk);
                splat_plan_info info;
                splat_plan_info_init(&info);
                OK(splat_plan_get_info(plan, &info));
                assert_int_equal(info.allowed_pairs, dense_pairs(&truth));
                assert_int_equal(info.q_len, sizes[s][0]);
                int64_t sum[2] = {0, 0};
                OK(splat_plan_visit_tiles(plan, 0, sum_tiles, sum));
                assert_int_equal(sum[0], walk.full + walk.partial);
                assert_true(sum[1] <= sizes[s][0]);
                options.device = SPLAT_DEVICE_CPU; /* whose threads take each head for itself */
                splat_plan *host = plan_of(mask, &options);
                assert_int_equal(host->fold, 1);
                assert_int_equal(host->split_count, 0);
                splat_plan_destroy(host);
                splat_plan_destroy(plan);
                dense_free(&rows);
                dense_free(&truth);
                splat_mask_destroy(mask);
            }
}

static void long_row_tiles_come_in_parts(void **state)
{
    (void)state;
    static const char *const patterns[] = {"window(20) | rows(0, 20) | cols(0, 9)",
                                           "full",
                                           "rows(100, 101)",
                                           "causal & (window(50, 0) | strided(16) | rows(600, 640))",
                                           "window(30) | strided(2)",
                                           "random_blocks(64, 2, 5) | rows(64, 128)"};
    int split = 0, whole = 0, stepped = 0;
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
        for (int64_t q_len = 70; q_len <= 1400; q_len *= 20)
            for (int64_t layout = 0; layout < 5; layout++) {
                splat_mask *mask = mask_of(patterns[p], q_len, 1400, SPLAT_ALIGN_TOP_LEFT);
                struct dense truth = dense_of(mask);
                splat_options options = options_of(128);
                options.layout = layout;
                splat_plan *plan = NULL;
                if (splat_plan_create(mask, &options, &plan) == SPLAT_OK) {
                    check_plan(plan, &truth, patterns[p]);
                    split += plan->split_count > 0;
                    whole += plan->split_count > 0 && plan->row_tiles[plan->row_tile_count - 1].slot == 0;
                    for (int64_t s = 0; s < plan->segment_count; s++)
                        stepped += plan->split_count && SP_SEGMENT_STEP(plan->segments[s].code);
                }
                splat_plan_destroy(plan);
                dense_free(&truth);
                splat_mask_destroy(mask);
            }
    assert_true(split > 5 && whole > 0 && stepped > 0);
    /* With much else to do there is nothing to gain. */
    splat_mask *mask = mask_of("full", 2048, 2048, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options = options_of(128);
    options.heads = 64;
    splat_plan *plan = plan_of(mask, &options);
    assert_int_equal(plan->split_count, 0);
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
}

/* ---- Covers ---- */

static const int64_t dims[] = {64, 128, 256};

static void random_bytes_are_covered_once(void **state)
{
    (void)state;
    struct rng rng = {2};
    for (int round = 0; round < 150; round++) {
        struct shape s = all_shapes[rng_between(&rng, 0, SHAPE_COUNT - 1)];
        struct dense dense = dense_new(s.q, s.kv);
        dense_random(&dense, &rng);
        splat_mask *mask = mask_from_dense(&dense);
        splat_options options = options_of(dims[round % 3]);
        splat_plan *plan = plan_of(mask, &options);
        check_plan(plan, &dense, "random bytes");
        splat_plan_destroy(plan);
        splat_mask_destroy(mask);
        dense_free(&dense);
    }
}

static void random_expressions_are_covered_once(void **state)
{
    (void)state;
    struct rng rng = {3};
    for (int round = 0; round < 300; round++) {
        struct shape s = {rng_between(&rng, 1, 400), rng_between(&rng, 1, 400), (enum splat_align)(round % 2)};
        static struct expression e;
        expression_random(&e, &s, &rng, (int)rng_between(&rng, 0, 3));
        splat_mask *mask = mask_of(e.text, s.q, s.kv, s.align);
        splat_options options = options_of(dims[round % 3]);
        splat_plan *plan = plan_of(mask, &options);
        check_plan(plan, &e.truth, e.text);
        splat_plan_destroy(plan);
        splat_mask_destroy(mask);
        dense_free(&e.truth);
    }
}

/* Every primitive, alone: the shapes whose tiles have closed forms. */
static void primitives_are_covered_once(void **state)
{
    (void)state;
    struct rng rng = {5};
    for (int kind = 0; kind < P_COUNT; kind++)
        for (int round = 0; round < 6; round++) {
            struct shape s = round == 0   ? (struct shape){512, 512, SPLAT_ALIGN_BOTTOM_RIGHT}
                             : round == 1 ? (struct shape){300, 517, SPLAT_ALIGN_BOTTOM_RIGHT}
                                          : all_shapes[rng_between(&rng, 0, SHAPE_COUNT - 1)];
            struct pattern p = random_pattern_of((enum primitive)kind, &s, &rng);
            char text[256];
            struct dense dense = dense_new(s.q, s.kv);
            pattern_text(&p, text, sizeof text);
            pattern_dense(&p, &s, &dense);
            splat_mask *mask = mask_of(text, s.q, s.kv, s.align);
            splat_options options = options_of(128);
            splat_plan *plan = plan_of(mask, &options);
            check_plan(plan, &dense, text);
            splat_plan_destroy(plan);
            splat_mask_destroy(mask);
            dense_free(&dense);
        }
}

/* Rows whose number of wide blocks, or their width or spacing, grows with the row: no name in the language does
 * that. */
static void growing_rows_are_covered_once(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct dense dense = dense_new(150, 3000);
        for (int64_t i = 0; i < 150; i++) {
            int64_t count = kind == 0 ? i / 3 + 1 : kind == 1 ? 22 - i % 20 : 5, stride = kind == 3 ? 100 + i : 130;
            int64_t width = kind == 2 ? 10 + i / 2 : 90, start = kind == 2 ? 2 * i : 7;
            for (int64_t b = 0; b < (kind == 0 ? (i + 3 < 23 ? i + 3 : 23) : count); b++)
                for (int64_t w = 0; w < width && start + b * stride + w < 3000; w++)
                    dense.bytes[i * 3000 + start + b * stride + w] = 1;
        }
        splat_mask *mask = mask_from_dense(&dense);
        for (int64_t head_dim = 64; head_dim <= 256; head_dim *= 2) {
            splat_options options = options_of(head_dim);
            splat_plan *plan = plan_of(mask, &options);
            check_plan(plan, &dense, "growing rows");
            splat_plan_destroy(plan);
        }
        splat_mask_destroy(mask);
        dense_free(&dense);
    }
}

/* The suite at lengths where runs, families and tiles repeat often, ragged and not; truth from the ACSR. */
static void the_suite_is_covered_once(void **state)
{
    (void)state;
    static const char *const suite[] = {
        "full",
        "causal",
        "window(1023, 0)",
        "window(256)",
        "dilated(128, 4)",
        "strided(4)",
        "strided(64)",
        "causal & (window(127, 0) | strided(128))",
        "causal & (blocks(128) | comb(128, 16))",
        "blocks(1024)",
        "window(256) | rows(0, 64) | cols(0, 64)",
        "banded_blocks(64,1,1) | rows(0,128) | cols(0,128) | random_blocks(64,3,0)",
        "causal | cols(0, 1024)",
        "causal & (window(1023, 0) | cols(0, 4))",
        "grid(128, 13)",
        "axial(128)",
        "logsparse & causal",
        "swin(64, 8, 4)",
        "butterfly(32) - strided(3)",
        "~(window(100) | comb(200, 7))",
        "checkerboard(96)",
        "documents(700, 1, 300, 1048)",
        "grid(8,16,16; 3,5,5)",
        "grid(64, 7, dilation=3)",
        "grid(64, 8, stride=4)",
    };
    for (size_t k = 0; k < sizeof suite / sizeof suite[0]; k++) {
        int documents = strncmp(suite[k], "documents", 9) == 0;
        int64_t n = documents ? 2049 : k % 2 ? 2048 : 2047;
        splat_mask *mask = mask_of(suite[k], n, n, SPLAT_ALIGN_BOTTOM_RIGHT);
        struct dense truth = dense_of(mask);
        splat_options options = options_of(dims[k % 3]);
        splat_plan *plan = plan_of(mask, &options);
        check_plan(plan, &truth, suite[k]);
        splat_plan_destroy(plan);
        splat_mask_destroy(mask);
        dense_free(&truth);
    }
}

/* Every layout that a mask suggests; how many there were besides the linear one. */
static int check_layouts(const splat_mask *mask, const struct dense *truth, splat_options options, const char *what)
{
    int others = 0;
    for (options.layout = 1; options.layout <= 16; options.layout++) {
        splat_plan *plan = NULL;
        enum splat_status status = splat_plan_create(mask, &options, &plan);
        if (status == SPLAT_UNSUPPORTED) /* unsuited, or beyond the last */
            continue;
        OK(status);
        others += options.layout > 1;
        check_plan(plan, truth, what);
        splat_plan_destroy(plan);
    }
    return others;
}

/* The same under every layout: residue, grid and comb views, parts beside and after each other; lengths that are
 * and are not multiples of the strides. */
static void every_layout_covers_once(void **state)
{
    (void)state;
    static const char *const masks[] = {
        "strided(5)",
        "dilated(40, 3)",
        "causal & (window(20, 0) | strided(32))",
        "causal & (blocks(32) | comb(32, 8))",
        "comb(48, 5) - window(9)",
        "axial(24)",
        "grid(32, 5)",
        "grid(32, 3, 9)",
        "grid(30, 7)",
        "grid(28, 7) | rows(0, 1)",
        "grid(20, 5) | rows(0, 9) | cols(0, 64)",
        "swin(60, 6, 3) | rows(0, 64)",
        "blocks(192) | comb(33, 27)",
        "swin(32, 8, 4)",
        "checkerboard(24)",
        "strided(6) | strided(9)",
        "grid(32, 9, dilation=2)",
        "~strided(7)",
        "~dilated(30, 4)",
        "causal & ~comb(40, 16)",
        "strided(16) & window(200) | documents(100, 200)",
    };
    const struct shape shapes[] = {{768, 768, SPLAT_ALIGN_BOTTOM_RIGHT},
                                   {840, 840, SPLAT_ALIGN_BOTTOM_RIGHT}, /* 28, 30, 20 and 60 divide it, not 8 */
                                   {700, 651, SPLAT_ALIGN_BOTTOM_RIGHT},
                                   {333, 720, SPLAT_ALIGN_TOP_LEFT}};
    int others = 0;
    for (size_t k = 0; k < sizeof masks / sizeof masks[0]; k++)
        for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++) {
            splat_mask *mask = NULL;
            if (splat_mask_from_expression(masks[k], shapes[n].q, shapes[n].kv, shapes[n].align, &mask) != SPLAT_OK)
                continue; /* a pattern that wants other lengths */
            splat_acsr *acsr = acsr_of(mask);
            struct dense truth = dense_new(shapes[n].q, shapes[n].kv);
            dense_expand(&truth, acsr);
            others += check_layouts(mask, &truth, options_of(dims[(k + n) % 3]), masks[k]);
            splat_acsr_destroy(acsr);
            splat_mask_destroy(mask);
            dense_free(&truth);
        }
    assert_true(others >= 60);
}

/* Transposed, and random, masks under every layout. */
static void layouts_of_any_mask_cover_once(void **state)
{
    (void)state;
    struct rng rng = {77};
    int others = 0;
    for (int round = 0; round < 60; round++) {
        struct shape s = {rng_between(&rng, 100, 500), rng_between(&rng, 100, 500), SPLAT_ALIGN_BOTTOM_RIGHT};
        static struct expression e;
        expression_random(&e, &s, &rng, 2);
        struct dense turned = dense_new(s.kv, s.q);
        for (int64_t at = 0; at < s.q * s.kv; at++)
            turned.bytes[at % s.kv * s.q + at / s.kv] = e.truth.bytes[at];
        splat_mask *mask = mask_from_dense(&turned);
        others += check_layouts(mask, &turned, options_of(64), e.text);
        splat_mask_destroy(mask);
        mask = mask_from_dense(&e.truth);
        others += check_layouts(mask, &e.truth, options_of(64), e.text);
        splat_mask_destroy(mask);
        dense_free(&turned);
        dense_free(&e.truth);
    }
    assert_true(others >= 20);
}

/* Tiles never straddle zones: what zones are apart is a multiple of every tile side. */
static void tile_sides_divide_the_pitch(void **state)
{
    (void)state;
    const enum splat_arch archs[] = {SPLAT_ARCH_SM80, SPLAT_ARCH_SM90A};
    for (int a = 0; a < 2; a++) {
        const struct sp_tune_table *table = sp_tune_table_for(archs[a]);
        for (int k = 0; k < table->row_count; k++)
            if (SP_ZONE_ALIGN % table->rows[k].rows || SP_ZONE_ALIGN % table->rows[k].cols)
                FAIL("%s row %d: tile %dx%d does not divide %d", table->chip, k, table->rows[k].rows,
                     table->rows[k].cols, SP_ZONE_ALIGN);
    }
}

/* Every shape of the tune table can be forced, and covers as exactly; other shapes are refused. */
static void forced_shapes_cover_too(void **state)
{
    (void)state;
    struct rng rng = {7};
    const struct sp_tune_table *table = sp_tune_table_for(SPLAT_ARCH_SM80);
    for (int row = 0; row < table->row_count; row++) {
        struct shape s = {rng_between(&rng, 100, 400), rng_between(&rng, 100, 400), SPLAT_ALIGN_BOTTOM_RIGHT};
        static struct expression e;
        for (int round = 0; round < 4; round++) {
            expression_random(&e, &s, &rng, round);
            splat_options options = options_of(table->rows[row].max_dim);
            options.arch = SPLAT_ARCH_SM80;
            options.tile_rows = table->rows[row].rows;
            options.tile_cols = table->rows[row].cols;
            splat_mask *mask = mask_of(e.text, s.q, s.kv, s.align);
            splat_plan *plan = plan_of(mask, &options);
            assert_int_equal(plan->tile_rows, options.tile_rows);
            assert_int_equal(plan->tile_cols, options.tile_cols);
            check_plan(plan, &e.truth, e.text);
            splat_plan_destroy(plan);
            splat_mask_destroy(mask);
            dense_free(&e.truth);
        }
    }
    splat_mask *mask = mask_of("full", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options = options_of(64);
    splat_plan *plan = NULL;
    options.tile_rows = 48;
    options.tile_cols = 40;
    REFUSED(splat_plan_create(mask, &options, &plan), SPLAT_UNSUPPORTED, "48", "40");
    assert_null(plan);
    splat_mask_destroy(mask);
}

static void empty_masks_have_row_tiles_and_no_tiles(void **state)
{
    (void)state;
    splat_mask *mask = mask_of("full - full", 1000, 129, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options = options_of(64);
    splat_plan *plan = plan_of(mask, &options);
    struct dense none = dense_new(1000, 129);
    check_plan(plan, &none, "nothing");
    assert_int_equal(plan->segment_count, 0);
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
    dense_free(&none);
}

static void full_masks_on_whole_tiles_run_no_predicate(void **state)
{
    (void)state;
    splat_mask *mask = mask_of("full", 1024, 1024 * 3, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options = options_of(64);
    splat_plan *plan = plan_of(mask, &options);
    assert_int_equal(1024 * 3 % plan->tile_cols, 0);
    assert_int_equal(plan->partial_tiles, 0);
    assert_int_equal(plan->predicate_mask & ~1u, 0);
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
}

/* ---- Tables depend on the pairs alone ---- */

static void same_tables(const splat_plan *a, const splat_plan *b, const char *what)
{
#define SAME(field, count)                                                                                         \
    if (a->count != b->count ||                                                                                    \
        (a->count && memcmp(a->field, b->field, (size_t)a->count * sizeof a->field[0]) != 0))                      \
    FAIL("%s: the plans differ in %s", what, #field)
    assert_int_equal(a->tile_rows, b->tile_rows);
    assert_int_equal(a->tile_cols, b->tile_cols);
    assert_int_equal(a->tune_row, b->tune_row);
    assert_int_equal(a->predicate_mask, b->predicate_mask);
    assert_int_equal(a->families, b->families);
    assert_int_equal(a->full_tiles, b->full_tiles);
    SAME(passes, pass_count);
    SAME(views, view_count);
    SAME(row_tiles, row_tile_count);
    SAME(segments, segment_count);
    SAME(predicates, predicate_count);
    SAME(table, table_count);
    SAME(bits, bits_count);
    assert_int_equal(a->candidate_count, b->candidate_count);
    for (int64_t k = 0; k < a->candidate_count; k++) {
        assert_string_equal(a->candidates[k].summary, b->candidates[k].summary);
        assert_string_equal(a->candidates[k].reason, b->candidates[k].reason);
    }
#undef SAME
}

static int callback(int64_t i, int64_t j, void *user)
{
    const struct dense *dense = user;
    return dense->bytes[i * dense->kv + j];
}

static splat_mask *as_bits(const struct dense *dense)
{
    splat_mask *mask = NULL;
    int64_t stride = (dense->kv + 7) / 8;
    uint8_t *bits = need((size_t)(dense->q * stride));
    memset(bits, 0, (size_t)(dense->q * stride));
    for (int64_t at = 0; at < dense->q * dense->kv; at++)
        if (dense->bytes[at])
            bits[at / dense->kv * stride + at % dense->kv / 8] |= (uint8_t)(1u << (at % dense->kv % 8));
    OK(splat_mask_from_bits(bits, dense->q, dense->kv, stride, &mask));
    free(bits);
    return mask;
}

static splat_mask *as_csr(const struct dense *dense)
{
    splat_mask *mask = NULL;
    int64_t *indptr = need((size_t)(dense->q + 1) * 8), *indices = need((size_t)(dense_pairs(dense) + 1) * 8),
            n = 0;
    for (int64_t i = 0; i < dense->q; i++) {
        indptr[i] = n;
        for (int64_t j = 0; j < dense->kv; j++)
            if (dense->bytes[i * dense->kv + j])
                indices[n++] = j;
    }
    indptr[dense->q] = n;
    OK(splat_mask_from_csr(indptr, indices, dense->q, dense->kv, &mask));
    free(indptr);
    free(indices);
    return mask;
}

static void every_form_gives_the_same_plan(void **state)
{
    (void)state;
    struct rng rng = {12};
    for (int round = 0; round < 60; round++) {
        struct shape s = {rng_between(&rng, 1, 300), rng_between(&rng, 1, 300), (enum splat_align)(round % 2)};
        static struct expression e;
        expression_random(&e, &s, &rng, (int)rng_between(&rng, 0, 3));
        splat_mask *masks[6] = {mask_of(e.text, s.q, s.kv, s.align), mask_from_dense(&e.truth), as_bits(&e.truth),
                                as_csr(&e.truth)};
        OK(splat_mask_from_blocks(e.truth.bytes, s.q, s.kv, 1, 1, s.kv, &masks[4]));
        OK(splat_mask_from_callback(callback, &e.truth, s.q, s.kv, &masks[5]));
        splat_options options = options_of(dims[round % 3]);
        splat_plan *first = plan_of(masks[0], &options);
        for (int k = 1; k < 6; k++) {
            splat_plan *plan = plan_of(masks[k], &options);
            same_tables(first, plan, e.text);
            splat_plan_destroy(plan);
        }
        splat_plan_destroy(first);
        for (int k = 0; k < 6; k++)
            splat_mask_destroy(masks[k]);
        dense_free(&e.truth);
    }
}

/* ---- Maps ---- */

static void maps_plan_each_distinct_mask_once(void **state)
{
    (void)state;
    struct rng rng = {13};
    struct dense a = dense_new(200, 300), b = dense_new(200, 300), none = dense_new(200, 300);
    dense_random(&a, &rng);
    dense_random(&b, &rng);
    splat_mask *x = mask_from_dense(&a), *y = as_bits(&b), *z = mask_from_dense(&none), *w = as_csr(&a),
               *map = NULL;
    splat_mask *entries[6] = {x, y, z, w, y, x};
    OK(splat_mask_map(entries, 2, 3, &map));
    splat_options options = options_of(64);
    options.batch = 2;
    options.heads = 3;
    splat_plan *plan = plan_of(map, &options);
    assert_int_equal(plan->mask_count, 3);
    assert_int_equal(plan->map_batch, 2);
    assert_int_equal(plan->map_heads, 3);
    const struct dense *truth[6] = {&a, &b, &none, &a, &b, &a};
    static struct walk walk;
    memset(&walk, 0, sizeof walk);
    int checked[3] = {0};
    for (int k = 0; k < 6; k++) {
        int32_t index = plan->map[k];
        assert_in_range(index, 0, 2);
        for (int other = 0; other < k; other++)
            assert_int_equal(plan->map[other] == index, truth[other] == truth[k]);
        if (!checked[index]++)
            check_cover_of(plan, index, truth[k], "map", &walk);
    }
    assert_int_equal(plan->full_tiles, walk.full);
    assert_int_equal(plan->partial_tiles, walk.partial);
    assert_int_equal(plan->allowed_pairs, dense_pairs(&a) + dense_pairs(&b));
    int64_t per_mask = plan->passes[0].row_tile_count;
    for (int64_t p = 0; p < plan->pass_count; p++)
        assert_int_equal(plan->passes[p].row_tile_count, per_mask);
    splat_plan_destroy(plan);
    splat_mask *all[] = {x, y, z, w, map};
    for (int k = 0; k < 5; k++)
        splat_mask_destroy(all[k]);
    dense_free(&a);
    dense_free(&b);
    dense_free(&none);
}

/* ---- The public walk, candidates ---- */

struct stretch_sink {
    struct dense seen;
    int64_t calls, stop_at;
};

static int take_stretch(const splat_tile_stretch *stretch, void *user)
{
    struct stretch_sink *sink = user;
    const splat_acsr_run *rows = &stretch->rows, *columns = &stretch->columns;
    assert_true(stretch->pass >= 0 && rows->count > 0 && rows->width > 0 && columns->count > 0 &&
                columns->width > 0);
    assert_int_equal(strcmp(stretch->predicate, "none") == 0, stretch->kind == SPLAT_TILE_FULL);
    for (int32_t a = 0; a < rows->count * rows->width; a++)
        for (int32_t b = 0; b < columns->count * columns->width; b++) {
            int64_t i = rows->start + a / rows->width * rows->stride + a % rows->width;
            int64_t j = columns->start + b / columns->width * columns->stride + b % columns->width;
            sink->seen.bytes[i * sink->seen.kv + j]++;
        }
    return ++sink->calls == sink->stop_at;
}

static void visiting_tiles_shows_each_once(void **state)
{
    (void)state;
    struct rng rng = {14};
    for (int round = 0; round < 40; round++) {
        struct shape s = {rng_between(&rng, 1, 300), rng_between(&rng, 1, 300), SPLAT_ALIGN_BOTTOM_RIGHT};
        static struct expression e;
        expression_random(&e, &s, &rng, 2);
        splat_mask *mask = mask_of(e.text, s.q, s.kv, s.align);
        splat_options options = options_of(64);
        options.layout = 1;
        splat_plan *plan = plan_of(mask, &options);
        struct stretch_sink sink = {dense_new(s.q, s.kv), 0, -1};
        OK(splat_plan_visit_tiles(plan, 0, take_stretch, &sink));
        for (int64_t at = 0; at < s.q * s.kv; at++)
            if (sink.seen.bytes[at] > 1 || (e.truth.bytes[at] && !sink.seen.bytes[at]))
                FAIL("%s: pair (%lld, %lld) lies in %d visited tiles", e.text, (long long)(at / s.kv),
                     (long long)(at % s.kv), sink.seen.bytes[at]);
        if (sink.calls > 1) {
            sink.calls = 0;
            sink.stop_at = 1;
            OK(splat_plan_visit_tiles(plan, 0, take_stretch, &sink));
            assert_int_equal(sink.calls, 1); /* a non-zero return stops the walk */
        }
        REFUSED(splat_plan_visit_tiles(plan, 1, take_stretch, &sink), SPLAT_INVALID, "mask_index", "1");
        dense_free(&sink.seen);
        splat_plan_destroy(plan);
        splat_mask_destroy(mask);
        dense_free(&e.truth);
    }
}

static void candidates_come_cheapest_first_with_reasons(void **state)
{
    (void)state;
    splat_mask *mask = mask_of("causal & window(1023, 0)", 4096, 4096, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options = options_of(128);
    splat_plan *plan = plan_of(mask, &options);
    splat_plan_info info;
    splat_plan_info_init(&info);
    OK(splat_plan_get_info(plan, &info));
    assert_true(info.candidates >= 2);
    double last = 0;
    const char *summary = NULL, *reason = NULL;
    for (int64_t k = 0; k < info.candidates; k++) {
        double us = -1;
        OK(splat_plan_candidate(plan, k, &summary, &reason, &us));
        assert_true(us >= last && us > 0);
        assert_true(strlen(summary) > 0 && strlen(reason) > 0);
        assert_int_equal(strcmp(reason, "chosen") == 0, k == 0);
        if (k == 0)
            assert_true(us == info.predicted_us);
        last = us;
    }
    double us;
    REFUSED(splat_plan_candidate(plan, info.candidates, &summary, &reason, &us), SPLAT_INVALID, "index");
    REFUSED(splat_plan_candidate(plan, -1, &summary, &reason, &us), SPLAT_INVALID, "-1");
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
}

static void prediction_follows_work(void **state)
{
    (void)state;
    static const char *const cheaper_first[] = {"window(63, 0)", "causal & window(1023, 0)", "causal", "full"};
    double last = 0;
    for (int k = 0; k < 4; k++) {
        splat_mask *mask = mask_of(cheaper_first[k], 8192, 8192, SPLAT_ALIGN_BOTTOM_RIGHT);
        splat_options options = options_of(128);
        options.batch = 2;
        options.heads = 16;
        splat_plan *plan = plan_of(mask, &options);
        assert_true(plan->predicted_us > last);
        last = plan->predicted_us;
        splat_plan_destroy(plan);
        splat_mask_destroy(mask);
    }
}

/* ---- Size ---- */

static void million_row_plans_stay_small(void **state)
{
    (void)state;
    static const char *const expressions[] = {"window(1023, 0)", "window(256)", "dilated(128, 4)",
                                              "window(256) | rows(0, 64) | cols(0, 64)"};
    for (int k = 0; k < 4; k++) {
        splat_mask *mask = mask_of(expressions[k], 1 << 20, 1 << 20, SPLAT_ALIGN_BOTTOM_RIGHT);
        splat_options options = options_of(128);
        splat_plan *plan = plan_of(mask, &options);
        splat_plan_info info;
        splat_plan_info_init(&info);
        OK(splat_plan_get_info(plan, &info));
        if (info.descriptor_bytes > 32 << 20)
            FAIL("%s: %lld descriptor bytes", expressions[k], (long long)info.descriptor_bytes);
        splat_acsr *acsr = acsr_of(mask);
        assert_true(info.allowed_pairs == splat_acsr_pairs(acsr));
        splat_acsr_destroy(acsr);
        splat_plan_destroy(plan);
        splat_mask_destroy(mask);
    }
}

static void refused_plans(void **state)
{
    (void)state;
    splat_mask *mask = mask_of("causal", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_plan *plan = NULL;
    splat_plan_info info;
    splat_options options = options_of(64);
    REFUSED(splat_plan_create(NULL, &options, &plan), SPLAT_INVALID, "mask");
    REFUSED(splat_plan_create(mask, NULL, &plan), SPLAT_INVALID, "options");
    REFUSED(splat_plan_create(mask, &options, NULL), SPLAT_INVALID, "plan");
    options.struct_size = 0;
    REFUSED(splat_plan_create(mask, &options, &plan), SPLAT_INVALID, "struct_size");
    memset(&info, 0, sizeof info);
    options = options_of(64);
    plan = plan_of(mask, &options);
    REFUSED(splat_plan_get_info(plan, &info), SPLAT_INVALID, "struct_size");
    REFUSED(splat_plan_get_info(NULL, &info), SPLAT_INVALID, "plan");
    splat_plan_destroy(plan);
    splat_plan_destroy(NULL);
    splat_mask_destroy(mask);
}

static void options_are_checked(void **state)
{
    (void)state;
    static const int64_t bad_dims[] = {0, -8, 4, 12, 260, 257, 264, INT64_MAX};
    splat_mask *mask = mask_of("causal", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_plan *plan = NULL;
    splat_options options;
    char value[32];
    for (size_t k = 0; k < sizeof bad_dims / sizeof bad_dims[0]; k++) {
        snprintf(value, sizeof value, "%lld", (long long)bad_dims[k]);
        options = options_of(bad_dims[k]);
        REFUSED(splat_plan_create(mask, &options, &plan), SPLAT_INVALID, "head_dim", value, "256");
        if (bad_dims[k] == 0)
            continue;
        options = options_of(64);
        options.value_dim = bad_dims[k];
        REFUSED(splat_plan_create(mask, &options, &plan), SPLAT_INVALID, "value_dim", value, "256");
    }
#define BAD(field, number, ...)                                                                                    \
    options = options_of(64);                                                                                      \
    options.field = number;                                                                                        \
    REFUSED(splat_plan_create(mask, &options, &plan), SPLAT_INVALID, #field, __VA_ARGS__)
    BAD(batch, 0, "0");
    BAD(batch, -3, "-3");
    BAD(heads, 0, "0");
    BAD(kv_heads, -1, "-1");
    BAD(dtype, (enum splat_dtype)9, "9");
    BAD(device, (enum splat_device)9, "9");
    BAD(arch, (enum splat_arch)75, "75");
    BAD(tile_rows, -64, "-64");
    BAD(tile_cols, -64, "-64");
#undef BAD
    options = options_of(64);
    options.heads = 6;
    options.kv_heads = 4;
    REFUSED(splat_plan_create(mask, &options, &plan), SPLAT_INVALID, "heads", "6", "4");
    assert_null(plan);
    splat_mask_destroy(mask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_of_a_group_share_row_tiles),
        cmocka_unit_test(long_row_tiles_come_in_parts),
        cmocka_unit_test(random_bytes_are_covered_once),
        cmocka_unit_test(random_expressions_are_covered_once),
        cmocka_unit_test(primitives_are_covered_once),
        cmocka_unit_test(growing_rows_are_covered_once),
        cmocka_unit_test(the_suite_is_covered_once),
        cmocka_unit_test(tile_sides_divide_the_pitch),
        cmocka_unit_test(every_layout_covers_once),
        cmocka_unit_test(layouts_of_any_mask_cover_once),
        cmocka_unit_test(forced_shapes_cover_too),
        cmocka_unit_test(empty_masks_have_row_tiles_and_no_tiles),
        cmocka_unit_test(full_masks_on_whole_tiles_run_no_predicate),
        cmocka_unit_test(every_form_gives_the_same_plan),
        cmocka_unit_test(maps_plan_each_distinct_mask_once),
        cmocka_unit_test(visiting_tiles_shows_each_once),
        cmocka_unit_test(candidates_come_cheapest_first_with_reasons),
        cmocka_unit_test(prediction_follows_work),
        cmocka_unit_test(million_row_plans_stay_small),
        cmocka_unit_test(refused_plans),
        cmocka_unit_test(options_are_checked),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
