/* The context of a command: cache folder and threads from the command line, log to stderr. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/error.h"
#include "common/files.h"

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

enum splat_status sp_cli_check_cache(splat_context *context)
{
    const char *mode = getenv("SPLAT_CACHE");
    if (mode && *mode && strcmp(mode, "on") != 0)
        return SPLAT_OK; /* nothing will be written */
    splat_cache_info info;
    splat_cache_info_init(&info);
    enum splat_status status = splat_cache_stat(context, &info);
    if (status != SPLAT_OK || strlen(info.directory) + 1 == sizeof info.directory)
        return status; /* of a path that is cut off there the store itself has to tell */
    char path[4096 + 32];
    int error = sp_make_folders(info.directory, 0700), fd = -1;
    if (!error && (status = splat_cache_stat(context, &info)) != SPLAT_OK)
        return status; /* made just now, where it cannot be trusted */
    if (!error) {
        snprintf(path, sizeof path, "%s/tmp-%ld-check", info.directory, (long)getpid());
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        error = fd < 0 ? errno : 0;
    }
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    if (error)
        return sp_fail(SPLAT_IO, "cache folder %s cannot be written: %s; name another with --cache-dir",
                       info.directory, strerror(error));
    return SPLAT_OK;
}
