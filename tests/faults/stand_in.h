/* Stand-ins for NVRTC and for the CUDA driver, which the library opens as it opens the real ones, and which fail
 * when told.
 *
 * They compute nothing, unless a test gives the driver a function that does: what is tested with them is what the
 * library does around them. Each exports one `stand_in`, its control, that a test finds with dlsym in the library
 * it has opened.
 */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a source's text says of its kernel; a cubin of the stand-in has it in its code. */
struct kernel_numbers {
    int32_t bf16, head_dim, value_dim, tile_rows, tile_cols;
    int32_t op; /* an enum splat_op, or -1: a layer's */
};

struct stand_in {
    int calls;   /* so far; a test sets it to 0 */
    int fail_at; /* the call that fails, from 1; 0 = none */
    int result;  /* what it then returns */
    int live;    /* programs, modules and memory that were made and not yet given back */
    /* NVRTC alone */
    int spoil; /* an enum spoil: what is wrong with what compiling gives */
    /* The driver alone */
    int capability; /* major * 10 + minor */
    int shared_limit;
    int loads, launches;
    /* What a launch does, outside of a capture; its result is cuLaunchKernel's. May be NULL: nothing. */
    int (*kernel)(const struct kernel_numbers *numbers, const void *launch_args);
    int capturing; /* a stream of the thread captures */
};

enum spoil { SOUND, NO_COMPILE, NO_ENTRY, OTHER_CHIP, TRUNCATED, NOT_ELF, EMPTY, SPILLS, SERIALISED, SILENT, SPILLS_ONCE };

/* Counts a call; the result that it is to return, 0 unless it is the one that fails. */
static inline int stand_in_call(struct stand_in *control)
{
    int call = __atomic_add_fetch(&control->calls, 1, __ATOMIC_RELAXED);
    return control->fail_at && call == control->fail_at ? control->result : 0;
}

/* ---- A cubin as small as one can be: its header, code of one kernel, symbols, names ---- */

enum { CUBIN_SECTIONS = 5, CUBIN_CODE = 256 };

static inline unsigned char *make_cubin(int chip, int cuda13, const char *entry, uint64_t content, size_t *size)
{
    char names[256] = "";
    size_t used = 1;
    uint32_t at[CUBIN_SECTIONS] = {0};
    char text[96];
    snprintf(text, sizeof text, ".text.%s", entry);
    const char *const all[CUBIN_SECTIONS] = {"", ".shstrtab", ".strtab", ".symtab", text};
    for (int k = 1; k < CUBIN_SECTIONS; k++) {
        at[k] = (uint32_t)used;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s", all[k]) + 1;
    }
    const size_t name = strlen(entry) + 2, symbols = 2 * sizeof(Elf64_Sym);
    const size_t offsets[CUBIN_SECTIONS] = {0, sizeof(Elf64_Ehdr), sizeof(Elf64_Ehdr) + used,
                                            sizeof(Elf64_Ehdr) + used + name,
                                            sizeof(Elf64_Ehdr) + used + name + symbols};
    const size_t sizes[CUBIN_SECTIONS] = {0, used, name, symbols, CUBIN_CODE};
    const uint32_t types[CUBIN_SECTIONS] = {SHT_NULL, SHT_STRTAB, SHT_STRTAB, SHT_SYMTAB, SHT_PROGBITS};
    const size_t table = offsets[4] + CUBIN_CODE;
    *size = table + CUBIN_SECTIONS * sizeof(Elf64_Shdr);
    unsigned char *bytes = calloc(1, *size);
    if (!bytes)
        return NULL;
    Elf64_Ehdr header = {.e_type = ET_EXEC,
                         .e_machine = 190,
                         .e_version = 1,
                         .e_shoff = table,
                         .e_ehsize = sizeof header,
                         .e_shentsize = sizeof(Elf64_Shdr),
                         .e_shnum = CUBIN_SECTIONS,
                         .e_shstrndx = 1};
    memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = 1;
    header.e_ident[EI_OSABI] = cuda13 ? 0x41 : 0x33;
    header.e_flags = cuda13 ? (uint32_t)chip << 8 | 4 : (uint32_t)(chip << 16 | 0x500 | chip);
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + offsets[1], names, used);
    memcpy(bytes + offsets[2] + 1, entry, name - 1);
    Elf64_Sym kernel = {.st_name = 1,
                        .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                        .st_other = 0x10,
                        .st_shndx = 4,
                        .st_size = CUBIN_CODE};
    memcpy(bytes + offsets[3] + sizeof kernel, &kernel, sizeof kernel);
    for (int k = 0; k < CUBIN_CODE; k += 8)
        memcpy(bytes + offsets[4] + k, &content, 8);
    for (int k = 0; k < CUBIN_SECTIONS; k++) {
        Elf64_Shdr section = {.sh_name = at[k], .sh_type = types[k], .sh_offset = offsets[k], .sh_size = sizes[k]};
        if (k == 3)
            section.sh_link = 2;
        if (k == 4)
            section.sh_flags = SHF_ALLOC | SHF_EXECINSTR;
        memcpy(bytes + table + (size_t)k * sizeof section, &section, sizeof section);
    }
    return bytes;
}

/* Of a cubin that make_cubin made. */
static inline unsigned char *cubin_code(unsigned char *cubin)
{
    Elf64_Ehdr header;
    Elf64_Shdr section;
    memcpy(&header, cubin, sizeof header);
    memcpy(&section, cubin + header.e_shoff + 4 * sizeof section, sizeof section);
    return cubin + section.sh_offset;
}

#endif
