/* Views as arithmetic (view.h). */
#include "analysis/view.h"

#include "analysis/ints.h"

struct sp_view sp_view_make(enum sp_view_kind kind, int64_t n0, int64_t c, int64_t len)
{
    struct sp_view view = {.kind = (int32_t)kind, .n0 = (int32_t)n0, .c = (int32_t)c, .len = (int32_t)len};
    view.whole = (int32_t)(len / n0);
    view.rest = (int32_t)(len % n0);
    view.zones = (int32_t)sp_ceil_div(n0, c) + sp_view_is_cut(&view);
    /* One zone needs no tile boundary at its end. */
    int64_t ranks = c * sp_ceil_div(len, n0);
    view.pitch = view.zones == 1 ? (int32_t)len
                                 : (int32_t)sp_min64(sp_ceil_div(ranks, SP_ZONE_ALIGN) * SP_ZONE_ALIGN, INT32_MAX);
    return view;
}

bool sp_view_fits(const struct sp_view *view)
{
    return sp_view_positions(view) < INT32_MAX;
}

bool sp_view_is_cut(const struct sp_view *view)
{
    return view->rest % view->c != 0;
}

int64_t sp_view_positions(const struct sp_view *view)
{
    return (int64_t)view->zones * view->pitch;
}

struct sp_strip sp_view_strip(const struct sp_view *view, int64_t zone)
{
    int64_t x = zone * view->c;
    if (x < view->rest)
        return (struct sp_strip){x, x, sp_min64(x + view->c, view->rest), (int64_t)view->whole + 1};
    x -= sp_view_is_cut(view) ? view->c : 0;
    return (struct sp_strip){x, sp_max64(x, view->rest), x + view->c, view->whole};
}

int64_t sp_view_zone_of(const struct sp_view *view, int64_t x)
{
    return x / view->c + (sp_view_is_cut(view) && x >= view->rest);
}

int64_t sp_view_zone_ranks(const struct sp_view *view, int64_t zone)
{
    return view->zones == 1 ? view->len : sp_view_strip(view, zone).rows * view->c;
}

int64_t sp_view_token(const struct sp_view *view, int64_t position)
{
    int64_t zone = position / view->pitch, rank = position % view->pitch;
    struct sp_strip strip = sp_view_strip(view, zone);
    int64_t x = strip.x + rank % view->c, y = rank / view->c;
    return x >= strip.begin && x < strip.end && y < strip.rows ? view->n0 * y + x : -1;
}

bool sp_view_next_tile(const struct sp_view *view, int64_t tile, int64_t *position, int64_t *count)
{
    int64_t zone = *position / view->pitch;
    for (; zone < view->zones; zone++, *position = zone * view->pitch) {
        int64_t left = sp_view_zone_ranks(view, zone) - (*position - zone * view->pitch);
        if (left > 0) {
            *count = sp_min64(left, tile);
            return true;
        }
    }
    return false;
}
