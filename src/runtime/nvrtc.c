/* NVRTC, opened at run time: generated source in, a cubin (or PTX) with its resource use out.
 *
 * Takes $SPLAT_NVRTC, $CUDA_HOME, $CUDA_PATH, the loader's own search and the places where the CUDA toolkit and
 * Python packages put the library. Gives images whose kernel is known to use no local memory and to have no
 * serialised products. Keeps true: the library is looked for once a process; no lock is held while it compiles
 * (NVRTC is thread-safe); nothing but the source and sp_nvrtc_options decides the image.
 */
#include "runtime/nvrtc.h"

#include <dlfcn.h>
#include <elf.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/strbuf.h"

typedef struct program_s *program;

/* Every function in use: name in the library, name here, parameters. The result is 0 for success. */
#define NVRTC_FUNCTIONS(F)                                                                                         \
    F("nvrtcVersion", version, (int *major, int *minor))                                                           \
    F("nvrtcCreateProgram", create,                                                                                \
      (program * made, const char *text, const char *name, int header_count, const char *const *headers,           \
       const char *const *header_names))                                                                           \
    F("nvrtcDestroyProgram", destroy, (program * gone))                                                            \
    F("nvrtcCompileProgram", compile, (program from, int option_count, const char *const *options))                \
    F("nvrtcGetProgramLogSize", log_size, (program from, size_t * size))                                           \
    F("nvrtcGetProgramLog", log, (program from, char *text))                                                       \
    F("nvrtcGetCUBINSize", cubin_size, (program from, size_t * size))                                              \
    F("nvrtcGetCUBIN", cubin, (program from, char *bytes))                                                         \
    F("nvrtcGetPTXSize", ptx_size, (program from, size_t * size))                                                  \
    F("nvrtcGetPTX", ptx, (program from, char *text))

static struct {
#define F(symbol, name, parameters) int(*name) parameters;
    NVRTC_FUNCTIONS(F)
#undef F
    const char *(*error_string)(int result);
} table;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int version_number;
static char reason[1024]; /* why there is no NVRTC; "" when there is one */
static char trouble[256]; /* the last library that was there and could not be used */

/* ---- Finding the library ---- */

/* The library, when it opens and has every function; else 0 with the reason in `trouble`. */
static int open_at(const char *path)
{
    static const struct {
        const char *symbol;
        void *place;
    } functions[] = {
#define F(symbol, name, parameters) {symbol, &table.name},
        NVRTC_FUNCTIONS(F)
#undef F
            {"nvrtcGetErrorString", &table.error_string},
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *message = dlerror();
        snprintf(trouble, sizeof trouble, "%s", message ? message : path);
        return 0;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *address = dlsym(library, functions[i].symbol);
        if (!address) {
            snprintf(trouble, sizeof trouble, "%s has no function %s", path, functions[i].symbol);
            dlclose(library);
            return 0;
        }
        /* A function pointer and a data pointer have one representation wherever dlsym exists (POSIX). */
        memcpy(functions[i].place, &address, sizeof address);
    }
    return 1;
}

static int by_version(const void *left, const void *right)
{
    return strverscmp(*(char *const *)right, *(char *const *)left);
}

/* The newest library that the pattern finds: `root` taken literally, then `tail`, a glob pattern. The tails name
 * libnvrtc.so*, which leaves out the libraries beside it (libnvrtc-builtins, libnvrtc.alt). */
static int open_newest(const char *root, const char *tail)
{
    struct sp_strbuf pattern = SP_STRBUF_INIT;
    for (const char *at = root; *at; at++) {
        if (strchr("*?[]{},~\\", *at))
            sp_strbuf_add(&pattern, "\\", 1);
        sp_strbuf_add(&pattern, at, 1);
    }
    sp_strbuf_puts(&pattern, tail);
    glob_t found = {0};
    int opened = 0;
    if (!pattern.failed && glob(pattern.text, GLOB_BRACE, NULL, &found) == 0) {
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_version);
        for (size_t i = 0; i < found.gl_pathc && !opened; i++)
            opened = open_at(found.gl_pathv[i]);
    }
    globfree(&found);
    sp_strbuf_free(&pattern);
    return opened;
}

/* The same below the folder that an environment variable names. Nothing when it is unset, empty or relative: a
 * library is code, and the current folder may be anyone's. */
static int open_under(const char *variable, const char *tail)
{
    const char *root = getenv(variable);
    return root && root[0] == '/' && open_newest(root, tail);
}

static int open_toolkit(void)
{
    static const char tail[] = "/{lib64,lib,targets/x86_64-linux/lib}/libnvrtc.so*";
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    if (open_under("CUDA_HOME", tail) || open_under("CUDA_PATH", tail))
        return 1;
    char kept[sizeof trouble];
    memcpy(kept, trouble, sizeof kept);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (open_at(names[i]))
            return 1;
    memcpy(trouble, kept, sizeof kept); /* that the loader knows none is no trouble worth telling */
    return open_newest("/usr/local", "/cuda/lib64/libnvrtc.so*") ||
           open_newest("/usr/local", "/cuda-*/lib64/libnvrtc.so*");
}

#define PACKAGES "/lib/python3*/{site,dist}-packages/nvidia/{cu[0-9]*,cuda_nvrtc}/lib/libnvrtc.so*"

static int open_packages(void)
{
    return open_under("VIRTUAL_ENV", PACKAGES) || open_under("CONDA_PREFIX", PACKAGES) ||
           open_under("CONDA_PREFIX", "/lib/libnvrtc.so*") || open_under("HOME", "/.local" PACKAGES) ||
           open_newest("/usr/local", PACKAGES) || open_newest("/usr", PACKAGES) ||
           open_under("HOME", "/.pyenv/versions/*" PACKAGES) || open_newest("/opt", "/*/.venv" PACKAGES);
}

static void open_nvrtc(void)
{
    const char *given = getenv("SPLAT_NVRTC");
    if (given && given[0]) {
        if (!open_at(given)) {
            snprintf(reason, sizeof reason,
                     "SPLAT_NVRTC is \"%.300s\", which cannot be used (%s); it must be the path of libnvrtc.so, "
                     "version 12 or later",
                     given, trouble);
            return;
        }
    } else if (!open_toolkit() && !open_packages()) {
        snprintf(reason, sizeof reason,
                 "NVRTC, the CUDA compiler library, was not found in $CUDA_HOME, $CUDA_PATH, the loader's path, "
                 "/usr/local/cuda*, or the Python packages of $VIRTUAL_ENV, $CONDA_PREFIX, ~/.local, /usr/local, "
                 "/usr, ~/.pyenv/versions/* and /opt/*/.venv%s%s%s: install the CUDA toolkit or run `pip install "
                 "nvidia-cuda-nvrtc`, or set SPLAT_NVRTC to the path of libnvrtc.so",
                 trouble[0] ? " (" : "", trouble, trouble[0] ? ")" : "");
        return;
    }
    int major = 0, minor = 0, result = table.version(&major, &minor);
    if (result != 0)
        snprintf(reason, sizeof reason, "NVRTC does not tell its version: nvrtcVersion gave %s",
                 table.error_string(result));
    version_number = major * 1000 + minor * 10;
}

static enum splat_status load(void)
{
    pthread_once(&once, open_nvrtc);
    return reason[0] ? sp_fail(SPLAT_NO_DEVICE, "%s", reason) : SPLAT_OK;
}

enum splat_status sp_nvrtc_version(int *version)
{
    enum splat_status status = load();
    if (status == SPLAT_OK)
        *version = version_number;
    return status;
}

/* ---- Options ---- */

#define LANGUAGE     "--std=c++17"
#define VERBOSE      "--ptxas-options=-v" /* changes the log, not the code */
#define NO_CACHE     "--no-cache"         /* likewise, so it is in no key */
#define HAS_NO_CACHE 12090                /* the first version with a cache of its own, and with this option */

const char *sp_nvrtc_options(enum splat_arch arch)
{
    return arch == SPLAT_ARCH_SM80 ? "--gpu-architecture=sm_80 " LANGUAGE " " VERBOSE
                                   : "--gpu-architecture=sm_90a " LANGUAGE " " VERBOSE;
}

/* ---- Reading the log ---- */

/* The first line of `text` with one of the words that begin an error, or its first line. */
static void first_error(const char *text, char *line, size_t size)
{
    static const char *const marks[] = {": error", "; error", ": catastrophic error", "ptxas error", "ptxas fatal"};
    const char *chosen = text + strspn(text, "\r\n\t ");
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        size_t length = strcspn(at, "\n");
        for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
            if (memmem(at, length, marks[i], strlen(marks[i]))) {
                snprintf(line, size, "%.*s", (int)(length < size ? length : size), at);
                return;
            }
        }
    }
    snprintf(line, size, "%.*s", (int)strcspn(chosen, "\n"), chosen);
}

/* The message number of a product that ptxas made wait (it writes "(C7510) Potential Performance Loss: ..."), or 0.
 */
static int serialised(const char *log)
{
    static const int numbers[] = {7504, 7508, 7509, 7510, 7511, 7512, 7515, 7517, 7519};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char mark[16];
        snprintf(mark, sizeof mark, "C%d", numbers[i]);
        const char *at = strstr(log, mark);
        if (at)
            return numbers[i];
    }
    return 0;
}

/* The number just before `words` in a line, -1 when the line has no such words. */
static int number_before(const char *line, size_t length, const char *words)
{
    const char *at = memmem(line, length, words, strlen(words));
    if (!at)
        return -1;
    const char *digits = at;
    while (digits > line && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    return digits < at ? (int)strtol(digits, NULL, 10) : -1;
}

struct usage {
    int registers, shared, stack, spills; /* -1: not known */
};

static void add_known(int *to, int more)
{
    if (more >= 0)
        *to = (*to < 0 ? 0 : *to) + more;
}

/* What `ptxas -v` says below "Compiling entry function '<entry>'": lines "N bytes stack frame, N bytes spill
 * stores, N bytes spill loads", one for the entry and one for each function it calls, and "Used N registers, N
 * bytes smem". */
static void read_log(const char *log, const char *entry, struct usage *usage)
{
    static const char heading[] = "Compiling entry function '";
    size_t name = strlen(entry);
    int inside = 0;
    *usage = (struct usage){-1, -1, -1, -1};
    for (const char *at = log; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        size_t length = strcspn(at, "\n");
        const char *found = memmem(at, length, heading, sizeof heading - 1);
        if (found) {
            found += sizeof heading - 1;
            inside = strncmp(found, entry, name) == 0 && found[name] == '\'';
        } else if (inside) {
            add_known(&usage->stack, number_before(at, length, " bytes stack frame"));
            add_known(&usage->spills, number_before(at, length, " bytes spill stores"));
            add_known(&usage->spills, number_before(at, length, " bytes spill loads"));
            int registers = number_before(at, length, " registers");
            if (registers >= 0 && memmem(at, length, "Used ", 5)) {
                usage->registers = registers;
                usage->shared = 0; /* the line leaves out what is zero */
                add_known(&usage->shared, number_before(at, length, " bytes smem"));
            }
        }
    }
}

/* ---- Reading the cubin, when the log does not tell ---- */

/* Attributes of .nv.info: records of format, attribute, a 16-bit size or value, then the payload when the format
 * says so. Those read here have the payload (symbol index, value). */
enum { INFO_HAS_PAYLOAD = 4, INFO_FRAME_SIZE = 0x11, INFO_REGISTERS = 0x2F };

static void read_info(const unsigned char *bytes, size_t size, uint32_t symbol, struct usage *usage)
{
    for (size_t at = 0; at + 4 <= size;) {
        uint16_t length;
        memcpy(&length, bytes + at + 2, sizeof length);
        size_t payload = bytes[at] == INFO_HAS_PAYLOAD ? length : 0;
        if (payload > size - at - 4)
            return;
        uint32_t pair[2] = {0, 0};
        if (payload >= sizeof pair)
            memcpy(pair, bytes + at + 4, sizeof pair);
        if (payload >= sizeof pair && bytes[at + 1] == INFO_REGISTERS && pair[0] == symbol)
            usage->registers = (int)pair[1];
        if (payload >= sizeof pair && bytes[at + 1] == INFO_FRAME_SIZE)
            add_known(&usage->stack, (int)pair[1]); /* of the entry and of all it may call */
        at += 4 + payload;
    }
}

/* Section i and its name; 0 when it is not wholly inside the file. */
static int section_at(const struct sp_image *image, const Elf64_Ehdr *header, unsigned i, Elf64_Shdr *section,
                      const char **name)
{
    const unsigned char *file = image->cubin;
    uint64_t bytes = image->cubin_bytes;
    Elf64_Shdr names;
    if (header->e_shentsize != sizeof names || header->e_shoff > bytes || i >= header->e_shnum ||
        header->e_shstrndx >= header->e_shnum || (bytes - header->e_shoff) / sizeof names < header->e_shnum)
        return 0;
    memcpy(&names, file + header->e_shoff + header->e_shstrndx * sizeof names, sizeof names);
    memcpy(section, file + header->e_shoff + i * sizeof names, sizeof *section);
    if (names.sh_offset > bytes || names.sh_size > bytes - names.sh_offset || section->sh_name >= names.sh_size)
        return 0;
    if (section->sh_type != SHT_NOBITS &&
        (section->sh_offset > bytes || section->sh_size > bytes - section->sh_offset))
        return 0;
    *name = (const char *)file + names.sh_offset + section->sh_name;
    return memchr(*name, 0, names.sh_size - section->sh_name) != NULL;
}

/* The symbol index of the kernel: the global function in section `text` (others are routines that it calls). */
static uint32_t kernel_symbol(const struct sp_image *image, const Elf64_Shdr *symbols, unsigned text)
{
    Elf64_Sym symbol;
    for (uint32_t i = 0; i < symbols->sh_size / sizeof symbol; i++) {
        memcpy(&symbol, image->cubin + symbols->sh_offset + i * sizeof symbol, sizeof symbol);
        if (symbol.st_shndx == text && symbol.st_info == ELF64_ST_INFO(STB_GLOBAL, STT_FUNC))
            return i;
    }
    return UINT32_MAX;
}

static void read_cubin(const struct sp_image *image, const char *entry, struct usage *usage)
{
    Elf64_Ehdr header;
    Elf64_Shdr section, info = {0}, symbols = {0};
    const char *name;
    char text_name[96], shared_name[96];
    unsigned text = 0;
    int reserved = 0;
    *usage = (struct usage){-1, 0, -1, -1};
    if (image->cubin_bytes < sizeof header || memcmp(image->cubin, ELFMAG, SELFMAG) != 0)
        return;
    memcpy(&header, image->cubin, sizeof header);
    snprintf(text_name, sizeof text_name, ".text.%s", entry);
    snprintf(shared_name, sizeof shared_name, ".nv.shared.%s", entry);
    for (unsigned i = 0; i < header.e_shnum; i++) {
        if (!section_at(image, &header, i, &section, &name))
            return;
        if (strcmp(name, text_name) == 0)
            text = i;
        else if (strcmp(name, shared_name) == 0)
            usage->shared = (int)section.sh_size;
        else if (strcmp(name, ".nv.shared.reserved.0") == 0)
            reserved = 1024; /* from sm_90 on the section begins with the kilobyte that CUDA keeps of each block */
        else if (strcmp(name, ".nv.info") == 0)
            info = section;
        else if (section.sh_type == SHT_SYMTAB)
            symbols = section;
    }
    if (usage->shared >= reserved)
        usage->shared -= reserved;
    if (text && info.sh_size && symbols.sh_size)
        read_info(image->cubin + info.sh_offset, info.sh_size, kernel_symbol(image, &symbols, text), usage);
}

/* ---- Compiling ---- */

static char *program_log(program from)
{
    size_t size = 0;
    if (table.log_size(from, &size) != 0)
        size = 0;
    char *log = calloc(1, size + 1);
    if (log && size > 0 && table.log(from, log) != 0)
        log[0] = '\0';
    return log;
}

/* Creates and compiles. The caller destroys *made whenever it is not NULL, and frees *log.
 *
 * NVRTC's own cache is refused: what comes from there need not bring the log along, and without it a kernel with
 * serialised products, refused when it was compiled, would pass the next time. */
static enum splat_status build(const struct sp_source *source, const char *architecture, program *made, char **log)
{
    const char *const options[] = {architecture, LANGUAGE, VERBOSE, NO_CACHE};
    enum splat_status status = load();
    if (status != SPLAT_OK)
        return status;
    int result = table.create(made, source->text.text, "splat.cu", 0, NULL, NULL);
    if (result != 0) {
        *made = NULL;
        return sp_fail(SPLAT_COMPILE, "kernel %s: nvrtcCreateProgram gave %s", source->entry,
                       table.error_string(result));
    }
    result = table.compile(*made, version_number >= HAS_NO_CACHE ? 4 : 3, options);
    *log = program_log(*made);
    if (!*log)
        return sp_no_memory("the compiler's log", 1);
    if (result == 0)
        return SPLAT_OK;
    char line[400];
    first_error(*log, line, sizeof line);
    return sp_fail(SPLAT_COMPILE, "kernel %s does not compile (NVRTC %d.%d, %s): %s", source->entry,
                   version_number / 1000, version_number % 1000 / 10, table.error_string(result), line);
}

/* `size` and `get` fetch one product of a compiled program, with a NUL after it. */
static enum splat_status fetch(program from, int (*size)(program, size_t *), int (*get)(program, char *),
                               const char *what, char **bytes, size_t *count)
{
    int result = size(from, count);
    if (result == 0 && *count > 0) {
        *bytes = calloc(1, *count + 1);
        if (!*bytes)
            return sp_no_memory(what, *count + 1);
        result = get(from, *bytes);
        if (result == 0)
            return SPLAT_OK;
        free(*bytes);
        *bytes = NULL;
    }
    return sp_fail(SPLAT_COMPILE, "NVRTC gave no %s: %s", what,
                   result ? table.error_string(result) : "it is empty");
}

/* Fills the image's figures and refuses a kernel that must not be used. */
static enum splat_status check_image(const struct sp_source *source, struct sp_image *image)
{
    struct usage usage;
    read_log(image->log, source->entry, &usage);
    if (usage.registers < 0 || usage.stack < 0 || usage.spills < 0)
        read_cubin(image, source->entry, &usage);
    if (usage.registers < 0 || usage.stack < 0)
        return sp_fail(SPLAT_COMPILE,
                       "kernel %s: neither NVRTC's log nor the cubin tells its registers and local "
                       "memory",
                       source->entry);
    image->registers = usage.registers;
    image->shared_bytes = source->shared_bytes + (usage.shared > 0 ? usage.shared : 0);
    /* Spills live in the stack frame; counted alone only if the frame were not told. */
    image->spill_bytes = usage.stack > 0 || usage.spills < 0 ? usage.stack : usage.spills;
    if (image->spill_bytes > 0)
        return sp_fail(SPLAT_COMPILE,
                       "kernel %s uses %d bytes of local memory a thread (%d registers); it must use 0",
                       source->entry, image->spill_bytes, image->registers);
    int message = serialised(image->log);
    if (message)
        return sp_fail(SPLAT_COMPILE, "kernel %s has serialised matrix products (ptxas message C%d)", source->entry,
                       message);
    return SPLAT_OK;
}

enum splat_status sp_nvrtc_compile(const struct sp_source *source, enum splat_arch arch, struct sp_image *image)
{
    program made = NULL;
    char *cubin = NULL;
    *image = (struct sp_image){0};
    enum splat_status status =
        build(source, arch == SPLAT_ARCH_SM80 ? "--gpu-architecture=sm_80" : "--gpu-architecture=sm_90a", &made,
              &image->log);
    if (status == SPLAT_OK)
        status = fetch(made, table.cubin_size, table.cubin, "cubin", &cubin, &image->cubin_bytes);
    image->cubin = (unsigned char *)cubin;
    if (made)
        table.destroy(&made);
    if (status == SPLAT_OK)
        status = check_image(source, image);
    if (status != SPLAT_OK)
        sp_image_free(image);
    return status;
}

enum splat_status sp_nvrtc_ptx(const struct sp_source *source, enum splat_arch arch, char **ptx)
{
    program made = NULL;
    char *log = NULL;
    size_t size = 0;
    /* A virtual architecture: the assembler is not run. */
    enum splat_status status =
        build(source, arch == SPLAT_ARCH_SM80 ? "--gpu-architecture=compute_80" : "--gpu-architecture=compute_90a",
              &made, &log);
    if (status == SPLAT_OK)
        status = fetch(made, table.ptx_size, table.ptx, "PTX", ptx, &size);
    if (made)
        table.destroy(&made);
    free(log);
    return status;
}

void sp_image_free(struct sp_image *image)
{
    if (!image)
        return;
    free(image->cubin);
    free(image->log);
    *image = (struct sp_image){0};
}
