/* splatc dump: one stage of the pipeline as text, to stdout or to a file. */
#include <errno.h>

#include "analysis/plan.h"
#include "cli/cli.h"
#include "common/error.h"
#include "runtime/kernel.h"

struct sink {
    FILE *stream;
    int error; /* errno of the write that failed */
};

static int write_stream(const char *text, size_t size, void *user)
{
    struct sink *sink = user;
    errno = 0;
    if (fwrite(text, 1, size, sink->stream) == size)
        return 0;
    sink->error = errno ? errno : EIO;
    return 1;
}

/* Which chip the plan's times are for: the plan itself does not say. */
static enum splat_status add_chip(const struct sp_cli *cli, FILE *stream)
{
    enum splat_arch arch = cli->arch;
    enum splat_status status = arch == SPLAT_ARCH_AUTO ? sp_default_arch(&arch) : SPLAT_OK;
    if (status != SPLAT_OK)
        return status;
    const char *chip = sp_tune_table_for(arch)->chip;
    if (sp_cli_cpu_only(cli))
        fprintf(stream, "runs on the CPU: %s; the times are an %s's, and no time of this run is predicted\n",
                sp_cli_cpu_reason(cli), chip);
    else
        fprintf(stream, "times predicted on an %s\n", chip);
    return SPLAT_OK;
}

static enum splat_status write_stage(const struct sp_cli *cli, const splat_mask *mask, struct sp_output *output)
{
    splat_options options;
    sp_cli_library_options(cli, &options);
    struct sink sink = {output->stream, 0};
    enum splat_status status = splat_dump(mask, &options, cli->stage, write_stream, &sink);
    if (sink.error)
        return sp_output_failed(output, sink.error);
    if (status == SPLAT_OK && cli->stage == SPLAT_STAGE_PLAN)
        status = add_chip(cli, output->stream);
    return status;
}

enum splat_status sp_command_dump(struct sp_cli *cli)
{
    splat_mask *mask = NULL;
    sp_cli_defaults(cli);
    if (cli->dtype == SPLAT_FP32 && cli->stage != SPLAT_STAGE_ACSR && cli->stage != SPLAT_STAGE_PLAN)
        return sp_fail(SPLAT_UNSUPPORTED,
                       "--dtype is fp32, for which no kernel is generated: the CPU runs the plan; --stage must be "
                       "acsr or plan, or --dtype fp16 or bf16");
    enum splat_status status = sp_cli_mask(cli, &mask);
    if (status != SPLAT_OK)
        return status;
    struct sp_output output;
    status = sp_output_open(cli->output, &output);
    if (status == SPLAT_OK) {
        status = write_stage(cli, mask, &output);
        if (status == SPLAT_OK)
            status = sp_output_commit(&output);
        else
            sp_output_abandon(&output);
    }
    splat_mask_destroy(mask);
    return status;
}
