/* Portable bitmaps as masks: P1 (text) and P4 (packed), 1 = black = allowed, width = keys, height = queries.
 *
 * Between the fields of the header any white space and '#' comments may stand; in P4 exactly one white-space byte
 * ends the header. Both become rows of bits, least significant first, which is what the library takes.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/mask_input.h"
#include "common/error.h"

struct reader {
    const char *path;
    const uint8_t *at, *end;
};

static int is_blank(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void skip_blanks_and_comments(struct reader *r)
{
    while (r->at < r->end && (is_blank(*r->at) || *r->at == '#')) {
        if (*r->at == '#')
            while (r->at < r->end && *r->at != '\n' && *r->at != '\r')
                r->at++;
        else
            r->at++;
    }
}

static enum splat_status take_length(struct reader *r, const char *what, int64_t *value)
{
    skip_blanks_and_comments(r);
    const uint8_t *begin = r->at;
    int64_t sum = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        sum = sum > SPLAT_MAX_LEN ? sum : sum * 10 + (*r->at - '0');
    if (r->at == begin)
        return sp_fail(SPLAT_INVALID, "file '%s': its .pbm header has no %s where one is due", r->path, what);
    if (sum < 1 || sum > SPLAT_MAX_LEN)
        return sp_fail(SPLAT_INVALID, "file '%s': its %s is %s; it must be from 1 to %lld", r->path, what,
                       sum < 1 ? "0" : "too large", (long long)SPLAT_MAX_LEN);
    *value = sum;
    return SPLAT_OK;
}

static enum splat_status read_packed(struct reader *r, uint8_t *bits, size_t need)
{
    if (r->at >= r->end || !is_blank(*r->at))
        return sp_fail(SPLAT_INVALID, "file '%s': white space must follow the height in its .pbm header", r->path);
    r->at++;
    if ((size_t)(r->end - r->at) < need)
        return sp_fail(SPLAT_INVALID, "file '%s' is truncated: it has %zu bytes of pixels, its size needs %zu",
                       r->path, (size_t)(r->end - r->at), need);
    for (size_t b = 0; b < need; b++) {
        unsigned v = r->at[b]; /* most significant first in the file */
        v = (v & 0xF0) >> 4 | (v & 0x0F) << 4;
        v = (v & 0xCC) >> 2 | (v & 0x33) << 2;
        bits[b] = (uint8_t)((v & 0xAA) >> 1 | (v & 0x55) << 1);
    }
    return SPLAT_OK;
}

static enum splat_status read_text(struct reader *r, uint8_t *bits, int64_t width, int64_t height, int64_t stride)
{
    for (int64_t i = 0; i < height; i++) {
        for (int64_t j = 0; j < width; j++) {
            skip_blanks_and_comments(r);
            if (r->at >= r->end)
                return sp_fail(SPLAT_INVALID, "file '%s' is truncated: it ends before pixel (%lld, %lld)", r->path,
                               (long long)i, (long long)j);
            if (*r->at != '0' && *r->at != '1')
                return sp_fail(SPLAT_INVALID, "file '%s': pixel (%lld, %lld) is byte 0x%02x; it must be 0 or 1",
                               r->path, (long long)i, (long long)j, *r->at);
            if (*r->at++ == '1')
                bits[i * stride + j / 8] |= (uint8_t)(1u << (j % 8));
        }
    }
    return SPLAT_OK;
}

enum splat_status sp_pbm_mask(const char *path, const struct sp_file *file, splat_mask **mask)
{
    struct reader r = {path, file->data + 2, file->data + file->size};
    int packed = file->data[1] == '4';
    int64_t width = 0, height = 0;
    enum splat_status status = take_length(&r, "width", &width);
    if (status == SPLAT_OK)
        status = take_length(&r, "height", &height);
    if (status != SPLAT_OK)
        return status;
    int64_t stride = (width + 7) / 8;
    /* Before memory is taken for it: a header that promises more pixels than the file can hold. */
    size_t need = (size_t)stride * (size_t)height, left = (size_t)(r.end - r.at);
    if (packed ? need > left : (size_t)width * (size_t)height > left)
        return sp_fail(SPLAT_INVALID, "file '%s' is truncated: %lld x %lld pixels do not fit in its %zu bytes",
                       path, (long long)width, (long long)height, file->size);
    uint8_t *bits = calloc(need, 1);
    if (!bits)
        return sp_no_memory("mask bits", need);
    status = packed ? read_packed(&r, bits, need) : read_text(&r, bits, width, height, stride);
    if (status == SPLAT_OK)
        status = splat_mask_from_bits(bits, height, width, stride, mask);
    free(bits);
    return status;
}
