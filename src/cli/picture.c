/* The picture of a mask: coverage of allowed pairs from the ACSR's runs, tints from the plan's tiles, written by
 * libpng.
 *
 * A pixel stands for cell x cell pairs (or a pair for zoom x zoom pixels, when the mask is small). Coverage of a
 * band of rows is summed with a difference array, so that a long block costs as much as a short one; of a tall band
 * an even sample of rows is taken; a run that steps faster than a pixel counts as an even grey.
 */
#include "cli/picture.h"

#include <math.h>
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "common/error.h"

enum { SIDE = 1024, BAND_SAMPLES = 64, GRID_FROM = 8, NO_TILE = 0 };

static const struct tint {
    const char *predicate; /* as in splat_plan_visit_tiles; "none" = FULL */
    const char *colour;
    uint8_t light[3], dark[3];
} tints[] = {
    {"", "white", {255, 255, 255}, {255, 255, 255}}, /* NO_TILE: never computed */
    {"none", "green", {176, 224, 178}, {30, 110, 45}},
    {"lower", "blue", {168, 208, 240}, {20, 75, 140}},
    {"upper", "cyan", {160, 226, 228}, {0, 105, 115}},
    {"bounds", "violet", {210, 190, 236}, {90, 45, 140}},
    {"table", "orange", {250, 208, 160}, {160, 85, 10}},
    {"periodic", "yellow", {244, 232, 150}, {130, 110, 0}},
    {"bits", "red", {246, 184, 180}, {160, 30, 30}},
    {NULL, "grey", {214, 214, 214}, {80, 80, 80}}, /* any other */
};
enum { TINT_COUNT = sizeof tints / sizeof tints[0] };

struct picture {
    int64_t q_len, kv_len, tile_rows, tile_cols;
    int64_t cell, zoom; /* one of them is 1 */
    int64_t width, height;
    uint8_t *tile;   /* height x width: index into tints */
    double *step;    /* width + 1: differences of coverage along the band */
    double *partial; /* width: coverage of blocks that fill no pixel */
    splat_acsr_run *runs;
    int64_t run_capacity;
};

void sp_picture_print_colours(void)
{
    printf("full tiles green; partial tiles by predicate:");
    for (int t = NO_TILE + 2; t < TINT_COUNT - 1; t++)
        printf("%s %s %s", t > NO_TILE + 2 ? "," : "", tints[t].predicate, tints[t].colour);
    printf("; white is never computed; allowed pairs are dark\n");
}

/* ---- Tiles ---- */

/* The pixels of block `k` of a run, along one side of the picture. */
static void pixels_of(const struct picture *p, const splat_acsr_run *run, int64_t k, int64_t side, int64_t *first,
                      int64_t *end)
{
    int64_t begin = run->start + k * (int64_t)run->stride, last = begin + run->width;
    *first = begin * p->zoom / p->cell;
    *end = (last * p->zoom + p->cell - 1) / p->cell;
    *end = *end < side ? *end : side;
}

static int visit_tiles(const splat_tile_stretch *stretch, void *user)
{
    struct picture *p = user;
    int tint = NO_TILE + 1;
    while (tint < TINT_COUNT - 1 && strcmp(tints[tint].predicate, stretch->predicate) != 0)
        tint++;
    int64_t top, bottom, left, right, done_rows = 0;
    for (int64_t a = 0; a < stretch->rows.count; a++) {
        pixels_of(p, &stretch->rows, a, p->height, &top, &bottom);
        top = top > done_rows ? top : done_rows; /* blocks may share pixels */
        int64_t done = 0;
        for (int64_t b = 0; b < stretch->columns.count && top < bottom; b++) {
            pixels_of(p, &stretch->columns, b, p->width, &left, &right);
            left = left > done ? left : done;
            for (int64_t y = top; y < bottom; y++)
                for (int64_t x = left; x < right; x++)
                    if (p->tile[y * p->width + x] < tint) /* where tiles share a pixel, the costlier kind shows */
                        p->tile[y * p->width + x] = (uint8_t)tint;
            done = right > done ? right : done;
        }
        done_rows = bottom > done_rows ? bottom : done_rows;
    }
    return 0;
}

/* Whether the tile grid passes through pixel (x, y): the first pixel of a tile, where tiles are wide enough to
 * tell. */
static int on_grid(const struct picture *p, int64_t x, int64_t y)
{
    int64_t tall = p->tile_rows * p->zoom / p->cell, wide = p->tile_cols * p->zoom / p->cell;
    if (tall < GRID_FROM || wide < GRID_FROM)
        return 0;
    int64_t row = y * p->cell / p->zoom % p->tile_rows, col = x * p->cell / p->zoom % p->tile_cols;
    int first_row = row < p->cell && (p->zoom == 1 || (row == 0 && y % p->zoom == 0));
    int first_col = col < p->cell && (p->zoom == 1 || (col == 0 && x % p->zoom == 0));
    return first_row || first_col;
}

/* ---- Coverage ---- */

/* Adds columns [begin, end), each worth `weight`, to the band. */
static void add_block(struct picture *p, int64_t begin, int64_t end, double weight)
{
    int64_t first = begin / p->cell, last = (end - 1) / p->cell;
    if (first == last) {
        p->partial[first] += weight * (double)(end - begin);
        return;
    }
    p->partial[first] += weight * (double)((first + 1) * p->cell - begin);
    p->partial[last] += weight * (double)(end - last * p->cell);
    p->step[first + 1] += weight * (double)p->cell;
    p->step[last] -= weight * (double)p->cell;
}

static void add_run(struct picture *p, const splat_acsr_run *run)
{
    if (run->count > 1 && run->stride <= p->cell) {
        int64_t end = run->start + (int64_t)run->stride * (run->count - 1) + run->width;
        add_block(p, run->start, end, (double)run->width * run->count / (double)(end - run->start));
        return;
    }
    for (int64_t k = 0; k < run->count; k++) {
        int64_t begin = run->start + k * run->stride;
        add_block(p, begin, begin + run->width, 1.0);
    }
}

static enum splat_status add_row(struct picture *p, const splat_acsr *acsr, int64_t row)
{
    int64_t count = 0;
    enum splat_status status = splat_acsr_row(acsr, row, p->runs, p->run_capacity, &count);
    if (status == SPLAT_OK && count > p->run_capacity) {
        free(p->runs);
        p->run_capacity = count;
        p->runs = malloc((size_t)count * sizeof *p->runs);
        if (!p->runs)
            return sp_no_memory("runs of a row", (size_t)count * sizeof *p->runs);
        status = splat_acsr_row(acsr, row, p->runs, p->run_capacity, &count);
    }
    for (int64_t r = 0; status == SPLAT_OK && r < count; r++)
        add_run(p, &p->runs[r]);
    return status;
}

/* Coverage, 0 to 1, of the pixels of the band of rows [begin, end), into p->partial by cells of columns. */
static enum splat_status cover_band(struct picture *p, const splat_acsr *acsr, int64_t begin, int64_t end,
                                    int64_t cells)
{
    memset(p->step, 0, (size_t)(cells + 1) * sizeof *p->step);
    memset(p->partial, 0, (size_t)cells * sizeof *p->partial);
    int64_t rows = end - begin, samples = rows < BAND_SAMPLES ? rows : BAND_SAMPLES;
    enum splat_status status = SPLAT_OK;
    for (int64_t s = 0; s < samples && status == SPLAT_OK; s++)
        status = add_row(p, acsr, begin + s * rows / samples);
    double running = 0;
    for (int64_t c = 0; c < cells; c++) {
        int64_t columns = p->kv_len - c * p->cell < p->cell ? p->kv_len - c * p->cell : p->cell;
        running += p->step[c];
        p->partial[c] = (p->partial[c] + running) / ((double)samples * (double)columns);
    }
    return status;
}

/* ---- Pixels ---- */

/* The square root keeps thin patterns (one pair in 64, say) visible. */
static void paint_row(const struct picture *p, int64_t y, uint8_t *rgb)
{
    for (int64_t x = 0; x < p->width; x++) {
        const struct tint *tint = &tints[p->tile[y * p->width + x]];
        double coverage = sqrt(fmin(fmax(p->partial[x / p->zoom], 0.0), 1.0));
        double line = p->tile[y * p->width + x] != NO_TILE && on_grid(p, x, y) ? 0.45 : 0.0;
        for (int c = 0; c < 3; c++) {
            double light = tint->light[c] + line * (255 - tint->light[c]);
            double dark = tint->dark[c] + line * (255 - tint->dark[c]);
            rgb[3 * x + c] = (uint8_t)lround(light + coverage * 0.8 * (dark - light));
        }
    }
}

static enum splat_status paint(struct picture *p, const splat_acsr *acsr, png_structp png, uint8_t *rgb)
{
    int64_t cells = p->width / p->zoom;
    for (int64_t y = 0; y < p->height; y++) {
        int64_t begin = y / p->zoom * p->cell, end = begin + p->cell < p->q_len ? begin + p->cell : p->q_len;
        if (y % p->zoom == 0) {
            enum splat_status status = cover_band(p, acsr, begin, end, cells);
            if (status != SPLAT_OK)
                return status;
        }
        paint_row(p, y, rgb);
        png_write_row(png, rgb);
    }
    return SPLAT_OK;
}

enum { REASON = 128 }; /* bytes for what libpng says */

/* libpng's own would print. */
static void on_png_error(png_structp png, png_const_charp message)
{
    char *reason = png_get_error_ptr(png);
    snprintf(reason, REASON, "%s", message);
    png_longjmp(png, 1);
}

static void on_png_warning(png_structp png, png_const_charp message)
{
    (void)png, (void)message; /* what matters comes as an error too */
}

/* libpng leaves by longjmp; nothing that changes after setjmp is used on the way out. */
static enum splat_status encode(struct picture *p, const splat_acsr *acsr, const char *path, FILE *stream,
                                uint8_t *rgb)
{
    char reason[REASON] = "";
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, reason, on_png_error, on_png_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_write_struct(&png, NULL);
        return sp_fail(SPLAT_NO_MEMORY, "libpng could not be started for '%s'", path);
    }
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_write_struct(&png, &info);
        if (strstr(reason, "emory")) /* "Out of Memory", in more than one spelling */
            return sp_fail(SPLAT_NO_MEMORY, "no memory for picture '%s' (libpng: %s)", path, reason);
        return sp_fail(SPLAT_IO, "picture '%s' could not be written (libpng: %s)", path, reason);
    }
    png_init_io(png, stream);
    png_set_IHDR(png, info, (png_uint_32)p->width, (png_uint_32)p->height, 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_compression_level(png, 9);
    png_write_info(png, info);
    enum splat_status status = paint(p, acsr, png, rgb);
    if (status == SPLAT_OK)
        png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return status;
}

static void size_picture(struct picture *p)
{
    int64_t longest = p->q_len > p->kv_len ? p->q_len : p->kv_len;
    p->cell = (longest + SIDE - 1) / SIDE;
    p->zoom = p->cell == 1 && longest <= SIDE / 2 ? SIDE / longest : 1;
    p->width = (p->kv_len + p->cell - 1) / p->cell * p->zoom;
    p->height = (p->q_len + p->cell - 1) / p->cell * p->zoom;
}

enum splat_status sp_picture_write(const char *path, const splat_mask *mask, const splat_plan *plan)
{
    splat_plan_info info;
    splat_plan_info_init(&info);
    enum splat_status status = splat_plan_get_info(plan, &info);
    if (status != SPLAT_OK)
        return status;
    struct picture p = {info.q_len, info.kv_len, info.tile_rows, info.tile_cols, 1,    1, 0,
                        0,          NULL,        NULL,           NULL,           NULL, 0};
    size_picture(&p);
    size_t pixels = (size_t)p.width * (size_t)p.height;
    splat_acsr *acsr = NULL;
    struct sp_output output = {0};
    uint8_t *rgb = malloc((size_t)p.width * 3);
    p.tile = calloc(pixels, 1);
    p.step = malloc((size_t)(p.width + 1) * sizeof *p.step);
    p.partial = malloc((size_t)p.width * sizeof *p.partial);
    if (!rgb || !p.tile || !p.step || !p.partial)
        status = sp_no_memory("picture", pixels);
    if (status == SPLAT_OK)
        status = splat_acsr_create(mask, &acsr);
    if (status == SPLAT_OK)
        status = splat_plan_visit_tiles(plan, 0, visit_tiles, &p);
    if (status == SPLAT_OK)
        status = sp_output_open(path, &output);
    if (status == SPLAT_OK)
        status = encode(&p, acsr, path, output.stream, rgb);
    if (status == SPLAT_OK)
        status = sp_output_commit(&output);
    else
        sp_output_abandon(&output);
    splat_acsr_destroy(acsr);
    free(p.tile);
    free(p.step);
    free(p.partial);
    free(p.runs);
    free(rgb);
    return status;
}
