/* splatc explain: what the analysis found in a mask, as text or JSON, and as a picture. Needs no GPU and no NVRTC.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "analysis/plan.h"
#include "analysis/split.h"
#include "cli/cli.h"
#include "cli/findings.h"
#include "cli/json.h"
#include "cli/picture.h"
#include "common/error.h"
#include "common/strbuf.h"
#include "runtime/kernel.h"

/* What was explained: the tune table's chip is the one whose times are predicted. */
struct subject {
    const struct sp_cli *cli;
    const splat_plan *plan;
    const struct sp_findings *findings;
    const char *chip;
};

/* ---- Text ---- */

static void print_wrapped(const char *text)
{
    enum { WIDTH = 96 };
    int column = 0;
    for (const char *word = text; *word;) {
        int length = 0;
        while (word[length] && word[length] != ' ')
            length++;
        if (column > 0 && column + 1 + length > WIDTH) {
            putchar('\n');
            column = 0;
        }
        column += printf("%s%.*s", column ? " " : "", length, word);
        word += length;
        while (*word == ' ')
            word++;
    }
    putchar('\n');
}

static void print_view(const struct sp_view *view)
{
    printf("%s", sp_view_name((enum sp_view_kind)view->kind));
    if (view->kind == SP_VIEW_RESIDUE)
        printf(" (one of every %d)", view->n0);
    else if (view->kind == SP_VIEW_COMB)
        printf(" (%d of every %d)", view->c, view->n0);
    else if (view->kind == SP_VIEW_GRID)
        printf(" (patches %d wide of rows of %d)", view->c, view->n0);
}

static void print_passes(const splat_plan *plan)
{
    for (int64_t p = 0; p < plan->pass_count; p++) {
        const struct sp_pass *pass = &plan->passes[p];
        printf("pass %-7lld rows ", (long long)p);
        print_view(&pass->row_view);
        printf(", columns ");
        for (int32_t v = 0; v < pass->column_view_count; v++) {
            printf("%s", v ? " + " : "");
            print_view(&plan->views[pass->column_view + v]);
        }
        int64_t split, parts, row_tiles = sp_split_count(plan, pass, &split, &parts);
        printf(", %lld row tile%s", (long long)row_tiles, sp_plural(row_tiles));
        if (split)
            printf(", %lld of them in %lld parts", (long long)split, (long long)parts);
        printf("%s\n", pass->merge ? ", merged into the passes before" : "");
    }
    if (plan->fold > 1)
        printf("rows         up to %d heads of a group share a row tile\n", plan->fold);
}

static void print_prediction(const struct subject *s)
{
    if (sp_cli_cpu_only(s->cli))
        printf("predicted    no GPU time: %s, so the plan runs on the CPU\n\n", sp_cli_cpu_reason(s->cli));
    else
        printf("predicted    %.1f us a launch on an %s with batch %lld, %lld head%s\n\n",
               s->findings->info.predicted_us, s->chip, (long long)s->cli->batch, (long long)s->cli->heads,
               sp_plural(s->cli->heads));
}

static enum splat_status print_candidates(const struct subject *s)
{
    const splat_plan *plan = s->plan;
    const splat_plan_info *info = &s->findings->info;
    printf("\ncandidates, cheapest first (times of an %s%s):\n", s->chip,
           sp_cli_cpu_only(s->cli) ? ", by which tiles are chosen for the CPU too" : "");
    for (int64_t c = 0; c < info->candidates; c++) {
        const char *summary = NULL, *reason = NULL;
        double us = 0;
        enum splat_status status = splat_plan_candidate(plan, c, &summary, &reason, &us);
        if (status != SPLAT_OK)
            return status;
        printf("  %s: %s\n", summary, reason);
    }
    return SPLAT_OK;
}

static enum splat_status print_text(const struct subject *s)
{
    const struct sp_cli *cli = s->cli;
    const struct sp_findings *f = s->findings;
    const splat_plan_info *info = &f->info;
    if (cli->pattern)
        printf("mask         %s\n", cli->pattern);
    else
        printf("mask         file %s\n", cli->mask_path);
    printf("size         %lld quer%s x %lld key%s, D %lld, %s\n", (long long)info->q_len,
           info->q_len == 1 ? "y" : "ies", (long long)info->kv_len, sp_plural(info->kv_len),
           (long long)cli->head_dim, sp_dtype_name(cli->dtype));
    printf("allowed      %lld pair%s, density %.4f\n", (long long)info->allowed_pairs,
           sp_plural(info->allowed_pairs), info->density);
    printf("families     %lld\n", (long long)info->families);
    if (f->kron.a)
        printf("kronecker    I_%lld x ones(%lld, %lld) x I_%lld: as weights of a layer, %lld dense blocks "
               "(splat_layer)\n",
               (long long)f->kron.a, (long long)f->kron.b, (long long)f->kron.c, (long long)f->kron.d,
               (long long)(f->kron.a * f->kron.d));
    print_passes(s->plan);
    printf(
        "tiles        %lld x %lld: %lld full, %lld partial, of %lld in all (the allowed pairs would fill %lld)\n",
        (long long)info->tile_rows, (long long)info->tile_cols, (long long)info->full_tiles,
        (long long)info->partial_tiles, (long long)f->all_tiles, (long long)f->packed_tiles);
    printf("computed     %lld pairs", (long long)info->computed_pairs);
    if (info->allowed_pairs > 0)
        printf(", %.3f for each allowed one", info->waste);
    putchar('\n');
    printf("predicates   ");
    for (int p = 0; p < f->predicate_count; p++)
        printf("%s%s (%lld tile%s)", p ? ", " : "", f->predicates[p].name, (long long)f->predicates[p].tiles,
               sp_plural(f->predicates[p].tiles));
    printf("%s\n", f->predicate_count ? "" : "none needed");
    printf("descriptors  %lld bytes\n", (long long)info->descriptor_bytes);
    printf("planned in   %.2f ms\n", info->plan_ms);
    print_prediction(s);
    char verdict[1024];
    sp_findings_verdict(f, verdict, sizeof verdict);
    print_wrapped(verdict);
    return print_candidates(s);
}

/* ---- JSON ---- */

static json_t *json_predicates(const struct sp_findings *f)
{
    json_t *root = json_object();
    for (int p = 0; p < f->predicate_count; p++)
        sp_json_set(&root, f->predicates[p].name, json_integer(f->predicates[p].tiles));
    return root;
}

static json_t *json_views(const splat_plan *plan)
{
    json_t *root = json_array();
    for (int64_t p = 0; p < plan->pass_count; p++) {
        const struct sp_pass *pass = &plan->passes[p];
        json_t *columns = json_array();
        for (int32_t v = 0; v < pass->column_view_count; v++)
            sp_json_append(&columns,
                           json_string(sp_view_name((enum sp_view_kind)plan->views[pass->column_view + v].kind)));
        sp_json_append(&root, json_pack("{s:s, s:o, s:i, s:b}", "rows",
                                        sp_view_name((enum sp_view_kind)pass->row_view.kind), "columns", columns,
                                        "row_tiles", pass->row_tile_count, "merge", pass->merge));
    }
    return root;
}

static json_t *json_candidates(const splat_plan *plan, const splat_plan_info *info)
{
    json_t *root = json_array();
    for (int64_t c = 0; c < info->candidates; c++) {
        const char *summary = NULL, *reason = NULL;
        double us = 0;
        if (splat_plan_candidate(plan, c, &summary, &reason, &us) != SPLAT_OK)
            break;
        sp_json_append(&root, json_pack("{s:s, s:s, s:o}", "summary", summary, "reason", reason, "predicted_us",
                                        sp_json_real(us)));
    }
    return root;
}

static void set_count(json_t **root, const char *key, int64_t value)
{
    sp_json_set(root, key, json_integer(value));
}

/* What was found, and nothing of where the mask came from: equal masks print equal objects, plan_ms aside. */
static enum splat_status print_json(const struct subject *s)
{
    const splat_plan *plan = s->plan;
    const struct sp_findings *f = s->findings;
    const splat_plan_info *info = &f->info;
    char verdict[1024];
    sp_findings_verdict(f, verdict, sizeof verdict);
    json_t *root = json_object();
    set_count(&root, "q_len", info->q_len);
    set_count(&root, "kv_len", info->kv_len);
    set_count(&root, "masks", info->masks);
    set_count(&root, "allowed_pairs", info->allowed_pairs);
    sp_json_set(&root, "density", sp_json_real(info->density));
    set_count(&root, "computed_pairs", info->computed_pairs);
    sp_json_set(&root, "waste", sp_json_real(info->waste));
    set_count(&root, "families", info->families);
    if (f->kron.a)
        sp_json_set(&root, "kronecker",
                    json_pack("[I,I,I,I]", (json_int_t)f->kron.a, (json_int_t)f->kron.b, (json_int_t)f->kron.c,
                              (json_int_t)f->kron.d));
    set_count(&root, "passes", info->passes);
    sp_json_set(&root, "views", json_views(plan));
    set_count(&root, "tile_rows", info->tile_rows);
    set_count(&root, "tile_cols", info->tile_cols);
    set_count(&root, "full_tiles", info->full_tiles);
    set_count(&root, "partial_tiles", info->partial_tiles);
    set_count(&root, "all_tiles", f->all_tiles);
    set_count(&root, "packed_tiles", f->packed_tiles);
    set_count(&root, "longest_row_tile", f->longest_row_tile);
    sp_json_set(&root, "predicates", json_predicates(f));
    set_count(&root, "descriptor_bytes", info->descriptor_bytes);
    sp_json_set(&root, "plan_ms", sp_json_real(info->plan_ms));
    sp_json_set(&root, "predicted_us", sp_json_real(info->predicted_us));
    sp_json_set(&root, "predicted_chip", json_string(s->chip));
    sp_json_set(&root, "cpu_only", json_boolean(sp_cli_cpu_only(s->cli)));
    sp_json_set(&root, "verdict", json_string(verdict));
    sp_json_set(&root, "candidates", json_candidates(plan, info));
    return sp_json_print(root);
}

/* ---- The command ---- */

static enum splat_status explain(const struct sp_cli *cli, const splat_mask *mask, const splat_plan *plan,
                                 enum splat_arch arch)
{
    struct sp_findings findings;
    struct subject subject = {cli, plan, &findings, sp_tune_table_for(arch)->chip};
    enum splat_status status = sp_findings_make(mask, plan, &findings);
    if (status == SPLAT_OK && cli->png)
        status = sp_picture_write(cli->png, mask, plan);
    if (status != SPLAT_OK)
        return status;
    if (cli->json)
        return print_json(&subject);
    status = print_text(&subject);
    if (status == SPLAT_OK && cli->png) {
        printf("\npicture      %s\n             ", cli->png);
        sp_picture_print_colours();
    }
    return status;
}

enum splat_status sp_command_explain(struct sp_cli *cli)
{
    splat_mask *mask = NULL;
    splat_plan *plan = NULL;
    sp_cli_defaults(cli);
    if (cli->png && cli->op == SPLAT_OP_SPMM_TRANSPOSED)
        return sp_fail(SPLAT_INVALID, "--png is given with --op spmm_transposed, whose tiles are those of the transposed mask; "
                                      "draw those of another op");
    if (cli->png && strcmp(cli->png, "-") == 0)
        return sp_fail(SPLAT_INVALID, "--png is '-', but stdout is for the explanation; it must be a file");
    splat_options options;
    sp_cli_library_options(cli, &options);
    enum splat_status status = sp_cli_mask(cli, &mask);
    if (status == SPLAT_OK && options.arch == SPLAT_ARCH_AUTO && !sp_cli_cpu_only(cli))
        status = sp_default_arch(&options.arch);
    if (status == SPLAT_OK)
        status = splat_plan_create(mask, &options, &plan);
    if (status == SPLAT_OK)
        status = explain(cli, mask, plan, options.arch);
    splat_plan_destroy(plan);
    splat_mask_destroy(mask);
    return status;
}
