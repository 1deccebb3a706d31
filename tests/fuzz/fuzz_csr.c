/* Any row pointers and columns as CSR. `indices` reaches just as far as sound row pointers say; behind unsound ones
 * there is nothing, for nothing may be read then.
 */
#include "fuzz.h"

enum { MOST = 40 };

static int64_t lengths(struct input *input, int64_t *q_len, int64_t *kv_len)
{
    const int wild = take_byte(input) == 255;
    *q_len = wild ? take_int64(input) : take_between(input, 1, MOST);
    *kv_len = wild ? take_int64(input) : take_between(input, 1, MOST);
    return wild;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, data + size};
    int64_t q_len, kv_len, indptr[MOST + 1] = {0};
    splat_mask *mask = NULL;
    if (lengths(&input, &q_len, &kv_len)) {
        /* Lengths within the limits would need arrays of their size. */
        if (q_len < 1 || q_len > SPLAT_MAX_LEN || kv_len < 1 || kv_len > SPLAT_MAX_LEN)
            if (accepted(splat_mask_from_csr(indptr, indptr, q_len, kv_len, &mask), SPLAT_INVALID))
                WRONG("lengths %lld and %lld pass", (long long)q_len, (long long)kv_len);
        return 0;
    }
    const int raw = take_byte(&input) & 1;
    int sound = 1;
    for (int64_t i = 0; i < q_len; i++) {
        if (raw)
            indptr[i + 1] = take_int64(&input);
        else
            indptr[i + 1] = indptr[i] + take_between(&input, 0, kv_len);
        sound = sound && indptr[i + 1] >= indptr[i] && indptr[i + 1] - indptr[i] <= kv_len;
    }
    const size_t count = sound ? (size_t)indptr[q_len] : 0;
    int64_t *indices = malloc(count * sizeof *indices);
    uint8_t seen[MOST * MOST] = {0};
    int valid = sound;
    for (int64_t i = 0; i < q_len && sound; i++)
        for (int64_t k = indptr[i]; k < indptr[i + 1]; k++) {
            const uint8_t byte = take_byte(&input);
            const int64_t j = byte == 255 ? take_int64(&input) : byte % (MOST + 2) - 1;
            indices[k] = j;
            valid = valid && j >= 0 && j < kv_len && !seen[i * MOST + j]++;
        }
    const int taken =
        accepted(splat_mask_from_csr(indptr, count ? indices : NULL, q_len, kv_len, &mask), SPLAT_INVALID);
    if (taken != valid)
        WRONG("CSR that is %ssound was %s", valid ? "" : "un", taken ? "taken" : "refused");
    if (taken && use_mask(mask) != (int64_t)count)
        WRONG("another number of pairs than the %zu given", count);
    free(indices);
    return 0;
}
