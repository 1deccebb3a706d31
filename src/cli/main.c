/* splatc: finds the command, runs it, and turns its status into the exit code: 0 ok, 1 failed, 2 usage, 3
 * unsupported. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "common/error.h"

struct command_row {
    const char *name;
    enum sp_command command;
    enum splat_status (*run)(struct sp_cli *cli);
    const char *purpose;
};

static const struct command_row commands[] = {
    {"dump", SP_DUMP, sp_command_dump, "print one stage of the pipeline: ACSR, plan, spec, CUDA source, PTX, log"},
    {"explain", SP_EXPLAIN, sp_command_explain, "say what was found in a mask and why it is fast or slow"},
    {"compile", SP_COMPILE, sp_command_compile, "compile a mask's kernel into the cache, without a GPU"},
    {"run", SP_RUN, sp_command_run, "compute attention, check it, time it"},
    {"cache", SP_CACHE, sp_command_cache, "stat, verify, prune or clear the cache of compiled kernels"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out)
{
    fputs("splatc: sparse attention from any mask.\n\nusage: splatc COMMAND [OPTION...]\n\n", out);
    for (int c = 0; c < COMMAND_COUNT; c++)
        fprintf(out, "  %-9s %s\n", commands[c].name, commands[c].purpose);
    fputs("\n`splatc COMMAND --help` or `splatc help COMMAND` lists a command's options. `splatc --version` prints "
          "the version.\n\n"
          "A mask is --pattern EXPR (with --seq N) or --mask FILE (.npy: non-zero = allowed; .pbm: black = "
          "allowed).\n"
          "Primitives of EXPR, to be joined with ~ & - | and parentheses:\n\n",
          out);
    fputs(splat_pattern_help(), out);
    fputs("\nExit codes: 0 ok, 1 failed, 2 usage, 3 unsupported here.\n", out);
}

static const struct command_row *find_command(const char *name)
{
    for (int c = 0; c < COMMAND_COUNT; c++)
        if (strcmp(name, commands[c].name) == 0)
            return &commands[c];
    return NULL;
}

/* docs/errors.md is made from this table. */
static const int exit_codes[] = {
    [SPLAT_OK] = SP_EXIT_OK,
    [SPLAT_INVALID] = SP_EXIT_USAGE,
    [SPLAT_UNSUPPORTED] = SP_EXIT_UNSUPPORTED,
    [SPLAT_NO_MEMORY] = SP_EXIT_FAILED,
    [SPLAT_IO] = SP_EXIT_FAILED,
    [SPLAT_NO_DEVICE] = SP_EXIT_UNSUPPORTED,
    [SPLAT_COMPILE] = SP_EXIT_FAILED,
    [SPLAT_CUDA] = SP_EXIT_FAILED,
    [SPLAT_INTERNAL] = SP_EXIT_FAILED,
};

/* A result that did not reach stdout (a full disk, say) is a failure too. */
static enum splat_status flush_stdout(void)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        return sp_fail(SPLAT_IO, "the result could not be written to stdout");
    return SPLAT_OK;
}

static enum splat_status run_command(const struct command_row *row, int argc, char **argv)
{
    struct sp_cli cli;
    enum splat_status status = sp_cli_parse(row->command, argc, argv, &cli);
    if (status == SPLAT_OK) {
        if (cli.help)
            sp_cli_help(row->command);
        else
            status = row->run(&cli);
    }
    return status == SPLAT_OK ? flush_stdout() : status;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    enum splat_status status = SPLAT_OK;
    const struct command_row *row = find_command(name);
    const struct command_row *helped = argc == 3 && strcmp(name, "help") == 0 ? find_command(argv[2]) : NULL;
    if (helped) {
        sp_cli_help(helped->command);
        status = flush_stdout();
    } else if (argc > 2 && strcmp(name, "help") == 0) {
        status = sp_fail(SPLAT_INVALID, "help is asked for '%s'; it must be dump, explain, compile, run or cache",
                         argv[argc > 3 ? 3 : 2]);
    } else if (row) {
        status = run_command(row, argc - 1, argv + 1);
    } else if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        status = flush_stdout();
    } else if (strcmp(name, "--version") == 0) {
        printf("splatc %s\n", splat_version());
        status = flush_stdout();
    } else if (argc < 2) {
        status = sp_fail(SPLAT_INVALID,
                         "no command given; it must be dump, explain, compile, run or cache (see splatc --help)");
    } else {
        status =
            sp_fail(SPLAT_INVALID,
                    "command is '%s'; it must be dump, explain, compile, run or cache (see splatc --help)", name);
    }
    if (status != SPLAT_OK)
        fprintf(stderr, "splatc: %s\n", splat_last_error());
    return exit_codes[status];
}
