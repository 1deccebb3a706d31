/* Rows -> families (acsr.h).
 *
 * Takes a row source. First looks at a few rows to see which row strides the mask itself suggests: the strides of
 * its runs and the spacing of equal runs. Then cuts the rows into families for each of those and for 1, giving up
 * on a stride as soon as it needs more families than the budget of the round, and keeps the stride with the fewest.
 * A stride whose families take more than `max_bytes` is given up for good.
 * All this depends on the rows' canonical encodings only, so the result is canonical too.
 */
#include "acsr/build.h"

#include <stdlib.h>
#include <string.h>

#include "common/error.h"

#define MAX_STRIDES  8
#define SAMPLED_ROWS 16
#define MANY_RUNS    64

/* Rows of one class that are still being gathered: run templates, or the bits they all share. */
struct piece {
    struct sp_run_template *runs;
    int64_t run_count, run_capacity; /* run_count -1: bits */
    const uint64_t *bits;            /* in `buffer`, or in the source's pool */
    uint64_t *buffer;
    int64_t rows;
};

struct builder {
    struct sp_row_source *source;
    int64_t q_len, kv_len, words;
    struct sp_runs raw, canonical;
    struct piece current, next;
    int64_t current_row0;
    splat_acsr *acsr; /* being filled */
    int64_t family_capacity, template_capacity, bit_capacity;
    int64_t *bit_table; /* open addressing: 1 + word offset of distinct bit rows */
    int64_t bit_table_size, bit_table_used;
    int64_t budget;           /* families allowed in this round */
    int64_t max_bytes;        /* of templates, and of bits that are not the source's */
    bool over, heavy, failed; /* beyond budget; beyond max_bytes, and so over too; no memory */
};

static bool reserve(struct builder *b, void **array, int64_t *capacity, int64_t need, size_t size)
{
    if (need <= *capacity)
        return true;
    int64_t grown_to = *capacity ? *capacity : 16;
    while (grown_to < need)
        grown_to *= 2;
    void *grown = realloc(*array, (size_t)grown_to * size);
    if (!grown) {
        b->failed = true;
        return false;
    }
    *array = grown;
    *capacity = grown_to;
    return true;
}

/* ---- One evaluated stretch of rows ---- */

static bool constant(const struct sp_runs *runs)
{
    for (int64_t i = 0; i < runs->count; i++)
        if (runs->runs[i].start.d || runs->runs[i].count.d || runs->runs[i].width.d)
            return false;
    return true;
}

static void set_bits(uint64_t *bits, int64_t begin, int64_t end)
{
    int64_t first = begin / 64, last = (end - 1) / 64;
    uint64_t head = ~0ull << (begin % 64), tail = ~0ull >> (63 - (end - 1) % 64);
    if (first == last) {
        bits[first] |= head & tail;
        return;
    }
    bits[first] |= head;
    for (int64_t w = first + 1; w < last; w++)
        bits[w] = ~0ull;
    bits[last] |= tail;
}

/* Draws the list into `buffer`, which is made when NULL. Returns it, or NULL without memory. */
static uint64_t *rasterise(const struct sp_runs *runs, uint64_t *buffer, int64_t words)
{
    if (!buffer && !(buffer = malloc((size_t)words * sizeof *buffer)))
        return NULL;
    memset(buffer, 0, (size_t)words * sizeof *buffer);
    for (int64_t i = 0; i < runs->count; i++) {
        const struct sp_sym_run *run = &runs->runs[i];
        for (int64_t k = 0; k < run->count.v; k++) {
            int64_t begin = run->start.v + k * run->stride;
            set_bits(buffer, begin, begin + run->width.v);
        }
    }
    return buffer;
}

/* Evaluates rows row, row + step, ... into b->next: at most `want` of them, at least one. */
static bool evaluate(struct builder *b, int64_t row, int64_t step, int64_t want)
{
    struct sp_row_eval eval = {.q_len = b->q_len, .kv_len = b->kv_len, .row = row, .step = step, .valid = want};
    b->source->row(b->source, &eval, &b->raw);
    const int64_t most = SP_ACSR_MAX_RUNS(b->kv_len);
    if (!eval.bits)
        sp_runs_canonical(&eval, &b->raw, most, &b->canonical);
    struct piece *next = &b->next;
    const struct sp_runs *runs = &b->canonical;
    next->rows = eval.valid;
    if (eval.failed) {
        b->failed = true;
        return false;
    }
    if (eval.bits || runs->count > most) { /* the canonical list may not be complete */
        next->run_count = -1;
        next->bits = eval.bits ? eval.bits : (next->buffer = rasterise(&b->raw, next->buffer, b->words));
        if (!next->bits) {
            b->failed = true;
            return false;
        }
        if (!eval.bits && !constant(&b->raw))
            next->rows = 1;
        return true;
    }
    if (!reserve(b, (void **)&next->runs, &next->run_capacity, runs->count, sizeof *next->runs))
        return false;
    next->run_count = runs->count;
    for (int64_t i = 0; i < runs->count; i++) {
        const struct sp_sym_run *run = &runs->runs[i];
        next->runs[i] = (struct sp_run_template){
            (int32_t)run->start.v, (int32_t)run->stride,  (int32_t)run->count.v, (int32_t)run->width.v,
            (int32_t)run->start.d, (int32_t)run->count.d, (int32_t)run->width.d};
    }
    return true;
}

/* ---- Joining stretches into families ---- */

static bool same_shape(const struct piece *a, const struct piece *b)
{
    if (a->run_count != b->run_count)
        return false;
    for (int64_t i = 0; i < a->run_count; i++)
        if (a->runs[i].stride != b->runs[i].stride)
            return false;
    return true;
}

/* Whether b's first row is a's row number t. */
static bool is_row(const struct piece *a, int64_t t, const struct piece *b)
{
    for (int64_t i = 0; i < a->run_count; i++) {
        splat_acsr_run run = sp_template_at(&a->runs[i], t);
        if (run.start != b->runs[i].start || run.count != b->runs[i].count || run.width != b->runs[i].width)
            return false;
    }
    return true;
}

static bool same_slopes(const struct piece *a, const struct piece *b)
{
    for (int64_t i = 0; i < a->run_count; i++) {
        const struct sp_run_template *x = &a->runs[i], *y = &b->runs[i];
        if (x->d_start != y->d_start || x->d_count != y->d_count || x->d_width != y->d_width)
            return false;
    }
    return true;
}

static void take_slopes(struct piece *a, const struct piece *b)
{
    for (int64_t i = 0; i < a->run_count; i++) {
        a->runs[i].d_start = b->runs[i].start - a->runs[i].start;
        a->runs[i].d_count = b->runs[i].count - a->runs[i].count;
        a->runs[i].d_width = b->runs[i].width - a->runs[i].width;
    }
}

static void drop_first_row(struct piece *b)
{
    for (int64_t i = 0; i < b->run_count; i++) {
        b->runs[i].start += b->runs[i].d_start;
        b->runs[i].count += b->runs[i].d_count;
        b->runs[i].width += b->runs[i].d_width;
    }
    b->rows--;
}

/* Moves as many of b's leading rows into a as continue it; what is left stays in b. */
static void absorb(struct builder *builder, struct piece *a, struct piece *b)
{
    if (!same_shape(a, b))
        return;
    if (a->run_count < 0) {
        if (a->bits == b->bits || memcmp(a->bits, b->bits, (size_t)builder->words * sizeof *a->bits) == 0) {
            a->rows += b->rows;
            b->rows = 0;
        }
        return;
    }
    if (a->rows == 1)
        take_slopes(a, b);
    else if (!is_row(a, a->rows, b))
        return;
    if (b->rows == 1 || same_slopes(a, b)) {
        a->rows += b->rows;
        b->rows = 0;
    } else {
        a->rows++;
        drop_first_row(b);
    }
}

/* ---- Storing families ---- */

static bool grow_bit_table(struct builder *b)
{
    int64_t size = b->bit_table_size ? 2 * b->bit_table_size : 256;
    int64_t *table = calloc((size_t)size, sizeof *table);
    if (!table) {
        b->failed = true;
        return false;
    }
    for (int64_t i = 0; i < b->bit_table_size; i++) {
        if (!b->bit_table[i])
            continue;
        struct sp_hash hash =
            sp_hash_bytes(b->acsr->bits + b->bit_table[i] - 1, (size_t)b->words * sizeof(uint64_t));
        int64_t at = (int64_t)(hash.low & (uint64_t)(size - 1));
        while (table[at])
            at = (at + 1) & (size - 1);
        table[at] = b->bit_table[i];
    }
    free(b->bit_table);
    b->bit_table = table;
    b->bit_table_size = size;
    return true;
}

/* Offset of the row's words in acsr->bits; equal rows are stored once. */
static uint64_t store_bits(struct builder *b, const uint64_t *bits)
{
    splat_acsr *acsr = b->acsr;
    size_t bytes = (size_t)b->words * sizeof *bits;
    if (b->acsr->row_stride == 1 && b->source->pool) /* the pool is in just the order this function would give */
        return (uint64_t)(bits - b->source->pool);
    if (2 * b->bit_table_used >= b->bit_table_size && !grow_bit_table(b))
        return 0;
    int64_t at = (int64_t)(sp_hash_bytes(bits, bytes).low & (uint64_t)(b->bit_table_size - 1));
    for (; b->bit_table[at]; at = (at + 1) & (b->bit_table_size - 1))
        if (memcmp(acsr->bits + b->bit_table[at] - 1, bits, bytes) == 0)
            return (uint64_t)b->bit_table[at] - 1;
    if (!reserve(b, (void **)&acsr->bits, &b->bit_capacity, acsr->bit_words + b->words, sizeof *bits))
        return 0;
    memcpy(acsr->bits + acsr->bit_words, bits, bytes);
    b->bit_table[at] = acsr->bit_words + 1;
    b->bit_table_used++;
    acsr->bit_words += b->words;
    return (uint64_t)b->bit_table[at] - 1;
}

/* Counts set bits. Without a popcount instruction in the baseline, this vectorises where the builtin is a call. */
static int64_t count_ones(const uint64_t *bits, int64_t words)
{
    const uint64_t m1 = 0x5555555555555555u, m2 = 0x3333333333333333u, m4 = 0x0F0F0F0F0F0F0F0Fu;
    uint64_t ones = 0;
    for (int64_t w = 0; w < words; w++) {
        uint64_t x = bits[w] - (bits[w] >> 1 & m1);
        x = (x & m2) + (x >> 2 & m2);
        x = (x + (x >> 4)) & m4;
        x += x >> 8;
        x += x >> 16;
        ones += (x + (x >> 32)) & 0x7F;
    }
    return (int64_t)ones;
}

static int64_t pairs_of(const struct builder *b, const struct piece *piece)
{
    if (piece->run_count < 0)
        return count_ones(piece->bits, b->words) * piece->rows;
    /* Sum over t < n of (c + t*dc) * (w + t*dw); unsigned, since only the final sum is known to fit. */
    uint64_t n = (uint64_t)piece->rows, sum = 0;
    uint64_t sum_t = n % 2 ? n * ((n - 1) / 2) : n / 2 * (n - 1);
    for (int64_t i = 0; i < piece->run_count; i++) {
        const struct sp_run_template *run = &piece->runs[i];
        uint64_t c = (uint64_t)run->count, w = (uint64_t)run->width;
        uint64_t dc = (uint64_t)(int64_t)run->d_count, dw = (uint64_t)(int64_t)run->d_width;
        sum += n * c * w + sum_t * (c * dw + w * dc);
        if (run->d_count && run->d_width)
            for (uint64_t t = 0; t < n; t++)
                sum += t * t * dc * dw;
    }
    return (int64_t)sum;
}

static void flush(struct builder *b)
{
    struct piece *piece = &b->current;
    splat_acsr *acsr = b->acsr;
    if (piece->rows == 0 || b->failed)
        return;
    if (acsr->family_count == b->budget) {
        b->over = true;
        return;
    }
    bool irregular = piece->run_count < 0;
    int64_t runs = irregular ? 0 : piece->run_count;
    if (!reserve(b, (void **)&acsr->families, &b->family_capacity, acsr->family_count + 1,
                 sizeof *acsr->families) ||
        !reserve(b, (void **)&acsr->templates, &b->template_capacity, acsr->template_count + runs,
                 sizeof *acsr->templates))
        return;
    for (int64_t i = 0; piece->rows == 1 && i < runs; i++) /* slopes of a single row mean nothing */
        piece->runs[i].d_start = piece->runs[i].d_count = piece->runs[i].d_width = 0;
    uint64_t first = irregular ? store_bits(b, piece->bits) : (uint64_t)acsr->template_count;
    int64_t bytes = (acsr->template_count + runs) * (int64_t)sizeof *acsr->templates + acsr->bit_words * 8;
    if (bytes > b->max_bytes) {
        b->over = b->heavy = true;
        return;
    }
    acsr->families[acsr->family_count++] =
        (struct sp_family){(int32_t)b->current_row0, (int32_t)piece->rows, (int32_t)piece->run_count, 0, first};
    if (runs)
        memcpy(acsr->templates + acsr->template_count, piece->runs, (size_t)runs * sizeof *piece->runs);
    acsr->template_count += runs;
    acsr->pairs += pairs_of(b, piece);
    piece->rows = 0;
}

static void gather_class(struct builder *b, int64_t first_row, int64_t step)
{
    int64_t rows = (b->q_len - first_row + step - 1) / step;
    for (int64_t t = 0; t < rows && !b->failed && !b->over;) {
        if (!evaluate(b, first_row + t * step, step, rows - t))
            return;
        while (b->next.rows > 0 && !b->failed && !b->over) {
            int64_t before = b->next.rows;
            if (b->current.rows > 0)
                absorb(b, &b->current, &b->next);
            t += before - b->next.rows;
            if (b->next.rows < before)
                continue;
            flush(b);
            b->current_row0 = first_row + t * step;
            struct piece swap = b->current;
            b->current = b->next;
            b->next = swap;
            t += b->current.rows;
            b->next.rows = 0;
        }
    }
    flush(b);
}

/* ---- Choice of the row stride ---- */

/* Cuts all rows with one stride. Returns NULL when that takes more than `budget` families, or on failure
 * (b->failed). */
static splat_acsr *gather(struct builder *b, int64_t step, int64_t budget)
{
    splat_acsr *acsr = calloc(1, sizeof *acsr);
    b->acsr = acsr;
    b->family_capacity = b->template_capacity = b->bit_capacity = 0;
    b->bit_table_used = 0;
    b->over = step > budget;
    b->heavy = false;
    b->budget = budget;
    b->current.rows = 0;
    if (b->bit_table)
        memset(b->bit_table, 0, (size_t)b->bit_table_size * sizeof *b->bit_table);
    if (!acsr || !(acsr->class_first = malloc((size_t)(step + 1) * sizeof *acsr->class_first))) {
        b->failed = true;
        free(acsr);
        return NULL;
    }
    acsr->refs = 1;
    acsr->q_len = b->q_len;
    acsr->kv_len = b->kv_len;
    acsr->row_stride = (int32_t)step;
    for (int64_t c = 0; c < step && !b->failed && !b->over; c++) {
        acsr->class_first[c] = acsr->family_count;
        gather_class(b, c, step);
    }
    acsr->class_first[step] = acsr->family_count;
    if (!b->failed && !b->over)
        return acsr;
    splat_acsr_destroy(acsr);
    return NULL;
}

struct votes {
    int64_t stride[64];
    int count[64];
    int used;
};

static void vote(struct votes *votes, int64_t stride, int64_t q_len)
{
    if (stride < 2 || stride > q_len / 2)
        return;
    int i = 0;
    while (i < votes->used && votes->stride[i] != stride)
        i++;
    if (i == votes->used) {
        if (i == 64)
            return;
        votes->stride[i] = stride;
        votes->count[i] = 0;
        votes->used++;
    }
    votes->count[i]++;
}

/* An eighth of the rows, for a search to cost little beside a cut of all, and 2^33 columns. */
static int64_t longest_period(const struct builder *b)
{
    int64_t eighth = b->q_len / 8, most = ((int64_t)1 << 33) / b->kv_len, longest = eighth < most ? eighth : most;
    return longest > 64 ? longest : 64;
}

/* Rows of many runs, or irregular ones, may show no stride of their own; but they may repeat every so many rows.
 * Votes for the first period that a row in the middle has. */
static bool vote_period(struct builder *b, struct votes *votes)
{
    int64_t base = b->q_len / 2, longest = longest_period(b);
    if (!evaluate(b, base, 1, 1))
        return false;
    if (b->next.run_count >= 0 && b->next.run_count <= MANY_RUNS)
        return true;
    struct piece first = b->next; /* its memory is kept from the rows that follow */
    b->next = (struct piece){0};
    for (int64_t period = 1; period <= longest && base + period < b->q_len; period++) {
        if (!evaluate(b, base + period, 1, 1))
            break;
        if (same_shape(&first, &b->next) &&
            (first.run_count >= 0 ? is_row(&first, 0, &b->next)
                                  : memcmp(first.bits, b->next.bits, (size_t)b->words * 8) == 0)) {
            vote(votes, period, b->q_len);
            break;
        }
    }
    free(first.runs);
    free(first.buffer);
    return !b->failed;
}

/* The row strides worth trying, ascending, 1 first. */
static int candidate_strides(struct builder *b, int64_t strides[MAX_STRIDES + 1])
{
    struct votes votes = {.used = 0};
    for (int64_t s = 0; s < SAMPLED_ROWS; s++) {
        int64_t row = s * (b->q_len - 1) / (SAMPLED_ROWS - 1);
        if (!evaluate(b, row, 1, 1))
            return 0;
        const struct sp_run_template *runs = b->next.runs;
        for (int64_t i = 0; i < b->next.run_count; i++) {
            vote(&votes, runs[i].stride, b->q_len);
            if (i > 0 && runs[i].count > 1 && runs[i].count == runs[i - 1].count &&
                runs[i].width == runs[i - 1].width && runs[i].stride == runs[i - 1].stride)
                vote(&votes, runs[i].start - runs[i - 1].start, b->q_len);
        }
    }
    if (!vote_period(b, &votes))
        return 0;
    int count = 0;
    strides[count++] = 1;
    while (count <= MAX_STRIDES) {
        int best = -1;
        for (int i = 0; i < votes.used; i++)
            if (votes.count[i] && (best < 0 || votes.count[i] > votes.count[best] ||
                                   (votes.count[i] == votes.count[best] && votes.stride[i] < votes.stride[best])))
                best = i;
        if (best < 0)
            break;
        strides[count++] = votes.stride[best];
        votes.count[best] = 0;
    }
    for (int i = 1; i < count; i++)
        for (int j = i; j > 1 && strides[j] < strides[j - 1]; j--) {
            int64_t swap = strides[j];
            strides[j] = strides[j - 1];
            strides[j - 1] = swap;
        }
    return count;
}

static splat_acsr *fewest_families(struct builder *b)
{
    int64_t strides[MAX_STRIDES + 1];
    int count = candidate_strides(b, strides);
    splat_acsr *best = NULL;
    bool heavy[MAX_STRIDES + 1] = {false};
    for (int64_t budget = count > 1 ? 64 : b->q_len; !best && !b->failed && memchr(heavy, false, (size_t)count);
         budget *= 4)
        for (int i = 0; i < count && !b->failed; i++) {
            if (heavy[i])
                continue;
            int64_t bound = best ? best->family_count - 1 : budget;
            splat_acsr *acsr = gather(b, strides[i], bound);
            heavy[i] = b->heavy;
            if (!acsr)
                continue;
            splat_acsr_destroy(best);
            best = acsr;
        }
    return best;
}

static void trim(void **array, int64_t count, size_t size)
{
    void *fitted = realloc(*array, (size_t)(count ? count : 1) * size);
    if (fitted)
        *array = fitted;
}

static struct sp_hash contents_hash(const splat_acsr *acsr)
{
    struct sp_hash parts[4];
    int64_t head[4] = {acsr->q_len, acsr->kv_len, acsr->row_stride, acsr->family_count};
    parts[0] = sp_hash_bytes(head, sizeof head);
    parts[1] = sp_hash_bytes(acsr->families, (size_t)acsr->family_count * sizeof *acsr->families);
    parts[2] = sp_hash_bytes(acsr->templates, (size_t)acsr->template_count * sizeof *acsr->templates);
    parts[3] = sp_hash_bytes(acsr->bits, (size_t)acsr->bit_words * sizeof *acsr->bits);
    return sp_hash_bytes(parts, sizeof parts);
}

/* row_stride 0: the one with the fewest families. */
static enum splat_status build(struct sp_row_source *source, int64_t q_len, int64_t kv_len, int64_t row_stride,
                               int64_t max_bytes, splat_acsr **result)
{
    struct builder b = {
        .source = source, .q_len = q_len, .kv_len = kv_len, .words = (kv_len + 63) / 64, .max_bytes = max_bytes};
    splat_acsr *acsr = row_stride ? gather(&b, row_stride, INT64_MAX) : fewest_families(&b);
    sp_runs_free(&b.raw);
    sp_runs_free(&b.canonical);
    free(b.current.runs);
    free(b.current.buffer);
    free(b.next.runs);
    free(b.next.buffer);
    free(b.bit_table);
    if (!acsr && !b.failed)
        return sp_fail(SPLAT_UNSUPPORTED,
                       "the ACSR of this %lld x %lld mask would take more than %lld MiB: its rows have many "
                       "runs, differ, and do not repeat",
                       (long long)q_len, (long long)kv_len, (long long)(max_bytes >> 20));
    if (!acsr || b.failed) {
        splat_acsr_destroy(acsr);
        return sp_fail(SPLAT_NO_MEMORY, "no memory for the ACSR of a %lld x %lld mask", (long long)q_len,
                       (long long)kv_len);
    }
    if (acsr->row_stride == 1 && source->pool) {
        acsr->bits = source->pool;
        acsr->bit_words = source->pool_words;
        source->pool = NULL;
    }
    trim((void **)&acsr->families, acsr->family_count, sizeof *acsr->families);
    trim((void **)&acsr->templates, acsr->template_count, sizeof *acsr->templates);
    trim((void **)&acsr->bits, acsr->bit_words, sizeof *acsr->bits);
    acsr->hash = contents_hash(acsr);
    *result = acsr;
    return SPLAT_OK;
}

enum splat_status sp_acsr_build(struct sp_row_source *source, int64_t q_len, int64_t kv_len, splat_acsr **acsr)
{
    return sp_acsr_build_within(source, q_len, kv_len, SP_ACSR_MAX_BYTES, acsr);
}

enum splat_status sp_acsr_build_within(struct sp_row_source *source, int64_t q_len, int64_t kv_len,
                                       int64_t max_bytes, splat_acsr **acsr)
{
    return build(source, q_len, kv_len, 0, max_bytes, acsr);
}

enum splat_status sp_acsr_build_classes(struct sp_row_source *source, int64_t q_len, int64_t kv_len,
                                        int64_t row_stride, splat_acsr **acsr)
{
    return build(source, q_len, kv_len, row_stride, SP_ACSR_MAX_BYTES, acsr);
}
