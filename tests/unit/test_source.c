/* Generated CUDA: a pure function of the spec, stable text, and kernels that compile without spills within the
 * limits of their chip (where NVRTC is on the machine).
 *
 * The golden text is tests/golden/attention_sm80_fp16_d64.cu. After a wanted change of a template, write it anew
 * with SPLAT_REGENERATE=1 build/tests/unit/test_source and read the difference before committing it.
 */
#include <unistd.h>

#include "brute.h"

#include "codegen/spec.h"

static splat_options options_of(enum splat_dtype dtype, enum splat_arch arch, int64_t head_dim)
{
    splat_options options;
    splat_options_init(&options);
    options.dtype = dtype;
    options.arch = arch;
    options.head_dim = head_dim;
    options.heads = 256; /* enough to do: no row tile is split */
    return options;
}

/* Masks that need different predicates; AFFINE is a map that needs every one that is a matter of bounds, MIXED a
 * map that needs every one there is; PARTS wants views, launches that merge and row tiles in parts. */
enum kind { NO_PREDICATE, ONE_SIDED, TWO_SIDED, IRREGULAR, PARTS, AFFINE, MIXED, KINDS };

static splat_mask *irregular_mask(void)
{
    struct rng rng = {1};
    struct dense dense = dense_new(512, 512);
    for (int64_t at = 0; at < 512 * 512; at++)
        dense.bytes[at] = rng_between(&rng, 0, 9) == 0;
    splat_mask *mask = mask_from_dense(&dense);
    dense_free(&dense);
    return mask;
}

static splat_mask *mask_of_kind(enum kind kind)
{
    static const char *const expressions[] = {"full", "causal", "window(77)"};
    if (kind < IRREGULAR)
        return mask_of(expressions[kind], 512, 512, SPLAT_ALIGN_BOTTOM_RIGHT);
    if (kind == IRREGULAR)
        return irregular_mask();
    if (kind == PARTS)
        return mask_of("window(30) | strided(2)", 6000, 6000, SPLAT_ALIGN_BOTTOM_RIGHT);
    static const char *const mixed[] = {"causal", "~causal", "window(9)", "documents(100, 57, 300, 55)",
                                        "strided(3)"};
    const int count = kind == AFFINE ? 3 : 6;
    const int64_t length = kind == AFFINE ? 1920 : 512; /* of whole tiles: a window cut short is more than bounds */
    splat_mask *masks[6], *map = NULL;
    for (int k = 0; k < count; k++)
        masks[k] = k < 5 ? mask_of(mixed[k], length, length, SPLAT_ALIGN_BOTTOM_RIGHT) : irregular_mask();
    OK(splat_mask_map(masks, 1, count, &map));
    for (int k = 0; k < count; k++)
        splat_mask_destroy(masks[k]);
    return map;
}

/* ---- The text ---- */

static void make_source(enum kind kind, const splat_options *options, struct sp_spec *spec,
                        struct sp_source *source)
{
    splat_mask *mask = mask_of_kind(kind);
    splat_plan *plan = NULL;
    OK(splat_plan_create(mask, options, &plan));
    OK(sp_spec_make(plan, options, options->arch, spec));
    OK(sp_source_make(spec, source));
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
}

static void the_same_spec_gives_the_same_text(void **state)
{
    (void)state;
    for (int turn = 0; turn < 2 * KINDS; turn++) {
        enum kind kind = (enum kind)(turn / 2);
        struct sp_spec a, b;
        struct sp_source first, second;
        splat_options options = options_of(SPLAT_BF16, turn % 2 ? SPLAT_ARCH_SM90A : SPLAT_ARCH_SM80, 128);
        make_source(kind, &options, &a, &first);
        setenv("SPLAT_CACHE_DIR", "/nowhere", 1);
        setenv("LC_ALL", "de_DE.UTF-8", 1);
        assert_int_equal(chdir("/"), 0);
        make_source(kind, &options, &b, &second);
        unsetenv("SPLAT_CACHE_DIR");
        unsetenv("LC_ALL");
        assert_memory_equal(&a, &b, sizeof a);
        assert_int_equal(first.text.size, second.text.size);
        assert_memory_equal(first.text.text, second.text.text, first.text.size);
        assert_string_equal(first.entry, second.entry);
        assert_true(strlen(first.text.text) == first.text.size);
        sp_source_free(&first);
        sp_source_free(&second);
    }
}

static void every_field_of_the_spec_shows(void **state)
{
    (void)state;
    struct sp_spec base, changed[16];
    struct sp_source first;
    splat_options options = options_of(SPLAT_BF16, SPLAT_ARCH_SM80, 64);
    make_source(TWO_SIDED, &options, &base, &first);
    int n = 0;
#define CHANGE(assignment)                                                                                         \
    changed[n] = base;                                                                                             \
    changed[n++].assignment
    CHANGE(dtype = SPLAT_FP16);
    CHANGE(arch = SPLAT_ARCH_SM90A);
    CHANGE(head_dim = 72);
    CHANGE(value_dim = 48);
    CHANGE(tile_cols = base.tile_cols == 64 ? 32 : 64);
    CHANGE(blocks_per_sm = base.blocks_per_sm + 1);
    CHANGE(mask_map = !base.mask_map);
    CHANGE(lattice = 1);
    CHANGE(merge = 1);
    CHANGE(fold = 1);
    CHANGE(split = 1);
    CHANGE(predicate_mask = base.predicate_mask | 1u << SP_PRED_BITS);
    CHANGE(predicate_mask = base.predicate_mask | 1u << SP_PRED_TABLE);
#undef CHANGE
    for (int k = 0; k < n; k++) {
        struct sp_source other;
        OK(sp_source_make(&changed[k], &other));
        if (strcmp(first.text.text, other.text.text) == 0)
            FAIL("change %d of the spec does not change the text", k);
        for (int before = 0; before < k; before++) {
            struct sp_source earlier;
            OK(sp_source_make(&changed[before], &earlier));
            if (strcmp(earlier.text.text, other.text.text) == 0)
                FAIL("changes %d and %d of the spec give one text", before, k);
            sp_source_free(&earlier);
        }
        sp_source_free(&other);
    }
    sp_source_free(&first);
}

static void the_text_opens_with_what_it_serves(void **state)
{
    (void)state;
    struct sp_spec spec;
    struct sp_source source;
    splat_options options = options_of(SPLAT_FP16, SPLAT_ARCH_SM90A, 40);
    options.value_dim = 72;
    make_source(TWO_SIDED, &options, &spec, &source);
    char tile[64], entry[80];
    snprintf(tile, sizeof tile, "%d queries x %d keys", spec.tile_rows, spec.tile_cols);
    snprintf(entry, sizeof entry, "%s(", source.entry);
    const char *const words[] = {"fp16",   "head dim 40",  "value dim 72", tile,
                                 "sm_90a", "extern \"C\"", "__global__",   entry};
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
        if (!strstr(source.text.text, words[k]))
            FAIL("the source does not hold \"%s\"", words[k]);
    assert_null(strstr(source.text.text, "\n#include"));         /* one flat text */
    assert_null(strstr(source.text.text, "\n// splat:region(")); /* nothing unfilled */
    assert_true(source.threads == 32 * spec.warps && source.shared_bytes > 0);
    sp_source_free(&source);
}

static void lengths_batch_and_heads_never_reach_the_spec(void **state)
{
    (void)state;
    struct sp_spec specs[3];
    static const int64_t lengths[] = {2048, 4096, 1048576};
    for (int k = 0; k < 3; k++) {
        splat_mask *mask = mask_of("window(256)", lengths[k], lengths[k], SPLAT_ALIGN_BOTTOM_RIGHT);
        splat_options options = options_of(SPLAT_BF16, SPLAT_ARCH_SM80, 64);
        options.tile_rows = options.tile_cols = 64; /* the choice of a shape may follow the length */
        options.heads = 256 + k;
        splat_plan *plan = NULL;
        OK(splat_plan_create(mask, &options, &plan));
        OK(sp_spec_make(plan, &options, SPLAT_ARCH_SM80, &specs[k]));
        splat_plan_destroy(plan);
        splat_mask_destroy(mask);
        assert_memory_equal(&specs[0], &specs[k], sizeof specs[0]);
    }
}

static void fp32_has_no_kernel(void **state)
{
    (void)state;
    splat_mask *mask = mask_of("full", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options = options_of(SPLAT_FP32, SPLAT_ARCH_SM80, 64);
    splat_plan *plan = NULL;
    struct sp_spec spec;
    OK(splat_plan_create(mask, &options, &plan));
    REFUSED(sp_spec_make(plan, &options, SPLAT_ARCH_SM80, &spec), SPLAT_UNSUPPORTED, "fp32");
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
}

/* ---- The golden text ---- */

static const char *golden_path(void)
{
    static char path[4096];
    const char *file = __FILE__, *slash = strrchr(file, '/');
    snprintf(path, sizeof path, "%.*s/../golden/attention_sm80_fp16_d64.cu", slash ? (int)(slash - file) : 1,
             slash ? file : ".");
    return path;
}

static char start_folder[4096]; /* the tests above change it */

static void the_text_is_the_golden_one(void **state)
{
    (void)state;
    struct sp_spec spec = {.arch = SPLAT_ARCH_SM80,
                           .dtype = SPLAT_FP16,
                           .head_dim = 64,
                           .value_dim = 64,
                           .tile_rows = 64,
                           .tile_cols = 64,
                           .warps = 4,
                           .blocks_per_sm = 2,
                           .predicate_mask = 1u << SP_PRED_UPPER,
                           .mask_map = 0};
    struct sp_source source;
    OK(sp_source_make(&spec, &source));
    assert_int_equal(chdir(start_folder), 0);
    if (getenv("SPLAT_REGENERATE")) {
        FILE *out = fopen(golden_path(), "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(source.text.text, 1, source.text.size, out), source.text.size);
        assert_int_equal(fclose(out), 0);
    }
    FILE *in = fopen(golden_path(), "rb");
    if (!in)
        FAIL("%s is not there: run the tests from the folder they were built in", golden_path());
    char *want = need(1 << 20);
    size_t size = fread(want, 1, (1 << 20) - 1, in), line = 1;
    want[size] = 0;
    fclose(in);
    for (size_t at = 0; at < size || at < source.text.size; at++) {
        if (want[at] != source.text.text[at])
            FAIL("line %zu of the generated source differs from %s: if that is wanted, write it anew with "
                 "SPLAT_REGENERATE=1 and read the difference",
                 line, golden_path());
        line += want[at] == '\n';
    }
    free(want);
    sp_source_free(&source);
}

/* ---- Compiled ---- */

struct compiler {
    splat_context *context;
    char folder[64];
    int missing;
    int built;
};

static int compiler_start(void **state)
{
    struct compiler *compiler = need(sizeof *compiler);
    memset(compiler, 0, sizeof *compiler);
    strcpy(compiler->folder, "/tmp/splat_test_source_XXXXXX");
    assert_non_null(mkdtemp(compiler->folder));
    splat_context_options options;
    splat_context_options_init(&options);
    options.cache_mode = SPLAT_CACHE_ON;
    options.cache_dir = compiler->folder;
    OK(splat_context_create(&options, &compiler->context));
    *state = compiler;
    return 0;
}

static int compiler_stop(void **state)
{
    struct compiler *compiler = *state;
    splat_cache_info info;
    splat_cache_info_init(&info);
    OK(splat_cache_clear(compiler->context, &info));
    splat_context_destroy(compiler->context);
    assert_int_equal(rmdir(compiler->folder), 0); /* and nothing is left behind */
    free(compiler);
    return 0;
}

/* Compiles; checks registers, spills and shared memory. Skips the test where there is no NVRTC. */
static void build(struct compiler *compiler, enum kind kind, const splat_options *options)
{
    splat_mask *mask = mask_of_kind(kind);
    splat_compile_info info;
    splat_compile_info_init(&info);
    if (kind == PARTS) {
        splat_plan *plan = NULL;
        OK(splat_plan_create(mask, options, &plan));
        assert_true(plan->split_count > 0 || options->head_dim > 192);
        assert_true(plan->launch_count > 1);
        splat_plan_destroy(plan);
    }
    if (kind >= AFFINE) { /* truly every one */
        const uint32_t last = kind == AFFINE ? SP_PRED_BOUNDS : SP_PRED_COUNT - 1;
        splat_plan *plan = NULL;
        OK(splat_plan_create(mask, options, &plan));
        assert_int_equal(plan->predicate_mask & ~1u, (2u << last) - 2);
        splat_plan_destroy(plan);
    }
    enum splat_status status = splat_compile_to_cache(compiler->context, mask, options, &info);
    splat_mask_destroy(mask);
    if (status == SPLAT_NO_DEVICE) {
        print_message("skipped: %s\n", splat_last_error());
        skip();
    }
    char what[160];
    snprintf(what, sizeof what, "kind %d, type %d, sm_%d, D %lld/%lld, tile %lldx%lld", kind, options->dtype,
             options->arch, (long long)options->head_dim, (long long)options->value_dim,
             (long long)options->tile_rows, (long long)options->tile_cols);
    if (status != SPLAT_OK)
        FAIL("%s: %s: %s", what, splat_status_name(status), splat_last_error());
    int shared_limit = options->arch == SPLAT_ARCH_SM80 ? 163 * 1024 : 227 * 1024;
    if (info.spill_bytes != 0 || info.registers < 16 || info.registers > 255 || info.shared_bytes > shared_limit ||
        info.shared_bytes <= 0 || info.cubin_bytes <= 0)
        FAIL("%s: %d registers, %d bytes spilled, %d bytes of shared memory, %lld bytes of cubin", what,
             info.registers, info.spill_bytes, info.shared_bytes, (long long)info.cubin_bytes);
    compiler->built++;
}

/* Head dims that are no tune row's, in the tiles that the planner chooses; the test below has the others. */
static void head_dims_compile(void **state)
{
    static const int64_t dims[] = {40, 72};
    static const enum kind kinds[] = {NO_PREDICATE, ONE_SIDED, IRREGULAR, TWO_SIDED};
    static const enum splat_arch archs[] = {SPLAT_ARCH_SM80, SPLAT_ARCH_SM90A};
    int turn = 0;
    for (int d = 0; d < 2; d++)
        for (int a = 0; a < 2; a++) {
            splat_options options = options_of((d + a) % 2 ? SPLAT_FP16 : SPLAT_BF16, archs[a], dims[d]);
            build(*state, kinds[turn++], &options);
        }
}

/* The worst case of every tile shape, once: all predicates that its row is for, the widest head dim; a map, or, for
 * Hopper kernels, whose registers are scarcer, views, merging and parts. The type alternates from row to row. */
static void every_tile_shape_compiles_with_all_predicates(void **state)
{
    static const enum splat_arch archs[] = {SPLAT_ARCH_SM80, SPLAT_ARCH_SM90A};
    for (int a = 0; a < 2; a++) {
        const struct sp_tune_table *table = sp_tune_table_for(archs[a]);
        for (int row = 0; row < table->row_count; row++) {
            splat_options options =
                options_of((enum splat_dtype)((row + a) % 2), archs[a], table->rows[row].max_dim);
            options.tile_rows = table->rows[row].rows;
            options.tile_cols = table->rows[row].cols;
            const int affine = table->rows[row].use == SP_USE_AFFINE,
                      parts = table->rows[row].family == SP_FAMILY_HOPPER && !affine;
            options.layout = parts ? 3 : 0;
            options.heads = parts ? 1 : options.heads;
            build(*state, parts ? PARTS : affine ? AFFINE : MIXED, &options);
        }
    }
}

static void unequal_dims_compile(void **state)
{
    static const int64_t pairs[][2] = {{8, 256}, {256, 8}, {192, 128}, {8, 8}};
    for (int k = 0; k < 4; k++) {
        splat_options options = options_of(SPLAT_BF16, SPLAT_ARCH_SM80, pairs[k][0]);
        options.value_dim = pairs[k][1];
        build(*state, MIXED, &options);
    }
}

static int append_text(const char *text, size_t size, void *user)
{
    sp_strbuf_add(user, text, size);
    return 0;
}

static void ptx_and_log_are_there(void **state)
{
    (void)state;
    static const enum splat_stage stages[] = {SPLAT_STAGE_PTX, SPLAT_STAGE_LOG};
    splat_options options = options_of(SPLAT_FP16, SPLAT_ARCH_SM80, 64);
    splat_mask *mask = mask_of_kind(ONE_SIDED);
    for (int k = 0; k < 2; k++) {
        struct sp_strbuf text = SP_STRBUF_INIT;
        enum splat_status status = splat_dump(mask, &options, stages[k], append_text, &text);
        if (status == SPLAT_NO_DEVICE) {
            splat_mask_destroy(mask);
            skip();
        }
        OK(status);
        if (k == 0)
            assert_non_null(strstr(text.text, "mma.sync.aligned.m16n8k16"));
        sp_strbuf_free(&text);
    }
    splat_mask_destroy(mask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_spec_gives_the_same_text),
        cmocka_unit_test(every_field_of_the_spec_shows),
        cmocka_unit_test(the_text_opens_with_what_it_serves),
        cmocka_unit_test(lengths_batch_and_heads_never_reach_the_spec),
        cmocka_unit_test(fp32_has_no_kernel),
        cmocka_unit_test(the_text_is_the_golden_one),
        cmocka_unit_test(head_dims_compile),
        cmocka_unit_test(every_tile_shape_compiles_with_all_predicates),
        cmocka_unit_test(unequal_dims_compile),
        cmocka_unit_test(ptx_and_log_are_there),
    };
    if (!getcwd(start_folder, sizeof start_folder))
        return 1;
    return cmocka_run_group_tests_name("source", tests, compiler_start, compiler_stop);
}
