/* The growing string (strbuf.h). */
#include "common/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for `more` characters and the NUL. */
static int make_room(struct sp_strbuf *buf, size_t more)
{
    size_t need = buf->size + more + 1, capacity = buf->capacity ? buf->capacity : 256;
    if (buf->failed || need < more)
        buf->failed = 1;
    if (buf->failed || need <= buf->capacity)
        return !buf->failed;
    while (capacity < need)
        capacity = capacity > need / 2 ? need : 2 * capacity;
    char *grown = realloc(buf->text, capacity);
    if (!grown) {
        buf->failed = 1;
        return 0;
    }
    buf->text = grown;
    buf->capacity = capacity;
    return 1;
}

void sp_strbuf_add(struct sp_strbuf *buf, const char *text, size_t size)
{
    if (!make_room(buf, size))
        return;
    memcpy(buf->text + buf->size, text, size);
    buf->size += size;
    buf->text[buf->size] = '\0';
}

void sp_strbuf_puts(struct sp_strbuf *buf, const char *text)
{
    sp_strbuf_add(buf, text, strlen(text));
}

void sp_strbuf_printf(struct sp_strbuf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (size < 0)
        buf->failed = 1;
    else if (make_room(buf, (size_t)size))
        buf->size += (size_t)vsnprintf(buf->text + buf->size, (size_t)size + 1, format, again);
    va_end(again);
}

void sp_strbuf_free(struct sp_strbuf *buf)
{
    free(buf->text);
    *buf = (struct sp_strbuf)SP_STRBUF_INIT;
}
