/* Dense and CSR masks -> ACSR.
 *
 * Every input is brought to one row of packed bits, or of blocks, at a time. Rows that were seen before (by a
 * 128-bit hash) are not encoded again, since regular masks repeat their rows. Encoding a row stops as soon as it
 * has too many runs to be kept as runs; its bits are kept then. What is stored is O(rows + distinct runs); the
 * caller's array is read once.
 */
#include "acsr/inputs.h"

#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "acsr/build.h"
#include "common/error.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packing of bits assumes a little-endian host");

/* ---- Distinct rows ---- */

/* A distinct row: `runs` of the pool from `first`, or bits from word `first` when runs is -1. */
struct row {
    int64_t first;
    int32_t runs;
};

struct rows {
    struct sp_row_source base;
    int64_t q_len, kv_len, words, max_runs;
    int32_t *of;             /* the distinct row of every row */
    struct sp_hash_set seen; /* numbers the distinct rows */
    struct row *distinct;
    int64_t capacity;
    splat_acsr_run *pool;
    int64_t pool_count, pool_capacity;
    int64_t pool_capacity_words; /* of base.pool: the bits of irregular rows */
    uint64_t *packed;            /* the row being read */
    int32_t *blocks;             /* the row being read, as begin, end pairs, where the input comes so */
    bool failed;
};

static bool reserve(struct rows *r, void **array, int64_t *capacity, int64_t need, size_t size)
{
    if (need <= *capacity)
        return true;
    int64_t to = *capacity ? *capacity : 256;
    while (to < need)
        to *= 2;
    void *grown = realloc(*array, (size_t)to * size);
    if (!grown) {
        r->failed = true;
        return false;
    }
    *array = grown;
    *capacity = to;
    return true;
}

/* Finds the distinct row with this hash, or adds one still to be encoded (*fresh). */
static int32_t intern(struct rows *r, struct sp_hash hash, bool *fresh)
{
    int32_t id = sp_hash_set_add(&r->seen, hash, fresh);
    if (*fresh && reserve(r, (void **)&r->distinct, &r->capacity, r->seen.count, sizeof *r->distinct))
        r->distinct[id] = (struct row){r->pool_count, 0};
    r->failed |= id < 0;
    return id;
}

/* ---- Encoding: blocks -> canonical runs (the rule of acsr.h, on plain integers) ---- */

struct encoder {
    splat_acsr_run *out;
    int64_t count, limit;
    int64_t next;       /* where the growing run's next block must start; -1 = none grows */
    splat_acsr_run run; /* growing, three blocks or more */
    int32_t start[2], width[2];
    int waiting;
};

static inline void put(struct encoder *e, splat_acsr_run run)
{
    if (e->count < e->limit)
        e->out[e->count] = run;
    e->count++; /* beyond the limit: only counted */
}

static inline void encode_block(struct encoder *e, int32_t start, int32_t width)
{
    if (e->next == start && width == e->run.width) {
        e->run.count++;
        e->next += e->run.stride;
        return;
    }
    if (e->next >= 0) {
        put(e, e->run);
        e->next = -1;
    }
    if (e->waiting == 2) {
        int32_t spacing = e->start[1] - e->start[0];
        if (e->width[0] == width && e->width[1] == width && start - e->start[1] == spacing) {
            e->run = (splat_acsr_run){e->start[0], spacing, 3, width};
            e->next = (int64_t)start + spacing;
            e->waiting = 0;
            return;
        }
        put(e, (splat_acsr_run){e->start[0], 0, 1, e->width[0]});
        e->start[0] = e->start[1];
        e->width[0] = e->width[1];
        e->waiting = 1;
    }
    e->start[e->waiting] = start;
    e->width[e->waiting++] = width;
}

static bool encoder_begin(struct rows *r, struct encoder *e)
{
    if (!reserve(r, (void **)&r->pool, &r->pool_capacity, r->pool_count + r->max_runs, sizeof *r->pool))
        return false;
    *e = (struct encoder){.out = r->pool + r->pool_count, .limit = r->max_runs, .next = -1};
    return true;
}

/* Closes the row. Returns false when it has too many runs. */
static bool encoder_end(struct rows *r, struct encoder *e, struct row *row)
{
    if (e->next >= 0)
        put(e, e->run);
    for (int i = 0; i < e->waiting; i++)
        put(e, (splat_acsr_run){e->start[i], 0, 1, e->width[i]});
    if (e->count > e->limit)
        return false;
    row->first = r->pool_count;
    row->runs = (int32_t)e->count;
    r->pool_count += e->count;
    return true;
}

/* Room for all rows at once when that is no more than this: pages are touched only as rows come. */
#define POOL_AT_ONCE ((int64_t)1 << 27)

static void keep_bits(struct rows *r, const uint64_t *packed, struct row *row)
{
    int64_t used = r->base.pool_words, all = r->words * r->q_len;
    int64_t need = used == 0 && all <= POOL_AT_ONCE ? all : used + r->words;
    if (!reserve(r, (void **)&r->base.pool, &r->pool_capacity_words, need, sizeof *packed))
        return;
    memcpy(r->base.pool + used, packed, (size_t)r->words * sizeof *packed);
    row->first = used;
    row->runs = -1;
    r->base.pool_words += r->words;
}

/* Words after which a run of this stride repeats its pattern. */
static int64_t period_words(int32_t stride)
{
    int twos = __builtin_ctz((unsigned)stride);
    return stride >> (twos < 6 ? twos : 6);
}

/* The last `period` words before w belong to the growing run alone, and a block that is open at w is its next one.
 * While the words from w repeat them, they only lengthen the run. Returns the first word that does not. */
static int64_t skip_repeats(const struct rows *r, struct encoder *e, int64_t w, int64_t period)
{
    while (w + period <= r->words &&
           memcmp(r->packed + w, r->packed + w - period, (size_t)period * sizeof *r->packed) == 0) {
        e->run.count += (int32_t)(64 * period / e->run.stride);
        e->next += 64 * period;
        w += period;
    }
    return w;
}

/* Takes r->packed as row i. Bits beyond kv_len are 0. */
static void take_packed(struct rows *r, int64_t i)
{
    bool fresh;
    r->of[i] = intern(r, sp_hash_bytes(r->packed, (size_t)r->words * sizeof *r->packed), &fresh);
    struct encoder e;
    if (!fresh || r->failed || !encoder_begin(r, &e))
        return;
    struct row *row = &r->distinct[r->of[i]];
    int64_t begin = -1;                  /* of the open block */
    int64_t steady = 0, steady_run = -1; /* whole words that the run starting there has taken */
    for (int64_t w = 0; w < r->words && e.count <= e.limit; w++) {
        bool on_time = begin < 0 ? e.next >= w * 64 : begin == e.next && w * 64 <= begin + e.run.width;
        int64_t growing = on_time ? e.run.start : -1;
        steady = growing >= 0 && growing == steady_run ? steady + 1 : 0;
        steady_run = growing;
        if (steady && steady >= period_words(e.run.stride)) {
            int64_t to = skip_repeats(r, &e, w, period_words(e.run.stride));
            begin += begin < 0 ? 0 : (to - w) * 64;
            w = to;
            if (w == r->words)
                break;
        }
        /* `edges` has a bit wherever a column differs from the one before it */
        uint64_t word = r->packed[w], edges = word ^ (word << 1 | (begin >= 0));
        for (; edges; edges &= edges - 1) {
            int64_t at = w * 64 + __builtin_ctzll(edges);
            if (begin < 0) {
                begin = at;
            } else {
                encode_block(&e, (int32_t)begin, (int32_t)(at - begin));
                begin = -1;
            }
        }
    }
    if (begin >= 0)
        encode_block(&e, (int32_t)begin, (int32_t)(r->kv_len - begin));
    if (!encoder_end(r, &e, row))
        keep_bits(r, r->packed, row);
}

/* Takes r->blocks (ascending, not touching) as a row; returns its distinct row. */
static int32_t take_blocks(struct rows *r, int64_t block_count)
{
    bool fresh;
    int32_t id = intern(r, sp_hash_bytes(r->blocks, (size_t)block_count * 2 * sizeof *r->blocks), &fresh);
    struct encoder e;
    if (!fresh || r->failed || !encoder_begin(r, &e))
        return id;
    for (int64_t k = 0; k < block_count; k++)
        encode_block(&e, r->blocks[2 * k], r->blocks[2 * k + 1] - r->blocks[2 * k]);
    if (encoder_end(r, &e, &r->distinct[id]))
        return id;
    if (!r->packed && !(r->packed = malloc((size_t)r->words * sizeof *r->packed))) {
        r->failed = true;
        return id;
    }
    memset(r->packed, 0, (size_t)r->words * sizeof *r->packed);
    for (int64_t k = 0; k < block_count; k++)
        for (int64_t j = r->blocks[2 * k]; j < r->blocks[2 * k + 1]; j++)
            r->packed[j / 64] |= 1ull << (j & 63);
    keep_bits(r, r->packed, &r->distinct[id]);
    return id;
}

/* ---- Stored rows as a source ---- */

static void stored_row(struct sp_row_source *self, struct sp_row_eval *eval, struct sp_runs *out)
{
    struct rows *r = (struct rows *)self;
    const struct row *row = &r->distinct[r->of[eval->row]];
    /* The next rows of the walk that repeat this one come with it. */
    int64_t same = 1;
    while (same < eval->valid && r->of[eval->row + same * eval->step] == r->of[eval->row])
        same++;
    eval->valid = same;
    out->count = 0;
    if (row->runs < 0)
        eval->bits = r->base.pool + row->first;
    for (int32_t k = 0; k < row->runs; k++) {
        splat_acsr_run run = r->pool[row->first + k];
        sp_push_run(eval, out, sp_const(run.start), run.stride, sp_const(run.count), sp_const(run.width));
    }
}

static enum splat_status rows_init(struct rows *r, int64_t q_len, int64_t kv_len)
{
    *r = (struct rows){.base.row = stored_row,
                       .q_len = q_len,
                       .kv_len = kv_len,
                       .words = (kv_len + 63) / 64,
                       .max_runs = SP_ACSR_MAX_RUNS(kv_len)};
    r->of = malloc((size_t)q_len * sizeof *r->of);
    return r->of ? SPLAT_OK : sp_no_memory("the rows of a mask", (size_t)q_len * sizeof *r->of);
}

static enum splat_status rows_packed(struct rows *r)
{
    r->packed = calloc((size_t)r->words, sizeof *r->packed);
    return r->packed ? SPLAT_OK : sp_no_memory("a row of a mask", (size_t)r->words * sizeof *r->packed);
}

static enum splat_status rows_finish(struct rows *r, enum splat_status status, splat_acsr **acsr)
{
    if (status == SPLAT_OK && r->failed)
        status = sp_fail(SPLAT_NO_MEMORY, "no memory for the rows of a %lld x %lld mask", (long long)r->q_len,
                         (long long)r->kv_len);
    free(r->packed);
    free(r->blocks);
    sp_hash_set_free(&r->seen);
    if (status == SPLAT_OK)
        status = sp_acsr_build(&r->base, r->q_len, r->kv_len, acsr);
    free(r->of);
    free(r->distinct);
    free(r->pool);
    free(r->base.pool);
    return status;
}

/* ---- The inputs ---- */

#ifdef __SSE2__
/* 64 bytes -> 64 bits, bit b set when byte b is not 0. */
static inline uint64_t pack64(const uint8_t *bytes)
{
    uint64_t zeros = 0;
    for (int b = 0; b < 4; b++) {
        __m128i sixteen = _mm_loadu_si128((const __m128i *)(const void *)(bytes + 16 * b));
        zeros |= (uint64_t)_mm_movemask_epi8(_mm_cmpeq_epi8(sixteen, _mm_setzero_si128())) << (16 * b);
    }
    return ~zeros;
}
#else
/* Eight bytes -> eight bits. */
static inline uint64_t pack8(uint64_t bytes)
{
    const uint64_t low7 = 0x7F7F7F7F7F7F7F7Full;
    uint64_t high = (((bytes & low7) + low7) | bytes) & ~low7; /* 0x80 in every non-zero byte */
    return (high >> 7) * 0x0102040810204080ull >> 56;
}

static inline uint64_t pack64(const uint8_t *bytes)
{
    uint64_t word = 0;
    for (int b = 0; b < 8; b++) {
        uint64_t eight;
        memcpy(&eight, bytes + b * 8, 8);
        word |= pack8(eight) << (8 * b);
    }
    return word;
}
#endif

static void pack_bytes(const uint8_t *bytes, int64_t kv_len, uint64_t *packed)
{
    int64_t whole = kv_len / 64;
    for (int64_t w = 0; w < whole; w++)
        packed[w] = pack64(bytes + w * 64);
    for (int64_t j = whole * 64; j < kv_len; j++) {
        if (j % 64 == 0)
            packed[whole] = 0;
        packed[whole] |= (uint64_t)(bytes[j] != 0) << (j % 64);
    }
}

/* Where rows of packed bits come from: `array` and its row stride in bytes, or a callback. */
struct packed_input {
    const uint8_t *array;
    int64_t row_stride;
    splat_mask_fn allowed;
    void *user;
};

static void read_bytes(const struct packed_input *input, int64_t i, struct rows *r)
{
    pack_bytes(input->array + i * input->row_stride, r->kv_len, r->packed);
}

static void read_bits(const struct packed_input *input, int64_t i, struct rows *r)
{
    memcpy(r->packed, input->array + i * input->row_stride, (size_t)(r->kv_len + 7) / 8);
    if (r->kv_len % 64)
        r->packed[r->words - 1] &= ~0ull >> (64 - r->kv_len % 64);
}

static void read_callback(const struct packed_input *input, int64_t i, struct rows *r)
{
    memset(r->packed, 0, (size_t)r->words * sizeof *r->packed);
    for (int64_t j = 0; j < r->kv_len; j++)
        r->packed[j / 64] |= (uint64_t)(input->allowed(i, j, input->user) != 0) << (j % 64);
}

static enum splat_status from_packed(void (*read)(const struct packed_input *, int64_t, struct rows *),
                                     const struct packed_input *input, int64_t q_len, int64_t kv_len,
                                     splat_acsr **acsr)
{
    struct rows r;
    enum splat_status status = rows_init(&r, q_len, kv_len);
    if (status == SPLAT_OK)
        status = rows_packed(&r);
    for (int64_t i = 0; i < q_len && status == SPLAT_OK && !r.failed; i++) {
        read(input, i, &r);
        take_packed(&r, i);
    }
    return rows_finish(&r, status, acsr);
}

enum splat_status sp_acsr_from_bytes(const uint8_t *bytes, int64_t q_len, int64_t kv_len, int64_t row_stride,
                                     splat_acsr **acsr)
{
    struct packed_input input = {.array = bytes, .row_stride = row_stride};
    return from_packed(read_bytes, &input, q_len, kv_len, acsr);
}

enum splat_status sp_acsr_from_bits(const uint8_t *bits, int64_t q_len, int64_t kv_len, int64_t row_stride,
                                    splat_acsr **acsr)
{
    struct packed_input input = {.array = bits, .row_stride = row_stride};
    return from_packed(read_bits, &input, q_len, kv_len, acsr);
}

enum splat_status sp_acsr_from_callback(splat_mask_fn allowed, void *user, int64_t q_len, int64_t kv_len,
                                        splat_acsr **acsr)
{
    struct packed_input input = {.allowed = allowed, .user = user};
    return from_packed(read_callback, &input, q_len, kv_len, acsr);
}

enum splat_status sp_acsr_from_packed(sp_packed_row_fn read, void *user, int64_t q_len, int64_t kv_len,
                                      splat_acsr **acsr)
{
    struct rows r;
    enum splat_status status = rows_init(&r, q_len, kv_len);
    if (status == SPLAT_OK)
        status = rows_packed(&r);
    for (int64_t i = 0; i < q_len && status == SPLAT_OK && !r.failed; i++) {
        status = read(user, i, r.packed);
        take_packed(&r, i);
    }
    return rows_finish(&r, status, acsr);
}

enum splat_status sp_acsr_from_blocks(const uint8_t *blocks, int64_t q_len, int64_t kv_len, int64_t block_rows,
                                      int64_t block_cols, int64_t row_stride, splat_acsr **acsr)
{
    struct rows r;
    enum splat_status status = rows_init(&r, q_len, kv_len);
    int64_t columns = (kv_len + block_cols - 1) / block_cols;
    size_t bytes = (size_t)(columns + 1) * 2 * sizeof *r.blocks;
    if (status == SPLAT_OK && !(r.blocks = malloc(bytes)))
        status = sp_no_memory("a row of blocks", bytes);
    for (int64_t i = 0; i < q_len && status == SPLAT_OK && !r.failed; i += block_rows) {
        const uint8_t *row = blocks + i / block_rows * row_stride;
        int64_t count = 0;
        for (int64_t c = 0; c < columns; c++) {
            if (!row[c])
                continue;
            int64_t end = (c + 1) * block_cols < kv_len ? (c + 1) * block_cols : kv_len;
            if (count && r.blocks[2 * count - 1] == c * block_cols) {
                r.blocks[2 * count - 1] = (int32_t)end;
            } else {
                r.blocks[2 * count] = (int32_t)(c * block_cols);
                r.blocks[2 * count++ + 1] = (int32_t)end;
            }
        }
        int32_t id = take_blocks(&r, count);
        for (int64_t k = i; k < i + block_rows && k < q_len; k++)
            r.of[k] = id;
    }
    return rows_finish(&r, status, acsr);
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* One CSR row -> r->blocks. Returns the number of blocks, or -1 after a failure put in *status. */
static int64_t csr_row(struct rows *r, const int64_t *indices, int64_t count, int64_t i, int64_t *sorted,
                       enum splat_status *status)
{
    bool in_order = true;
    for (int64_t k = 0; k < count; k++) {
        if (indices[k] < 0 || indices[k] >= r->kv_len) {
            *status = sp_fail(SPLAT_INVALID, "indices has column %lld in row %lld; it must be from 0 to %lld",
                              (long long)indices[k], (long long)i, (long long)r->kv_len - 1);
            return -1;
        }
        in_order &= k == 0 || indices[k] > indices[k - 1];
    }
    if (!in_order) {
        memcpy(sorted, indices, (size_t)count * sizeof *sorted);
        qsort(sorted, (size_t)count, sizeof *sorted, ascending);
        indices = sorted;
    }
    int64_t blocks = 0;
    for (int64_t k = 0; k < count; k++) {
        if (k > 0 && indices[k] == indices[k - 1]) {
            *status =
                sp_fail(SPLAT_INVALID, "indices has column %lld in row %lld more than once; each may appear once",
                        (long long)indices[k], (long long)i);
            return -1;
        }
        if (k > 0 && indices[k] == indices[k - 1] + 1) {
            r->blocks[2 * blocks - 1]++;
        } else {
            r->blocks[2 * blocks] = (int32_t)indices[k];
            r->blocks[2 * blocks++ + 1] = (int32_t)indices[k] + 1;
        }
    }
    return blocks;
}

/* All of it, before any column is read: what it says is how far `indices` reaches. *longest: columns of a row. */
static enum splat_status check_indptr(const int64_t *indptr, int64_t q_len, int64_t kv_len, int64_t *longest)
{
    *longest = 0;
    if (indptr[0] != 0)
        return sp_fail(SPLAT_INVALID, "indptr[0] is %lld; it must be 0", (long long)indptr[0]);
    for (int64_t i = 0; i < q_len; i++) {
        if (indptr[i + 1] < indptr[i] || indptr[i + 1] - indptr[i] > kv_len)
            return sp_fail(SPLAT_INVALID, "indptr gives row %lld %lld columns; it must be from 0 to %lld",
                           (long long)i, (long long)(indptr[i + 1] - indptr[i]), (long long)kv_len);
        if (indptr[i + 1] - indptr[i] > *longest)
            *longest = indptr[i + 1] - indptr[i];
    }
    return SPLAT_OK;
}

enum splat_status sp_acsr_from_csr(const int64_t *indptr, const int64_t *indices, int64_t q_len, int64_t kv_len,
                                   splat_acsr **acsr)
{
    struct rows r;
    int64_t longest, *sorted = NULL;
    enum splat_status status = rows_init(&r, q_len, kv_len);
    if (status == SPLAT_OK)
        status = check_indptr(indptr, q_len, kv_len, &longest);
    if (status == SPLAT_OK) {
        size_t bytes = (size_t)(longest + 1) * 2 * sizeof *r.blocks;
        r.blocks = malloc(bytes);
        sorted = malloc((size_t)(longest + 1) * sizeof *sorted);
        if (!r.blocks || !sorted)
            status = sp_no_memory("a row of CSR columns", bytes);
    }
    for (int64_t i = 0; i < q_len && status == SPLAT_OK && !r.failed; i++) {
        int64_t count = indptr[i + 1] - indptr[i];
        int64_t blocks = csr_row(&r, count ? indices + indptr[i] : NULL, count, i, sorted, &status);
        if (blocks >= 0)
            r.of[i] = take_blocks(&r, blocks);
    }
    free(sorted);
    return rows_finish(&r, status, acsr);
}
