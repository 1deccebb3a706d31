/* Failure sentences, one a thread. */
#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef sp_fail
#undef sp_no_memory

static _Thread_local char sentence[2048];

enum splat_status sp_fail(enum splat_status status, const char *format, ...)
{
    char text[sizeof sentence]; /* an argument may be the last sentence itself */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(sentence, text, sizeof text);
    return status;
}

enum splat_status sp_no_memory(const char *what, size_t bytes)
{
    return sp_fail(SPLAT_NO_MEMORY, "no memory for %s: %zu bytes were asked for", what, bytes);
}

enum splat_status sp_check_struct_size(const char *name, const char *init, size_t given, size_t wanted)
{
    if (given == wanted)
        return SPLAT_OK;
    return sp_fail(SPLAT_INVALID,
                   "%s.struct_size is %zu; it must be %zu: call %s first, and build against the header of this "
                   "library (%s)",
                   name, given, wanted, init, SPLAT_VERSION);
}

const char *splat_last_error(void)
{
    return sentence;
}

const char *splat_status_name(enum splat_status status)
{
    static const char *const names[] = {
        "SPLAT_OK",        "SPLAT_INVALID", "SPLAT_UNSUPPORTED", "SPLAT_NO_MEMORY", "SPLAT_IO",
        "SPLAT_NO_DEVICE", "SPLAT_COMPILE", "SPLAT_CUDA",        "SPLAT_INTERNAL",
    };
    if ((int)status < 0 || (size_t)status >= sizeof names / sizeof names[0])
        return "unknown status";
    return names[status];
}

const char *splat_version(void)
{
    return SPLAT_VERSION;
}
