/* Numbers from the command line and from file headers: the whole text must be the number, and it must be in range.
 */
#ifndef SP_CLI_NUMBERS_H
#define SP_CLI_NUMBERS_H

#include <stdint.h>

#include "splat.h"

/* A decimal whole number, low <= value <= high; low >= 0. The sentence names the option, its text and the limits.
 */
enum splat_status sp_parse_whole(const char *option, const char *text, int64_t low, int64_t high, int64_t *value);

/* The same over all of 64 bits, for seeds. */
enum splat_status sp_parse_seed(const char *option, const char *text, uint64_t *value);

/* A finite number greater than 0 that float can hold. */
enum splat_status sp_parse_positive(const char *option, const char *text, float *value);

#endif
