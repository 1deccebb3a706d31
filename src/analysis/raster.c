/* Tiles with no closed form (build.h): drawn into bits, chunk by chunk; then, tile by tile, affine bounds if every
 * row is one interval and these are affine, a table of intervals if they are not, and else the bits themselves.
 */
#include <string.h>

#include "analysis/build.h"
#include "analysis/ints.h"
#include "common/error.h"

/* ---- Drawing ---- */

struct canvas {
    uint32_t *row; /* words of the row being drawn */
    int64_t col0;  /* column of bit 0 */
};

static void draw_block(int32_t begin, int32_t end, void *user)
{
    const struct canvas *canvas = user;
    int64_t low = begin - canvas->col0, high = end - canvas->col0;
    uint32_t first = UINT32_MAX << (low % 32), last = UINT32_MAX >> (31 - (high - 1) % 32);
    int64_t a = low / 32, b = (high - 1) / 32;
    if (a == b) {
        canvas->row[a] |= first & last;
        return;
    }
    canvas->row[a] |= first;
    for (int64_t w = a + 1; w < b; w++)
        canvas->row[w] = UINT32_MAX;
    canvas->row[b] |= last;
}

/* Bits of an irregular row, whole words; col0 is a multiple of 32. */
static void copy_bits(const uint64_t *bits, int64_t kv_len, int64_t col0, int64_t words, uint32_t *row)
{
    int64_t stop = sp_min64(words, sp_ceil_div(kv_len - col0, 32)), w = 0;
    bits += col0 / 64;
    if (col0 % 64 != 0 && stop > 0)
        row[w++] = (uint32_t)(*bits++ >> 32);
    for (; w + 1 < stop; w += 2, bits++) {
        row[w] = (uint32_t)*bits;
        row[w + 1] = (uint32_t)(*bits >> 32);
    }
    if (w < stop)
        row[w] = (uint32_t)*bits;
}

/* Draws columns [col0, col0 + 32*words) of every row of the tile. */
static void draw(struct sp_builder *b, const splat_acsr *acsr, const struct sp_tile_groups *tile, int64_t col0,
                 int64_t words)
{
    memset(b->raster, 0, (size_t)(b->tile_rows * words) * sizeof *b->raster);
    int64_t col1 = sp_min64(col0 + 32 * words, tile->kv_len);
    for (int64_t g = 0; g < tile->count; g++) {
        const struct sp_group *group = &tile->groups[g];
        for (int64_t i = group->row0; i < group->row0 + group->rows; i++) {
            struct canvas canvas = {b->raster + (i - tile->row0) * words, col0};
            if (group->bits)
                copy_bits(group->bits, tile->kv_len, col0, words, canvas.row);
            else
                sp_group_row_blocks(acsr, group, i, col0, col1, draw_block, &canvas);
        }
    }
}

/* ---- Intervals of a tile ---- */

/* The one interval of the set bits of `bits`, low == high when there is none; false when there are several. */
static bool word_interval(uint64_t bits, int32_t *low, int32_t *high)
{
    *low = *high = 0;
    if (bits == 0)
        return true;
    *low = __builtin_ctzll(bits);
    *high = 64 - __builtin_clzll(bits);
    uint64_t ones = bits >> *low;
    return (ones & (ones + 1)) == 0;
}

/* The same for a row of `words` words. */
static bool row_interval(const uint32_t *row, int64_t words, int32_t *low, int32_t *high)
{
    *low = *high = 0;
    for (int64_t w = 0; w < words; w += 2) {
        int32_t part_low, part_high;
        uint64_t bits = row[w] | (w + 1 < words ? (uint64_t)row[w + 1] << 32 : 0);
        if (!word_interval(bits, &part_low, &part_high))
            return false;
        if (part_low == part_high)
            continue;
        bool first = *low == *high;
        if (!first && *high != 32 * w + part_low)
            return false;
        *low = first ? (int32_t)(32 * w) + part_low : *low;
        *high = (int32_t)(32 * w) + part_high;
    }
    return true;
}

/* ---- Tables: neighbouring tiles share one when each row stays an interval over both ---- */

static void flush_table(struct sp_builder *b)
{
    if (b->table_first == b->table_end || b->status != SPLAT_OK)
        return;
    int64_t number = sp_pool_add(&b->tables, b->table);
    if (number < 0) {
        sp_builder_fail(b, sp_no_memory("the plan's tables", (size_t)b->tables.count * b->tables.item_size));
        return;
    }
    sp_builder_emit_table(b, b->table_first, b->table_end - b->table_first, number);
    b->table_first = b->table_end = 0;
}

int32_t sp_builder_move_table(struct sp_builder *b, int32_t number, int64_t columns)
{
    memcpy(b->table, b->tables.items + (size_t)number * b->tables.item_size, b->tables.item_size);
    for (int64_t r = 0; r < 2 * b->tile_rows; r += 2) {
        const bool empty = b->table[r] >= b->table[r + 1];
        b->table[r] += empty ? 0 : (int32_t)columns;
        b->table[r + 1] += empty ? 0 : (int32_t)columns;
    }
    int64_t moved = sp_pool_add(&b->tables, b->table);
    if (moved < 0)
        sp_builder_fail(b, sp_no_memory("the plan's tables", (size_t)b->tables.count * b->tables.item_size));
    return moved < 0 ? 0 : (int32_t)moved;
}

static bool joins_table(const struct sp_builder *b, int64_t tile, const int32_t *low, const int32_t *high)
{
    if (b->table_first == b->table_end || b->table_end != tile)
        return false;
    for (int64_t r = 0; r < b->tile_rows; r++) {
        bool either_empty = low[r] >= high[r] || b->table[2 * r] >= b->table[2 * r + 1];
        if (!either_empty && b->table[2 * r + 1] != low[r])
            return false;
    }
    return true;
}

static void add_table(struct sp_builder *b, int64_t tile, const int32_t *low, const int32_t *high)
{
    if (!joins_table(b, tile, low, high)) {
        flush_table(b);
        memset(b->table, 0, (size_t)(2 * b->tile_rows) * sizeof *b->table);
        b->table_first = tile;
    }
    b->table_end = tile + 1;
    for (int64_t r = 0; r < b->tile_rows; r++) {
        if (low[r] >= high[r])
            continue;
        if (b->table[2 * r] >= b->table[2 * r + 1])
            b->table[2 * r] = low[r];
        b->table[2 * r + 1] = high[r];
    }
}

/* ---- Tiles ---- */

static void add_bits(struct sp_builder *b, const uint32_t *raster, int64_t row_words, int64_t tile)
{
    int64_t words = b->tile_cols / 32;
    uint32_t *out = b->tile_bits;
    for (int64_t r = 0; r < b->tile_rows; r++, raster += row_words)
        for (int64_t w = 0; w < words; w++)
            *out++ = raster[w];
    int64_t number = sp_pool_add(&b->bits, b->tile_bits);
    if (number < 0) {
        sp_builder_fail(b, sp_no_memory("the plan's tile bitmasks", (size_t)b->bits.count * b->bits.item_size));
        return;
    }
    sp_builder_emit_bits(b, tile, number);
}

static void add_tile(struct sp_builder *b, const struct sp_tile_groups *group, const uint32_t *raster,
                     int64_t row_words, int64_t tile)
{
    int32_t low[SP_MAX_TILE_ROWS], high[SP_MAX_TILE_ROWS];
    int64_t words = b->tile_cols / 32, col0 = tile * b->tile_cols;
    bool intervals = true;
    for (int64_t r = 0; r < b->tile_rows && intervals; r++) {
        intervals = row_interval(raster + r * row_words, words, &low[r], &high[r]);
        if (low[r] < high[r]) {
            low[r] += (int32_t)col0;
            high[r] += (int32_t)col0;
        }
    }
    struct sp_fit fit;
    if (!intervals) {
        flush_table(b);
        add_bits(b, raster, row_words, tile);
    } else if (sp_fit_intervals(low, high, group->row0, group->rows, group->tile_rows, col0, col0 + b->tile_cols,
                                &fit)) {
        flush_table(b);
        sp_builder_emit(b, tile, 1, fit.kind, &fit.predicate);
    } else {
        add_table(b, tile, low, high);
    }
}

void sp_builder_raster(struct sp_builder *b, const splat_acsr *acsr, const struct sp_tile_groups *tile,
                       int64_t first, int64_t end)
{
    int64_t chunk = SP_RASTER_COLUMNS / b->tile_cols, words = b->tile_cols / 32;
    for (int64_t at = first; at < end && b->status == SPLAT_OK; at += chunk) {
        int64_t stop = sp_min64(at + chunk, end);
        draw(b, acsr, tile, at * b->tile_cols, (stop - at) * words);
        for (int64_t t = at; t < stop && b->status == SPLAT_OK; t++)
            add_tile(b, tile, b->raster + (t - at) * words, (stop - at) * words, t);
    }
    flush_table(b);
}
