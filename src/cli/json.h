/* JSON results of the commands. */
#ifndef SP_CLI_JSON_H
#define SP_CLI_JSON_H

#include <jansson.h>

#include "splat.h"

/* Take over `value`. The first failure (no memory for the value, or to add it) drops the whole object or array and
 * leaves NULL, which later calls keep: set freely, and let sp_json_print tell. */
void sp_json_set(json_t **object, const char *key, json_t *value);
void sp_json_append(json_t **array, json_t *value);

/* Prints the object to stdout, keys in the order they were set, and drops it. NULL is for want of memory while it
 * was made. Prints all of it or nothing. */
enum splat_status sp_json_print(json_t *root);

/* A real, or null for infinities and NaN, which JSON does not have. */
json_t *sp_json_real(double value);

#endif
