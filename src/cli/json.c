/* JSON results: one object on stdout. */
#include "cli/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/error.h"

void sp_json_set(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) == 0)
        return;
    json_decref(*object);
    *object = NULL;
}

void sp_json_append(json_t **array, json_t *value)
{
    if (json_array_append_new(*array, value) == 0)
        return;
    json_decref(*array);
    *array = NULL;
}

/* Made whole before a byte is printed: a dump to the stream would stop in the middle without memory. */
enum splat_status sp_json_print(json_t *root)
{
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!text)
        return sp_fail(SPLAT_NO_MEMORY, "no memory for the JSON result");
    int failed = puts(text) == EOF;
    free(text);
    return failed ? sp_fail(SPLAT_IO, "the JSON result could not be written to stdout") : SPLAT_OK;
}

json_t *sp_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}
