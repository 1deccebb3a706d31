/* JSON results of the commands. */
#ifndef SP_CLI_JSON_H
#define SP_CLI_JSON_H

#include <jansson.h>

#include "splat.h"

/* Prints the object to stdout, keys in the order they were set, and drops it. NULL (out of memory while it was
 * made, or a number JSON cannot hold) fails. */
enum splat_status sp_json_print(json_t *root);

/* A real, or null for infinities and NaN, which JSON does not have. */
json_t *sp_json_real(double value);

#endif
