/* Source -> image, by NVRTC opened at run time. */
#ifndef SP_NVRTC_H
#define SP_NVRTC_H

#include "codegen/spec.h"
#include "splat.h"

/* What compiling gives. Owned memory; sp_image_free releases it. */
struct sp_image {
    unsigned char *cubin;
    size_t cubin_bytes;
    char *log;        /* the compiler's messages, ptxas -v included; never NULL */
    int registers;    /* a thread */
    int shared_bytes; /* static + dynamic a block */
    int spill_bytes;  /* local memory a thread: stack frame and spills */
    int checked;      /* 1: its results on a device were those of the CPU engine */
};

void sp_image_free(struct sp_image *image);

/* Version as major * 1000 + minor * 10, for the cache key. SPLAT_NO_DEVICE, with a sentence that says where NVRTC
 * was looked for and what to install, when it is missing. */
enum splat_status sp_nvrtc_version(int *version);

/* The options a source is compiled with for `arch`, as one string (part of the cache key). */
const char *sp_nvrtc_options(enum splat_arch arch);

/* Compiles to a cubin. SPLAT_COMPILE with the first error of the log, or when ptxas reports local memory or
 * serialised products (KERNEL messages C7504, C7508-C7512, C7515, C7517, C7519): such a kernel must not be used. */
enum splat_status sp_nvrtc_compile(const struct sp_source *source, enum splat_arch arch, struct sp_image *image);

/* Compiles to PTX text, NUL-terminated; free() it. */
enum splat_status sp_nvrtc_ptx(const struct sp_source *source, enum splat_arch arch, char **ptx);

#endif
