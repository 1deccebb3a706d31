/* splat_compile and splat_run refuse what they cannot do, with a sentence that names the argument, its value and
 * the limit, and touch no output when they do. */
#include "attention.h"

struct bench {
    splat_context *context;
    splat_mask *mask;
    splat_kernel *kernel;
    struct problem problem;
};

static int setup(void **state)
{
    struct bench *bench = need(sizeof *bench);
    struct rng rng = {1};
    bench->problem = (struct problem){
        .dtype = SPLAT_FP32, .batch = 2, .heads = 4, .kv_heads = 2, .q_len = 33, .kv_len = 65, .head_dim = 16};
    problem_fill(&bench->problem, &rng);
    bench->context = context_of(2);
    bench->mask = mask_of("causal", 33, 65, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options = problem_options(&bench->problem);
    OK(splat_compile(bench->context, bench->mask, &options, &bench->kernel));
    *state = bench;
    return 0;
}

static int teardown(void **state)
{
    struct bench *bench = *state;
    splat_kernel_destroy(bench->kernel);
    splat_context_destroy(bench->context);
    splat_mask_destroy(bench->mask);
    problem_free(&bench->problem);
    free(bench);
    return 0;
}

static void untouched(const struct problem *p)
{
    for (size_t k = 0; k < p->o_size * element_size(p->dtype); k++)
        assert_int_equal(((uint8_t *)p->o)[k], POISON);
    for (size_t k = 0; k < p->lse_count * 4; k++)
        assert_int_equal(((uint8_t *)p->lse)[k], POISON);
}

/* Breaks one field of sound arguments; the words must be in the sentence. */
#define BREAK(change, ...)                                                                                         \
    do {                                                                                                           \
        problem_poison(&bench->problem);                                                                           \
        splat_attention_args args = problem_args(&bench->problem);                                                 \
        change;                                                                                                    \
        check_refused(#change, splat_run(bench->kernel, &args, NULL), SPLAT_INVALID, __VA_ARGS__,                  \
                      (const char *)NULL);                                                                         \
        untouched(&bench->problem);                                                                                \
    } while (0)

static void sound_arguments_run(void **state)
{
    struct bench *bench = *state;
    splat_attention_args args = problem_args(&bench->problem);
    OK(splat_run(bench->kernel, &args, NULL)); /* so that the refusals below are for what they break */
    problem_poison(&bench->problem);
    untouched(&bench->problem);
}

static void lengths_must_be_the_masks(void **state)
{
    struct bench *bench = *state;
    BREAK(args.q_len = 34, "q_len", "34", "33");
    BREAK(args.kv_len = 64, "kv_len", "64", "65");
    BREAK(args.q_len = 0, "q_len", "0", "33");
    BREAK(args.kv_len = -65, "kv_len", "-65", "65");
}

static void counts_are_checked(void **state)
{
    struct bench *bench = *state;
    BREAK(args.batch = 0, "batch", "0");
    BREAK(args.batch = -2, "batch", "-2");
    BREAK(args.heads = 0, "heads", "0");
    BREAK(args.heads = -4, "heads", "-4");
    BREAK(args.kv_heads = -1, "kv_heads", "-1");
    BREAK(args.kv_heads = 3, "heads", "4", "3");
    BREAK(args.kv_heads = 8, "heads", "4", "8");
}

static void pointers_are_checked(void **state)
{
    struct bench *bench = *state;
    BREAK(args.q.data = NULL, "q");
    BREAK(args.k.data = NULL, "k");
    BREAK(args.v.data = NULL, "v");
    BREAK(args.o.data = NULL, "o");
    BREAK(args.q.data = (char *)args.q.data + 1, "q", "align");
    BREAK(args.o.data = (char *)args.o.data + 2, "o", "align");
    BREAK(args.lse = (float *)((uintptr_t)args.lse + 1), "lse", "align");
    REFUSED(splat_run(NULL, NULL, NULL), SPLAT_INVALID, "kernel");
    REFUSED(splat_run(bench->kernel, NULL, NULL), SPLAT_INVALID, "args");
    splat_attention_args args = problem_args(&bench->problem);
    int stream;
    REFUSED(splat_run(bench->kernel, &args, &stream), SPLAT_INVALID, "stream");
    args.struct_size = 3;
    REFUSED(splat_run(bench->kernel, &args, NULL), SPLAT_INVALID, "struct_size", "3");
    untouched(&bench->problem);
}

static void strides_are_checked(void **state)
{
    struct bench *bench = *state;
    BREAK(args.q.row_stride = -16, "q", "row_stride", "-16");
    BREAK(args.k.head_stride = -1, "k", "head_stride", "-1");
    BREAK(args.v.batch_stride = -8, "v", "batch_stride", "-8");
    BREAK(args.o.row_stride = -16, "o", "row_stride", "-16");
    BREAK(args.o.row_stride = 8, "o", "row_stride", "8", "16");    /* rows of o would overlap */
    BREAK(args.o.head_stride = args.o.row_stride, "o", "overlap"); /* row 1 of a head is row 0 of the next */
    BREAK(args.lse_batch_stride = args.lse_head_stride, "lse", "overlap");
    BREAK(args.lse_batch_stride = -1, "lse_batch_stride", "-1");
    BREAK(args.lse_head_stride = -1, "lse_head_stride", "-1");
}

static void scales_are_checked(void **state)
{
    struct bench *bench = *state;
    BREAK(args.scale = -1.0f, "scale", "-1");
    BREAK(args.scale = (float)NAN, "scale", "nan");
    BREAK(args.scale = (float)INFINITY, "scale", "inf");
}

static void other_lengths_need_another_kernel(void **state)
{
    struct bench *bench = *state;
    splat_attention_args args = problem_args(&bench->problem);
    args.batch = 1; /* another batch size does not */
    args.heads = 2;
    args.kv_heads = 1;
    OK(splat_run(bench->kernel, &args, NULL));
    problem_poison(&bench->problem);
}

static int refuse_text(const char *text, size_t size, void *user)
{
    (void)text, (void)size, (void)user;
    fail_msg("text was written");
    return 1;
}

static void maps_fix_batch_and_heads(void **state)
{
    struct bench *bench = *state;
    splat_mask *other = mask_of("full", 33, 65, SPLAT_ALIGN_BOTTOM_RIGHT), *map = NULL;
    splat_mask *masks[8] = {bench->mask, other, bench->mask, other, bench->mask, other, bench->mask, bench->mask};
    OK(splat_mask_map(masks, 2, 4, &map));
    splat_options options = problem_options(&bench->problem);
    splat_kernel *kernel = NULL;
    OK(splat_compile(bench->context, map, &options, &kernel));
    splat_attention_args args = problem_args(&bench->problem);
    OK(splat_run(kernel, &args, NULL));
    problem_poison(&bench->problem);
    args.batch = 1;
    REFUSED(splat_run(kernel, &args, NULL), SPLAT_INVALID, "batch", "1", "2");
    args.batch = 2;
    args.heads = 2;
    REFUSED(splat_run(kernel, &args, NULL), SPLAT_INVALID, "heads", "2", "4");
    untouched(&bench->problem);
    splat_kernel_destroy(kernel);
    splat_mask_destroy(map);
    splat_mask_destroy(other);

    /* also where the masks of the map are all equal */
    for (int k = 0; k < 8; k++)
        masks[k] = bench->mask;
    OK(splat_mask_map(masks, 2, 4, &map));
    OK(splat_compile(bench->context, map, &options, &kernel));
    args = problem_args(&bench->problem);
    OK(splat_run(kernel, &args, NULL));
    problem_poison(&bench->problem);
    args.heads = 2;
    REFUSED(splat_run(kernel, &args, NULL), SPLAT_INVALID, "heads", "2", "4");
    untouched(&bench->problem);
    splat_kernel_destroy(kernel);
    splat_mask_destroy(map);
}

/* One rule for every struct: a size that this library's _init functions do not set is refused. */
static void struct_sizes_must_be_the_librarys(void **state)
{
    struct bench *bench = *state;
    const int off[] = {-8, 8, 4096};
    for (int k = 0; k < 3; k++) {
        splat_kernel *kernel = NULL;
        splat_plan *plan = NULL;
        splat_context *context = NULL;
        splat_options options = problem_options(&bench->problem);
        splat_context_options context_options;
        splat_plan_info plan_info;
        splat_compile_info compile_info;
        splat_cache_info cache_info;
        splat_attention_args args = problem_args(&bench->problem);
        splat_context_options_init(&context_options);
        splat_plan_info_init(&plan_info);
        splat_compile_info_init(&compile_info);
        splat_cache_info_init(&cache_info);
#define OFF(what, init, call)                                                                                      \
    do {                                                                                                           \
        (what).struct_size += (size_t)off[k];                                                                      \
        REFUSED(call, SPLAT_INVALID, "struct_size", init, SPLAT_VERSION);                                          \
        (what).struct_size -= (size_t)off[k];                                                                      \
    } while (0)
        OFF(options, "splat_options_init", splat_plan_create(bench->mask, &options, &plan));
        OFF(options, "splat_options_init", splat_compile(bench->context, bench->mask, &options, &kernel));
        OFF(options, "splat_options_init",
            splat_compile_to_cache(bench->context, bench->mask, &options, &compile_info));
        OFF(options, "splat_options_init", splat_dump(bench->mask, &options, SPLAT_STAGE_PLAN, refuse_text, NULL));
        OFF(compile_info, "splat_compile_info_init",
            splat_compile_to_cache(bench->context, bench->mask, &options, &compile_info));
        OFF(compile_info, "splat_compile_info_init", splat_kernel_get_info(bench->kernel, &compile_info));
        OFF(plan_info, "splat_plan_info_init", splat_plan_get_info(splat_kernel_plan(bench->kernel), &plan_info));
        OFF(cache_info, "splat_cache_info_init", splat_cache_stat(bench->context, &cache_info));
        OFF(cache_info, "splat_cache_info_init", splat_cache_clear(bench->context, &cache_info));
        OFF(context_options, "splat_context_options_init", splat_context_create(&context_options, &context));
        problem_poison(&bench->problem);
        OFF(args, "splat_attention_args_init", splat_run(bench->kernel, &args, NULL));
#undef OFF
        untouched(&bench->problem);
        assert_null(kernel);
        assert_null(plan);
        assert_null(context);
    }
}

static void compile_checks_its_arguments(void **state)
{
    struct bench *bench = *state;
    splat_options options = problem_options(&bench->problem), sound = options;
    splat_kernel *kernel = NULL;
    REFUSED(splat_compile(NULL, bench->mask, &options, &kernel), SPLAT_INVALID, "context");
    REFUSED(splat_compile(bench->context, NULL, &options, &kernel), SPLAT_INVALID, "mask");
    REFUSED(splat_compile(bench->context, bench->mask, NULL, &kernel), SPLAT_INVALID, "options");
    REFUSED(splat_compile(bench->context, bench->mask, &options, NULL), SPLAT_INVALID, "kernel");
    options.head_dim = 20;
    REFUSED(splat_compile(bench->context, bench->mask, &options, &kernel), SPLAT_INVALID, "head_dim", "20", "256");
    options = sound;
    options.value_dim = 264;
    REFUSED(splat_compile(bench->context, bench->mask, &options, &kernel), SPLAT_INVALID, "value_dim", "264",
            "256");
    options = sound;
    options.dtype = (enum splat_dtype)7;
    REFUSED(splat_compile(bench->context, bench->mask, &options, &kernel), SPLAT_INVALID, "dtype", "7");
    options = sound;
    options.device = (enum splat_device)7;
    REFUSED(splat_compile(bench->context, bench->mask, &options, &kernel), SPLAT_INVALID, "device", "7");
    options = sound;
    options.tile_rows = 3;
    options.tile_cols = 5;
    REFUSED(splat_compile(bench->context, bench->mask, &options, &kernel), SPLAT_UNSUPPORTED, "3", "5");
    assert_null(kernel);
}

static void fp32_on_the_gpu_is_refused(void **state)
{
    struct bench *bench = *state;
    splat_options options = problem_options(&bench->problem);
    splat_kernel *kernel = NULL;
    options.device = SPLAT_DEVICE_GPU;
    enum splat_status status = splat_compile(bench->context, bench->mask, &options, &kernel);
    check_refused("fp32 on the GPU", status, status == SPLAT_NO_DEVICE ? SPLAT_NO_DEVICE : SPLAT_UNSUPPORTED,
                  (const char *)NULL);
    if (status == SPLAT_UNSUPPORTED && !strstr(splat_last_error(), "fp32"))
        FAIL("the sentence \"%s\" does not name fp32", splat_last_error());
    assert_null(kernel);
}

static void a_machine_without_a_gpu_says_so(void **state)
{
    struct bench *bench = *state;
    int capability = 0;
    char name[64] = "";
    if (splat_device_query(name, sizeof name, &capability) == SPLAT_OK) {
        assert_true(strlen(name) > 0 && capability >= 50);
        return;
    }
    assert_true(strlen(splat_last_error()) > 0);
    splat_options options = problem_options(&bench->problem);
    splat_kernel *kernel = NULL;
    options.dtype = SPLAT_FP16;
    options.device = SPLAT_DEVICE_GPU;
    check_refused("a GPU kernel here", splat_compile(bench->context, bench->mask, &options, &kernel),
                  SPLAT_NO_DEVICE, (const char *)NULL);
    options.device = SPLAT_DEVICE_AUTO; /* and auto falls back to the CPU */
    OK(splat_compile(bench->context, bench->mask, &options, &kernel));
    assert_int_equal(splat_kernel_device(kernel), SPLAT_DEVICE_CPU);
    splat_kernel_destroy(kernel);
}

static void a_short_workspace_is_refused(void **state)
{
    struct bench *bench = *state;
    size_t bytes = 1;
    OK(splat_workspace_bytes(bench->kernel, 2, 4, &bytes));
    REFUSED(splat_workspace_bytes(NULL, 2, 4, &bytes), SPLAT_INVALID, "kernel");
    REFUSED(splat_workspace_bytes(bench->kernel, 0, 4, &bytes), SPLAT_INVALID, "batch", "0");
    REFUSED(splat_workspace_bytes(bench->kernel, 2, -4, &bytes), SPLAT_INVALID, "heads", "-4");
    REFUSED(splat_workspace_bytes(bench->kernel, 2, 4, NULL), SPLAT_INVALID, "bytes");
    if (bytes > 0)
        BREAK(args.workspace = NULL, "workspace");
}

static void repeats_return_the_same_kernel(void **state)
{
    struct bench *bench = *state;
    splat_options options = problem_options(&bench->problem);
    splat_kernel *again = NULL, *other = NULL, *third = NULL;
    splat_mask *same = mask_of("  causal ", 33, 65, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_mask *moved = mask_of("causal", 33, 65, SPLAT_ALIGN_TOP_LEFT);
    OK(splat_compile(bench->context, same, &options, &again));
    assert_ptr_equal(again, bench->kernel);
    OK(splat_compile(bench->context, moved, &options, &other)); /* alignment is part of what the text means */
    assert_ptr_not_equal(other, bench->kernel);
    options.dtype = SPLAT_FP16;
    OK(splat_compile(bench->context, same, &options, &third));
    assert_ptr_not_equal(third, bench->kernel);
    splat_kernel_destroy(again);
    splat_kernel_destroy(other);
    splat_kernel_destroy(third);
    splat_mask_destroy(same);
    splat_mask_destroy(moved);
    splat_attention_args args = problem_args(&bench->problem); /* the first handle lives on */
    OK(splat_run(bench->kernel, &args, NULL));
    problem_poison(&bench->problem);
}

static void nearly_equal_masks_get_their_own_kernels(void **state)
{
    struct bench *bench = *state;
    struct rng rng = {3};
    struct dense dense = dense_new(33, 400);
    splat_options options = problem_options(&bench->problem);
    splat_kernel *kernels[3];
    for (int64_t at = 0; at < 33 * 400; at++)
        dense.bytes[at] = (uint8_t)(rng_next(&rng) >> 63);
    for (int k = 0; k < 3; k++) { /* the first, one that differs in one pair, the first again */
        dense.bytes[5000] ^= k > 0;
        splat_mask *mask = mask_from_dense(&dense);
        OK(splat_compile(bench->context, mask, &options, &kernels[k]));
        splat_mask_destroy(mask);
    }
    assert_ptr_not_equal(kernels[0], kernels[1]);
    assert_ptr_equal(kernels[0], kernels[2]);
    for (int k = 0; k < 3; k++)
        splat_kernel_destroy(kernels[k]);
    dense_free(&dense);
}

static void context_options_are_checked(void **state)
{
    (void)state;
    splat_context_options options;
    splat_context *context = NULL;
#define BAD(field, value, ...)                                                                                     \
    splat_context_options_init(&options);                                                                          \
    options.field = value;                                                                                         \
    REFUSED(splat_context_create(&options, &context), SPLAT_INVALID, #field, __VA_ARGS__)
    BAD(threads, -1, "-1");
    BAD(cache_max_bytes, -5, "-5");
    BAD(cache_mode, (enum splat_cache_mode)9, "9");
    BAD(struct_size, 1, "1");
#undef BAD
    REFUSED(splat_context_create(NULL, NULL), SPLAT_INVALID, "context");
    assert_null(context);
    OK(splat_context_create(NULL, &context));
    splat_context_destroy(context);
    splat_context_destroy(NULL);
    splat_kernel_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_arguments_run),
        cmocka_unit_test(lengths_must_be_the_masks),
        cmocka_unit_test(counts_are_checked),
        cmocka_unit_test(pointers_are_checked),
        cmocka_unit_test(strides_are_checked),
        cmocka_unit_test(scales_are_checked),
        cmocka_unit_test(other_lengths_need_another_kernel),
        cmocka_unit_test(maps_fix_batch_and_heads),
        cmocka_unit_test(struct_sizes_must_be_the_librarys),
        cmocka_unit_test(compile_checks_its_arguments),
        cmocka_unit_test(fp32_on_the_gpu_is_refused),
        cmocka_unit_test(a_machine_without_a_gpu_says_so),
        cmocka_unit_test(a_short_workspace_is_refused),
        cmocka_unit_test(repeats_return_the_same_kernel),
        cmocka_unit_test(nearly_equal_masks_get_their_own_kernels),
        cmocka_unit_test(context_options_are_checked),
    };
    return cmocka_run_group_tests_name("run refusals", tests, setup, teardown);
}
