// Runs the cases and reports in TAP.
//
//   run_cases                    every case, 3 seeds each, then whether they cover what they must
//   run_cases --seeds N CASE...  the cases named, or all, with N seeds
//   run_cases --from K ...       from seed K on instead of 0
//   run_cases --longer N ...     with N more queries and N more keys; what they cover is not asked
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include <unistd.h>

#include "compile.h"
#include "jobs.h"
#include "problem.h"

using namespace machine;

constexpr unsigned SEED_SECONDS = 300;

static int run_case(const Problem &problem, unsigned from, unsigned seeds)
{
    std::string words;
    const std::string object = compile_kernel(problem.text(), problem.entries(), "-O1", &words);
    if (object.empty()) {
        printf("the kernel does not compile\n%s\n", words.c_str());
        return 1;
    }
    for (unsigned seed = from; seed < from + seeds; ++seed) {
        alarm(SEED_SECONDS);
        fprintf(stderr, "seed %u\n", seed); // the last line before a report
        const std::string difference = problem.run(object, seed);
        if (!difference.empty()) {
            printf("%s\n", difference.c_str());
            return 1;
        }
    }
    return 0;
}

// ---- What the cases must cover ----

// Of each family of kernels.
static const char *op_name(enum splat_op op)
{
    static const char *const names[] = {"attention", "sddmm", "softmax", "spmm", "spmm transposed"};
    return names[op];
}

static void note_covered(const Problem &problem, std::set<std::string> &all_seen)
{
    const splat_plan &plan = problem.plan();
    const Case &given = problem.given();
    std::set<std::string> seen;
    for (int64_t s = 0; s < plan.segment_count; ++s) {
        const auto kind = static_cast<sp_pred_kind>(SP_SEGMENT_KIND(plan.segments[s].code));
        seen.insert(std::string("predicate ") + sp_predicate_name(kind));
        if (SP_SEGMENT_STEP(plan.segments[s].code) && plan.segments[s].count > 1)
            seen.insert("several bitmasks a segment");
    }
    for (int64_t pass = 0; pass < plan.pass_count; ++pass) {
        const sp_pass &one = plan.passes[pass];
        seen.insert(std::string("rows ") + sp_view_name(static_cast<sp_view_kind>(one.row_view.kind)));
        for (int v = 0; v < one.column_view_count; ++v)
            seen.insert(std::string("columns ") +
                        sp_view_name(static_cast<sp_view_kind>(plan.views[one.column_view + v].kind)));
    }
    seen.insert("tune row " + std::to_string(plan.tune_row));
    seen.insert(given.dtype == SPLAT_BF16 ? "bf16" : "fp16");
    seen.insert("head dim " + std::to_string(given.head_dim));
    seen.insert("value dim " + std::to_string(given.value_dim));
    seen.insert(given.layout == Layout::BHSD ? "bhsd" : "bshd");
    const struct {
        bool met;
        const char *what;
    } facts[] = {
        {given.value_dim < given.head_dim, "value dim below head dim"},
        {given.value_dim > given.head_dim, "value dim above head dim"},
        {given.kv_heads < given.heads, "grouped heads"},
        {given.q_len < given.kv_len, "fewer queries than keys"},
        {given.q_len > given.kv_len, "more queries than keys"},
        {plan.map != nullptr && plan.map_batch == 1, "a mask for each head"},
        {plan.map != nullptr && plan.map_batch > 1, "a mask for each batch and head"},
        {problem.has_empty_row(), "empty rows"},
        {plan.allowed_pairs == 0, "a mask that allows nothing"},
        {(given.traits & BAD_VALUES) != 0, "NaN and inf in v"},
        {(given.traits & BAD_KEYS) != 0, "NaN in k"},
        {(given.traits & NO_LSE) != 0, "no lse"},
        {(given.traits & TOP_LEFT) != 0, "top left"},
        {plan.launch_count > 1 && !(given.traits & NO_LSE), "launches that merge"},
        {plan.launch_count > 1 && (given.traits & NO_LSE) != 0, "launches that merge without lse"},
        {plan.fold > 1, "heads that share row tiles"},
        {plan.fold > 1 && given.heads / given.kv_heads % plan.fold != 0, "a part of a group that is not whole"},
        {plan.fold > 1 && plan.q_len > 1, "several queries of heads that share row tiles"},
        {plan.split_count > 0, "split row tiles"},
        {plan.split_count > 0 && plan.launch_count > 1, "split row tiles that merge"},
        {plan.split_count > 0 && plan.split_count < plan.row_tile_count - plan.slot_count,
         "whole row tiles beside split ones"},
        {given.q_len % plan.tile_rows != 0 && given.kv_len % plan.tile_cols != 0, "ragged sizes"},
        {problem.text().find("O_IN_Q = true") != std::string::npos ||
             problem.text().find("Q_STAGES = 1") != std::string::npos,
         "no room for more than q"},
    };
    for (const auto &fact : facts)
        if (fact.met)
            seen.insert(fact.what);
    const bool attention = given.op == SPLAT_OP_ATTENTION;
    if (given.traits & IN_PLACE)
        seen.insert("in place");
    for (const std::string &what : seen)
        all_seen.insert((!attention                                      ? std::string(op_name(given.op)) + ": "
                         : problem.spec().family == SP_FAMILY_HOPPER ? "hopper: "
                                                                         : "portable: ") +
                        what);
}

static std::set<std::string> wanted_of(sp_kernel_family family)
{
    std::set<std::string> wanted = {"several bitmasks a segment", "bf16", "fp16", "bhsd", "bshd"};
    for (int kind = SP_PRED_NONE; kind < SP_PRED_COUNT; ++kind)
        wanted.insert(std::string("predicate ") + sp_predicate_name(static_cast<sp_pred_kind>(kind)));
    const sp_tune_table *table = sp_tune_table_for(family == SP_FAMILY_HOPPER ? SPLAT_ARCH_SM90A : SPLAT_ARCH_SM80);
    for (int row = 0; row < table->row_count; ++row)
        if (table->rows[row].family == family)
            wanted.insert("tune row " + std::to_string(row));
    for (int dim : {8, 40, 64, 72, 128, 192, 256}) {
        wanted.insert("head dim " + std::to_string(dim));
        wanted.insert("value dim " + std::to_string(dim));
    }
    wanted.insert({"value dim below head dim",
                   "value dim above head dim",
                   "grouped heads",
                   "fewer queries than keys",
                   "more queries than keys",
                   "a mask for each head",
                   "a mask for each batch and head",
                   "empty rows",
                   "a mask that allows nothing",
                   "NaN and inf in v",
                   "NaN in k",
                   "no lse",
                   "top left",
                   "ragged sizes",
                   "launches that merge",
                   "launches that merge without lse",
                   "heads that share row tiles",
                   "a part of a group that is not whole",
                   "several queries of heads that share row tiles",
                   "split row tiles",
                   "split row tiles that merge",
                   "whole row tiles beside split ones",
                   "rows linear",
                   "rows residue",
                   "rows grid",
                   "columns linear",
                   "columns residue",
                   "columns grid",
                   "columns comb"});
    if (family == SP_FAMILY_HOPPER)
        wanted.insert("no room for more than q");
    return wanted;
}

// Of an operator on values.
static std::set<std::string> wanted_of_op(enum splat_op op)
{
    std::set<std::string> wanted = {"bf16", "fp16", "bhsd", "bshd", "a mask for each head", "empty rows"};
    if (op == SPLAT_OP_SOFTMAX) {
        wanted.insert({"in place", "no lse", "NaN and inf in v"});
        return wanted;
    }
    for (int kind = SP_PRED_NONE; kind < SP_PRED_COUNT; ++kind)
        wanted.insert(std::string("predicate ") + sp_predicate_name(static_cast<sp_pred_kind>(kind)));
    const sp_tune_table *table = sp_tune_table_of(op, SPLAT_ARCH_SM80);
    for (int row = 0; row < table->row_count; ++row)
        wanted.insert("tune row " + std::to_string(row));
    wanted.insert({"several bitmasks a segment", "a mask that allows nothing", "ragged sizes", "rows residue",
                   "columns residue", "fewer queries than keys", "head dim 40", "head dim 72"});
    if (op == SPLAT_OP_SDDMM)
        wanted.insert("NaN in k");
    else
        wanted.insert("NaN and inf in v");
    if (op != SPLAT_OP_SPMM_TRANSPOSED)
        wanted.insert("grouped heads");
    return wanted;
}

static std::string find_uncovered(const std::set<std::string> &seen)
{
    std::string missing;
    for (int op = SPLAT_OP_SDDMM; op <= SPLAT_OP_SPMM_TRANSPOSED; ++op)
        for (const std::string &what : wanted_of_op(static_cast<enum splat_op>(op)))
            if (!seen.count(std::string(op_name(static_cast<enum splat_op>(op))) + ": " + what))
                missing += std::string("\n# no case has: ") + op_name(static_cast<enum splat_op>(op)) + ": " + what;
    for (const auto family : {SP_FAMILY_PORTABLE, SP_FAMILY_HOPPER})
        for (const std::string &what : wanted_of(family)) {
            const std::string whole = (family == SP_FAMILY_HOPPER ? "hopper: " : "portable: ") + what;
            if (!seen.count(whole))
                missing += "\n# no case has: " + whole;
        }
    return missing;
}

// ---- The program ----

static void print_result(size_t number, const char *name, bool passed, const std::string &words)
{
    if (!passed)
        printf("%s\n", words.c_str());
    printf("%sok %zu - %s\n", passed ? "" : "not ", number, name);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    unsigned seeds = 3, from = 0;
    int longer = 0;
    std::vector<const Case *> chosen;
    for (int a = 1; a < argc; ++a) {
        if (strcmp(argv[a], "--seeds") == 0 && a + 1 < argc)
            seeds = static_cast<unsigned>(atoi(argv[++a]));
        else if (strcmp(argv[a], "--from") == 0 && a + 1 < argc)
            from = static_cast<unsigned>(atoi(argv[++a]));
        else if (strcmp(argv[a], "--longer") == 0 && a + 1 < argc)
            longer = atoi(argv[++a]);
        else
            chosen.push_back(&case_named(argv[a]));
    }
    const bool all = chosen.empty();
    for (const Case &one : all_cases())
        if (all)
            chosen.push_back(&one);
    const bool covers = all && longer == 0;

    std::vector<std::unique_ptr<Problem>> problems;
    std::vector<std::function<int()>> jobs;
    std::set<std::string> seen;
    for (const Case *one : chosen) {
        problems.push_back(std::make_unique<Problem>(lengthened(*one, longer)));
        const Problem *problem = problems.back().get();
        jobs.push_back([=] { return run_case(*problem, from, seeds); });
        note_covered(*problem, seen);
    }
    printf("1..%zu\n", chosen.size() + covers);
    bool passed = true;
    run_jobs(jobs, [&](size_t job, const Outcome &outcome) {
        passed &= outcome.code == 0;
        print_result(job + 1, chosen[job]->name, outcome.code == 0, outcome.words);
    });
    if (covers) {
        const std::string missing = find_uncovered(seen);
        passed &= missing.empty();
        print_result(chosen.size() + 1, "the cases cover every shape, type, predicate and circumstance",
                     missing.empty(), missing);
    }
    return passed ? 0 : 1;
}
