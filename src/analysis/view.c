/* Views as arithmetic (view.h). */
#include "analysis/view.h"

#include "analysis/ints.h"

struct sp_view sp_view_make(enum sp_view_kind kind, int64_t n0, int64_t c, int64_t len)
{
    struct sp_view view = {.kind = (int32_t)kind, .n0 = (int32_t)n0, .c = (int32_t)c, .len = (int32_t)len};
    view.zones = (int32_t)sp_ceil_div(n0, c);
    view.whole = (int32_t)(len / n0);
    view.rest = (int32_t)(len % n0);
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

int32_t sp_view_cut_zone(const struct sp_view *view)
{
    return view->rest % view->c ? view->rest / view->c : -1;
}

int64_t sp_view_positions(const struct sp_view *view)
{
    return (int64_t)view->zones * view->pitch;
}

int64_t sp_view_zone_ranks(const struct sp_view *view, int64_t zone)
{
    return (int64_t)view->whole * view->c + sp_clamp64(view->rest - zone * view->c, 0, view->c);
}

int64_t sp_view_token(const struct sp_view *view, int64_t position)
{
    int64_t zone = position / view->pitch, rank = position % view->pitch;
    int64_t x = zone * view->c + rank % view->c, token = view->n0 * (rank / view->c) + x;
    return token < view->len && rank < sp_view_zone_ranks(view, zone) ? token : -1;
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
