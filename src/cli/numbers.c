/* Strict numbers: no sign, no blanks, no trailing text, no silent overflow. */
#include "cli/numbers.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "common/error.h"

/* Digits only; 0 when the text is something else or does not fit. */
static int parse_digits(const char *text, uint64_t *value)
{
    uint64_t sum = 0;
    if (!*text)
        return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return 0;
        uint64_t digit = (uint64_t)(*text - '0');
        if (sum > (UINT64_MAX - digit) / 10)
            return 0;
        sum = sum * 10 + digit;
    }
    *value = sum;
    return 1;
}

enum splat_status sp_parse_whole(const char *option, const char *text, int64_t low, int64_t high, int64_t *value)
{
    uint64_t parsed = 0;
    if (!parse_digits(text, &parsed) || parsed < (uint64_t)low || parsed > (uint64_t)high)
        return sp_fail(SPLAT_INVALID, "%s is '%s'; it must be a whole number from %lld to %lld", option, text,
                       (long long)low, (long long)high);
    *value = (int64_t)parsed;
    return SPLAT_OK;
}

enum splat_status sp_parse_seed(const char *option, const char *text, uint64_t *value)
{
    if (!parse_digits(text, value))
        return sp_fail(SPLAT_INVALID, "%s is '%s'; it must be a whole number from 0 to %llu", option, text,
                       (unsigned long long)UINT64_MAX);
    return SPLAT_OK;
}

enum splat_status sp_parse_positive(const char *option, const char *text, float *value)
{
    char *end = NULL;
    errno = 0;
    int starts_well = (*text >= '0' && *text <= '9') || *text == '.';
    float parsed = strtof(text, &end);
    if (!starts_well || *end || end == text || errno == ERANGE || !(parsed > 0) || !isfinite(parsed))
        return sp_fail(SPLAT_INVALID, "%s is '%s'; it must be a number greater than 0, at most %g", option, text,
                       (double)FLT_MAX);
    *value = parsed;
    return SPLAT_OK;
}
