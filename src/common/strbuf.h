/* A growing string whose first failure sticks: append freely, check once at the end. */
#ifndef SP_STRBUF_H
#define SP_STRBUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct sp_strbuf {
    char *text;  /* always NUL-terminated once non-NULL */
    size_t size; /* without the NUL */
    size_t capacity;
    int failed; /* an allocation failed: contents are incomplete */
};

#define SP_STRBUF_INIT                                                                                             \
    {                                                                                                              \
        0                                                                                                          \
    }

void sp_strbuf_add(struct sp_strbuf *buf, const char *text, size_t size);
void sp_strbuf_puts(struct sp_strbuf *buf, const char *text);
void sp_strbuf_printf(struct sp_strbuf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sp_strbuf_free(struct sp_strbuf *buf);

/* The ending of a noun after a count. */
static inline const char *sp_plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

#endif
