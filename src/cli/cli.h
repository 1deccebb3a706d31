/* What the commands of splatc share: parsed options, exit codes, the mask, the context, and output files.
 *
 * Results go to stdout, words to stderr. Functions that can fail return enum splat_status and leave their sentence
 * in splat_last_error(), as the library does; main turns the status into the exit code.
 */
#ifndef SP_CLI_H
#define SP_CLI_H

#include <stdint.h>
#include <stdio.h>

#include "splat.h"

/* One bit a command, so that the option table can say who takes what. */
enum sp_command { SP_DUMP = 1, SP_EXPLAIN = 2, SP_COMPILE = 4, SP_RUN = 8, SP_CACHE = 16 };

enum { SP_EXIT_OK = 0, SP_EXIT_FAILED = 1, SP_EXIT_USAGE = 2, SP_EXIT_UNSUPPORTED = 3 };

struct sp_cli {
    enum sp_command command;
    const char *action; /* the word after `cache` */
    int help;

    const char *pattern, *mask_path;
    int64_t seq, kv_seq;                /* 0 = not given */
    const char *seq_path, *kv_seq_path; /* the tensor file that seq, kv_seq came from; NULL = the option */
    enum splat_align align;
    int64_t batch, heads, kv_heads, head_dim, value_dim; /* 0 = not given, until sp_cli_defaults */
    int64_t tile_rows, tile_cols, layout;
    enum splat_dtype dtype;
    enum splat_op op;
    enum splat_arch arch;
    enum splat_device device;
    float scale; /* 0 = 1 / sqrt(head_dim) */
    int json, quiet;
    const char *cache_dir;
    int threads;

    enum splat_stage stage; /* dump */
    const char *output;     /* dump */
    const char *png;        /* explain */

    const char *q_path, *k_path, *v_path, *out_path, *lse_path; /* run */
    uint64_t seed;
    int64_t repeat;
    int check;

    int64_t max_bytes; /* cache; -1 = not given */
};

/* ---- options.c ---- */

/* Fills `cli` from the arguments after the command's name. */
enum splat_status sp_cli_parse(enum sp_command command, int argc, char **argv, struct sp_cli *cli);

/* Prints usage and options of one command to stdout. */
void sp_cli_help(enum sp_command command);

/* Puts 1, 1 and 64 for batch, heads and head dim that were neither given nor read from a file. */
void sp_cli_defaults(struct sp_cli *cli);

/* The library's options for this command line. */
void sp_cli_library_options(const struct sp_cli *cli, splat_options *options);

/* Whether the plan can only run on the CPU, and the words for why. */
int sp_cli_cpu_only(const struct sp_cli *cli);
const char *sp_cli_cpu_reason(const struct sp_cli *cli);

const char *sp_dtype_name(enum splat_dtype dtype);
const char *sp_op_name(enum splat_op op);
const char *sp_device_name(enum splat_device device);

/* ---- mask_input.c ---- */

/* The mask of --pattern or --mask; sets seq and kv_seq to its lengths. */
enum splat_status sp_cli_mask(struct sp_cli *cli, splat_mask **mask);

/* ---- context.c ---- */

/* A context with the command line's cache folder and threads, whose log goes to stderr unless --quiet. */
enum splat_status sp_cli_context(const struct sp_cli *cli, splat_context **context);

/* Fails when the cache is on and an entry could not be written to its folder, which is made when it is not there.
 */
enum splat_status sp_cli_check_cache(splat_context *context);

/* ---- file.c ---- */

/* A whole file, mapped where the system can, else read. */
struct sp_file {
    const uint8_t *data;
    size_t size;
    int mapped;
};

enum splat_status sp_file_open(const char *path, struct sp_file *file);
void sp_file_close(struct sp_file *file);

/* A file under way: it takes its name only when all of it is written. "-" is stdout. */
struct sp_output {
    FILE *stream;
    const char *path; /* as the user gave it */
    char *target;     /* what the name leads to, after symbolic links; NULL when written directly */
    char *temporary;
};

enum splat_status sp_output_open(const char *path, struct sp_output *output);
/* Flushes, closes and renames. */
enum splat_status sp_output_commit(struct sp_output *output);
/* Drops what was written; does nothing after a commit. */
void sp_output_abandon(struct sp_output *output);
/* The sentence for a write that failed with errno `error`; SPLAT_IO. */
enum splat_status sp_output_failed(const struct sp_output *output, int error);
/* Fails when the file could not be written, and leaves no trace. */
enum splat_status sp_output_check(const char *path);

/* ---- the commands ---- */

enum splat_status sp_command_dump(struct sp_cli *cli);
enum splat_status sp_command_explain(struct sp_cli *cli);
enum splat_status sp_command_compile(struct sp_cli *cli);
enum splat_status sp_command_run(struct sp_cli *cli);
enum splat_status sp_command_run_sparse(struct sp_cli *cli); /* run of any op but attention */
enum splat_status sp_command_cache(struct sp_cli *cli);

#endif
