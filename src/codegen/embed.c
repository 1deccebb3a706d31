/* Takes the templates and the text of launch_args.h into the library's read-only data, as they are on disk at build
 * time.
 *
 * Takes SP_SOURCE_DIR, the root of the source tree, as a string; the assembler reads the files there and the path
 * itself is not kept. The build must rebuild this file when one of them changes. Gives the symbols declared in
 * emit.h.
 */
#include "codegen/emit.h"

#ifndef SP_SOURCE_DIR
#error "define SP_SOURCE_DIR as the root of the source tree, for example -DSP_SOURCE_DIR='\"/src/splat\"'"
#endif

#define HIDDEN(symbol) ".globl " symbol "\n.hidden " symbol "\n" symbol ":\n"
#define EMBED(name, path)                                                                                          \
    __asm__(".pushsection .rodata\n" HIDDEN(                                                                       \
        "sp_file_" name "_begin") ".incbin \"" SP_SOURCE_DIR "/" path                                              \
                                  "\"\n" HIDDEN("sp_file_" name "_end") ".byte 0\n.popsection\n")

EMBED("attention_sm80", "templates/attention_sm80.cuh");
EMBED("attention_sm90", "templates/attention_sm90.cuh");
EMBED("attention_common", "templates/attention_common.cuh");
EMBED("combine", "templates/combine.cuh");
EMBED("element_common", "templates/element_common.cuh");
EMBED("plan_common", "templates/plan_common.cuh");
EMBED("mask_common", "templates/mask_common.cuh");
EMBED("copies_sm80", "templates/copies_sm80.cuh");
EMBED("sparse_common", "templates/sparse_common.cuh");
EMBED("sddmm_sm80", "templates/sddmm_sm80.cuh");
EMBED("spmm_sm80", "templates/spmm_sm80.cuh");
EMBED("softmax_rows", "templates/softmax_rows.cuh");
EMBED("ptx_sm80", "templates/ptx_sm80.cuh");
EMBED("ptx_sm90", "templates/ptx_sm90.cuh");
EMBED("kron_sm80", "templates/kron_sm80.cuh");
EMBED("kron_sm90", "templates/kron_sm90.cuh");
EMBED("kron_common", "templates/kron_common.cuh");
EMBED("kron_small", "templates/kron_small.cuh");
EMBED("kron_sum", "templates/kron_sum.cuh");
EMBED("kron_args", "src/codegen/kron_args.h");
EMBED("ptx_kron", "templates/ptx_kron.cuh");
EMBED("launch_args", "src/codegen/launch_args.h");
EMBED("sparse_args", "src/codegen/sparse_args.h");
