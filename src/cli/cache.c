/* splatc cache: stat, verify, prune, clear. A damaged entry is found by verify (exit code 1), removed by prune. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/json.h"
#include "common/error.h"

enum action { STAT, VERIFY, PRUNE, CLEAR };

static enum splat_status find_action(const struct sp_cli *cli, enum action *action)
{
    static const char *const names[] = {"stat", "verify", "prune", "clear"};
    for (int a = STAT; cli->action && a <= CLEAR; a++) {
        if (strcmp(cli->action, names[a]) == 0) {
            *action = (enum action)a;
            return SPLAT_OK;
        }
    }
    if (!cli->action)
        return sp_fail(SPLAT_INVALID, "no action given; it must be stat, verify, prune or clear");
    return sp_fail(SPLAT_INVALID, "action is '%s'; it must be stat, verify, prune or clear", cli->action);
}

static enum splat_status act(const struct sp_cli *cli, enum action action, splat_context *context,
                             splat_cache_info *info)
{
    switch (action) {
    case STAT:
        return splat_cache_stat(context, info);
    case VERIFY:
        return splat_cache_verify(context, info);
    case PRUNE:
        return splat_cache_prune(context, cli->max_bytes, info);
    case CLEAR:
        return splat_cache_clear(context, info);
    }
    return sp_fail(SPLAT_INTERNAL, "action %d is not known", (int)action);
}

static void print_text(enum action action, const splat_cache_info *info)
{
    printf("folder   %s\nentries  %lld\nbytes    %lld\n", info->directory, (long long)info->entries,
           (long long)info->bytes);
    if (action == VERIFY || action == PRUNE)
        printf("damaged  %lld\n", (long long)info->damaged);
    if (action == PRUNE || action == CLEAR)
        printf("removed  %lld\n", (long long)info->removed);
}

enum splat_status sp_command_cache(struct sp_cli *cli)
{
    enum action action = STAT;
    splat_context *context = NULL;
    splat_cache_info info;
    splat_cache_info_init(&info);
    enum splat_status status = find_action(cli, &action);
    if (status == SPLAT_OK && cli->max_bytes >= 0 && action != PRUNE)
        status = sp_fail(SPLAT_INVALID, "--max-bytes is for cache prune, not for cache %s", cli->action);
    if (status == SPLAT_OK)
        status = sp_cli_context(cli, &context);
    if (status == SPLAT_OK)
        status = act(cli, action, context, &info);
    if (status == SPLAT_OK && cli->json)
        status = sp_json_print(json_pack("{s:s, s:I, s:I, s:I, s:I}", "directory", info.directory, "entries",
                                         (json_int_t)info.entries, "bytes", (json_int_t)info.bytes, "damaged",
                                         (json_int_t)info.damaged, "removed", (json_int_t)info.removed));
    else if (status == SPLAT_OK)
        print_text(action, &info);
    if (status == SPLAT_OK && action == VERIFY && info.damaged > 0)
        status = sp_fail(SPLAT_IO, "%lld of the cache's entries %s damaged; `splatc cache prune` removes what is",
                         (long long)info.damaged, info.damaged == 1 ? "is" : "are");
    splat_context_destroy(context);
    return status;
}
