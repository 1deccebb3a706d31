/* splat_dump: any stage of the pipeline as text. */
#include <stdlib.h>
#include <string.h>

#include "acsr/mask.h"
#include "common/error.h"
#include "runtime/kernel.h"

static enum splat_status print_acsr(const splat_mask *mask, struct sp_strbuf *out)
{
    enum splat_status status = SPLAT_OK;
    int64_t count = sp_mask_count(mask);
    for (int64_t m = 0; m < count && status == SPLAT_OK; m++) {
        splat_acsr *acsr;
        status = sp_mask_acsr(mask, m, &acsr);
        if (count > 1)
            sp_strbuf_printf(out, "mask %lld of %lld\n", (long long)m, (long long)count);
        if (status == SPLAT_OK)
            status = sp_acsr_print(acsr, out);
    }
    return status;
}

static enum splat_status print_log(const struct sp_source *source, enum splat_arch arch, struct sp_strbuf *out)
{
    struct sp_image image = {0};
    enum splat_status status = sp_nvrtc_compile(source, arch, &image);
    if (status != SPLAT_OK)
        return status;
    sp_strbuf_puts(out, image.log);
    sp_image_free(&image);
    return SPLAT_OK;
}

static enum splat_status print_ptx(const struct sp_source *source, enum splat_arch arch, struct sp_strbuf *out)
{
    char *ptx;
    enum splat_status status = sp_nvrtc_ptx(source, arch, &ptx);
    if (status != SPLAT_OK)
        return status;
    sp_strbuf_puts(out, ptx);
    free(ptx);
    return SPLAT_OK;
}

/* The stages from the plan on. */
static enum splat_status print_later(const splat_mask *mask, const splat_options *options, enum splat_stage stage,
                                     struct sp_strbuf *out)
{
    splat_options full;
    splat_plan *plan = NULL;
    struct sp_spec spec;
    struct sp_source source = {.text = SP_STRBUF_INIT};
    enum splat_status status = sp_options_resolve(options, &full);
    if (status == SPLAT_OK && full.arch == SPLAT_ARCH_AUTO)
        status = sp_default_arch(&full.arch);
    if (status == SPLAT_OK)
        status = splat_plan_create(mask, &full, &plan);
    if (status == SPLAT_OK && stage == SPLAT_STAGE_PLAN)
        sp_plan_print(plan, out);
    else if (status == SPLAT_OK)
        status = sp_plan_source(plan, &full, full.arch, &spec, &source);
    splat_plan_destroy(plan);
    if (status != SPLAT_OK || stage == SPLAT_STAGE_PLAN)
        return status;
    if (stage == SPLAT_STAGE_SPEC)
        sp_spec_print(&spec, out);
    else if (stage == SPLAT_STAGE_SOURCE)
        sp_strbuf_add(out, source.text.text, source.text.size);
    else if (stage == SPLAT_STAGE_PTX)
        status = print_ptx(&source, full.arch, out);
    else
        status = print_log(&source, full.arch, out);
    sp_source_free(&source);
    return status;
}

enum splat_status splat_dump(const splat_mask *mask, const splat_options *options, enum splat_stage stage,
                             splat_write_fn write, void *user)
{
    if (!mask || !write)
        return sp_fail(SPLAT_INVALID, "%s is null", mask ? "write" : "mask");
    if ((int)stage < SPLAT_STAGE_ACSR || (int)stage > SPLAT_STAGE_LOG)
        return sp_fail(SPLAT_INVALID, "stage is %d; it must be from %d to %d", (int)stage, SPLAT_STAGE_ACSR,
                       SPLAT_STAGE_LOG);
    struct sp_strbuf out = SP_STRBUF_INIT;
    enum splat_status status =
        stage == SPLAT_STAGE_ACSR ? print_acsr(mask, &out) : print_later(mask, options, stage, &out);
    if (status == SPLAT_OK && out.failed)
        status = sp_no_memory("a dump", out.size);
    if (status == SPLAT_OK && out.size && write(out.text, out.size, user) != 0)
        status = sp_fail(SPLAT_IO, "the dump's writer failed");
    sp_strbuf_free(&out);
    return status;
}
