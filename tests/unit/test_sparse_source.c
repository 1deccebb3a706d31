/* Generated CUDA of the operators on values: stable text, every shape within its chip's limits and without spills
 * (where NVRTC is on the machine). */
#include <unistd.h>

#include "analysis/plan.h"
#include "codegen/spec.h"
#include "support.h"

static const char *const op_names[] = {"attention", "sddmm", "softmax", "spmm", "spmm_transposed"};

static splat_options options_of(enum splat_op op, enum splat_dtype dtype, enum splat_arch arch, int64_t dim)
{
    splat_options options;
    splat_options_init(&options);
    options.op = op;
    options.dtype = dtype;
    options.arch = arch;
    options.head_dim = dim;
    return options;
}

/* Needs every predicate, and a map. */
static splat_mask *mixed_mask(void)
{
    static const char *const mixed[] = {"causal", "~causal", "window(9)", "documents(100, 57, 300, 55)",
                                        "strided(3)"};
    splat_mask *masks[6], *map = NULL;
    struct rng rng = {1};
    uint8_t *bytes = need(512 * 512);
    for (int k = 0; k < 5; k++)
        masks[k] = mask_of(mixed[k], 512, 512, SPLAT_ALIGN_BOTTOM_RIGHT);
    for (int64_t at = 0; at < 512 * 512; at++)
        bytes[at] = rng_between(&rng, 0, 9) == 0;
    OK(splat_mask_from_bytes(bytes, 512, 512, 512, &masks[5]));
    free(bytes);
    OK(splat_mask_map(masks, 1, 6, &map));
    for (int k = 0; k < 6; k++)
        splat_mask_destroy(masks[k]);
    return map;
}

static void every_shape_compiles_without_spills(void **state)
{
    (void)state;
    static const enum splat_arch archs[] = {SPLAT_ARCH_SM80, SPLAT_ARCH_SM90A};
    char folder[] = "/tmp/splat_test_sparse_XXXXXX";
    assert_non_null(mkdtemp(folder));
    splat_context_options given;
    splat_context_options_init(&given);
    given.cache_mode = SPLAT_CACHE_ON;
    given.cache_dir = folder;
    splat_context *context = NULL;
    OK(splat_context_create(&given, &context));
    splat_mask *views = mask_of("dilated(60, 3)", 512, 512, SPLAT_ALIGN_BOTTOM_RIGHT), *mixed = mixed_mask();
    int skipped = 0, failed = 0;
    for (int op = SPLAT_OP_SDDMM; op <= SPLAT_OP_SPMM_TRANSPOSED && !skipped; op++)
        for (int a = 0; a < 2 && !skipped; a++) {
            const struct sp_tune_table *table = sp_tune_table_of((enum splat_op)op, archs[a]);
            const int rows = op == SPLAT_OP_SOFTMAX ? 2 : table->row_count; /* it has no tiles */
            for (int row = a; row < rows && !skipped; row += 2) {
                /* By turns with views, and with a map and every predicate. */
                const int lattice = (row / 2 + a + op) % 2;
                splat_options options = options_of((enum splat_op)op, (enum splat_dtype)((row + a) % 2), archs[a],
                                                   table->rows[row].max_dim);
                options.tile_rows = table->rows[row].rows;
                options.tile_cols = table->rows[row].cols;
                options.layout = lattice ? 3 : 1;
                splat_compile_info info;
                splat_compile_info_init(&info);
                enum splat_status status =
                    splat_compile_to_cache(context, lattice ? views : mixed, &options, &info);
                skipped = status == SPLAT_NO_DEVICE;
                if (skipped)
                    continue;
                if (status != SPLAT_OK) {
                    print_error("%s, sm_%d, %s, D %d, %d x %d: %s\n", op_names[op], (int)archs[a],
                                lattice ? "views" : "map", table->rows[row].max_dim, table->rows[row].rows,
                                table->rows[row].cols, splat_last_error());
                    failed++;
                    continue;
                }
                if (info.spill_bytes != 0 || info.registers < 16 || info.cubin_bytes <= 0)
                    FAIL("%s, sm_%d, %s, D %d, %d x %d: %d registers, %d bytes spilled, %d of shared memory",
                         op_names[op], (int)archs[a], lattice ? "views" : "map", table->rows[row].max_dim,
                         table->rows[row].rows, table->rows[row].cols, info.registers, info.spill_bytes,
                         info.shared_bytes);
                if (getenv("SPLAT_VERBOSE"))
                    print_message("%s, sm_%d, %s, D %d, %d x %d: %d registers, %d of shared memory\n", op_names[op],
                                  (int)archs[a], lattice ? "views" : "map", table->rows[row].max_dim,
                                  table->rows[row].rows, table->rows[row].cols, info.registers, info.shared_bytes);
            }
        }
    splat_cache_info info;
    splat_cache_info_init(&info);
    OK(splat_cache_clear(context, &info));
    splat_context_destroy(context);
    assert_int_equal(rmdir(folder), 0);
    splat_mask_destroy(views);
    splat_mask_destroy(mixed);
    assert_int_equal(failed, 0);
    if (skipped) {
        print_message("skipped: %s\n", splat_last_error());
        skip();
    }
}

static struct sp_source source_of(enum splat_op op, const char *pattern, int64_t length, int64_t dim)
{
    struct sp_source source;
    struct sp_spec spec;
    splat_options options = options_of(op, SPLAT_FP16, SPLAT_ARCH_SM80, dim);
    options.tile_rows = 64, options.tile_cols = 64;
    splat_mask *mask = mask_of(pattern, length, length, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_plan *plan = NULL;
    OK(splat_plan_create(mask, &options, &plan));
    OK(sp_spec_make(plan, &options, SPLAT_ARCH_SM80, &spec));
    OK(sp_source_make(&spec, &source));
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
    return source;
}

/* The operator is in the text, lengths are not. */
static void texts_follow_the_operator_alone(void **state)
{
    (void)state;
    struct sp_source sources[SPLAT_OP_SPMM_TRANSPOSED + 1];
    for (int op = 0; op <= SPLAT_OP_SPMM_TRANSPOSED; op++) {
        struct sp_source other = source_of((enum splat_op)op, "window(70)", 4096, 64);
        sources[op] = source_of((enum splat_op)op, "window(70)", 2048, 64);
        assert_string_equal(sources[op].text.text, other.text.text);
        assert_null(strstr(sources[op].text.text, "\n#include"));
        assert_null(strstr(sources[op].text.text, "\n// splat:region("));
        for (int before = 0; before < op; before++)
            assert_string_not_equal(sources[before].text.text, sources[op].text.text);
        char entry[80];
        snprintf(entry, sizeof entry, " %s(const", sources[op].entry);
        assert_non_null(strstr(sources[op].text.text, entry));
        sp_source_free(&other);
    }
    for (int op = 0; op <= SPLAT_OP_SPMM_TRANSPOSED; op++)
        sp_source_free(&sources[op]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_follow_the_operator_alone),
        cmocka_unit_test(every_shape_compiles_without_spills),
    };
    return cmocka_run_group_tests_name("sparse source", tests, NULL, NULL);
}
