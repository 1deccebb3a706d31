/* splat_mask: creation from every kind of input, maps, and the ACSR made on demand. */
#include "acsr/mask.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "acsr/build.h"
#include "acsr/expr.h"
#include "acsr/inputs.h"
#include "common/error.h"
#include "common/strbuf.h"

/* ---- Checks ---- */

static enum splat_status check_length(const char *name, int64_t value)
{
    if (value >= 1 && value <= SPLAT_MAX_LEN)
        return SPLAT_OK;
    return sp_fail(SPLAT_INVALID, "%s is %lld; it must be from 1 to %lld", name, (long long)value,
                   (long long)SPLAT_MAX_LEN);
}

static enum splat_status check_common(const void *input, const char *input_name, int64_t q_len, int64_t kv_len,
                                      splat_mask **mask)
{
    if (!input || !mask)
        return sp_fail(SPLAT_INVALID, "%s is null", input ? "mask" : input_name);
    enum splat_status status = check_length("q_len", q_len);
    return status != SPLAT_OK ? status : check_length("kv_len", kv_len);
}

/* Of an array of so many rows, whose bytes must be counted by 64 bits. */
static enum splat_status check_stride(int64_t row_stride, int64_t least, int64_t rows)
{
    if (row_stride < least)
        return sp_fail(SPLAT_INVALID, "row_stride is %lld; it must be at least %lld, the bytes of a row",
                       (long long)row_stride, (long long)least);
    if (rows > 1 && row_stride > INT64_MAX / rows)
        return sp_fail(SPLAT_INVALID, "row_stride is %lld; with %lld rows it must be at most %lld",
                       (long long)row_stride, (long long)rows, (long long)(INT64_MAX / rows));
    return SPLAT_OK;
}

/* ---- Making and dropping ---- */

static splat_mask *new_mask(enum sp_mask_kind kind, int64_t q_len, int64_t kv_len)
{
    splat_mask *mask = calloc(1, sizeof *mask);
    pthread_mutex_t *lock = malloc(sizeof *lock);
    if (!mask || !lock || pthread_mutex_init(lock, NULL) != 0) {
        free(mask);
        free(lock);
        return NULL;
    }
    *mask = (splat_mask){
        .refs = 1, .kind = kind, .q_len = q_len, .kv_len = kv_len, .batch = 1, .heads = 1, .lock = lock};
    return mask;
}

void splat_mask_destroy(splat_mask *mask)
{
    if (!mask || __atomic_sub_fetch(&mask->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    sp_expr_free(mask->expr);
    splat_acsr_destroy(mask->acsr);
    for (int64_t i = 0; i < mask->entry_count; i++)
        splat_mask_destroy(mask->entries[i]);
    free(mask->entries);
    free(mask->map);
    pthread_mutex_destroy(mask->lock);
    free(mask->lock);
    free(mask);
}

int64_t splat_mask_q_len(const splat_mask *mask)
{
    return mask ? mask->q_len : 0;
}

int64_t splat_mask_kv_len(const splat_mask *mask)
{
    return mask ? mask->kv_len : 0;
}

enum splat_status splat_mask_from_expression(const char *expression, int64_t q_len, int64_t kv_len,
                                             enum splat_align align, splat_mask **out)
{
    enum splat_status status = check_common(expression, "expression", q_len, kv_len, out);
    if (status != SPLAT_OK)
        return status;
    if (align != SPLAT_ALIGN_BOTTOM_RIGHT && align != SPLAT_ALIGN_TOP_LEFT)
        return sp_fail(SPLAT_INVALID, "align is %d; it must be SPLAT_ALIGN_BOTTOM_RIGHT or SPLAT_ALIGN_TOP_LEFT",
                       (int)align);
    struct sp_expr *expr;
    status = sp_expr_parse(expression, q_len, kv_len, align, &expr);
    if (status != SPLAT_OK)
        return status;
    splat_mask *mask = new_mask(SP_MASK_EXPR, q_len, kv_len);
    if (!mask) {
        sp_expr_free(expr);
        return sp_no_memory("a mask", sizeof *mask);
    }
    mask->expr = expr;
    struct sp_hash text = sp_hash_bytes(expr->text, strlen(expr->text));
    uint64_t key[6] = {SP_MASK_EXPR, (uint64_t)q_len, (uint64_t)kv_len, (uint64_t)expr->off, text.low, text.high};
    mask->key = sp_hash_bytes(key, sizeof key);
    *out = mask;
    return SPLAT_OK;
}

/* Takes over `acsr`. */
static enum splat_status mask_of_acsr(splat_acsr *acsr, splat_mask **out)
{
    splat_mask *mask = new_mask(SP_MASK_ACSR, acsr->q_len, acsr->kv_len);
    if (!mask) {
        splat_acsr_destroy(acsr);
        return sp_no_memory("a mask", sizeof *mask);
    }
    mask->acsr = acsr;
    uint64_t key[3] = {SP_MASK_ACSR, acsr->hash.low, acsr->hash.high};
    mask->key = sp_hash_bytes(key, sizeof key);
    *out = mask;
    return SPLAT_OK;
}

enum splat_status splat_mask_from_acsr(splat_acsr *acsr, splat_mask **mask)
{
    if (!acsr || !mask)
        return sp_fail(SPLAT_INVALID, "%s is null", acsr ? "mask" : "acsr");
    return mask_of_acsr(sp_acsr_retain(acsr), mask);
}

enum splat_status splat_mask_from_bytes(const uint8_t *bytes, int64_t q_len, int64_t kv_len, int64_t row_stride,
                                        splat_mask **mask)
{
    splat_acsr *acsr;
    enum splat_status status = check_common(bytes, "bytes", q_len, kv_len, mask);
    if (status == SPLAT_OK)
        status = check_stride(row_stride, kv_len, q_len);
    if (status == SPLAT_OK)
        status = sp_acsr_from_bytes(bytes, q_len, kv_len, row_stride, &acsr);
    return status == SPLAT_OK ? mask_of_acsr(acsr, mask) : status;
}

enum splat_status splat_mask_from_bits(const uint8_t *bits, int64_t q_len, int64_t kv_len, int64_t row_stride,
                                       splat_mask **mask)
{
    splat_acsr *acsr;
    enum splat_status status = check_common(bits, "bits", q_len, kv_len, mask);
    if (status == SPLAT_OK)
        status = check_stride(row_stride, (kv_len + 7) / 8, q_len);
    if (status == SPLAT_OK)
        status = sp_acsr_from_bits(bits, q_len, kv_len, row_stride, &acsr);
    return status == SPLAT_OK ? mask_of_acsr(acsr, mask) : status;
}

enum splat_status splat_mask_from_blocks(const uint8_t *blocks, int64_t q_len, int64_t kv_len, int64_t block_rows,
                                         int64_t block_cols, int64_t row_stride, splat_mask **mask)
{
    splat_acsr *acsr;
    enum splat_status status = check_common(blocks, "blocks", q_len, kv_len, mask);
    if (status == SPLAT_OK)
        status = check_length("block_rows", block_rows);
    if (status == SPLAT_OK)
        status = check_length("block_cols", block_cols);
    if (status == SPLAT_OK)
        status =
            check_stride(row_stride, (kv_len + block_cols - 1) / block_cols, (q_len + block_rows - 1) / block_rows);
    if (status == SPLAT_OK)
        status = sp_acsr_from_blocks(blocks, q_len, kv_len, block_rows, block_cols, row_stride, &acsr);
    return status == SPLAT_OK ? mask_of_acsr(acsr, mask) : status;
}

enum splat_status splat_mask_from_csr(const int64_t *indptr, const int64_t *indices, int64_t q_len, int64_t kv_len,
                                      splat_mask **mask)
{
    splat_acsr *acsr;
    enum splat_status status = check_common(indptr, "indptr", q_len, kv_len, mask);
    if (status == SPLAT_OK && !indices && indptr[q_len] != 0)
        status = sp_fail(SPLAT_INVALID, "indices is null, but indptr counts %lld column%s",
                         (long long)indptr[q_len], sp_plural(indptr[q_len]));
    if (status == SPLAT_OK)
        status = sp_acsr_from_csr(indptr, indices, q_len, kv_len, &acsr);
    return status == SPLAT_OK ? mask_of_acsr(acsr, mask) : status;
}

enum splat_status splat_mask_from_callback(splat_mask_fn allowed, void *user, int64_t q_len, int64_t kv_len,
                                           splat_mask **mask)
{
    splat_acsr *acsr;
    if (!allowed)
        return sp_fail(SPLAT_INVALID, "allowed is null");
    enum splat_status status = check_common(&allowed, "allowed", q_len, kv_len, mask);
    if (status == SPLAT_OK)
        status = sp_acsr_from_callback(allowed, user, q_len, kv_len, &acsr);
    return status == SPLAT_OK ? mask_of_acsr(acsr, mask) : status;
}

/* ---- Maps ---- */

static enum splat_status check_map(splat_mask *const *masks, int64_t batch, int64_t heads, splat_mask **out)
{
    if (!masks || !out)
        return sp_fail(SPLAT_INVALID, "%s is null", masks ? "mask" : "masks");
    if (batch < 1 || heads < 1 || batch > SPLAT_MAX_LEN / heads)
        return sp_fail(SPLAT_INVALID,
                       "batch is %lld and heads is %lld; each must be at least 1, and their product at most %lld",
                       (long long)batch, (long long)heads, (long long)SPLAT_MAX_LEN);
    for (int64_t n = 0; n < batch * heads; n++) {
        const splat_mask *mask = masks[n], *first = masks[0];
        if (!mask)
            return sp_fail(SPLAT_INVALID, "masks[%lld] is null", (long long)n);
        if (mask->kind == SP_MASK_MAP)
            return sp_fail(SPLAT_INVALID, "masks[%lld] is a map; it must be a mask of its own", (long long)n);
        if (mask->q_len != first->q_len || mask->kv_len != first->kv_len)
            return sp_fail(SPLAT_INVALID,
                           "masks[%lld] is %lld x %lld; it must have the shape of masks[0], %lld x %lld",
                           (long long)n, (long long)mask->q_len, (long long)mask->kv_len, (long long)first->q_len,
                           (long long)first->kv_len);
    }
    return SPLAT_OK;
}

/* Fills map->map, and map->entries with the distinct masks in the order of their first appearance. */
static bool find_distinct(splat_mask *map, splat_mask *const *masks, int64_t count)
{
    struct sp_hash_set seen = {0};
    bool fresh, sound = true;
    for (int64_t n = 0; n < count && sound; n++) {
        map->map[n] = sp_hash_set_add(&seen, masks[n]->key, &fresh);
        sound = map->map[n] >= 0;
        if (fresh) {
            __atomic_add_fetch(&masks[n]->refs, 1, __ATOMIC_RELAXED);
            map->entries[map->entry_count++] = masks[n];
        }
    }
    sp_hash_set_free(&seen);
    return sound;
}

enum splat_status splat_mask_map(splat_mask *const *masks, int64_t batch, int64_t heads, splat_mask **out)
{
    enum splat_status status = check_map(masks, batch, heads, out);
    if (status != SPLAT_OK)
        return status;
    int64_t count = batch * heads;
    splat_mask *map = new_mask(SP_MASK_MAP, masks[0]->q_len, masks[0]->kv_len);
    struct sp_hash *keys = malloc((size_t)(count + 2) * sizeof *keys);
    if (map) {
        map->entries = malloc((size_t)count * sizeof *map->entries);
        map->map = malloc((size_t)count * sizeof *map->map);
        map->batch = batch;
        map->heads = heads;
    }
    if (!map || !keys || !map->entries || !map->map || !find_distinct(map, masks, count)) {
        splat_mask_destroy(map);
        free(keys);
        return sp_no_memory("a mask map", (size_t)count * sizeof *keys);
    }
    for (int64_t n = 0; n < count; n++)
        keys[n] = masks[n]->key;
    keys[count] = (struct sp_hash){(uint64_t)batch, (uint64_t)heads};
    keys[count + 1] = (struct sp_hash){SP_MASK_MAP, 0};
    map->key = sp_hash_bytes(keys, (size_t)(count + 2) * sizeof *keys);
    free(keys);
    *out = map;
    return SPLAT_OK;
}

/* ---- The ACSR of a mask ---- */

int64_t sp_mask_count(const splat_mask *mask)
{
    return mask->kind == SP_MASK_MAP ? mask->entry_count : 1;
}

static enum splat_status acsr_of_expression(const struct sp_expr *expr, splat_acsr **acsr)
{
    struct sp_expr_source source;
    enum splat_status status = sp_expr_source_init(&source, expr);
    if (status == SPLAT_OK)
        status = sp_acsr_build(&source.base, expr->q_len, expr->kv_len, acsr);
    sp_expr_source_free(&source);
    return status;
}

enum splat_status sp_mask_acsr(const splat_mask *mask, int64_t index, splat_acsr **out)
{
    if (mask->kind == SP_MASK_MAP)
        mask = mask->entries[index];
    /* The ACSR of an expression is a cache inside an otherwise immutable mask. */
    splat_mask *cache = (splat_mask *)(uintptr_t)mask;
    enum splat_status status = SPLAT_OK;
    pthread_mutex_lock(cache->lock);
    if (!cache->acsr)
        status = acsr_of_expression(cache->expr, &cache->acsr);
    *out = cache->acsr;
    pthread_mutex_unlock(cache->lock);
    return status;
}

enum splat_status splat_acsr_create(const splat_mask *mask, splat_acsr **acsr)
{
    if (!mask || !acsr)
        return sp_fail(SPLAT_INVALID, "%s is null", mask ? "acsr" : "mask");
    splat_acsr *shared;
    enum splat_status status = sp_mask_acsr(mask, 0, &shared);
    if (status == SPLAT_OK)
        *acsr = sp_acsr_retain(shared);
    return status;
}

/* ---- Help ---- */

static char help_text[8192];

static void write_help(void)
{
    struct sp_strbuf text = SP_STRBUF_INIT;
    for (int i = 0; i < sp_primitive_count; i++)
        sp_strbuf_printf(&text, "%s\n    %s\n", sp_primitives[i].usage, sp_primitives[i].formula);
    sp_strbuf_puts(&text, "Operators, tightest first: ~ (complement), & (intersection), - (difference), | (union); "
                          "parentheses.\nQuery i, key j, from 0; / is integer division; off = kv_len - q_len "
                          "(bottom_right) or 0 (top_left).\n");
    if (!text.failed && text.size < sizeof help_text)
        memcpy(help_text, text.text, text.size + 1);
    sp_strbuf_free(&text);
}

const char *splat_pattern_help(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, write_help);
    return help_text;
}
