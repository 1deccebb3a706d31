/* .npy in and out. The header is a Python dict literal with three keys; it is parsed as such, in any order and
 * spacing, and whatever else it holds is refused. */
#include "cli/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/mask_input.h"
#include "common/error.h"

/* What remains of the header. */
struct cursor {
    const char *at, *end;
};

static void skip_blanks(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t'))
        c->at++;
}

static int take_char(struct cursor *c, char wanted)
{
    skip_blanks(c);
    if (c->at >= c->end || *c->at != wanted)
        return 0;
    c->at++;
    return 1;
}

/* A quoted string without escapes, of printable ASCII alone: what is in it is shown in sentences. */
static int take_string(struct cursor *c, char *text, size_t size)
{
    skip_blanks(c);
    if (c->at >= c->end || (*c->at != '\'' && *c->at != '"'))
        return 0;
    char quote = *c->at++;
    size_t length = 0;
    while (c->at < c->end && *c->at != quote) {
        if (length + 1 >= size || *c->at < ' ' || *c->at > '~')
            return 0;
        text[length++] = *c->at++;
    }
    text[length] = '\0';
    return c->at < c->end && *c->at++ == quote;
}

static int take_word(struct cursor *c, const char *word)
{
    skip_blanks(c);
    size_t length = strlen(word);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0)
        return 0;
    c->at += length;
    return 1;
}

/* A whole number that fits int64. */
static int take_whole(struct cursor *c, int64_t *value)
{
    skip_blanks(c);
    const char *begin = c->at;
    int64_t sum = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        int digit = *c->at - '0';
        if (sum > (INT64_MAX - digit) / 10)
            return 0;
        sum = sum * 10 + digit;
    }
    (void)take_char(c, 'L'); /* written by Python 2 */
    *value = sum;
    return c->at > begin;
}

/* (), (n,) or (n, m, ...). */
static int take_shape(struct cursor *c, struct sp_npy *array)
{
    array->dims = 0;
    if (!take_char(c, '('))
        return 0;
    while (!take_char(c, ')')) {
        if (array->dims == SP_NPY_MAX_DIMS || !take_whole(c, &array->shape[array->dims]))
            return 0;
        array->dims++;
        if (!take_char(c, ',')) {
            return take_char(c, ')');
        }
    }
    return 1;
}

enum { SAW_DESCR = 1, SAW_ORDER = 2, SAW_SHAPE = 4 };

static int take_entry(struct cursor *c, struct sp_npy *array, int *fortran, int *seen)
{
    char key[32];
    if (!take_string(c, key, sizeof key) || !take_char(c, ':'))
        return 0;
    if (strcmp(key, "descr") == 0) {
        *seen |= SAW_DESCR;
        return take_string(c, array->type, sizeof array->type);
    }
    if (strcmp(key, "fortran_order") == 0) {
        *seen |= SAW_ORDER;
        *fortran = take_word(c, "True");
        return *fortran || take_word(c, "False");
    }
    *seen |= SAW_SHAPE;
    return strcmp(key, "shape") == 0 && take_shape(c, array);
}

static enum splat_status parse_dict(const char *path, struct cursor c, struct sp_npy *array)
{
    int fortran = 0, seen = 0, ok = take_char(&c, '{');
    while (ok && !take_char(&c, '}')) {
        ok = take_entry(&c, array, &fortran, &seen);
        if (ok && !take_char(&c, ',')) {
            ok = take_char(&c, '}');
            break;
        }
    }
    skip_blanks(&c);
    if (!ok || c.at != c.end || seen != (SAW_DESCR | SAW_ORDER | SAW_SHAPE))
        return sp_fail(
            SPLAT_INVALID,
            "file '%s': its .npy header does not parse; it must be a dict with a plain descr, fortran_order "
            "and a shape of at most %d axes",
            path, SP_NPY_MAX_DIMS);
    if (fortran && array->dims > 1)
        return sp_fail(SPLAT_INVALID,
                       "file '%s' is in Fortran order; it must be in C order (numpy.ascontiguousarray)", path);
    return SPLAT_OK;
}

enum splat_status sp_npy_wrong_type(const char *path, const struct sp_npy *array, const char *wanted)
{
    const char *type = array->type;
    const char *kind = type[1] == 'f'                     ? "float"
                       : type[1] == 'i'                   ? "int"
                       : type[1] == 'u'                   ? "uint"
                       : type[1] == 'b' || type[1] == '?' ? "bool"
                       : type[1] == 'c'                   ? "complex"
                                                          : NULL;
    long bytes = kind ? strtol(type + 2, NULL, 10) : 0;
    char name[40] = "";
    const char *order = type[0] == '>' ? "big-endian " : "";
    if (kind && strcmp(kind, "bool") == 0)
        snprintf(name, sizeof name, "%s", kind);
    else if (bytes > 0 && bytes <= 64)
        snprintf(name, sizeof name, "%s%s%ld", order, kind, bytes * 8);
    return sp_fail(SPLAT_INVALID, "file '%s' holds type '%s'%s%s%s; %s", path, type, name[0] ? " (" : "", name,
                   name[0] ? ")" : "", wanted);
}

static int bytes_of_type(const char *type)
{
    static const struct {
        const char *type;
        int bytes;
    } known[] = {{"|b1", 1}, {"|u1", 1}, {"|i1", 1}, {"<f2", 2}, {"<f4", 4}};
    for (size_t t = 0; t < sizeof known / sizeof known[0]; t++)
        if (strcmp(type, known[t].type) == 0)
            return known[t].bytes;
    return 0;
}

/* Every axis at least 1 and the product within int64, so that no size below overflows. */
static enum splat_status count_items(const char *path, struct sp_npy *array)
{
    array->items = 1;
    for (int a = 0; a < array->dims; a++) {
        int64_t n = array->shape[a];
        if (n < 1)
            return sp_fail(SPLAT_INVALID, "file '%s': axis %d of its shape is %" PRId64 "; it must be at least 1",
                           path, a, n);
        if (n > INT64_MAX / 8 / array->items)
            return sp_fail(SPLAT_INVALID,
                           "file '%s': its shape has more items than can be addressed (axis %d is %" PRId64 ")",
                           path, a, n);
        array->items *= n;
    }
    return SPLAT_OK;
}

/* Finds the header's text; leaves where the data begins in *data_at. */
static enum splat_status find_header(const char *path, const struct sp_file *file, struct cursor *header,
                                     size_t *data_at)
{
    const uint8_t *d = file->data;
    if (file->size < 10 || memcmp(d, "\x93NUMPY", 6) != 0)
        return sp_fail(SPLAT_INVALID, "file '%s' is no .npy array: it does not begin with the .npy magic", path);
    int major = d[6], minor = d[7];
    if (major < 1 || major > 3 || minor != 0)
        return sp_fail(SPLAT_INVALID, "file '%s' is .npy version %d.%d; versions 1.0, 2.0 and 3.0 are read", path,
                       major, minor);
    size_t begin = major == 1 ? 10 : 12, length = 0;
    if (file->size >= begin)
        length = major == 1 ? (size_t)d[8] | (size_t)d[9] << 8
                            : (size_t)d[8] | (size_t)d[9] << 8 | (size_t)d[10] << 16 | (size_t)d[11] << 24;
    if (file->size < begin || length > file->size - begin)
        return sp_fail(SPLAT_INVALID, "file '%s' is truncated: it has %zu bytes and its header needs %zu", path,
                       file->size, begin + length);
    *header = (struct cursor){(const char *)d + begin, (const char *)d + begin + length};
    *data_at = begin + length;
    return SPLAT_OK;
}

enum splat_status sp_npy_parse(const char *path, const struct sp_file *file, const char *wanted,
                               struct sp_npy *array)
{
    *array = (struct sp_npy){0};
    struct cursor header = {0};
    size_t data_at = 0;
    enum splat_status status = find_header(path, file, &header, &data_at);
    if (status == SPLAT_OK)
        status = parse_dict(path, header, array);
    if (status != SPLAT_OK)
        return status;
    array->item_bytes = bytes_of_type(array->type);
    if (array->item_bytes == 0)
        return sp_npy_wrong_type(path, array, wanted);
    status = count_items(path, array);
    if (status != SPLAT_OK)
        return status;
    size_t need = (size_t)array->items * (size_t)array->item_bytes, have = file->size - data_at;
    if (have != need)
        return sp_fail(SPLAT_INVALID, "file '%s' has %zu bytes of data; its shape and type need %zu", path, have,
                       need);
    array->data = file->data + data_at;
    return SPLAT_OK;
}

enum splat_status sp_npy_mask(const char *path, const struct sp_file *file, splat_mask **mask)
{
    struct sp_npy array;
    static const char wanted[] = "a mask must be bool, uint8 or int8, non-zero = allowed";
    enum splat_status status = sp_npy_parse(path, file, wanted, &array);
    if (status != SPLAT_OK)
        return status;
    if (array.item_bytes != 1)
        return sp_npy_wrong_type(path, &array, wanted);
    if (array.dims != 2)
        return sp_fail(
            SPLAT_INVALID,
            "file '%s' has %d ax%s; a mask must have 2, query rows and key columns (a mask of each head is "
            "a file of its own here; splat_mask_map and the Python package run them together)",
            path, array.dims, array.dims == 1 ? "is" : "es");
    for (int a = 0; a < 2; a++)
        if (array.shape[a] > SPLAT_MAX_LEN)
            return sp_fail(SPLAT_INVALID,
                           "file '%s': axis %d of its shape is %" PRId64 "; a mask's axes are at most %" PRId64,
                           path, a, array.shape[a], (int64_t)SPLAT_MAX_LEN);
    return splat_mask_from_bytes(array.data, array.shape[0], array.shape[1], array.shape[1], mask);
}

enum splat_status sp_npy_write_float(const char *path, const float *data, int dims, const int64_t *shape)
{
    /* Magic, version and header together are a multiple of 64 bytes, padded with blanks before the newline. */
    char header[256];
    int used = snprintf(header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    int64_t items = 1;
    for (int a = 0; a < dims; a++) {
        used += snprintf(header + used, sizeof header - (size_t)used, "%s%" PRId64 "%s", a ? " " : "", shape[a],
                         a + 1 < dims || dims == 1 ? "," : "");
        items *= shape[a];
    }
    used += snprintf(header + used, sizeof header - (size_t)used, "), }");
    int total = (10 + used + 1 + 63) / 64 * 64, length = total - 10;
    memset(header + used, ' ', (size_t)(length - used));
    header[length - 1] = '\n';
    const uint8_t prefix[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)(length & 255), (uint8_t)(length >> 8)};

    struct sp_output output;
    enum splat_status status = sp_output_open(path, &output);
    if (status != SPLAT_OK)
        return status;
    fwrite(prefix, 1, sizeof prefix, output.stream);
    fwrite(header, 1, (size_t)length, output.stream);
    fwrite(data, sizeof(float), (size_t)items, output.stream);
    return sp_output_commit(&output); /* a short write shows in ferror */
}
