/* splatc compile: the mask's kernel into the disk cache, ready for a machine with a GPU. */
#include <jansson.h>
#include <stdio.h>

#include "analysis/plan.h"
#include "cli/cli.h"
#include "cli/json.h"
#include "common/error.h"

static enum splat_status print_json(const splat_compile_info *info)
{
    json_t *root = json_pack("{s:s, s:s, s:f, s:i, s:i, s:i, s:I}", "key", info->key, "cache",
                             info->cache_hit ? "hit" : "miss", "ms", info->ms, "registers", info->registers,
                             "shared_bytes", info->shared_bytes, "spill_bytes", info->spill_bytes, "cubin_bytes",
                             (json_int_t)info->cubin_bytes);
    return sp_json_print(root);
}

enum splat_status sp_command_compile(struct sp_cli *cli)
{
    splat_mask *mask = NULL;
    splat_context *context = NULL;
    splat_options options;
    sp_cli_defaults(cli);
    sp_cli_library_options(cli, &options);
    if (cli->dtype == SPLAT_FP32)
        return sp_fail(SPLAT_UNSUPPORTED,
                       "--dtype is fp32, for which there is no kernel to compile: the CPU runs it (splatc run "
                       "--dtype fp32 --device cpu); it must be fp16 or bf16");
    enum splat_status status = sp_options_check(&options);
    if (status == SPLAT_OK)
        status = sp_cli_mask(cli, &mask);
    if (status == SPLAT_OK)
        status = sp_cli_context(cli, &context);
    if (status == SPLAT_OK)
        status = sp_cli_check_cache(context);
    if (status == SPLAT_OK) {
        splat_compile_info info;
        splat_compile_info_init(&info);
        status = splat_compile_to_cache(context, mask, &options, &info);
        if (status == SPLAT_OK && cli->json)
            status = print_json(&info);
        else if (status == SPLAT_OK)
            printf("key        %s\ncache      %s\ntime       %.1f ms\nregisters  %d a thread, %d bytes spilled\n"
                   "shared     %d bytes a block\ncubin      %lld bytes\n",
                   info.key, info.cache_hit ? "hit" : "miss", info.ms, info.registers, info.spill_bytes,
                   info.shared_bytes, (long long)info.cubin_bytes);
    }
    splat_context_destroy(context);
    splat_mask_destroy(mask);
    return status;
}
