// The toolchain self-check (src/runtime/selfcheck.h) of right and of wrong kernels, in TAP.
//
// For every row of the tune tables and each set of predicates that its kernels are built with: the check passes on
// the generated text, and its masks have every predicate of the set, wholly allowed tiles and rows that see
// nothing. Likewise for kernels with maps, views and several launches, and for those whose heads share row tiles or whose row
// tiles come in parts. Of texts with a fault the check must say so.
//
//   run_selfcheck [WORD]     those with WORD in their names
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include <unistd.h>

#include "compile.h"
#include "driver.h"
#include "jobs.h"
#include "machine.h"

extern "C" {
#include "analysis/tune.h"
#include "runtime/selfcheck.h"
}

using namespace machine;

constexpr unsigned SECONDS = 600;
constexpr const char *AFFINE = "causal", *ALL = "strided(5)"; // masks whose kernels have the one set or the other

// A fault put into a text: after `where`, `from` becomes `to`.
struct Edit {
    const char *name, *where, *from, *to;
};

struct Kernel_case {
    std::string name;
    enum splat_arch arch;
    int tune_row, dim;
    enum splat_dtype dtype;
    const char *mask; // decides predicates, views and launches; two, for two heads, when it has a ';'
    int layout;
    const Edit *edit; // or nullptr
    int q_len = 256, kv_len = 256, heads = 2, kv_heads = 2, batch = 4096; // decide whether row tiles are shared or come in parts
    enum splat_op op = SPLAT_OP_ATTENTION;
    bool of_batches = false; // the two masks are for two batches
};

static void need(enum splat_status status, const Kernel_case &given)
{
    if (status == SPLAT_OK)
        return;
    printf("%s: %s: %s\n", given.name.c_str(), splat_status_name(status), splat_last_error());
    exit(1);
}

// ---- The driver, with memory ----

static bool of_values; // operators on values store single ones, beside others', and read nothing that they store

static sp_cu_result allocate(sp_cu_pointer *pointer, size_t bytes)
{
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    *pointer = reinterpret_cast<sp_cu_pointer>(memory);
    if (of_values)
        add_buffer("memory of the device", memory, bytes, Access::READ);
    add_buffer("memory of the device", memory, bytes, of_values ? Access::WRITE_ONCE : Access::UPDATE);
    return 0;
}

static sp_cu_result release(sp_cu_pointer pointer)
{
    free(reinterpret_cast<void *>(pointer));
    return 0;
}

static sp_cu_result to_device(sp_cu_pointer to, const void *from, size_t bytes)
{
    memcpy(reinterpret_cast<void *>(to), from, bytes);
    return 0;
}

static sp_cu_result to_host(void *to, sp_cu_pointer from, size_t bytes)
{
    memcpy(to, reinterpret_cast<const void *>(from), bytes);
    return 0;
}

static sp_cu_result set(sp_cu_pointer to, unsigned char value, size_t bytes)
{
    memset(reinterpret_cast<void *>(to), value, bytes);
    return 0;
}

static sp_driver driver_with_memory()
{
    sp_driver driver = *modelled_driver();
    driver.memory_alloc = allocate;
    driver.memory_free = release;
    driver.copy_to_device = to_device;
    driver.copy_to_host = to_host;
    driver.memory_set = set;
    driver.context_push = [](sp_cu_context) { return 0; };
    driver.context_pop = [](sp_cu_context *) { return 0; };
    driver.stream_create = [](sp_cu_stream *, unsigned) { return 0; };
    driver.stream_destroy = [](sp_cu_stream) { return 0; };
    driver.stream_synchronize = [](sp_cu_stream) { return 0; };
    driver.driver_get_version = [](int *version) {
        *version = 13000;
        return 0;
    };
    return driver;
}

// ---- A kernel to be checked ----

static splat_mask *make_mask(const Kernel_case &given)
{
    splat_mask *masks[2] = {}, *map = nullptr;
    const std::string text = given.mask;
    const size_t middle = text.find(';');
    need(splat_mask_from_expression(text.substr(0, middle).c_str(), given.q_len, given.kv_len, SPLAT_ALIGN_BOTTOM_RIGHT,
                                    &masks[0]),
         given);
    if (middle == std::string::npos)
        return masks[0];
    need(splat_mask_from_expression(text.substr(middle + 1).c_str(), given.q_len, given.kv_len,
                                    SPLAT_ALIGN_BOTTOM_RIGHT, &masks[1]),
         given);
    need(splat_mask_map(masks, given.of_batches ? 2 : 1, given.of_batches ? 1 : 2, &map), given);
    splat_mask_destroy(masks[0]);
    splat_mask_destroy(masks[1]);
    return map;
}

// What the check's own plan must have, so that it tries all of the kernel.
static std::string find_missing(const sp_spec &spec, const splat_options &options)
{
    splat_mask *mask = nullptr;
    splat_plan *plan = nullptr;
    splat_options own = options;
    own.heads = 2, own.kv_heads = 1, own.layout = 1;
    own.batch = 4096;
    if (own.op == SPLAT_OP_SPMM_TRANSPOSED)
        own.kv_heads = 2;
    if (sp_selfcheck_mask(&spec, &mask) != SPLAT_OK || splat_plan_create(mask, &own, &plan) != SPLAT_OK)
        return splat_last_error();
    std::set<int> kinds;
    bool empty_tile = false;
    std::string missing;
    for (int64_t s = 0; s < plan->segment_count; ++s)
        kinds.insert(SP_SEGMENT_KIND(plan->segments[s].code));
    for (int64_t k = 0; k < plan->row_tile_count; ++k)
        empty_tile |= plan->row_tiles[k].segment_count == 0;
    for (int kind = SP_PRED_NONE; kind < SP_PRED_COUNT; ++kind)
        if ((kind == SP_PRED_NONE || spec.predicate_mask >> kind & 1) && !kinds.count(kind))
            missing += std::string(" ") + sp_predicate_name(static_cast<sp_pred_kind>(kind));
    if (!empty_tile && !(spec.predicate_mask >> SP_PRED_BITS & 1))
        missing += " a row tile without tiles";
    if (plan->q_len % plan->tile_rows == 0 || plan->kv_len % plan->tile_cols == 0)
        missing += " ragged ends";
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
    return missing;
}

static std::string edited(std::string text, const Edit *edit)
{
    if (!edit)
        return text;
    size_t at = text.find(edit->where);
    if (at != std::string::npos)
        at = text.find(edit->from, at);
    if (at == std::string::npos) {
        printf("the text to edit is not there: %s\n", edit->from);
        exit(1);
    }
    return text.replace(at, strlen(edit->from), edit->to);
}

static int run_case(const Kernel_case &given)
{
    splat_kernel kernel = {};
    sp_source source;
    sp_spec spec;
    splat_options options;
    splat_options_init(&options);
    options.device = SPLAT_DEVICE_GPU;
    options.dtype = given.dtype;
    options.arch = given.arch;
    options.head_dim = given.dim;
    options.heads = given.heads, options.kv_heads = given.kv_heads, options.batch = given.batch;
    options.op = given.op;
    const sp_tune_row &row = sp_tune_table_of(given.op, given.arch)->rows[given.tune_row];
    options.tile_rows = row.rows, options.tile_cols = row.cols;
    options.layout = given.layout;
    need(sp_options_resolve(&options, &kernel.options), given);
    splat_mask *mask = make_mask(given);
    need(splat_plan_create(mask, &options, &kernel.plan), given);
    splat_mask_destroy(mask);
    kernel.plan->tune_row = given.tune_row;
    need(sp_spec_make(kernel.plan, &kernel.options, given.arch, &spec), given);
    need(sp_source_make(&spec, &source), given);
    const std::string missing = spec.fold || given.op == SPLAT_OP_SOFTMAX ? "" : find_missing(spec, kernel.options);
    if (!missing.empty()) {
        printf("the check's masks have no%s\n", missing.c_str());
        return 1;
    }

    std::string words;
    std::vector<std::string> entries = {source.entry};
    if (source.combine[0])
        entries.push_back(source.combine);
    const std::string object = compile_kernel(edited(std::string(source.text.text, source.text.size), given.edit),
                                              entries, "-O1", &words);
    if (object.empty()) {
        printf("the kernel does not compile\n%s\n", words.c_str());
        return 1;
    }
    alarm(SECONDS);
    const sp_driver driver = driver_with_memory();
    Running running = {load_kernel(object, 0), spec.blocks_per_sm, 1, Grid::GIVEN};
    Running combine = {source.combine[0] ? load_kernel(object, 1) : nullptr, 1, 1, Grid::GIVEN};
    kernel.device = SPLAT_DEVICE_GPU;
    kernel.driver = &driver;
    kernel.function = function_of(&running);
    kernel.combine = function_of(&combine);
    kernel.l2_bytes = 50 << 20;
    forget_buffers();
    of_values = given.op != SPLAT_OP_ATTENTION;
    catch_signals(object.c_str());
    watch_registers(spec.family == SP_FAMILY_HOPPER);
    const enum splat_status status = sp_selfcheck(&kernel, &source);
    splat_plan_destroy(kernel.plan);
    sp_source_free(&source);
    if (!given.edit) {
        need(status, given);
        return 0;
    }
    if (status == SPLAT_COMPILE && strstr(splat_last_error(), "gives wrong results on this device"))
        return 0;
    printf("of a kernel with a fault the check says: %s: %s\n", splat_status_name(status),
           status == SPLAT_OK ? "it is right" : splat_last_error());
    return 1;
}

// ---- The cases ----

// One for each part of a kernel that a fault of the compiler may spoil without stopping it.
static const Edit portable_edits[] = {
    {"fault: lower bound one off", "void mask_lower(", "e < lo", "e <= lo"},
    {"fault: upper bound one off", "void mask_upper(", "e >= hi", "e > hi"},
    {"fault: bounds one wider", "void mask_bounds(", "hi - lo : 0", "hi - lo + 1 : 0"},
    {"fault: table: ends taken for begins", "void mask_table(", "mask_word(tile.source, words + 4)",
     "mask_word(tile.source, words)"},
    {"fault: period ends one late", "void mask_periodic(", "at -= at >= stride", "at -= at > stride"},
    {"fault: bits of a pair swapped", "void mask_bits(", "8 * (block % 4) + e", "8 * (block % 4) + 1 - e"},
    {"fault: weights swapped in a pair", "void pack_weights(", "pack(pair[2 * (x % 2)], pair[2 * (x % 2) + 1])",
     "pack(pair[2 * (x % 2) + 1], pair[2 * (x % 2)])"},
    {"fault: v: fragments swapped", "void multiply_values(", "v[now][2], v[now][3]", "v[now][3], v[now][2]"},
    {"fault: maximum is not scaled", "void weigh(", "-row_max[b][half] * scale_log2", "-row_max[b][half]"},
    {"fault: sum is not rescaled", "void weigh(", "row_sum[b][half] * factors[b][half]", "row_sum[b][half]"},
    {"fault: o is not rescaled", "void rescale(", "*= factors[b][x / 2]", "*= 1.0f"},
    {"fault: lse in the wrong base", "void store_results(", "* args.scale + log2", "* args.scale_log2 + log2"},
    {"fault: empty rows divide by zero", "void store_results(", "empty ? 0.0f : 1.0f / sum", "1.0f / sum"},
    {"fault: bad values go to every row", "void add_nonfinite(", "weighty[r][w] >> key & 1", "true"},
};

static const Edit hopper_edits[] = {
    {"fault: k is transposed", "void wgmma_scores_step(", "p, 1, 1, 0, 0;", "p, 1, 1, 0, 1;"},
    {"fault: weights in another order", "void wgmma_values_step(", "\"r\"(p[1]), \"r\"(p[2])",
     "\"r\"(p[2]), \"r\"(p[1])"},
    {"fault: masked by the rows of the item before", "for (;;) {\n        // at.n is",
     "mask(shared, at.n + 1, next,", "mask(shared, at.n + 1, at.item,"},
    {"fault: nothing is rescaled", "        } else {\n            softmax(", "rescale(r.o, factors);", ";"},
    {"fault: odd columns are not divided", "void store_rows(", "[2 * HALF + 1] * factor", "[2 * HALF + 1]"},
    {"fault: transposed by half", "void transpose_quad(", "step <= 2", "step <= 1"},
    {"fault: period ends one late", "void mask_periodic(", "at -= at >= stride", "at -= at > stride"},
};

static const Edit folded_edits[] = {
    {"fault: results of the head beside", "sp_i64 o_offset(", "owner.head * args.o_head", "(owner.head ^ 1) * args.o_head"},
    {"fault: lse of the head beside", "sp_i64 lse_offset(", "owner.head * args.lse_head", "(owner.head ^ 1) * args.lse_head"},
};

// Of operators on values.
static const struct {
    enum splat_op op;
    Edit edit;
} value_edits[] = {
    {SPLAT_OP_SDDMM,
     {"fault: scale left out", "void gather(", "products[2 * (r % 2)] * scale", "products[2 * (r % 2)]"}},
    {SPLAT_OP_SDDMM,
     {"fault: a bit of a pair for the other", "void mask_bits(", "8 * (block % 4) + e", "8 * (block % 4) + 1 - e"}},
    {SPLAT_OP_SPMM,
     {"fault: rows of a fragment swapped", "void load_row_fragment(", "x / 4 * 2 + x % 2",
      "x / 4 * 2 + 1 - x % 2"}},
    {SPLAT_OP_SPMM,
     {"fault: bad values meet zeros", "for (bool more = true; more; stage ^= 1) {", "HAS_PARTIAL && apart",
      "false"}},
    {SPLAT_OP_SPMM_TRANSPOSED,
     {"fault: a rank one too high", "void load_column_fragment(", "(1u << (4 * g)) - 1", "(2u << (4 * g)) - 1"}},
    {SPLAT_OP_SOFTMAX, {"fault: sums of half a warp", "float sum = 0.0f;", "mask = 16", "mask = 8"}},
};

static const Edit parts_edits[] = {
    {"fault: combines a part too few", "splat_combine(const", "part < split.parts; part += COMBINE_WARPS",
     "part + 1 < split.parts; part += COMBINE_WARPS"},
    {"fault: combined weights not divided", "splat_combine(const", "1.0f / total", "1.0f"},
};

static std::string shape_name(enum splat_arch arch, int row, int dim, const char *what,
                              enum splat_op op = SPLAT_OP_ATTENTION)
{
    static const char *const ops[] = {"", "-sddmm", "-softmax", "-spmm", "-spmm-t"};
    const sp_tune_row &shape = sp_tune_table_of(op, arch)->rows[row];
    char text[128];
    snprintf(text, sizeof text, "%s%s%s-%dx%d-%d-%s", arch == SPLAT_ARCH_SM80 ? "sm80" : "sm90",
             shape.family == SP_FAMILY_HOPPER ? "-hopper" : "", ops[op], shape.rows, shape.cols, dim, what);
    return text;
}

static int row_of(enum splat_arch arch, int family, int max_dim, int rows, int cols)
{
    const sp_tune_table *table = sp_tune_table_for(arch);
    for (int k = 0; k < table->row_count; ++k) {
        const sp_tune_row &row = table->rows[k];
        if (row.family == family && row.max_dim == max_dim && row.rows == rows && row.cols == cols)
            return k;
    }
    printf("no tune row %d x %d for head dim %d\n", rows, cols, max_dim);
    exit(1);
}

static std::vector<Kernel_case> all_cases()
{
    std::vector<Kernel_case> cases;
    for (const auto arch : {SPLAT_ARCH_SM90A, SPLAT_ARCH_SM80})
        for (int row = 0; row < sp_tune_table_for(arch)->row_count; ++row) {
            const sp_tune_row &shape = sp_tune_table_for(arch)->rows[row];
            if (arch == SPLAT_ARCH_SM90A && shape.family != SP_FAMILY_HOPPER)
                continue; /* like those of sm_80 */
            const auto dtype = row % 2 ? SPLAT_FP16 : SPLAT_BF16;
            const int dim = row % 3 ? shape.max_dim : shape.max_dim - 24;
            if (shape.use == SP_USE_AFFINE)
                cases.push_back({shape_name(arch, row, dim, "affine"), arch, row, dim, dtype, AFFINE, 1, nullptr});
            else
                cases.push_back({shape_name(arch, row, dim, "all"), arch, row, dim, dtype, ALL, 1, nullptr});
        }
    const int hopper = row_of(SPLAT_ARCH_SM90A, SP_FAMILY_HOPPER, 64, 128, 128);
    const int portable = row_of(SPLAT_ARCH_SM80, SP_FAMILY_PORTABLE, 64, 128, 64);
    const struct {
        const char *name, *mask;
        int layout;
    } kinds[] = {{"affine", AFFINE, 1},
                 {"map", "causal;window(9)", 1},
                 {"views", "dilated(40, 3)", 2},
                 {"launches", "causal & (window(50, 0) | strided(16))", 3}};
    for (const auto &kind : kinds) {
        cases.push_back({shape_name(SPLAT_ARCH_SM90A, hopper, 64, kind.name), SPLAT_ARCH_SM90A, hopper, 64,
                         SPLAT_BF16, kind.mask, kind.layout, nullptr});
        cases.push_back({shape_name(SPLAT_ARCH_SM80, portable, 64, kind.name), SPLAT_ARCH_SM80, portable, 64,
                         SPLAT_FP16, kind.mask, kind.layout, nullptr});
    }
    const auto shared = [&](const char *what, const char *mask, enum splat_arch arch, int q_len, int kv_len, int kv_heads,
                            int batch, const Edit *edit) {
        const int row = arch == SPLAT_ARCH_SM80 ? portable : hopper;
        cases.push_back({shape_name(arch, row, 64, what), arch, row, 64, arch == SPLAT_ARCH_SM80 ? SPLAT_FP16 : SPLAT_BF16, mask,
                         1, edit, q_len, kv_len, 8, kv_heads, batch});
    };
    for (const auto arch : {SPLAT_ARCH_SM90A, SPLAT_ARCH_SM80}) {
        shared("folded", AFFINE, arch, 1, 300, 1, 4096, nullptr);
        shared("folded-all", ALL, arch, 4, 300, 1, 4096, nullptr);
        shared("parts", AFFINE, arch, 100, 8192, 8, 1, nullptr);
        shared("folded-map", "causal;window(100, 0)", arch, 1, 300, 1, 2, nullptr);
        cases.back().of_batches = true;
        shared("folded-parts", AFFINE, arch, 1, 8192, 1, 1, nullptr);
        for (const Edit &edit : folded_edits)
            shared(edit.name, AFFINE, arch, 1, 300, 1, 4096, &edit);
        for (const Edit &edit : parts_edits)
            shared(edit.name, AFFINE, arch, 100, 8192, 8, 1, &edit);
    }
    for (const auto op : {SPLAT_OP_SDDMM, SPLAT_OP_SPMM, SPLAT_OP_SPMM_TRANSPOSED, SPLAT_OP_SOFTMAX}) {
        const auto with_op = [&](int row, int dim, const char *what, const char *mask, int layout,
                                 const Edit *edit) {
            const auto dtype = row % 2 ? SPLAT_BF16 : SPLAT_FP16;
            cases.push_back({shape_name(SPLAT_ARCH_SM80, row, dim, what, op), SPLAT_ARCH_SM80, row, dim, dtype,
                             mask, layout, edit});
            cases.back().op = op;
        };
        const sp_tune_table *table = sp_tune_table_of(op, SPLAT_ARCH_SM80);
        for (int row = 0; row < (op == SPLAT_OP_SOFTMAX ? 1 : table->row_count); ++row)
            with_op(row, table->rows[row].max_dim - row % 2 * 24, "all", ALL, 1, nullptr);
        with_op(0, table->rows[0].max_dim, "affine", AFFINE, 1, nullptr);
        with_op(0, table->rows[0].max_dim, "map", "causal;window(9)", 1, nullptr);
        if (op != SPLAT_OP_SOFTMAX)
            with_op(0, table->rows[0].max_dim, "views", "dilated(40, 3)", 3, nullptr);
        for (const auto &fault : value_edits)
            if (fault.op == op)
                with_op(0, table->rows[0].max_dim, fault.edit.name, ALL, 1, &fault.edit);
    }
    for (const Edit &edit : portable_edits)
        cases.push_back({shape_name(SPLAT_ARCH_SM80, portable, 64, edit.name), SPLAT_ARCH_SM80, portable, 64,
                         SPLAT_FP16, ALL, 1, &edit});
    for (const Edit &edit : hopper_edits)
        cases.push_back({shape_name(SPLAT_ARCH_SM90A, hopper, 64, edit.name), SPLAT_ARCH_SM90A, hopper, 64,
                         SPLAT_BF16, ALL, 1, &edit});
    return cases;
}

int main(int argc, char **argv)
{
    setenv("SPLAT_NVRTC", "/nonexistent", 1); // sentences name NVRTC's version; none is to be looked for
    std::vector<Kernel_case> chosen;
    for (const Kernel_case &one : all_cases())
        if (argc < 2 || one.name.find(argv[1]) != std::string::npos)
            chosen.push_back(one);
    std::vector<std::function<int()>> jobs;
    for (const Kernel_case &one : chosen)
        jobs.push_back([&one] { return run_case(one); });
    printf("1..%zu\n", chosen.size());
    bool passed = true;
    run_jobs(jobs, [&](size_t job, const Outcome &outcome) {
        passed &= outcome.code == 0;
        if (outcome.code != 0)
            printf("%s\n", outcome.words.c_str());
        printf("%sok %zu - %s\n", outcome.code ? "not " : "", job + 1, chosen[job].name.c_str());
        fflush(stdout);
    });
    return passed ? 0 : 1;
}
