/* What the fuzz targets share: a reader of the input's first bytes, and a failure that libFuzzer keeps.
 *
 * A target takes any bytes. It ends the process only where the library is wrong.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "splat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define WRONG(...)                                                                                                 \
    do {                                                                                                           \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                            \
        fprintf(stderr, __VA_ARGS__);                                                                              \
        fprintf(stderr, " (last error: %s)\n", splat_last_error());                                                \
        abort();                                                                                                   \
    } while (0)

#define MUST(call)                                                                                                 \
    do {                                                                                                           \
        if ((call) != SPLAT_OK)                                                                                    \
            WRONG("%s failed", #call);                                                                             \
    } while (0)

struct input {
    const uint8_t *at, *end;
};

/* 0 beyond the end. */
static inline uint8_t take_byte(struct input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

static inline int64_t take_between(struct input *input, int64_t low, int64_t high)
{
    uint32_t value = (uint32_t)take_byte(input) << 8;
    value |= take_byte(input);
    return low + (int64_t)value % (high - low + 1);
}

static inline int64_t take_int64(struct input *input)
{
    uint64_t value = 0;
    for (int k = 0; k < 8; k++)
        value = value << 8 | take_byte(input);
    return (int64_t)value;
}

/* What any input may be answered with: SPLAT_OK, or `refusal` and one line of printable ASCII. */
static inline int accepted(enum splat_status status, enum splat_status refusal)
{
    if (status == SPLAT_OK)
        return 1;
    if (status != refusal)
        WRONG("status %s", splat_status_name(status));
    const char *at = splat_last_error();
    if (strlen(at) < 10)
        WRONG("no sentence");
    for (; *at; at++)
        if (*at < ' ' || *at > '~') /* bytes of an input must not give orders to a terminal */
            WRONG("byte 0x%02x in the sentence", (unsigned char)*at);
    return 0;
}

/* An accepted mask is planned; its rows, counted one by one, hold as many pairs as it says. Gives the mask back. */
static inline int64_t use_mask(splat_mask *mask)
{
    splat_acsr *acsr = NULL;
    splat_plan *plan = NULL;
    splat_options options;
    splat_plan_info info;
    splat_options_init(&options);
    splat_plan_info_init(&info);
    options.head_dim = 64;
    MUST(splat_acsr_create(mask, &acsr));
    MUST(splat_plan_create(mask, &options, &plan));
    MUST(splat_plan_get_info(plan, &info));
    int64_t q_len = splat_acsr_q_len(acsr), kv_len = splat_acsr_kv_len(acsr), pairs = 0;
    uint8_t *row = malloc((size_t)kv_len);
    for (int64_t i = 0; i < q_len; i++) {
        MUST(splat_acsr_expand_row(acsr, i, row));
        for (int64_t j = 0; j < kv_len; j++)
            pairs += row[j];
    }
    if (pairs != splat_acsr_pairs(acsr) || pairs != info.allowed_pairs || info.computed_pairs < pairs)
        WRONG("%lld pairs in the rows, %lld in the ACSR, %lld in the plan, %lld computed", (long long)pairs,
              (long long)splat_acsr_pairs(acsr), (long long)info.allowed_pairs, (long long)info.computed_pairs);
    free(row);
    splat_plan_destroy(plan);
    splat_acsr_destroy(acsr);
    splat_mask_destroy(mask);
    return pairs;
}

#endif
