/* splat: sparse attention from any mask.
 *
 * splat takes an attention mask, recovers its affine structure (ACSR), plans tiles, generates CUDA source
 * specialised to that plan, compiles it with NVRTC, caches the result and runs it. On a machine without a
 * GPU the same plan runs on the CPU.
 *
 * The shortest program:
 *
 *     splat_context *ctx;   splat_mask *mask;   splat_kernel *kernel;
 *     splat_context_create(NULL, &ctx);
 *     splat_mask_from_expression("causal & window(1023, 0)", 8192, 8192, SPLAT_ALIGN_BOTTOM_RIGHT, &mask);
 *     splat_options options;  splat_options_init(&options);
 *     options.head_dim = 128;
 *     splat_compile(ctx, mask, &options, &kernel);
 *     splat_attention_args args;  splat_attention_args_init(&args);
 *     ... fill in batch, heads, pointers and strides ...
 *     splat_run(kernel, &args, stream);
 *
 * Conventions
 *   Errors.   Every call that can fail returns enum splat_status. splat_last_error() then gives one sentence
 *             that names the argument, its value and the limit. The library never prints, exits or aborts.
 *   Outputs   come last and are written only on SPLAT_OK. Every splat_x_destroy accepts NULL.
 *   Sizes     are counted in elements or rows unless a name says bytes. Rows are queries i, columns keys j,
 *             both from 0. q_len and kv_len are at most SPLAT_MAX_LEN.
 *   Threads.  A context may be used by any number of threads at once. Masks, ACSRs, plans and kernels are
 *             immutable once made and may be shared; destroy each once, after its last use.
 *   Growth.   Option structs begin with struct_size, set by their _init function. Always call it: another size is refused.
 */
#ifndef SPLAT_H
#define SPLAT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && defined(SPLAT_BUILDING)
#define SPLAT_API __attribute__((visibility("default")))
#else
#define SPLAT_API
#endif

#define SPLAT_VERSION_MAJOR 0
#define SPLAT_VERSION_MINOR 1
#define SPLAT_VERSION_PATCH 0
#define SPLAT_VERSION       "0.1.0"

/* The version of the library at run time, as "major.minor.patch". */
SPLAT_API const char *splat_version(void);

/* Longest sequence: row and column indices fit 32 bits with room for a window on each side. */
#define SPLAT_MAX_LEN ((int64_t)1 << 30)

/* ---- Status and errors ---------------------------------------------------------------------------------- */

enum splat_status {
    SPLAT_OK = 0,
    SPLAT_INVALID,     /* an argument is wrong: null, out of range, inconsistent, or does not parse */
    SPLAT_UNSUPPORTED, /* the request is meaningful, but no kernel or engine here can do it */
    SPLAT_NO_MEMORY,   /* host or device memory could not be had */
    SPLAT_IO,          /* a file could not be read or written */
    SPLAT_NO_DEVICE,   /* no usable GPU, driver or NVRTC on this machine */
    SPLAT_COMPILE,     /* the generated source did not compile, or its kernel failed a build check or the self-check */
    SPLAT_CUDA,        /* the driver reported an error */
    SPLAT_INTERNAL     /* an invariant of the library was broken: please report it */
};

/* A short constant name, such as "SPLAT_INVALID". */
SPLAT_API const char *splat_status_name(enum splat_status status);

/* One sentence about the last call on this thread that failed; "" when none has. Valid until the next
 * failing call on the same thread. */
SPLAT_API const char *splat_last_error(void);

/* ---- Masks ---------------------------------------------------------------------------------------------- */

/* A mask says, for every query row i < q_len and key column j < kv_len, whether i may attend to j. */
typedef struct splat_mask splat_mask;

/* Where the diagonal of `causal` and `window` lies when q_len != kv_len. */
enum splat_align {
    SPLAT_ALIGN_BOTTOM_RIGHT = 0, /* last query faces last key: off = kv_len - q_len (the usual decode case) */
    SPLAT_ALIGN_TOP_LEFT = 1      /* first query faces first key: off = 0 */
};

/* From a pattern expression, such as "window(256) | rows(0, 64) | cols(0, 64)". The language is described in
 * docs/patterns.md; splat_pattern_help() lists the primitives. Parses and checks arguments only: the ACSR is
 * made when first needed, without any q_len x kv_len array. A parse error's sentence gives the column, what was
 * found, what was expected and the nearest known name. SPLAT_INVALID, SPLAT_NO_MEMORY. */
SPLAT_API enum splat_status splat_mask_from_expression(const char *expression, int64_t q_len, int64_t kv_len,
                                                       enum splat_align align, splat_mask **mask);

/* From one byte a pair, non-zero = allowed; row i starts at bytes + i * row_stride (row_stride >= kv_len).
 * The array is read once, here, and neither kept nor copied whole. SPLAT_INVALID, SPLAT_NO_MEMORY. */
SPLAT_API enum splat_status splat_mask_from_bytes(const uint8_t *bytes, int64_t q_len, int64_t kv_len,
                                                  int64_t row_stride, splat_mask **mask);

/* From one bit a pair: column j of row i is bit (j % 8), least significant first, of byte
 * bits[i * row_stride + j / 8]; row_stride in bytes, at least ceil(kv_len / 8). Read once, here. */
SPLAT_API enum splat_status splat_mask_from_bits(const uint8_t *bits, int64_t q_len, int64_t kv_len,
                                                 int64_t row_stride, splat_mask **mask);

/* From a block mask: (i, j) is allowed when blocks[(i / block_rows) * row_stride + j / block_cols] != 0.
 * blocks is ceil(q_len / block_rows) x ceil(kv_len / block_cols); row_stride in bytes. Read once, here. */
SPLAT_API enum splat_status splat_mask_from_blocks(const uint8_t *blocks, int64_t q_len, int64_t kv_len,
                                                   int64_t block_rows, int64_t block_cols, int64_t row_stride,
                                                   splat_mask **mask);

/* From CSR: row i allows columns indices[indptr[i]] .. indices[indptr[i + 1] - 1], in any order, without
 * repeats. indptr has q_len + 1 entries. Read once, here. */
SPLAT_API enum splat_status splat_mask_from_csr(const int64_t *indptr, const int64_t *indices, int64_t q_len,
                                                int64_t kv_len, splat_mask **mask);

/* From a function, called once for every pair, row by row, on this thread; non-zero = allowed. */
typedef int (*splat_mask_fn)(int64_t i, int64_t j, void *user);
SPLAT_API enum splat_status splat_mask_from_callback(splat_mask_fn allowed, void *user, int64_t q_len,
                                                     int64_t kv_len, splat_mask **mask);

/* One mask for each (batch, head): entry b * heads + h of `masks`, all of one q_len x kv_len. Entries may
 * repeat a pointer; masks with equal contents are found and stored once. batch = 1 serves every batch entry, and
 * heads = 1 every head. Each entry is retained: the caller may destroy its own handle. Entries may not be
 * maps themselves. */
SPLAT_API enum splat_status splat_mask_map(splat_mask *const *masks, int64_t batch, int64_t heads,
                                           splat_mask **mask);

SPLAT_API void splat_mask_destroy(splat_mask *mask);

SPLAT_API int64_t splat_mask_q_len(const splat_mask *mask);
SPLAT_API int64_t splat_mask_kv_len(const splat_mask *mask);

/* The table of primitives, one line each ("window(l, r)   -l <= j-i-off <= r"), as one constant text. */
SPLAT_API const char *splat_pattern_help(void);

/* ---- ACSR: affine-compressed sparse rows ---------------------------------------------------------------- */

/* The lossless form of a mask: every row a list of affine runs, rows grouped into affine families. */
typedef struct splat_acsr splat_acsr;

/* `count` blocks of `width` consecutive columns, one every `stride`:
 * { start + k*stride + w : 0 <= k < count, 0 <= w < width }. A run of one block has stride 0. */
typedef struct splat_acsr_run {
    int32_t start, stride, count, width;
} splat_acsr_run;

/* The ACSR of a mask (of entry 0 of a map). The encoding is canonical: masks that allow the same pairs get
 * equal ACSRs, whatever they were made from. SPLAT_INVALID, SPLAT_NO_MEMORY; SPLAT_UNSUPPORTED when the rows of an
 * expression have so many runs, all different, that it would take more than 4 GiB. */
SPLAT_API enum splat_status splat_acsr_create(const splat_mask *mask, splat_acsr **acsr);
SPLAT_API void splat_acsr_destroy(splat_acsr *acsr);

/* A mask that allows exactly the pairs of `acsr`. The ACSR is retained. */
SPLAT_API enum splat_status splat_mask_from_acsr(splat_acsr *acsr, splat_mask **mask);

enum splat_set_op { SPLAT_UNION, SPLAT_INTERSECTION, SPLAT_DIFFERENCE };

/* Set algebra on the runs, never on a dense array. Both operands must have the same shape. */
SPLAT_API enum splat_status splat_acsr_combine(const splat_acsr *a, enum splat_set_op op, const splat_acsr *b,
                                               splat_acsr **out);
SPLAT_API enum splat_status splat_acsr_complement(const splat_acsr *a, splat_acsr **out);

SPLAT_API int64_t splat_acsr_q_len(const splat_acsr *acsr);
SPLAT_API int64_t splat_acsr_kv_len(const splat_acsr *acsr);
SPLAT_API int64_t splat_acsr_pairs(const splat_acsr *acsr);    /* allowed pairs */
SPLAT_API int64_t splat_acsr_families(const splat_acsr *acsr); /* row families */
SPLAT_API int64_t splat_acsr_bytes(const splat_acsr *acsr);    /* host memory it takes */
SPLAT_API int splat_acsr_equal(const splat_acsr *a, const splat_acsr *b);

/* The runs of row i in ascending order: writes at most `capacity` of them to `runs` (may be NULL when capacity is
 * 0) and the number the row has to *count. */
SPLAT_API enum splat_status splat_acsr_row(const splat_acsr *acsr, int64_t i, splat_acsr_run *runs,
                                           int64_t capacity, int64_t *count);

/* Expands row i to kv_len bytes, 1 = allowed. */
SPLAT_API enum splat_status splat_acsr_expand_row(const splat_acsr *acsr, int64_t i, uint8_t *bytes);

/* Values of an ACSR: one array with a number for each allowed pair, row by row, columns ascending. This is the order of
 * CSR with sorted indices; the array is CSR's `data`. Row i's values are those from offsets[i] to offsets[i + 1] - 1. */

/* Fills offsets[0 .. q_len]; the last is the number of allowed pairs. In closed form for each family of rows. */
SPLAT_API enum splat_status splat_acsr_row_offsets(const splat_acsr *acsr, int64_t *offsets);

/* Fills indptr[0 .. q_len] and indices[0 .. pairs - 1], sorted in each row. The way back is splat_mask_from_csr. */
SPLAT_API enum splat_status splat_acsr_to_csr(const splat_acsr *acsr, int64_t *indptr, int64_t *indices);

/* The mask of kv_len x q_len that allows (j, i) where `a` allows (i, j). Time grows with q_len * kv_len / 64, memory
 * with the longer side. */
SPLAT_API enum splat_status splat_acsr_transpose(const splat_acsr *a, splat_acsr **out);

/* ---- Options -------------------------------------------------------------------------------------------- */

enum splat_dtype { SPLAT_FP16 = 0, SPLAT_BF16 = 1, SPLAT_FP32 = 2 };

enum splat_device {
    SPLAT_DEVICE_AUTO = 0, /* the GPU when there is a usable one, else the CPU */
    SPLAT_DEVICE_CPU = 1,
    SPLAT_DEVICE_GPU = 2
};

enum splat_arch {
    SPLAT_ARCH_AUTO = 0,  /* the device's own; sm_90a when there is no device */
    SPLAT_ARCH_SM80 = 80, /* Ampere and everything later */
    SPLAT_ARCH_SM90A = 90 /* Hopper */
};

/* What a kernel computes. All but attention take or give values of the mask's ACSR. */
enum splat_op {
    SPLAT_OP_ATTENTION = 0,      /* o = softmax(scale * q k^T) v: splat_run; the others: splat_run_sparse */
    SPLAT_OP_SDDMM = 1,          /* values = scale * q k^T at allowed pairs */
    SPLAT_OP_SOFTMAX = 2,        /* rows of values to rows of values */
    SPLAT_OP_SPMM = 3,           /* y = scale * A x, A the matrix of the values */
    SPLAT_OP_SPMM_TRANSPOSED = 4 /* y = scale * A^T x; the plan is that of the transposed mask */
};

typedef struct splat_options {
    size_t struct_size;
    enum splat_dtype dtype;   /* of all tensors and values. Default SPLAT_BF16. SPLAT_FP32 runs on the CPU only */
    enum splat_device device; /* default SPLAT_DEVICE_AUTO */
    enum splat_arch arch;     /* default SPLAT_ARCH_AUTO */
    int64_t head_dim;         /* D of q and k: a multiple of 8, 8 <= D <= 256. Required, but by softmax */
    int64_t value_dim;        /* D of v and o, or of x and y; same limits; 0 = head_dim */
    /* What the cost model should expect; they steer the choice of tiles and may differ from what is run. */
    int64_t batch, heads, kv_heads; /* defaults 1, 1, 0; kv_heads 0 = heads */
    /* Force a tile shape (rows x columns) instead of the cheapest: 0 = choose. SPLAT_UNSUPPORTED when the tune
     * table has no such row. */
    int64_t tile_rows, tile_cols;
    /* Force how the mask is laid out in views and passes: 0 = the cheapest, 1 = token order, more = the others that
     * the mask suggests, as splatc explain numbers them. SPLAT_UNSUPPORTED when there is none of that number. */
    int64_t layout;
    enum splat_op op; /* default SPLAT_OP_ATTENTION */
} splat_options;

SPLAT_API void splat_options_init(splat_options *options);

/* ---- Plans: what will be computed, and why -------------------------------------------------------------- */

/* The tiles chosen for a mask: passes, tile lists, predicates, predicted cost, and the candidates rejected. */
typedef struct splat_plan splat_plan;

/* Plans a mask without any device. SPLAT_INVALID, SPLAT_UNSUPPORTED, SPLAT_NO_MEMORY. */
SPLAT_API enum splat_status splat_plan_create(const splat_mask *mask, const splat_options *options,
                                              splat_plan **plan);
SPLAT_API void splat_plan_destroy(splat_plan *plan);

typedef struct splat_plan_info {
    size_t struct_size;
    int64_t q_len, kv_len;
    int64_t masks;          /* distinct masks of a map; else 1 */
    int64_t allowed_pairs;  /* summed over distinct masks */
    int64_t computed_pairs; /* tiles x tile area, likewise */
    int64_t full_tiles, partial_tiles;
    int64_t passes, families;
    int64_t tile_rows, tile_cols;
    int64_t descriptor_bytes; /* tile lists, predicates and tables that go to the device */
    int64_t candidates;       /* covers and tile shapes considered */
    double density;           /* allowed_pairs / (masks * q_len * kv_len) */
    double waste;             /* computed_pairs / allowed_pairs; 0 when nothing is allowed */
    double plan_ms;           /* time that ACSR and plan took */
    double predicted_us;      /* one launch with the batch and heads of the options */
} splat_plan_info;

SPLAT_API void splat_plan_info_init(splat_plan_info *info);
SPLAT_API enum splat_status splat_plan_get_info(const splat_plan *plan, splat_plan_info *info);

/* One candidate of the choice, `index` from 0 in ascending predicted time; the first is the one taken. Text is
 * owned by the plan: shape and cost in `summary`, why it lost (or "chosen") in `reason`. */
SPLAT_API enum splat_status splat_plan_candidate(const splat_plan *plan, int64_t index, const char **summary,
                                                 const char **reason, double *predicted_us);

enum splat_tile_kind { SPLAT_TILE_FULL = 0, SPLAT_TILE_PARTIAL = 1 };

/* A stretch of equal tiles: the queries and the keys that they take, as runs of rows and of columns of the mask. In
 * token order both are one block; under other views they are boxes, such as every fourth token or a patch of an
 * image. */
typedef struct splat_tile_stretch {
    int64_t pass;           /* launch it belongs to */
    int64_t row_tile;       /* numbers the row tiles of the pass */
    splat_acsr_run rows;    /* of the row tile */
    splat_acsr_run columns; /* of all its tiles together */
    int64_t tiles;
    enum splat_tile_kind kind;
    const char *predicate; /* its name, for PARTIAL tiles; "none" for FULL ones */
} splat_tile_stretch;

/* Calls `visit` for every stretch of equal tiles of distinct mask `mask_index`, pass by pass, row tile by row tile.
 * A non-zero return stops the walk. Every allowed pair is computed once; where the mask is split into parts, tiles
 * of different parts may overlap, and each computes its own part's pairs. */
typedef int (*splat_tile_fn)(const splat_tile_stretch *stretch, void *user);
SPLAT_API enum splat_status splat_plan_visit_tiles(const splat_plan *plan, int64_t mask_index, splat_tile_fn visit,
                                                   void *user);

/* ---- Stages as text ------------------------------------------------------------------------------------- */

enum splat_stage {
    SPLAT_STAGE_ACSR,
    SPLAT_STAGE_PLAN,
    SPLAT_STAGE_SPEC,
    SPLAT_STAGE_SOURCE, /* the exact CUDA text that is hashed and compiled */
    SPLAT_STAGE_PTX,    /* needs NVRTC */
    SPLAT_STAGE_LOG     /* the compiler's log for the cubin; needs NVRTC */
};

/* Receives text in pieces; a non-zero return stops the dump, which then fails with SPLAT_IO. */
typedef int (*splat_write_fn)(const char *text, size_t size, void *user);

/* Writes one stage of the pipeline for this mask and these options. The first four need no device and no NVRTC. */
SPLAT_API enum splat_status splat_dump(const splat_mask *mask, const splat_options *options, enum splat_stage stage,
                                       splat_write_fn write, void *user);

/* ---- Context -------------------------------------------------------------------------------------------- */

/* Holds the disk cache's settings, the registry of compiled kernels and the log callback. */
typedef struct splat_context splat_context;

enum splat_log_level { SPLAT_LOG_INFO = 0, SPLAT_LOG_WARNING = 1 };

/* Called on the thread that does the work, for first-use compiles and for cache trouble that was overcome. */
typedef void (*splat_log_fn)(enum splat_log_level level, const char *message, void *user);

enum splat_cache_mode { SPLAT_CACHE_ENV = 0, SPLAT_CACHE_ON, SPLAT_CACHE_READ_ONLY, SPLAT_CACHE_OFF };

enum splat_self_check { SPLAT_SELF_CHECK_ENV = 0, SPLAT_SELF_CHECK_ON, SPLAT_SELF_CHECK_OFF };

typedef struct splat_context_options {
    size_t struct_size;
    splat_log_fn log; /* NULL = silent */
    void *log_user;
    const char *cache_dir;            /* NULL = $SPLAT_CACHE_DIR, $XDG_CACHE_HOME/splat or ~/.cache/splat */
    enum splat_cache_mode cache_mode; /* SPLAT_CACHE_ENV = from $SPLAT_CACHE (on, ro or off), default on */
    int64_t cache_max_bytes;          /* oldest entries go beyond this; 0 = 256 MiB */
    int threads;                      /* of the CPU engine; 0 = OpenMP's default */
    /* Whether compiled code is run once on a small problem and compared with the CPU before it is used, and then marked
     * as good in the cache. SPLAT_SELF_CHECK_ENV = from $SPLAT_SELF_CHECK (on or off), default on. */
    enum splat_self_check self_check;
} splat_context_options;

SPLAT_API void splat_context_options_init(splat_context_options *options);

/* options may be NULL for the defaults. Touches neither the disk nor the driver. */
SPLAT_API enum splat_status splat_context_create(const splat_context_options *options, splat_context **context);

/* Kernels made from the context must have been destroyed before. */
SPLAT_API void splat_context_destroy(splat_context *context);

/* ---- Kernels: compile and run --------------------------------------------------------------------------- */

typedef struct splat_kernel splat_kernel;

/* Makes a kernel ready to run: plans the mask, generates source, gets its cubin from the registry, the disk cache
 * or NVRTC, loads it and copies the tile lists to the device. A second call with an equal mask (the same expression
 * text and lengths, or an array or ACSR of the same contents) and equal options returns the same kernel at once. A
 * new length, batch size or stride reuses the compiled code as long as the plan keeps its tile shape and
 * predicates; tile_rows, tile_cols and layout pin them. May compile, touch the disk and allocate device memory.
 * Code that has not passed the self-check (splat_context_options) is launched once on a small problem, on a stream and
 * memory of its own, and waited for: some ten milliseconds. When its results are not the CPU's the call fails with
 * SPLAT_COMPILE and the code is not kept. Uses the calling thread's current CUDA context; when there is none it makes device 0's primary context current.
 * Do not call while the thread captures a stream. Any status. */
SPLAT_API enum splat_status splat_compile(splat_context *context, const splat_mask *mask,
                                          const splat_options *options, splat_kernel **kernel);
SPLAT_API void splat_kernel_destroy(splat_kernel *kernel);

/* Puts the compiled code into the disk cache for options->arch and does not load it: for ahead-of-time builds on
 * machines without a GPU. Needs NVRTC. Fails with SPLAT_UNSUPPORTED when the cache is off or read-only. */
typedef struct splat_compile_info {
    size_t struct_size;
    char key[33];     /* hexadecimal name of the cache entry */
    int cache_hit;    /* 1 = it was there already: on disk or in this process */
    double ms;        /* time this call took */
    int registers;    /* a thread */
    int shared_bytes; /* static + dynamic, a block */
    int spill_bytes;  /* local memory a thread */
    int64_t cubin_bytes;
} splat_compile_info;

SPLAT_API void splat_compile_info_init(splat_compile_info *info);
SPLAT_API enum splat_status splat_compile_to_cache(splat_context *context, const splat_mask *mask,
                                                   const splat_options *options, splat_compile_info *info);

/* What a kernel was made of. The plan is owned by the kernel. */
SPLAT_API enum splat_status splat_kernel_get_info(const splat_kernel *kernel, splat_compile_info *info);
SPLAT_API const splat_plan *splat_kernel_plan(const splat_kernel *kernel);
SPLAT_API enum splat_device splat_kernel_device(const splat_kernel *kernel); /* CPU or GPU, never AUTO */

/* A [batch, heads, rows, D] tensor in any order of the first three axes; D is contiguous. Strides in elements; on
 * the GPU `data` must be 16-byte aligned and q, k, v and o strides multiples of 8. */
typedef struct splat_tensor {
    void *data;
    int64_t batch_stride, head_stride, row_stride;
} splat_tensor;

typedef struct splat_attention_args {
    size_t struct_size;
    int64_t batch, heads;    /* of q and o; heads is a multiple of kv_heads */
    int64_t kv_heads;        /* of k and v; 0 = heads. Query head h reads key head h / (heads / kv_heads) */
    int64_t q_len, kv_len;   /* must be the mask's */
    splat_tensor q, k, v, o; /* device pointers on the GPU, host pointers on the CPU */
    float *lse;              /* natural-log sum of exp of scaled scores, [batch, heads, q_len]; NULL = not wanted */
    int64_t lse_batch_stride, lse_head_stride; /* in floats */
    float scale;                               /* of q.k; finite and > 0; 0 = 1 / sqrt(head_dim) */
    void *workspace; /* splat_workspace_bytes() of them, 256-byte aligned; NULL when that is 0 */
    size_t workspace_bytes;
} splat_attention_args;

SPLAT_API void splat_attention_args_init(splat_attention_args *args);

/* Fills a tensor for a contiguous [batch, heads, rows, dim] (bhsd) or [batch, rows, heads, dim] (bshd) array. */
SPLAT_API splat_tensor splat_tensor_bhsd(void *data, int64_t heads, int64_t rows, int64_t dim);
SPLAT_API splat_tensor splat_tensor_bshd(void *data, int64_t heads, int64_t rows, int64_t dim);

/* Workspace a run with these batch and head counts needs, as many query heads to a key head as in the kernel's
 * options: none on the CPU. On the GPU, when the plan takes several launches, a float for each row, which is used
 * only when args->lse is NULL; when it splits long row tiles, the outputs of their parts, a few megabytes. */
SPLAT_API enum splat_status splat_workspace_bytes(const splat_kernel *kernel, int64_t batch, int64_t heads,
                                                  size_t *bytes);

/* o = softmax(scale * q k^T restricted to the mask) v, lse beside it. Rows with nothing allowed get o = 0 and
 * lse = -inf. Keys that are masked out contribute nothing, even when they hold NaN. Softmax and sums in fp32.
 * GPU: launches on `stream` (a CUstream or cudaStream_t; NULL = the default stream) and returns; allocates nothing
 * and does not synchronise; may be captured into a graph; results are bitwise equal from run to run. CPU: returns
 * when done; stream must be NULL. SPLAT_INVALID, SPLAT_CUDA. */
SPLAT_API enum splat_status splat_run(const splat_kernel *kernel, const splat_attention_args *args, void *stream);

/* ---- The operators on their own ---- */

/* Values of a mask's ACSR, an array for each (batch, head): value p, of the pair at place p, is at data + batch *
 * batch_stride + head * head_stride + p. Strides in elements; on the GPU `data` must be 16-byte aligned and strides
 * multiples of 8. */
typedef struct splat_values {
    void *data;
    int64_t batch_stride, head_stride;
} splat_values;

/* Arguments of splat_run_sparse. Each operator uses what is named for it and ignores the rest. */
typedef struct splat_sparse_args {
    size_t struct_size;
    int64_t batch, heads;       /* of the values; heads is a multiple of kv_heads */
    int64_t kv_heads;           /* of k, and of x in SPMM; 0 = heads, as it must be in SPMM_TRANSPOSED. Head h reads
                                   head h / (heads / kv_heads) */
    int64_t q_len, kv_len;      /* must be the mask's */
    splat_values values;        /* SDDMM, SOFTMAX: the results. SPMM, SPMM_TRANSPOSED: A */
    splat_values scores;        /* SOFTMAX: what it is taken of; may be `values`, which is overwritten then */
    splat_tensor q, k;          /* SDDMM: [batch, heads, q_len, head_dim], [batch, kv_heads, kv_len, head_dim] */
    splat_tensor x, y;          /* SPMM: [batch, kv_heads, kv_len, value_dim], [batch, heads, q_len, value_dim].
                                   SPMM_TRANSPOSED: [batch, heads, q_len, value_dim], [batch, heads, kv_len, ...] */
    float *lse;                 /* SOFTMAX: natural-log sum of exp of scaled scores, [batch, heads, q_len]; or NULL */
    int64_t lse_batch_stride, lse_head_stride; /* in floats */
    float scale;                /* finite and > 0; 0 = 1 / sqrt(head_dim) for SDDMM, 1 for the others */
} splat_sparse_args;

SPLAT_API void splat_sparse_args_init(splat_sparse_args *args);

/* Runs a kernel of any op but attention. Sums in fp32, rounded once.
 *   SDDMM    A NaN in q or k shows at the allowed pairs of its row or column, nowhere else.
 *   SOFTMAX  A row whose scores are all -inf becomes zeros and its lse -inf, as is that of a row without pairs.
 *   SPMM     and SPMM_TRANSPOSED sum over allowed pairs alone: a NaN in a row of x shows in the rows of y that have a
 *            pair with it, even one of value 0, and in no other. A row of y without pairs is 0.
 * Pointers, stream and capture as in splat_run; one launch, no workspace; bitwise equal from run to run.
 * SPLAT_INVALID, SPLAT_CUDA. */
SPLAT_API enum splat_status splat_run_sparse(const splat_kernel *kernel, const splat_sparse_args *args, void *stream);

/* ---- Layers: Kronecker-sparse weights ------------------------------------------------------------------- */

/* A linear layer y = W x + bias whose weights are one Kronecker-sparse matrix, or a product of several (butterfly and
 * Monarch matrices), ready to run. A factor's support is I_a x 1_(b x c) x I_d (x the Kronecker product): output
 * i*b*d + k*d + j is a sum over inputs i*c*d + l*d + j, l < c. Immutable, as kernels are. */
typedef struct splat_layer splat_layer;

/* How activations lie in memory: features of one sample side by side, or samples of one feature. */
enum splat_layout {
    SPLAT_BATCH_FIRST = 0, /* [n, features], row stride >= features */
    SPLAT_BATCH_LAST = 1   /* [features, n], row stride >= n */
};

typedef struct splat_layer_options {
    size_t struct_size;
    enum splat_dtype dtype;   /* of weights, bias and activations; sums in fp32. Default SPLAT_BF16 */
    int tf32;                 /* SPLAT_FP32 on the GPU: 1 = products of numbers rounded to tf32; 0 = strict fp32 */
    enum splat_layout layout; /* default SPLAT_BATCH_FIRST */
    int64_t n;                /* samples that the cost model should expect; any number may be run. Default 4096 */
    int gradients;            /* 1: splat_layer_backward can be called. Default 0 */
    enum splat_device device; /* default SPLAT_DEVICE_AUTO */
    enum splat_arch arch;     /* default SPLAT_ARCH_AUTO */
} splat_layer_options;

SPLAT_API void splat_layer_options_init(splat_layer_options *options);

/* Compiles a layer from the masks of its factors, 1 to 16 of them, the one that is applied first at masks[0]. Each mask
 * must have a Kronecker-sparse support, whatever it was made from (the rows are outputs, the columns inputs), and as many
 * columns as the mask before it has rows. What else splat_compile says of contexts, caches and threads holds. Any status;
 * SPLAT_UNSUPPORTED, with the first row that deviates, for other masks. */
SPLAT_API enum splat_status splat_layer_compile(splat_context *context, const splat_mask *const *masks, int64_t count,
                                                const splat_layer_options *options, splat_layer **layer);
SPLAT_API void splat_layer_destroy(splat_layer *layer);

/* One factor: I_a x 1_(b x c) x I_d. Its weights are a*b*c*d values in the canonical order of ACSR values: row by row,
 * columns ascending, which is [a][b][d][c]. */
typedef struct splat_layer_factor {
    int64_t a, b, c, d;
    double predicted_us; /* forward pass of options.n samples; 0 on the CPU */
} splat_layer_factor;

SPLAT_API int64_t splat_layer_factors(const splat_layer *layer);
SPLAT_API enum splat_status splat_layer_get_factor(const splat_layer *layer, int64_t index, splat_layer_factor *factor);
SPLAT_API int64_t splat_layer_inputs(const splat_layer *layer);  /* features of x */
SPLAT_API int64_t splat_layer_outputs(const splat_layer *layer); /* features of y */
SPLAT_API enum splat_device splat_layer_device(const splat_layer *layer);

/* Device pointers on the GPU, host pointers on the CPU; strides in elements. Data may have any alignment that its type
 * allows; the GPU is fast when data is 16-byte aligned and strides are multiples of 16 bytes. */
typedef struct splat_layer_args {
    size_t struct_size;
    int64_t n;                   /* samples, 1 to SPLAT_MAX_LEN */
    const void *const *weights;  /* an array for each factor (the pointers themselves on the host) */
    const void *x;               /* input */
    int64_t x_stride;            /* between samples (batch first) or features (batch last); 0 = as packed */
    /* splat_layer_forward */
    void *y;
    int64_t y_stride;
    const void *bias;            /* outputs values; NULL = none */
    /* splat_layer_backward */
    const void *dy;              /* gradient of y */
    int64_t dy_stride;
    void *dx;                    /* gradient of x; NULL = not wanted */
    int64_t dx_stride;
    void *const *weight_gradients; /* an array for each factor, as weights; NULL, or one of them NULL = not wanted */
    void *workspace;             /* splat_layer_workspace_bytes() of them, 256-byte aligned; NULL when that is 0 */
    size_t workspace_bytes;
} splat_layer_args;

SPLAT_API void splat_layer_args_init(splat_layer_args *args);

/* Workspace of a run with n samples: activations between factors, and for the backward pass gradients and partial sums. */
SPLAT_API enum splat_status splat_layer_workspace_bytes(const splat_layer *layer, int64_t n, int backward, size_t *bytes);

/* y = W x + bias. As splat_run: launches on `stream` and returns; allocates nothing on the GPU, does not synchronise, may be captured
 * into a graph; results repeat bit for bit. x and y must not overlap. On the CPU stream must be NULL; it may allocate. */
SPLAT_API enum splat_status splat_layer_forward(const splat_layer *layer, const splat_layer_args *args, void *stream);

/* dx = W^T dy and the gradient of each factor's weights at its allowed pairs, each rounded to the dtype once. Weight
 * gradients of a layer of several factors need the activations between them: pass the workspace, large enough for the
 * backward pass, that splat_layer_forward filled for the same x and weights. */
SPLAT_API enum splat_status splat_layer_backward(const splat_layer *layer, const splat_layer_args *args, void *stream);

/* ---- The disk cache ------------------------------------------------------------------------------------- */

typedef struct splat_cache_info {
    size_t struct_size;
    char directory[1024];
    int64_t entries, bytes; /* sound entries */
    int64_t damaged;        /* entries that a reader would discard (verify, prune) */
    int64_t removed;        /* entries this call removed (prune, clear) */
} splat_cache_info;

SPLAT_API void splat_cache_info_init(splat_cache_info *info);
/* Counts entries; reads only names and sizes. */
SPLAT_API enum splat_status splat_cache_stat(splat_context *context, splat_cache_info *info);
/* Reads and checks every entry. */
SPLAT_API enum splat_status splat_cache_verify(splat_context *context, splat_cache_info *info);
/* Removes damaged entries and left-over temporaries, then the least recently used beyond max_bytes (< 0 = the
 * context's limit). */
SPLAT_API enum splat_status splat_cache_prune(splat_context *context, int64_t max_bytes, splat_cache_info *info);
/* Removes every entry. Files that are not cache entries stay. */
SPLAT_API enum splat_status splat_cache_clear(splat_context *context, splat_cache_info *info);

/* ---- The machine ---------------------------------------------------------------------------------------- */

/* Whether a usable GPU is here. SPLAT_OK and its name and compute capability (major * 10 + minor), or
 * SPLAT_NO_DEVICE with the reason in splat_last_error(). name may be NULL. */
SPLAT_API enum splat_status splat_device_query(char *name, size_t name_size, int *capability);

#ifdef __cplusplus
}
#endif
#endif
