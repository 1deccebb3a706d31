/* Stands in for NVRTC: takes any source, gives a cubin that holds the source's hash, and a log as ptxas writes it.
 */
#include "splat.h"

#include "stand_in.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT struct stand_in stand_in;

typedef struct program_s {
    char *log;
    unsigned char *cubin;
    size_t cubin_bytes;
    uint64_t content;
    char entry[64]; /* the name of the text's kernel */
    struct kernel_numbers numbers;
} * program;

enum { FAILED = 6 }; /* NVRTC_ERROR_COMPILATION */

EXPORT int nvrtcVersion(int *major, int *minor);
EXPORT int nvrtcCreateProgram(program *made, const char *text, const char *name, int headers,
                              const char *const *texts, const char *const *names);
EXPORT int nvrtcDestroyProgram(program *gone);
EXPORT int nvrtcCompileProgram(program from, int count, const char *const *options);
EXPORT int nvrtcGetProgramLogSize(program from, size_t *size);
EXPORT int nvrtcGetProgramLog(program from, char *text);
EXPORT int nvrtcGetCUBINSize(program from, size_t *size);
EXPORT int nvrtcGetCUBIN(program from, char *bytes);
EXPORT int nvrtcGetPTXSize(program from, size_t *size);
EXPORT int nvrtcGetPTX(program from, char *text);
EXPORT const char *nvrtcGetErrorString(int result);

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

static int32_t number_after(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    return at ? (int32_t)strtol(at + strlen(words), NULL, 10) : 0;
}

static int32_t op_of(const char *entry, const char *text)
{
    if (strcmp(entry, "splat_spmm") == 0)
        return strstr(text, "bool TRANSPOSED = true") ? SPLAT_OP_SPMM_TRANSPOSED : SPLAT_OP_SPMM;
    return strcmp(entry, "splat_attention") == 0 ? SPLAT_OP_ATTENTION
           : strcmp(entry, "splat_sddmm") == 0   ? SPLAT_OP_SDDMM
           : strcmp(entry, "splat_softmax") == 0 ? SPLAT_OP_SOFTMAX
                                                 : -1;
}

int nvrtcCreateProgram(program *made, const char *text, const char *name, int headers, const char *const *texts,
                       const char *const *names)
{
    (void)name, (void)headers, (void)texts, (void)names;
    int result = stand_in_call(&stand_in);
    if (result)
        return result;
    if (!(*made = calloc(1, sizeof **made)))
        return 1;
    /* The kernel's name stands before the first parenthesis behind its bounds. */
    const char *kernel = strstr(text, "extern \"C\" __global__"),
               *bounds = kernel ? strstr(kernel, " splat_") : NULL;
    snprintf((*made)->entry, sizeof(*made)->entry, "%.*s", bounds ? (int)strcspn(bounds + 1, "(") : 0,
             bounds ? bounds + 1 : "");
    (*made)->content = 1469598103934665603u;
    for (const unsigned char *at = (const unsigned char *)text; *at; at++)
        (*made)->content = ((*made)->content ^ *at) * 1099511628211u;
    (*made)->numbers = (struct kernel_numbers){
        .bf16 = strstr(text, "IS_BF16 = true") != NULL,
        .head_dim = number_after(text, "int HEAD_DIM = "),
        .value_dim = number_after(text, "int VALUE_DIM = "),
        .tile_rows = number_after(text, "int TILE_ROWS = "),
        .tile_cols = number_after(text, "int TILE_COLS = "),
        .op = op_of((*made)->entry, text),
    };
    __atomic_add_fetch(&stand_in.live, 1, __ATOMIC_RELAXED);
    return 0;
}

int nvrtcDestroyProgram(program *gone)
{
    if (*gone) {
        free((*gone)->log);
        free((*gone)->cubin);
        free(*gone);
        __atomic_sub_fetch(&stand_in.live, 1, __ATOMIC_RELAXED);
    }
    *gone = NULL;
    return 0;
}

static int write_log(program from, const char *entry)
{
    const int spill = stand_in.spoil == SPILLS || stand_in.spoil == SPILLS_ONCE ? 16 : 0;
    if (stand_in.spoil == SPILLS_ONCE)
        stand_in.spoil = SOUND;
    char text[600];
    if (stand_in.spoil == SILENT)
        text[0] = 0;
    else if (stand_in.spoil == NO_COMPILE)
        snprintf(text, sizeof text, "splat.cu(7): error: a stand-in was told to refuse this\n");
    else
        snprintf(
            text, sizeof text,
            "ptxas info    : Compiling entry function '%s' for 'sm'\nptxas info    : Function properties for %s\n"
            "    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads\n"
            "ptxas info    : Used %d registers, used 1 barriers\n%s",
            entry, entry, spill, spill, spill, 100 + (int)(from->content % 100),
            stand_in.spoil == SERIALISED ? "ptxas info    : (C7510) Potential Performance Loss: wgmma\n" : "");
    from->log = strdup(text);
    return from->log ? 0 : 1;
}

int nvrtcCompileProgram(program from, int count, const char *const *options)
{
    int result = stand_in_call(&stand_in), chip = 80, real = 0;
    for (int k = 0; k < count; k++) {
        chip = strstr(options[k], "90a") ? 90 : chip;
        real |= strstr(options[k], "=sm_") != NULL;
    }
    if (result)
        return result;
    if (write_log(from, from->entry))
        return 1;
    if (stand_in.spoil == NO_COMPILE)
        return FAILED;
    if (!real)
        return 0;
    if (stand_in.spoil == OTHER_CHIP)
        chip = chip == 80 ? 90 : 80;
    from->cubin = make_cubin(chip, 1, stand_in.spoil == NO_ENTRY ? "another_kernel" : from->entry, from->content,
                             &from->cubin_bytes);
    if (!from->cubin)
        return 1;
    memcpy(cubin_code(from->cubin) + 8, &from->numbers, sizeof from->numbers);
    if (stand_in.spoil == TRUNCATED)
        from->cubin_bytes -= 100;
    if (stand_in.spoil == NOT_ELF)
        memset(from->cubin, 'x', 64);
    if (stand_in.spoil == EMPTY)
        from->cubin_bytes = 0;
    return 0;
}

int nvrtcGetProgramLogSize(program from, size_t *size)
{
    int result = stand_in_call(&stand_in);
    *size = from->log ? strlen(from->log) + 1 : 0;
    return result;
}

int nvrtcGetProgramLog(program from, char *text)
{
    int result = stand_in_call(&stand_in);
    if (!result)
        strcpy(text, from->log ? from->log : "");
    return result;
}

int nvrtcGetCUBINSize(program from, size_t *size)
{
    *size = from->cubin_bytes;
    return stand_in_call(&stand_in);
}

int nvrtcGetCUBIN(program from, char *bytes)
{
    int result = stand_in_call(&stand_in);
    if (!result)
        memcpy(bytes, from->cubin, from->cubin_bytes);
    return result;
}

static const char ptx[] = "// PTX of a stand-in\n";

int nvrtcGetPTXSize(program from, size_t *size)
{
    (void)from;
    *size = sizeof ptx;
    return stand_in_call(&stand_in);
}

int nvrtcGetPTX(program from, char *text)
{
    (void)from;
    int result = stand_in_call(&stand_in);
    if (!result)
        memcpy(text, ptx, sizeof ptx);
    return result;
}

const char *nvrtcGetErrorString(int result)
{
    return result == FAILED ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_OF_A_STAND_IN";
}
