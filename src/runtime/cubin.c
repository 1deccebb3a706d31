/* Reading a cubin's own tables (cubin.h).
 *
 * Takes bytes that nothing is known of. Keeps true: no byte outside them is read, whatever they say; a file with a
 * fault in its tables is refused as a whole.
 */
#include "runtime/cubin.h"

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    MACHINE_CUDA = 190,
    ABI_CUDA_12 = 0x33, /* EI_OSABI up to CUDA 12: the chip is in the lowest byte of e_flags */
    ABI_CUDA_13 = 0x41  /* from CUDA 13 on: in the second byte */
};

static _Thread_local char fault[200];

struct file {
    const unsigned char *bytes;
    size_t size;
    Elf64_Ehdr header;
    Elf64_Shdr names; /* the section with the sections' names */
};

static int inside(const struct file *file, uint64_t offset, uint64_t size)
{
    return offset <= file->size && size <= file->size - offset;
}

/* A table of `count` records of `size` bytes each; an absent one is sound. */
static int table_is_inside(const struct file *file, uint64_t offset, unsigned count, unsigned given, size_t size)
{
    return count == 0 || (given == size && inside(file, offset, (uint64_t)count * size));
}

static Elf64_Shdr section_at(const struct file *file, unsigned index)
{
    Elf64_Shdr section;
    memcpy(&section, file->bytes + file->header.e_shoff + index * sizeof section, sizeof section);
    return section;
}

static int section_is_inside(const struct file *file, const Elf64_Shdr *section)
{
    return section->sh_type == SHT_NOBITS || inside(file, section->sh_offset, section->sh_size);
}

/* The text at `offset` of a string section that is inside the file; NULL when it has no end there. */
static const char *text_at(const struct file *file, const Elf64_Shdr *strings, uint64_t offset)
{
    if (strings->sh_type != SHT_STRTAB || offset >= strings->sh_size)
        return NULL;
    const char *text = (const char *)file->bytes + strings->sh_offset + offset;
    return memchr(text, 0, (size_t)(strings->sh_size - offset)) ? text : NULL;
}

static const char *read_header(struct file *file)
{
    Elf64_Ehdr *header = &file->header;
    if (file->size < sizeof *header)
        return "is shorter than the header of a cubin";
    memcpy(header, file->bytes, sizeof *header);
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
        header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_machine != MACHINE_CUDA || header->e_type != ET_EXEC)
        return "is no cubin: its header is another file's";
    if (!table_is_inside(file, header->e_shoff, header->e_shnum, header->e_shentsize, sizeof(Elf64_Shdr)) ||
        !table_is_inside(file, header->e_phoff, header->e_phnum, header->e_phentsize, sizeof(Elf64_Phdr)))
        return "ends before its tables do";
    if (header->e_shstrndx >= header->e_shnum)
        return "has no section names";
    file->names = section_at(file, header->e_shstrndx);
    return NULL;
}

static const char *check_extents(const struct file *file)
{
    for (unsigned i = 0; i < file->header.e_shnum; i++) {
        Elf64_Shdr section = section_at(file, i);
        if (!section_is_inside(file, &section))
            return "ends before its sections do";
        if (section.sh_type == SHT_SYMTAB && section.sh_link >= file->header.e_shnum)
            return "has symbols without names";
    }
    for (unsigned i = 0; i < file->header.e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, file->bytes + file->header.e_phoff + i * sizeof segment, sizeof segment);
        if (!inside(file, segment.p_offset, segment.p_filesz))
            return "ends before its segments do";
    }
    return NULL;
}

/* Code of one capability runs on the later ones of its major version; code that uses what only one chip has
 * (sm_90a) is of a major version whose first chip is the only one here. Formats of later CUDAs are left to the
 * driver. */
static const char *check_capability(const struct file *file, int capability)
{
    unsigned flags = file->header.e_flags;
    int chip;
    switch (file->header.e_ident[EI_OSABI]) {
    case ABI_CUDA_12:
        chip = (int)(flags & 0xFF);
        break;
    case ABI_CUDA_13:
        chip = (int)(flags >> 8 & 0xFF);
        break;
    default:
        return NULL;
    }
    if (chip / 10 == capability / 10 && chip <= capability)
        return NULL;
    snprintf(fault, sizeof fault, "is for compute capability %d.%d, not %d.%d", chip / 10, chip % 10,
             capability / 10, capability % 10);
    return fault;
}

/* Whether a symbol table of the file has a global function `entry` in a section of code called after it. */
static int has_kernel(const struct file *file, const Elf64_Shdr *symbols, const char *entry)
{
    const Elf64_Shdr strings = section_at(file, symbols->sh_link);
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols->sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        memcpy(&symbol, file->bytes + symbols->sh_offset + at, sizeof symbol);
        if (symbol.st_info != ELF64_ST_INFO(STB_GLOBAL, STT_FUNC) || symbol.st_shndx >= file->header.e_shnum)
            continue;
        const char *name = text_at(file, &strings, symbol.st_name);
        if (!name || strcmp(name, entry) != 0)
            continue;
        const Elf64_Shdr code = section_at(file, symbol.st_shndx);
        const char *section = text_at(file, &file->names, code.sh_name);
        return section && strncmp(section, ".text.", 6) == 0 && strcmp(section + 6, entry) == 0 &&
               code.sh_type == SHT_PROGBITS && (code.sh_flags & SHF_EXECINSTR) && code.sh_size > 0;
    }
    return 0;
}

static const char *check_entry(const struct file *file, const char *entry)
{
    for (unsigned i = 0; i < file->header.e_shnum; i++) {
        const Elf64_Shdr section = section_at(file, i);
        if (section.sh_type == SHT_SYMTAB && has_kernel(file, &section, entry))
            return NULL;
    }
    snprintf(fault, sizeof fault, "holds no kernel called %.100s", entry);
    return fault;
}

const char *sp_cubin_fault(const void *cubin, size_t size, int capability, const char *entry)
{
    struct file file = {.bytes = cubin, .size = size};
    const char *wrong = read_header(&file);
    if (!wrong)
        wrong = check_extents(&file);
    if (!wrong)
        wrong = check_capability(&file, capability);
    if (!wrong)
        wrong = check_entry(&file, entry);
    return wrong;
}

int sp_cubin_capability(enum splat_arch arch)
{
    return arch == SPLAT_ARCH_SM80 ? 80 : 90;
}
