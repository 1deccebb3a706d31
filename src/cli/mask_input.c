/* The mask of a command: from an expression and lengths, or from a file that brings its own lengths. */
#include "cli/mask_input.h"

#include <string.h>

#include "common/error.h"

static enum splat_status read_mask(const char *path, splat_mask **mask)
{
    struct sp_file file;
    enum splat_status status = sp_file_open(path, &file);
    if (status != SPLAT_OK)
        return status;
    if (file.size >= 6 && memcmp(file.data, "\x93NUMPY", 6) == 0)
        status = sp_npy_mask(path, &file, mask);
    else if (file.size >= 2 && file.data[0] == 'P' && (file.data[1] == '1' || file.data[1] == '4'))
        status = sp_pbm_mask(path, &file, mask);
    else
        status = sp_fail(SPLAT_INVALID,
                         "file '%s' holds no mask; it must begin as a .npy array or a .pbm bitmap (P1, P4)", path);
    sp_file_close(&file);
    return status;
}

/* `source` is the tensor file that `given` came from, or NULL when the option gave it. */
static enum splat_status check_length(const char *option, const char *source, int64_t given, int64_t found,
                                      const char *what, const char *path)
{
    if (given == 0 || given == found)
        return SPLAT_OK;
    if (source)
        return sp_fail(SPLAT_INVALID, "file '%s' has %lld rows (axis 2), but the mask of file '%s' has %lld %s",
                       source, (long long)given, path, (long long)found, what);
    return sp_fail(SPLAT_INVALID, "%s is %lld, but the mask of file '%s' has %lld %s", option, (long long)given,
                   path, (long long)found, what);
}

enum splat_status sp_cli_mask(struct sp_cli *cli, splat_mask **mask)
{
    if (cli->pattern) {
        cli->kv_seq = cli->kv_seq ? cli->kv_seq : cli->seq;
        return splat_mask_from_expression(cli->pattern, cli->seq, cli->kv_seq, cli->align, mask);
    }
    splat_mask *found = NULL;
    enum splat_status status = read_mask(cli->mask_path, &found);
    if (status == SPLAT_OK)
        status = check_length("--seq", cli->seq_path, cli->seq, splat_mask_q_len(found), "rows", cli->mask_path);
    if (status == SPLAT_OK)
        status = check_length("--kv-seq", cli->kv_seq_path, cli->kv_seq, splat_mask_kv_len(found), "columns",
                              cli->mask_path);
    if (status != SPLAT_OK) {
        splat_mask_destroy(found);
        return status;
    }
    cli->seq = splat_mask_q_len(found);
    cli->kv_seq = splat_mask_kv_len(found);
    *mask = found;
    return SPLAT_OK;
}
