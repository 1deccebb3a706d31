/* Compiles a model's kernels into a cache folder, on a build machine that may have no GPU. Ship the folder, point
 * SPLAT_CACHE_DIR at it with SPLAT_CACHE=ro, and splat_compile() on the target never waits for a compiler.
 *
 *     cc ahead_of_time.c $(pkg-config --cflags --libs splat) -o ahead_of_time && ./ahead_of_time [FOLDER]
 *
 * Needs NVRTC: from a CUDA toolkit, or `pip install nvidia-cuda-nvrtc`. Lengths, batch sizes, head counts
 * and strides are not part of a kernel; the tile shape that the plan chooses for them is. So compile for the
 * lengths and head counts that will run, or pin tile_rows, tile_cols and layout.
 */
#include <stdio.h>
#include <stdlib.h>

#include "splat.h"

static void print_log(enum splat_log_level level, const char *message, void *user)
{
    (void)user;
    printf("  %s%s\n", level == SPLAT_LOG_WARNING ? "warning: " : "", message);
}

/* Compiles one kernel for one chip; 0 when it is in the folder now. */
static int build(splat_context *context, const char *pattern, enum splat_arch arch, const char *arch_name)
{
    splat_mask *mask = NULL;
    splat_options options;
    splat_options_init(&options);
    options.head_dim = 64;
    options.arch = arch;
    splat_compile_info info;
    splat_compile_info_init(&info);
    enum splat_status status = splat_mask_from_expression(pattern, 4096, 4096, SPLAT_ALIGN_BOTTOM_RIGHT, &mask);
    if (status == SPLAT_OK)
        status = splat_compile_to_cache(context, mask, &options, &info);
    splat_mask_destroy(mask);
    if (status != SPLAT_OK) {
        fprintf(stderr, "%s for %s: %s: %s\n", pattern, arch_name, splat_status_name(status), splat_last_error());
        return 1;
    }
    printf("%s for %s: %s, %.0f ms, %d registers, %lld bytes\n", pattern, arch_name,
           info.cache_hit ? "was there" : "compiled", info.ms, info.registers, (long long)info.cubin_bytes);
    return 0;
}

int main(int argc, char **argv)
{
    splat_context_options options;
    splat_context_options_init(&options);
    options.cache_dir = argc > 1 ? argv[1] : NULL; /* NULL: the user's cache folder */
    options.cache_mode = SPLAT_CACHE_ON;
    options.log = print_log;
    splat_context *context = NULL;
    if (splat_context_create(&options, &context) != SPLAT_OK) {
        fprintf(stderr, "%s\n", splat_last_error());
        return 1;
    }
    static const char *const patterns[] = {"causal", "window(256) | rows(0, 64) | cols(0, 64)"};
    int failed = 0;
    for (int p = 0; p < 2 && !failed; p++)
        failed = build(context, patterns[p], SPLAT_ARCH_SM80, "sm_80") ||
                 build(context, patterns[p], SPLAT_ARCH_SM90A, "sm_90a");
    splat_context_destroy(context);
    return failed;
}
