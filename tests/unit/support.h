/* What every unit test shares: cmocka, a fixed random generator, bit-exact checks with messages that name the case.
 *
 * Header only, so that a test is one file and one program. Everything is deterministic: a failure repeats.
 */
#ifndef TEST_SUPPORT_H
#define TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "splat.h"

/* ---- Random numbers: splitmix64 ---- */

struct rng {
    uint64_t state;
};

static inline uint64_t rng_next(struct rng *rng)
{
    uint64_t z = (rng->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* low <= result <= high */
static inline int64_t rng_between(struct rng *rng, int64_t low, int64_t high)
{
    return low + (int64_t)(rng_next(rng) % (uint64_t)(high - low + 1));
}

static inline double rng_unit(struct rng *rng)
{
    return (double)(rng_next(rng) >> 11) * 0x1p-53;
}

/* ---- Failure with a sentence ---- */

#define FAIL(...)                                                                                                  \
    do {                                                                                                           \
        print_error(__VA_ARGS__);                                                                                  \
        print_error("\n");                                                                                         \
        fail();                                                                                                    \
    } while (0)

/* For calls that must succeed: prints the library's own sentence when they do not. */
#define OK(call)                                                                                                   \
    do {                                                                                                           \
        enum splat_status ok_status_ = (call);                                                                     \
        if (ok_status_ != SPLAT_OK)                                                                                \
            FAIL("%s:%d: %s failed: %s: %s", __FILE__, __LINE__, #call, splat_status_name(ok_status_),             \
                 splat_last_error());                                                                              \
    } while (0)

/* For calls that must be refused: the status, and a sentence that holds each of the given words (NULL ends them).
 */
static inline void check_refused(const char *what, enum splat_status got, enum splat_status want, ...)
{
    const char *sentence = splat_last_error();
    if (got != want)
        FAIL("%s: status %s, expected %s (last error: \"%s\")", what, splat_status_name(got),
             splat_status_name(want), sentence);
    va_list words;
    va_start(words, want);
    for (const char *word = va_arg(words, const char *); word; word = va_arg(words, const char *))
        if (!strstr(sentence, word))
            FAIL("%s: the sentence \"%s\" does not hold \"%s\"", what, sentence, word);
    va_end(words);
    if (strchr(sentence, '\n'))
        FAIL("%s: the sentence \"%s\" is more than one line", what, sentence);
}

#define REFUSED(call, want, ...) check_refused(#call, (call), (want), __VA_ARGS__, (const char *)NULL)

static inline void *need(size_t size)
{
    void *memory = malloc(size ? size : 1);
    if (!memory)
        FAIL("out of memory: %zu bytes", size);
    return memory;
}

/* ---- Dense masks ---- */

struct dense {
    int64_t q, kv;
    uint8_t *bytes; /* q x kv, 0 or 1 */
};

static inline struct dense dense_new(int64_t q, int64_t kv)
{
    struct dense dense = {q, kv, need((size_t)(q * kv))};
    memset(dense.bytes, 0, (size_t)(q * kv));
    return dense;
}

static inline void dense_free(struct dense *dense)
{
    free(dense->bytes);
    dense->bytes = NULL;
}

static inline int64_t dense_pairs(const struct dense *dense)
{
    int64_t pairs = 0;
    for (int64_t at = 0; at < dense->q * dense->kv; at++)
        pairs += dense->bytes[at];
    return pairs;
}

/* Random masks of many textures: sparse, dense, banded, runs with strides, empty and full rows. */
static inline void dense_random(struct dense *dense, struct rng *rng)
{
    int64_t texture = rng_between(rng, 0, 4);
    for (int64_t i = 0; i < dense->q; i++) {
        uint8_t *row = dense->bytes + i * dense->kv;
        int64_t kind = texture < 4 ? texture : rng_between(rng, 0, 5);
        int64_t threshold = rng_between(rng, 1, 63), begin = rng_between(rng, 0, dense->kv - 1);
        int64_t end = rng_between(rng, begin, dense->kv), stride = rng_between(rng, 1, 9);
        int64_t width = rng_between(rng, 1, stride);
        memset(row, kind == 5, (size_t)dense->kv);
        for (int64_t j = 0; j < dense->kv && kind < 4; j++) {
            if (kind == 0)
                row[j] = rng_between(rng, 0, 63) < threshold;
            else if (kind == 1)
                row[j] = j >= begin && j < end;
            else if (kind == 2)
                row[j] = j >= begin && j < end && (j - begin) % stride < width;
            else
                row[j] = rng_between(rng, 0, 63) == 0;
        }
    }
}

static inline splat_mask *mask_from_dense(const struct dense *dense)
{
    splat_mask *mask = NULL;
    OK(splat_mask_from_bytes(dense->bytes, dense->q, dense->kv, dense->kv, &mask));
    return mask;
}

static inline splat_acsr *acsr_of(const splat_mask *mask)
{
    splat_acsr *acsr = NULL;
    OK(splat_acsr_create(mask, &acsr));
    return acsr;
}

static inline splat_mask *mask_of(const char *expression, int64_t q, int64_t kv, enum splat_align align)
{
    splat_mask *mask = NULL;
    enum splat_status status = splat_mask_from_expression(expression, q, kv, align, &mask);
    if (status != SPLAT_OK)
        FAIL("\"%s\" on %lld x %lld: %s: %s", expression, (long long)q, (long long)kv, splat_status_name(status),
             splat_last_error());
    return mask;
}

static inline splat_acsr *acsr_of_expression(const char *expression, int64_t q, int64_t kv, enum splat_align align)
{
    splat_mask *mask = mask_of(expression, q, kv, align);
    splat_acsr *acsr = acsr_of(mask);
    splat_mask_destroy(mask);
    return acsr;
}

/* Fills `dense` from an ACSR by splat_acsr_expand_row. The row buffer has a guard behind it. */
static inline void dense_expand(struct dense *dense, const splat_acsr *acsr)
{
    uint8_t *row = need((size_t)dense->kv + 8);
    for (int64_t i = 0; i < dense->q; i++) {
        memset(row, 0xA5, (size_t)dense->kv + 8);
        OK(splat_acsr_expand_row(acsr, i, row));
        for (int64_t g = 0; g < 8; g++)
            assert_int_equal(row[dense->kv + g], 0xA5);
        memcpy(dense->bytes + i * dense->kv, row, (size_t)dense->kv);
    }
    free(row);
}

/* The central check: an ACSR says exactly what the bytes say. */
static inline void check_acsr_is(const splat_acsr *acsr, const struct dense *want, const char *what)
{
    if (splat_acsr_q_len(acsr) != want->q || splat_acsr_kv_len(acsr) != want->kv)
        FAIL("%s: ACSR is %lld x %lld, expected %lld x %lld", what, (long long)splat_acsr_q_len(acsr),
             (long long)splat_acsr_kv_len(acsr), (long long)want->q, (long long)want->kv);
    struct dense got = dense_new(want->q, want->kv);
    dense_expand(&got, acsr);
    for (int64_t at = 0; at < want->q * want->kv; at++)
        if (got.bytes[at] != want->bytes[at])
            FAIL("%s (%lld x %lld): pair (%lld, %lld) is %d, expected %d", what, (long long)want->q,
                 (long long)want->kv, (long long)(at / want->kv), (long long)(at % want->kv), got.bytes[at],
                 want->bytes[at]);
    dense_free(&got);
    if (splat_acsr_pairs(acsr) != dense_pairs(want))
        FAIL("%s: splat_acsr_pairs is %lld, expected %lld", what, (long long)splat_acsr_pairs(acsr),
             (long long)dense_pairs(want));
}

#endif
