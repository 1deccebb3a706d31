/* The kernels of layers compile, without local memory, for both architectures: those of the shapes that bench/
 * times, in every type, layout and pass. A sample, or with SPLAT_DEEP all of them. Skipped where NVRTC is not on
 * the machine. */
#include "codegen/kron_source.h"
#include "runtime/nvrtc.h"
#include "support.h"

static const int64_t shapes[][4] = {
    {64, 48, 48, 4},   {1, 48, 48, 4},  {6, 64, 64, 1},   {1, 768, 192, 2},  {6, 64, 256, 1},
    {4, 64, 64, 64},   {32, 96, 96, 4}, {4, 128, 128, 4}, {1, 256, 256, 16}, {1, 768, 768, 4},
    {16, 128, 128, 1}, {1, 32, 32, 32}, {32, 2, 2, 32},   {1, 128, 128, 3},  {2, 48, 192, 1},
};
static const int64_t batches[] = {25088, 256};
enum { SHAPES = sizeof shapes / sizeof shapes[0], ALL = SHAPES * 4 * 2 * 3 * 2 * 2 };

/* The n-th combination. */
static struct sp_kron_problem problem_of(int64_t n, int64_t *shape)
{
    *shape = n % SHAPES;
    const int64_t *k = shapes[*shape];
    n /= SHAPES;
    const int type = (int)(n % 4);
    return (struct sp_kron_problem){
        {k[0], k[1], k[2], k[3]},
        (enum sp_kron_pass)(n / 8 % 3),
        (enum splat_layout)(n / 4 % 2),
        type == 0   ? SPLAT_BF16
        : type == 1 ? SPLAT_FP16
                    : SPLAT_FP32,
        type == 3,
        n / 24 % 2 ? SPLAT_ARCH_SM80 : SPLAT_ARCH_SM90A,
        batches[n / 48],
        0,
    };
}

static void kernels_compile(void **state)
{
    (void)state;
    int version;
    if (sp_nvrtc_version(&version) != SPLAT_OK)
        skip();
    struct sp_kron_spec *seen = calloc(ALL, sizeof *seen);
    const int step = getenv("SPLAT_DEEP") ? 1 : 29; /* coprime to every factor */
    int count = 0, failed = 0;
    for (int64_t n = 0; n < ALL; n += step) {
        int64_t shape;
        const struct sp_kron_problem p = problem_of(n, &shape);
        struct sp_kron_spec s;
        double us;
        int known = 0;
        memset(&s, 0, sizeof s);
        sp_kron_plan(&p, &s, &us);
        for (int k = 0; k < count; k++)
            known |= memcmp(&seen[k], &s, sizeof s) == 0;
        if (known)
            continue;
        seen[count++] = s;
        struct sp_source source;
        struct sp_image image = {0};
        OK(sp_kron_source_make(&s, &source));
        const enum splat_status status = sp_nvrtc_compile(&source, s.arch, &image);
        print_message(
            "shape %d sm_%d dtype %d tf32 %d run %d %d x %d out_run %d float %d warps %dx%d tiles %dx%d k %d "
            "stages %d keep %d %d bytes %d: %d registers%s%s\n",
            (int)shape, (int)s.arch, (int)s.dtype, s.tf32, s.run, (int)s.left, (int)s.right, s.out_run, s.out_float,
            s.row_warps, s.col_warps, s.row_tiles, s.col_tiles, s.k_tile, s.stages, s.keep_left, s.keep_right,
            (int)sp_kron_shared_bytes(&s), image.registers, status == SPLAT_OK ? "" : " FAILED ",
            status == SPLAT_OK ? "" : splat_last_error());
        failed += status != SPLAT_OK;
        sp_source_free(&source);
        sp_image_free(&image);
    }
    free(seen);
    print_message("%d kernels compiled\n", count);
    assert_int_equal(failed, 0);
}

/* The Hopper kernels of the same shapes, as the runtime takes them: smaller tiles where there are no registers for
 * the best. */
static void hopper_kernels_compile(void **state)
{
    (void)state;
    int version;
    if (sp_nvrtc_version(&version) != SPLAT_OK)
        skip();
    const int step = getenv("SPLAT_DEEP") ? 1 : 43; /* coprime to every factor */
    int count = 0, failed = 0;
    for (int64_t n = 0; n < ALL; n += step) {
        int64_t shape;
        struct sp_kron_problem p = problem_of(n, &shape);
        struct sp_kron_hopper s;
        enum splat_status status = SPLAT_COMPILE;
        double us;
        for (p.modest = 0; p.modest < 2 && status == SPLAT_COMPILE; p.modest++) {
            struct sp_source source;
            struct sp_image image = {0};
            if (!sp_kron_hopper_plan(&p, 1e9, &s, &us)) {
                status = SPLAT_OK;
                break;
            }
            OK(sp_kron_hopper_source_make(&s, &source));
            status = sp_nvrtc_compile(&source, SPLAT_ARCH_SM90A, &image);
            print_message(
                "shape %d dtype %d left %d along k %d run %d groups %d %d %d blocks %d cols %d k %d stages %d keep "
                "%d %s%s\n",
                (int)shape, (int)s.dtype, (int)s.left, s.weights_along_k, s.run, s.row_groups, s.col_groups,
                s.run_groups, s.row_blocks, s.group_cols, s.k_tile, s.stages, s.keep,
                status == SPLAT_OK ? "" : " FAILED ", status == SPLAT_OK ? "" : splat_last_error());
            count++;
            sp_source_free(&source);
            sp_image_free(&image);
        }
        failed += status != SPLAT_OK;
    }
    print_message("%d Hopper kernels compiled\n", count);
    assert_true(count > 0);
    assert_int_equal(failed, 0);
}

static void sums_compile(void **state)
{
    (void)state;
    int version;
    if (sp_nvrtc_version(&version) != SPLAT_OK)
        skip();
    for (int dtype = 0; dtype < 3; dtype++) {
        struct sp_source source;
        struct sp_image image = {0};
        OK(sp_kron_sum_source_make((enum splat_dtype)dtype, &source));
        OK(sp_nvrtc_compile(&source, SPLAT_ARCH_SM80, &image));
        sp_source_free(&source);
        sp_image_free(&image);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_compile), cmocka_unit_test(hopper_kernels_compile),
                                       cmocka_unit_test(sums_compile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
