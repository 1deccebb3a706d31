/* An ACSR as text, for `splatc dump --stage acsr`. */
#include "acsr/acsr.h"
#include "common/error.h"
#include "common/strbuf.h"

#define SHOWN_FAMILIES 200
#define SHOWN_RUNS     40

static void print_affine(struct sp_strbuf *out, const char *name, int32_t v, int32_t d)
{
    sp_strbuf_printf(out, " %s %d", name, v);
    if (d)
        sp_strbuf_printf(out, "%+d*t", d);
}

static void print_family(const splat_acsr *acsr, const struct sp_family *family, struct sp_strbuf *out)
{
    sp_strbuf_printf(out, "family rows %d", family->row0);
    if (family->row_count > 1)
        sp_strbuf_printf(out, " + %d*t, t < %d", acsr->row_stride, family->row_count);
    if (family->run_count < 0) {
        sp_strbuf_puts(out, ": irregular, kept as bits\n");
        return;
    }
    sp_strbuf_printf(out, ": %d run%s\n", family->run_count, sp_plural(family->run_count));
    for (int32_t k = 0; k < family->run_count; k++) {
        const struct sp_run_template *run = &acsr->templates[family->first + (uint64_t)k];
        if (k == SHOWN_RUNS && family->run_count > SHOWN_RUNS + 1) {
            sp_strbuf_printf(out, "    ... %d more runs\n", family->run_count - k);
            return;
        }
        sp_strbuf_puts(out, "    run");
        print_affine(out, "start", run->start, run->d_start);
        if (run->stride) {
            sp_strbuf_printf(out, " stride %d", run->stride);
            print_affine(out, "count", run->count, run->d_count);
        }
        print_affine(out, "width", run->width, run->d_width);
        sp_strbuf_puts(out, "\n");
    }
}

enum splat_status sp_acsr_print(const splat_acsr *acsr, struct sp_strbuf *out)
{
    sp_strbuf_printf(out, "acsr %lld x %lld: %lld allowed pair%s, %lld famil%s with row stride %d, %lld bytes\n",
                     (long long)acsr->q_len, (long long)acsr->kv_len, (long long)acsr->pairs,
                     sp_plural(acsr->pairs), (long long)acsr->family_count, acsr->family_count == 1 ? "y" : "ies",
                     acsr->row_stride, (long long)splat_acsr_bytes(acsr));
    for (int64_t i = 0; i < acsr->family_count; i++) {
        if (i == SHOWN_FAMILIES / 2 && acsr->family_count > SHOWN_FAMILIES) {
            int64_t skipped = acsr->family_count - SHOWN_FAMILIES;
            sp_strbuf_printf(out, "... %lld more families ...\n", (long long)skipped);
            i += skipped;
        }
        print_family(acsr, &acsr->families[i], out);
    }
    return out->failed ? sp_no_memory("a listing", out->size) : SPLAT_OK;
}
