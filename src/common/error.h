/* Failure sentences: kept per thread, read with splat_last_error(). */
#ifndef SP_ERROR_H
#define SP_ERROR_H

#include "splat.h"

/* Records the sentence (printf format, no newline, no final full stop needed) and returns `status`:
 *     return sp_fail(SPLAT_INVALID, "head_dim is %lld; it must be a multiple of 8 from 8 to 256", ...); */
enum splat_status sp_fail(enum splat_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* sp_fail for a failed allocation of `bytes`; `what` names the thing that did not fit. */
enum splat_status sp_no_memory(const char *what, size_t bytes);

/* Whether a caller's struct has the size of this library's, which its _init function sets: `name` is the argument.
 */
enum splat_status sp_check_struct_size(const char *name, const char *init, size_t given, size_t wanted);

/* The static analyser sees one file at a time and would follow paths on which a failure is SPLAT_OK. */
#ifdef __clang_analyzer__
#define sp_fail(status, ...)      ((void)sp_fail((status), __VA_ARGS__), (status))
#define sp_no_memory(what, bytes) ((void)sp_no_memory((what), (bytes)), SPLAT_NO_MEMORY)
#endif

#endif
