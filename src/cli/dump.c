/* splatc dump: one stage of the pipeline as text, to stdout or to a file. */
#include "cli/cli.h"

static int write_stream(const char *text, size_t size, void *user)
{
    return fwrite(text, 1, size, user) != size;
}

enum splat_status sp_command_dump(struct sp_cli *cli)
{
    splat_mask *mask = NULL;
    sp_cli_defaults(cli);
    enum splat_status status = sp_cli_mask(cli, &mask);
    if (status != SPLAT_OK)
        return status;
    splat_options options;
    sp_cli_library_options(cli, &options);
    struct sp_output output;
    status = sp_output_open(cli->output, &output);
    if (status == SPLAT_OK) {
        status = splat_dump(mask, &options, cli->stage, write_stream, output.stream);
        if (status == SPLAT_OK)
            status = sp_output_commit(&output);
        else
            sp_output_abandon(&output);
    }
    splat_mask_destroy(mask);
    return status;
}
