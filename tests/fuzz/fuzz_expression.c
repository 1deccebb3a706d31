/* Any text as a pattern expression: parsed, expanded and planned, or refused with its column. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, data + size};
    const int64_t q_len = take_between(&input, 1, 200), kv_len = take_between(&input, 1, 200);
    const enum splat_align align = take_byte(&input) & 1 ? SPLAT_ALIGN_TOP_LEFT : SPLAT_ALIGN_BOTTOM_RIGHT;
    const size_t left = (size_t)(input.end - input.at);
    char *text = malloc(left + 1);
    memcpy(text, input.at, left);
    text[left] = 0;
    splat_mask *mask = NULL;
    if (accepted(splat_mask_from_expression(text, q_len, kv_len, align, &mask), SPLAT_INVALID)) {
        use_mask(mask);
    } else if (!strstr(splat_last_error(), "column")) {
        WRONG("no column");
    }
    /* Lengths decide what arguments are sound: the longest ones, too, without expanding. */
    if (splat_mask_from_expression(text, SPLAT_MAX_LEN, SPLAT_MAX_LEN, align, &mask) == SPLAT_OK)
        splat_mask_destroy(mask);
    free(text);
    return 0;
}
