/* The context of a command: cache folder and threads from the command line, log to stderr. */
#include <stdio.h>

#include "cli/cli.h"

static void log_to_stderr(enum splat_log_level level, const char *message, void *user)
{
    (void)user;
    fprintf(stderr, "splatc: %s%s\n", level == SPLAT_LOG_WARNING ? "warning: " : "", message);
}

enum splat_status sp_cli_context(const struct sp_cli *cli, splat_context **context)
{
    splat_context_options options;
    splat_context_options_init(&options);
    options.cache_dir = cli->cache_dir;
    options.threads = cli->threads;
    options.log = cli->quiet ? NULL : log_to_stderr;
    return splat_context_create(&options, context);
}
