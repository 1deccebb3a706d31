/* Host tensors: made, read, filled, and converted between float and the two 16-bit formats. */
#include "cli/tensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/npy.h"
#include "common/error.h"

/* ---- 16-bit floats ----
 * Written apart from the CPU engine's own, so that --check does not share a fault of theirs. */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays one */
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static uint16_t to_fp16(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000)
        return (uint16_t)(sign | 0x7E00);
    if (magnitude >= 0x477FF000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x38800000) { /* below 2^-14: a multiple of 2^-24, found by the adder's own rounding */
        uint32_t shifted = bits_of(float_of(magnitude) + 0.5f);
        return (uint16_t)(sign | (shifted - 0x3F000000));
    }
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13);
}

static float from_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3FF;
    if (exponent == 31)
        return float_of(sign | 0x7F800000 | fraction << 13);
    if (exponent == 0) {
        float tiny = (float)fraction * 0x1p-24f;
        return sign ? -tiny : tiny;
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

static void put(struct sp_host_tensor *tensor, int64_t n, float value)
{
    if (tensor->dtype == SPLAT_FP32)
        ((float *)tensor->data)[n] = value;
    else
        ((uint16_t *)tensor->data)[n] = tensor->dtype == SPLAT_BF16 ? to_bf16(value) : to_fp16(value);
}

float sp_tensor_get(const struct sp_host_tensor *tensor, int64_t n)
{
    if (tensor->dtype == SPLAT_FP32)
        return ((const float *)tensor->data)[n];
    uint16_t half = ((const uint16_t *)tensor->data)[n];
    return tensor->dtype == SPLAT_BF16 ? float_of((uint32_t)half << 16) : from_fp16(half);
}

/* ---- Making ---- */

enum splat_status sp_tensor_make(enum splat_dtype dtype, const int64_t shape[4], struct sp_host_tensor *tensor)
{
    *tensor = (struct sp_host_tensor){.dtype = dtype};
    int64_t items = 1, item_bytes = dtype == SPLAT_FP32 ? 4 : 2, bytes = 0;
    int overflow = 0;
    for (int a = 0; a < 4; a++) {
        tensor->shape[a] = shape[a];
        overflow |= __builtin_mul_overflow(items, shape[a], &items);
    }
    if (overflow || __builtin_mul_overflow(items, item_bytes, &bytes))
        return sp_fail(SPLAT_INVALID,
                       "a tensor of %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64
                       " has more bytes than can be addressed",
                       shape[0], shape[1], shape[2], shape[3]);
    tensor->items = items;
    tensor->bytes = (size_t)bytes;
    /* Whole 64-byte lines, as the GPU's copies and the CPU's vectors like it. */
    tensor->data = aligned_alloc(64, (tensor->bytes + 63) / 64 * 64);
    if (!tensor->data)
        return sp_no_memory("tensor", tensor->bytes);
    return SPLAT_OK;
}

void sp_tensor_free(struct sp_host_tensor *tensor)
{
    free(tensor->data);
    *tensor = (struct sp_host_tensor){0};
}

uint64_t sp_mix64(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

void sp_tensor_fill(struct sp_host_tensor *tensor, uint64_t seed, uint64_t stream)
{
    uint64_t base = sp_mix64(seed + stream);
    for (int64_t n = 0; n < tensor->items; n++) {
        uint64_t z = sp_mix64(base + (uint64_t)n);
        int sum = (int)(z & 0xFFFF) + (int)(z >> 16 & 0xFFFF) + (int)(z >> 32 & 0xFFFF) + (int)(z >> 48);
        put(tensor, n, (float)(sum - 131070) * (1.7320508f / 65536.0f));
    }
}

/* ---- Files ---- */

static enum splat_status parse_tensor(const char *path, const struct sp_file *file, struct sp_npy *array)
{
    static const char wanted[] = "a tensor must be little-endian float32 or float16";
    enum splat_status status = sp_npy_parse(path, file, wanted, array);
    if (status != SPLAT_OK)
        return status;
    if (array->item_bytes == 1)
        return sp_npy_wrong_type(path, array, wanted);
    if (array->dims != 4)
        return sp_fail(SPLAT_INVALID, "file '%s' has %d ax%s; a tensor must have 4: batch, heads, rows, dim", path,
                       array->dims, array->dims == 1 ? "is" : "es");
    return SPLAT_OK;
}

enum splat_status sp_tensor_peek(const char *path, int64_t shape[4])
{
    struct sp_file file;
    struct sp_npy array;
    enum splat_status status = sp_file_open(path, &file);
    if (status != SPLAT_OK)
        return status;
    status = parse_tensor(path, &file, &array);
    if (status == SPLAT_OK)
        memcpy(shape, array.shape, 4 * sizeof *shape);
    sp_file_close(&file);
    return status;
}

enum splat_status sp_tensor_read(const char *path, enum splat_dtype dtype, struct sp_host_tensor *tensor)
{
    struct sp_file file;
    struct sp_npy array;
    enum splat_status status = sp_file_open(path, &file);
    if (status != SPLAT_OK)
        return status;
    status = parse_tensor(path, &file, &array);
    if (status == SPLAT_OK)
        status = sp_tensor_make(dtype, array.shape, tensor);
    for (int64_t n = 0; status == SPLAT_OK && n < array.items; n++) {
        uint16_t half;
        float value;
        if (array.item_bytes == 2) {
            memcpy(&half, array.data + 2 * n, sizeof half);
            value = from_fp16(half);
        } else {
            memcpy(&value, array.data + 4 * n, sizeof value);
        }
        put(tensor, n, value);
    }
    sp_file_close(&file);
    return status;
}
