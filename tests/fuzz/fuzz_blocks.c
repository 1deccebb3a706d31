/* Any block masks, and the same pairs as bytes and bits: one ACSR. Arrays are of just their size. */
#include "fuzz.h"

enum { MOST = 70 };

static splat_mask *from_bytes(const uint8_t *blocks, int64_t q_len, int64_t kv_len, int64_t rows, int64_t cols,
                              int64_t stride, int bits)
{
    const int64_t row = bits ? (kv_len + 7) / 8 : kv_len;
    uint8_t *array = calloc((size_t)q_len, (size_t)row);
    splat_mask *mask = NULL;
    for (int64_t i = 0; i < q_len; i++)
        for (int64_t j = 0; j < kv_len; j++) {
            const uint8_t set = blocks[i / rows * stride + j / cols];
            if (bits)
                array[i * row + j / 8] |= (uint8_t)((set != 0) << j % 8);
            else
                array[i * row + j] = set;
        }
    if (bits) {
        if (kv_len % 8) /* what lies beyond the last column is not to be looked at */
            for (int64_t i = 0; i < q_len; i++)
                array[i * row + row - 1] |= (uint8_t)(0xFF << kv_len % 8);
        MUST(splat_mask_from_bits(array, q_len, kv_len, row, &mask));
    } else {
        MUST(splat_mask_from_bytes(array, q_len, kv_len, row, &mask));
    }
    free(array);
    return mask;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, data + size};
    splat_mask *masks[3] = {NULL};
    splat_acsr *acsrs[3] = {NULL};
    if (take_byte(&input) == 255) { /* any numbers: refused, or nothing is said of what memory they would need */
        const int64_t q_len = take_int64(&input), kv_len = take_int64(&input), rows = take_int64(&input);
        const int64_t cols = take_int64(&input), stride = take_int64(&input);
        static const uint8_t one[1] = {1};
        const int64_t most = SPLAT_MAX_LEN;
        if (q_len < 1 || kv_len < 1 || rows < 1 || cols < 1 || q_len > most || kv_len > most || rows > most ||
            cols > most || stride < (kv_len + cols - 1) / cols)
            if (accepted(splat_mask_from_blocks(one, q_len, kv_len, rows, cols, stride, &masks[0]), SPLAT_INVALID))
                WRONG("impossible blocks pass");
        return 0;
    }
    const int64_t q_len = take_between(&input, 1, MOST), kv_len = take_between(&input, 1, MOST);
    const int64_t rows = take_between(&input, 1, MOST + 10), cols = take_between(&input, 1, MOST + 10);
    const int64_t down = (q_len + rows - 1) / rows, across = (kv_len + cols - 1) / cols;
    const int64_t stride = across + take_byte(&input) % 4;
    const size_t bytes = (size_t)((down - 1) * stride + across);
    uint8_t *blocks = malloc(bytes);
    for (size_t k = 0; k < bytes; k++) {
        const uint8_t byte = take_byte(&input);
        blocks[k] = byte & 1 ? byte : 0;
    }
    MUST(splat_mask_from_blocks(blocks, q_len, kv_len, rows, cols, stride, &masks[0]));
    masks[1] = from_bytes(blocks, q_len, kv_len, rows, cols, stride, 0);
    masks[2] = from_bytes(blocks, q_len, kv_len, rows, cols, stride, 1);
    for (int m = 0; m < 3; m++)
        MUST(splat_acsr_create(masks[m], &acsrs[m]));
    if (!splat_acsr_equal(acsrs[0], acsrs[1]) || !splat_acsr_equal(acsrs[0], acsrs[2]))
        WRONG("blocks, bytes and bits differ");
    for (int m = 0; m < 3; m++) {
        splat_acsr_destroy(acsrs[m]);
        use_mask(masks[m]);
    }
    free(blocks);
    return 0;
}
