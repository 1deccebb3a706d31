/* JSON results: one object on stdout. */
#include "cli/json.h"

#include <math.h>
#include <stdio.h>

#include "common/error.h"

enum splat_status sp_json_print(json_t *root)
{
    if (!root)
        return sp_fail(SPLAT_NO_MEMORY, "the JSON result could not be made");
    int failed = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0;
    json_decref(root);
    if (failed || putchar('\n') == EOF)
        return sp_fail(SPLAT_IO, "the JSON result could not be written to stdout");
    return SPLAT_OK;
}

json_t *sp_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}
