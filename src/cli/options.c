/* The command line: one table says which option each command takes, what it means and how it is explained.
 *
 * Keeps true: a value outside its limits is refused here, with the option, the value and the limit in the sentence,
 * before any file is read.
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/numbers.h"
#include "common/error.h"

enum option_id {
    OPT_PATTERN = 256,
    OPT_MASK,
    OPT_SEQ,
    OPT_KV_SEQ,
    OPT_ALIGN,
    OPT_BATCH,
    OPT_HEADS,
    OPT_KV_HEADS,
    OPT_HEAD_DIM,
    OPT_VALUE_DIM,
    OPT_DTYPE,
    OPT_OP,
    OPT_ARCH,
    OPT_DEVICE,
    OPT_SCALE,
    OPT_TILE,
    OPT_LAYOUT,
    OPT_STAGE,
    OPT_OUTPUT,
    OPT_PNG,
    OPT_Q,
    OPT_K,
    OPT_V,
    OPT_OUT,
    OPT_LSE,
    OPT_SEED,
    OPT_REPEAT,
    OPT_CHECK,
    OPT_CACHE_DIR,
    OPT_DIR,
    OPT_MAX_BYTES,
    OPT_THREADS,
    OPT_JSON,
    OPT_QUIET,
    OPT_HELP
};

#define WITH_MASK    (SP_DUMP | SP_EXPLAIN | SP_COMPILE | SP_RUN)
#define WITH_CONTEXT (SP_COMPILE | SP_RUN | SP_CACHE)
#define ALL          (WITH_MASK | SP_CACHE)

static const struct option_row {
    enum option_id id;
    const char *name, *argument; /* no argument: a switch */
    unsigned commands;
    const char *help;
} table[] = {
    {OPT_PATTERN, "pattern", "EXPR", WITH_MASK, "the mask as an expression, such as 'causal & window(1023, 0)'"},
    {OPT_MASK, "mask", "FILE", WITH_MASK,
     "the mask as a file: .npy (bool, uint8, int8; 2-D; non-zero = allowed) or .pbm (black = allowed)"},
    {OPT_SEQ, "seq", "N", WITH_MASK, "query rows; needed with --pattern"},
    {OPT_KV_SEQ, "kv-seq", "N", WITH_MASK, "key columns (default: as --seq)"},
    {OPT_ALIGN, "align", "WHERE", WITH_MASK, "diagonal when lengths differ: bottom_right (default) or top_left"},
    {OPT_BATCH, "batch", "N", WITH_MASK, "batch size (1)"},
    {OPT_HEADS, "heads", "N", WITH_MASK, "query heads (1)"},
    {OPT_KV_HEADS, "kv-heads", "N", WITH_MASK, "key and value heads (as --heads)"},
    {OPT_HEAD_DIM, "head-dim", "N", WITH_MASK, "dimension of q and k: 8 to 256, a multiple of 8 (64)"},
    {OPT_VALUE_DIM, "value-dim", "N", WITH_MASK, "dimension of v and the output (as --head-dim)"},
    {OPT_DTYPE, "dtype", "TYPE", WITH_MASK, "fp16, bf16 (default) or fp32 (CPU only); inputs are rounded to it"},
    {OPT_OP, "op", "OP", WITH_MASK, "attention (default), sddmm, softmax, spmm or spmm_transposed"},
    {OPT_ARCH, "arch", "ARCH", WITH_MASK, "sm_80, sm_90a or auto (default): the device's own, else sm_90a"},
    {OPT_DEVICE, "device", "WHERE", WITH_MASK, "auto (default), cpu or gpu"},
    {OPT_SCALE, "scale", "X", WITH_MASK,
     "factor of q.k (1 / sqrt(head dim)); a launch argument, used by run alone"},
    {OPT_TILE, "tile", "MxN", WITH_MASK, "force a tile shape, rows x columns, such as 128x64"},
    {OPT_STAGE, "stage", "STAGE", SP_DUMP, "acsr, plan, spec, source (default), ptx or log"},
    {OPT_OUTPUT, "output", "FILE", SP_DUMP, "where to write, also -o; - is stdout (default)"},
    {OPT_LAYOUT, "layout", "N", WITH_MASK, "force layout N of those that explain lists; 1 is token order"},
    {OPT_PNG, "png", "FILE", SP_EXPLAIN, "draw the mask, its tiles coloured by kind"},
    {OPT_Q, "q", "FILE", SP_RUN, "queries: .npy, [B,H,S,D], float32 or float16; with --k and --v"},
    {OPT_K, "k", "FILE", SP_RUN, "keys, likewise"},
    {OPT_V, "v", "FILE", SP_RUN, "values, likewise"},
    {OPT_OUT, "out", "FILE", SP_RUN, "write the output as .npy, float32, [B,H,S,D]"},
    {OPT_LSE, "lse", "FILE", SP_RUN, "write the log-sum-exp as .npy, float32, [B,H,S]"},
    {OPT_SEED, "seed", "N", SP_RUN, "of the random inputs (0)"},
    {OPT_REPEAT, "repeat", "N", SP_RUN, "timed runs; their median is reported (5)"},
    {OPT_CHECK, "check", NULL, SP_RUN, "compare sampled rows with a double-precision reference (see below)"},
    {OPT_CACHE_DIR, "cache-dir", "DIR", WITH_CONTEXT, "cache folder ($SPLAT_CACHE_DIR, else ~/.cache/splat)"},
    {OPT_DIR, "dir", "DIR", SP_CACHE, "as --cache-dir"},
    {OPT_MAX_BYTES, "max-bytes", "N", SP_CACHE, "prune: keep at most this much (268435456)"},
    {OPT_THREADS, "threads", "N", SP_RUN, "of the CPU engine (one a core)"},
    {OPT_JSON, "json", NULL, SP_EXPLAIN | SP_COMPILE | SP_RUN | SP_CACHE, "print the result as JSON"},
    {OPT_QUIET, "quiet", NULL, WITH_CONTEXT, "no notes about compiles and the cache on stderr, also -q"},
    {OPT_HELP, "help", NULL, ALL, "this text, also -h"},
};
enum { ROW_COUNT = sizeof table / sizeof table[0] };

/* What does not fit a line of the table. */
static const struct {
    unsigned commands;
    const char *text;
} notes[] = {
    {SP_RUN,
     "--check recomputes the first, the last, one empty (if any) and some random rows of every (batch, head)\n"
     "in double precision, from the inputs as rounded to --dtype; lse too. The tolerance of a value follows\n"
     "from the roundings of the dtype and of fp32 sums; NaN is right only where the reference has it.\n"},
    {SP_COMPILE | SP_RUN | SP_CACHE,
     "A cache entry is keyed by the kernel's code: masks and lengths that need the same code share one.\n"},
    {SP_COMPILE | SP_RUN | SP_CACHE | SP_DUMP,
     "Environment:\n"
     "  SPLAT_NVRTC        path of libnvrtc.so (else $CUDA_HOME, the loader's path, /usr/local/cuda*, pip's)\n"
     "  SPLAT_CACHE        on (default), ro (read, never written) or off\n"
     "  SPLAT_SELF_CHECK   on (default) or off: new code is compared with the CPU before it is used\n"
     "  SPLAT_CACHE_DIR    cache folder, unless --cache-dir names one\n"
     "  XDG_CACHE_HOME     without either, the cache is $XDG_CACHE_HOME/splat (else ~/.cache/splat)\n"},
};
enum { NOTE_COUNT = sizeof notes / sizeof notes[0] };

static const char *command_name(enum sp_command command)
{
    switch (command) {
    case SP_DUMP:
        return "dump";
    case SP_EXPLAIN:
        return "explain";
    case SP_COMPILE:
        return "compile";
    case SP_RUN:
        return "run";
    case SP_CACHE:
        return "cache";
    }
    return "?";
}

void sp_cli_help(enum sp_command command)
{
    const char *words = command == SP_CACHE ? " stat|verify|prune|clear" : " --pattern EXPR --seq N | --mask FILE";
    printf("usage: splatc %s%s [OPTION...]\n\n", command_name(command), words);
    for (int r = 0; r < ROW_COUNT; r++) {
        if (!(table[r].commands & (unsigned)command))
            continue;
        char left[40];
        snprintf(left, sizeof left, "--%s%s%s", table[r].name, table[r].argument ? " " : "",
                 table[r].argument ? table[r].argument : "");
        printf("  %-18s %s\n", left, table[r].help);
    }
    for (int n = 0; n < NOTE_COUNT; n++)
        if (notes[n].commands & (unsigned)command)
            printf("\n%s", notes[n].text);
}

/* ---- Values ---- */

struct choice {
    const char *name;
    int value;
};

/* The value of the first choice with that name; `known` lists them for the sentence. */
static enum splat_status parse_choice(const char *option, const char *text, const struct choice *choices,
                                      const char *known, int *value)
{
    for (; choices->name; choices++) {
        if (strcmp(choices->name, text) == 0) {
            *value = choices->value;
            return SPLAT_OK;
        }
    }
    return sp_fail(SPLAT_INVALID, "%s is '%s'; it must be %s", option, text, known);
}

static const struct choice aligns[] = {{"bottom_right", SPLAT_ALIGN_BOTTOM_RIGHT},
                                       {"bottom-right", SPLAT_ALIGN_BOTTOM_RIGHT},
                                       {"top_left", SPLAT_ALIGN_TOP_LEFT},
                                       {"top-left", SPLAT_ALIGN_TOP_LEFT},
                                       {NULL, 0}};
static const struct choice dtypes[] = {{"fp16", SPLAT_FP16}, {"bf16", SPLAT_BF16}, {"fp32", SPLAT_FP32}, {NULL, 0}};
static const struct choice ops[] = {{"attention", SPLAT_OP_ATTENTION},
                                    {"sddmm", SPLAT_OP_SDDMM},
                                    {"softmax", SPLAT_OP_SOFTMAX},
                                    {"spmm", SPLAT_OP_SPMM},
                                    {"spmm_transposed", SPLAT_OP_SPMM_TRANSPOSED},
                                    {NULL, 0}};
static const struct choice devices[] = {
    {"auto", SPLAT_DEVICE_AUTO}, {"cpu", SPLAT_DEVICE_CPU}, {"gpu", SPLAT_DEVICE_GPU}, {NULL, 0}};
static const struct choice archs[] = {
    {"auto", SPLAT_ARCH_AUTO}, {"sm_80", SPLAT_ARCH_SM80}, {"sm_90a", SPLAT_ARCH_SM90A}, {NULL, 0}};
static const struct choice stages[] = {{"acsr", SPLAT_STAGE_ACSR},
                                       {"plan", SPLAT_STAGE_PLAN},
                                       {"spec", SPLAT_STAGE_SPEC},
                                       {"source", SPLAT_STAGE_SOURCE},
                                       {"ptx", SPLAT_STAGE_PTX},
                                       {"log", SPLAT_STAGE_LOG},
                                       {NULL, 0}};

int sp_cli_cpu_only(const struct sp_cli *cli)
{
    return cli->dtype == SPLAT_FP32 || cli->device == SPLAT_DEVICE_CPU;
}

const char *sp_cli_cpu_reason(const struct sp_cli *cli)
{
    return cli->dtype == SPLAT_FP32 ? "fp32 has no GPU kernel" : "--device is cpu";
}

const char *sp_dtype_name(enum splat_dtype dtype)
{
    return dtypes[dtype].name;
}

const char *sp_op_name(enum splat_op op)
{
    return ops[op].name;
}

const char *sp_device_name(enum splat_device device)
{
    return devices[device].name;
}

enum { TILE_MAX = 4096 };

static enum splat_status parse_tile(const char *text, struct sp_cli *cli)
{
    char rows[16];
    const char *cross = strchr(text, 'x');
    int64_t m = 0, n = 0;
    if (cross && (size_t)(cross - text) < sizeof rows) {
        memcpy(rows, text, (size_t)(cross - text));
        rows[cross - text] = '\0';
        if (sp_parse_whole("--tile", rows, 1, TILE_MAX, &m) == SPLAT_OK &&
            sp_parse_whole("--tile", cross + 1, 1, TILE_MAX, &n) == SPLAT_OK) {
            cli->tile_rows = m;
            cli->tile_cols = n;
            return SPLAT_OK;
        }
    }
    return sp_fail(SPLAT_INVALID, "--tile is '%s'; it must be rows x columns, each from 1 to %d, such as 128x64",
                   text, TILE_MAX);
}

/* What says which mask, and what of the problem. */
static enum splat_status take_problem(enum option_id id, const char *text, struct sp_cli *cli)
{
    switch (id) {
    case OPT_PATTERN:
        cli->pattern = text;
        return SPLAT_OK;
    case OPT_MASK:
        cli->mask_path = text;
        return SPLAT_OK;
    case OPT_SEQ:
        return sp_parse_whole("--seq", text, 1, SPLAT_MAX_LEN, &cli->seq);
    case OPT_KV_SEQ:
        return sp_parse_whole("--kv-seq", text, 1, SPLAT_MAX_LEN, &cli->kv_seq);
    case OPT_BATCH:
        return sp_parse_whole("--batch", text, 1, INT32_MAX, &cli->batch);
    case OPT_HEADS:
        return sp_parse_whole("--heads", text, 1, INT32_MAX, &cli->heads);
    case OPT_KV_HEADS:
        return sp_parse_whole("--kv-heads", text, 1, INT32_MAX, &cli->kv_heads);
    case OPT_HEAD_DIM:
        return sp_parse_whole("--head-dim", text, 8, 256, &cli->head_dim);
    case OPT_VALUE_DIM:
        return sp_parse_whole("--value-dim", text, 8, 256, &cli->value_dim);
    case OPT_SCALE:
        return sp_parse_positive("--scale", text, &cli->scale);
    case OPT_TILE:
        return parse_tile(text, cli);
    case OPT_LAYOUT:
        return sp_parse_whole("--layout", text, 1, 64, &cli->layout);
    default:
        return sp_fail(SPLAT_INTERNAL, "option %d is in the table and nowhere else", (int)id);
    }
}

static enum splat_status take_run(enum option_id id, const char *text, struct sp_cli *cli)
{
    switch (id) {
    case OPT_Q:
        cli->q_path = text;
        return SPLAT_OK;
    case OPT_K:
        cli->k_path = text;
        return SPLAT_OK;
    case OPT_V:
        cli->v_path = text;
        return SPLAT_OK;
    case OPT_OUT:
        cli->out_path = text;
        return SPLAT_OK;
    case OPT_LSE:
        cli->lse_path = text;
        return SPLAT_OK;
    case OPT_SEED:
        return sp_parse_seed("--seed", text, &cli->seed);
    case OPT_REPEAT:
        return sp_parse_whole("--repeat", text, 1, 1000000, &cli->repeat);
    case OPT_CHECK:
        cli->check = 1;
        return SPLAT_OK;
    default:
        return take_problem(id, text, cli);
    }
}

static enum splat_status take(enum option_id id, const char *text, struct sp_cli *cli)
{
    int value = 0;
    enum splat_status status = SPLAT_OK;
    switch (id) {
    case OPT_ALIGN:
        status = parse_choice("--align", text, aligns, "bottom_right or top_left", &value);
        cli->align = (enum splat_align)value;
        return status;
    case OPT_DTYPE:
        status = parse_choice("--dtype", text, dtypes, "fp16, bf16 or fp32", &value);
        cli->dtype = (enum splat_dtype)value;
        return status;
    case OPT_OP:
        status = parse_choice("--op", text, ops, "attention, sddmm, softmax, spmm or spmm_transposed", &value);
        cli->op = (enum splat_op)value;
        return status;
    case OPT_ARCH:
        status = parse_choice("--arch", text, archs, "sm_80, sm_90a or auto", &value);
        cli->arch = (enum splat_arch)value;
        return status;
    case OPT_DEVICE:
        status = parse_choice("--device", text, devices, "auto, cpu or gpu", &value);
        cli->device = (enum splat_device)value;
        return status;
    case OPT_STAGE:
        status = parse_choice("--stage", text, stages, "acsr, plan, spec, source, ptx or log", &value);
        cli->stage = (enum splat_stage)value;
        return status;
    case OPT_OUTPUT:
        cli->output = text;
        return SPLAT_OK;
    case OPT_PNG:
        cli->png = text;
        return SPLAT_OK;
    case OPT_CACHE_DIR:
    case OPT_DIR:
        cli->cache_dir = text;
        return SPLAT_OK;
    case OPT_MAX_BYTES:
        return sp_parse_whole("--max-bytes", text, 0, INT64_MAX, &cli->max_bytes);
    case OPT_THREADS: {
        int64_t threads = 0;
        status = sp_parse_whole("--threads", text, 1, 4096, &threads);
        cli->threads = (int)threads;
        return status;
    }
    case OPT_JSON:
        cli->json = 1;
        return SPLAT_OK;
    case OPT_QUIET:
        cli->quiet = 1;
        return SPLAT_OK;
    case OPT_HELP:
        cli->help = 1;
        return SPLAT_OK;
    default:
        return take_run(id, text, cli);
    }
}

/* ---- The whole line ---- */

static int long_options(enum sp_command command, struct option *out)
{
    int count = 0;
    for (int r = 0; r < ROW_COUNT; r++)
        if (table[r].commands & (unsigned)command)
            out[count++] = (struct option){table[r].name, table[r].argument ? required_argument : no_argument, NULL,
                                           (int)table[r].id};
    out[count] = (struct option){0};
    return count;
}

/* Letters to change, drop or add until the first `size` letters of a are b. */
static int edit_distance(const char *a, size_t size, const char *b)
{
    enum { LONGEST = 32 };
    int row[LONGEST + 1];
    int n = (int)(size < LONGEST ? size : LONGEST), m = (int)strlen(b);
    for (int i = 0; i <= n; i++)
        row[i] = i;
    for (int j = 1; j <= m; j++) {
        int diagonal = row[0];
        row[0] = j;
        for (int i = 1; i <= n; i++) {
            int change = diagonal + (a[i - 1] != b[j - 1]), other = (row[i] < row[i - 1] ? row[i] : row[i - 1]) + 1;
            diagonal = row[i];
            row[i] = change < other ? change : other;
        }
    }
    return row[n];
}

/* The command's option that is spelt most like `word` ("--sqe=5", say), or NULL when none comes near. */
static const char *nearest_option(enum sp_command command, const char *word)
{
    if (strncmp(word, "--", 2) != 0)
        return NULL;
    size_t size = strcspn(word + 2, "=");
    int best = size > 4 ? 4 : 3; /* nearer than this */
    const char *nearest = NULL;
    for (int r = 0; r < ROW_COUNT; r++) {
        int distance = edit_distance(word + 2, size, table[r].name);
        if ((table[r].commands & (unsigned)command) && distance < best) {
            best = distance;
            nearest = table[r].name;
        }
    }
    return nearest;
}

/* getopt_long said '?' or ':' about argv[at]. */
static enum splat_status complain(enum sp_command command, int what, const char *word, int code)
{
    const char *name = command_name(command);
    if (what == ':')
        return sp_fail(SPLAT_INVALID, "option %s needs a value (see splatc %s --help)", word, name);
    if (code >= OPT_PATTERN)
        return sp_fail(SPLAT_INVALID, "option %s takes no value (see splatc %s --help)", word, name);
    const char *nearest = nearest_option(command, word);
    if (nearest)
        return sp_fail(SPLAT_INVALID,
                       "option %s is not one of splatc %s's; the nearest is --%s (see splatc %s --help)", word,
                       name, nearest, name);
    return sp_fail(SPLAT_INVALID,
                   "option %s is not one of splatc %s's, or short for several (see splatc %s --help)", word, name,
                   name);
}

static enum splat_status check_whole(const struct sp_cli *cli)
{
    if (cli->help || cli->command == SP_CACHE)
        return SPLAT_OK;
    if (!cli->pattern && !cli->mask_path)
        return sp_fail(SPLAT_INVALID, "no mask given; give --pattern EXPR with --seq N, or --mask FILE");
    if (cli->pattern && cli->mask_path)
        return sp_fail(SPLAT_INVALID, "both --pattern and --mask are given; give one of them");
    if (cli->pattern && !cli->seq && !cli->q_path)
        return sp_fail(SPLAT_INVALID, "--pattern needs --seq N, the number of query rows");
    if (!cli->q_path != !cli->k_path || !cli->q_path != !cli->v_path)
        return sp_fail(SPLAT_INVALID, "--q, --k and --v go together: give all three or none");
    return SPLAT_OK;
}

enum splat_status sp_cli_parse(enum sp_command command, int argc, char **argv, struct sp_cli *cli)
{
    *cli = (struct sp_cli){.command = command,
                           .dtype = SPLAT_BF16,
                           .stage = SPLAT_STAGE_SOURCE,
                           .output = "-",
                           .repeat = 5,
                           .max_bytes = -1};
    struct option options[ROW_COUNT + 1];
    long_options(command, options);
    const char *shorts = command == SP_DUMP ? ":ho:" : command == SP_EXPLAIN ? ":h" : ":hq";
    enum splat_status status = SPLAT_OK;
    opterr = 0;
    optind = 1;
    while (status == SPLAT_OK) {
        int before = optind;
        int got = getopt_long(argc, argv, shorts, options, NULL);
        if (got < 0)
            break;
        if (got == '?' || got == ':')
            return complain(command, got, argv[optind > before ? optind - 1 : before], optopt);
        int id = got == 'h' ? OPT_HELP : got == 'o' ? OPT_OUTPUT : got == 'q' ? OPT_QUIET : got;
        status = take((enum option_id)id, optarg, cli);
    }
    if (status == SPLAT_OK && command == SP_CACHE && optind < argc)
        cli->action = argv[optind++];
    if (status == SPLAT_OK && optind < argc)
        status = sp_fail(SPLAT_INVALID, "argument '%s' is one too many (see splatc %s --help)", argv[optind],
                         command_name(command));
    return status == SPLAT_OK ? check_whole(cli) : status;
}

void sp_cli_defaults(struct sp_cli *cli)
{
    cli->batch = cli->batch ? cli->batch : 1;
    cli->heads = cli->heads ? cli->heads : 1;
    cli->kv_heads = cli->kv_heads ? cli->kv_heads : cli->heads;
    cli->head_dim = cli->head_dim ? cli->head_dim : 64;
    cli->value_dim = cli->value_dim ? cli->value_dim : cli->head_dim;
}

void sp_cli_library_options(const struct sp_cli *cli, splat_options *options)
{
    splat_options_init(options);
    options->dtype = cli->dtype;
    options->device = cli->device;
    options->arch = cli->arch;
    options->head_dim = cli->head_dim;
    options->value_dim = cli->value_dim;
    options->batch = cli->batch;
    options->heads = cli->heads;
    options->kv_heads = cli->kv_heads;
    options->tile_rows = cli->tile_rows;
    options->tile_cols = cli->tile_cols;
    options->layout = cli->layout;
    options->op = cli->op;
}
