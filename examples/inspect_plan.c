/* Looks at a mask before anything is computed: what splat found in it, which tiles it would compute, and what it
 * rejected. Needs neither a GPU nor NVRTC.
 *
 *     cc inspect_plan.c $(pkg-config --cflags --libs splat) -o inspect_plan && ./inspect_plan
 */
#include <stdio.h>
#include <stdlib.h>

#include "splat.h"

/* Every failing call left a sentence that says what to change. */
static void check(enum splat_status status)
{
    if (status != SPLAT_OK) {
        fprintf(stderr, "%s: %s\n", splat_status_name(status), splat_last_error());
        exit(1);
    }
}

/* Called for every stretch of equal tiles. This one prints those of the first four row tiles. */
static int print_tiles(const splat_tile_stretch *stretch, void *user)
{
    (void)user;
    const splat_acsr_run *rows = &stretch->rows, *columns = &stretch->columns;
    if (stretch->row_tile < 4 && rows->count == 1 && columns->count == 1)
        printf("  rows %4d..%-4d columns %4d..%-4d %s%s%s\n", rows->start, rows->start + rows->width - 1,
               columns->start, columns->start + columns->width - 1,
               stretch->kind == SPLAT_TILE_FULL ? "full" : "partial: ",
               stretch->kind == SPLAT_TILE_FULL ? "" : stretch->predicate,
               stretch->kind == SPLAT_TILE_FULL ? "" : " test in the kernel");
    return 0; /* go on */
}

int main(void)
{
    /* Longformer: a window, and 64 global tokens that see and are seen by all. */
    splat_mask *mask = NULL;
    check(splat_mask_from_expression("window(256) | rows(0, 64) | cols(0, 64)", 8192, 8192,
                                     SPLAT_ALIGN_BOTTOM_RIGHT, &mask));

    /* The plan depends on what will run: head dim, dtype, and roughly how much of it. */
    splat_options options;
    splat_options_init(&options);
    options.head_dim = 128;
    options.batch = 2;
    options.heads = 16;
    splat_plan *plan = NULL;
    check(splat_plan_create(mask, &options, &plan));

    splat_plan_info info;
    splat_plan_info_init(&info);
    check(splat_plan_get_info(plan, &info));
    printf("%lld allowed pairs, %.2f %% of all, in %lld row families; planned in %.2f ms\n",
           (long long)info.allowed_pairs, 100 * info.density, (long long)info.families, info.plan_ms);
    printf("tiles of %lld x %lld: %lld full, %lld partial; %.3f pairs computed for each allowed one\n",
           (long long)info.tile_rows, (long long)info.tile_cols, (long long)info.full_tiles,
           (long long)info.partial_tiles, info.waste);
    printf("predicted %.0f us a launch, %lld bytes of descriptors on the device\n\n", info.predicted_us,
           (long long)info.descriptor_bytes);

    printf("the first rows of tiles:\n");
    check(splat_plan_visit_tiles(plan, 0, print_tiles, NULL));

    printf("\nwhat was considered:\n");
    for (int64_t c = 0; c < info.candidates; c++) {
        const char *summary, *reason;
        double us;
        check(splat_plan_candidate(plan, c, &summary, &reason, &us));
        printf("  %s: %s\n", summary, reason);
    }

    /* Single rows can be read too: the runs of columns that query 4000 may attend to. */
    splat_acsr *acsr = NULL;
    check(splat_acsr_create(mask, &acsr));
    splat_acsr_run runs[8];
    int64_t count = 0;
    check(splat_acsr_row(acsr, 4000, runs, 8, &count));
    printf("\nquery 4000 sees:");
    for (int64_t r = 0; r < count && r < 8; r++)
        printf("%s %d block%s of %d from %d", r ? "," : "", runs[r].count, runs[r].count == 1 ? "" : "s",
               runs[r].width, runs[r].start);
    printf("\n");

    splat_acsr_destroy(acsr);
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
    return 0;
}
