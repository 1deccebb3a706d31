/* A small problem of the self-check (selfcheck.c): what is the same for every operation, and what each brings. */
#ifndef SP_SELFCHECK_PROBLEM_H
#define SP_SELFCHECK_PROBLEM_H

#include "runtime/cpu_float.h"
#include "runtime/kernel.h"

#define SP_CHECK_SCALE         0.346573590f /* ln 2 / 2: weights of even scores are powers of two */
#define SP_CHECK_LSE_TOLERANCE 1e-4

enum { SP_CHECK_HIDDEN = 5 }; /* keys behind all that a row may see */

struct sp_problem {
    splat_kernel *kernel; /* the function, with a plan and tables of its own */
    splat_plan *cpu_plan; /* for the CPU engine, where the kernel's is not for it */
    int64_t batch, heads, kv_heads;
    int64_t rows, keys; /* of the plan */
    int64_t dim, value_dim;
    enum splat_dtype dtype;
    /* Host memory: inputs, what the CPU gives, what the device gives. Device memory: inputs, results, workspace.
     * Each tensor begins at a multiple of 256 bytes. */
    unsigned char *host;
    sp_cu_pointer device;
    size_t second_at, third_at; /* inputs after the first */
    size_t results_at, lse_at;  /* results; lse_at is `bytes` without lse */
    size_t bytes;               /* of inputs and results */
    size_t workspace_bytes;
};

struct sp_problem_kind {
    void (*lay_out)(struct sp_problem *p); /* second_at to bytes */
    void (*fill)(const struct sp_problem *p);
    /* On tensors from `base` on: by the device on the stream, or by the CPU engine on one thread (a pool of them in
     * the caller's process would cost more than it saves). */
    enum splat_status (*run_device)(const struct sp_problem *p, unsigned char *base, sp_cu_stream stream);
    enum splat_status (*run_cpu)(const struct sp_problem *p, unsigned char *base);
    enum splat_status (*compare)(const struct sp_problem *p);
};

extern const struct sp_problem_kind sp_attention_problem, sp_values_problem;

static inline size_t sp_check_rounded(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* splitmix64 */
static inline uint32_t sp_check_draw(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(x >> 32);
}

static inline uint16_t sp_check_narrow(enum splat_dtype dtype, float value)
{
    return dtype == SPLAT_BF16 ? sp_float_to_bf16(value) : sp_float_to_fp16(value);
}

static inline float sp_check_widen(enum splat_dtype dtype, uint16_t bits)
{
    return dtype == SPLAT_BF16 ? sp_bf16_to_float(bits) : sp_fp16_to_float(bits);
}

/* Queries: six elements of `rows` rows are 2 or -2, the rest 0. Keys: elements are 1 or -1. So scores are from -12
 * to 12 and even. */
void sp_check_fill_queries(const struct sp_problem *p, uint16_t *q, int64_t rows, uint64_t *state);
void sp_check_fill_keys(const struct sp_problem *p, uint16_t *k, int64_t rows, uint64_t *state);

/* Multiples of 1/64 up to 1: fp32 sums of them are exact in any order. */
void sp_check_fill_fractions(const struct sp_problem *p, uint16_t *x, int64_t count, uint64_t *state);

/* Of the results from results_at on, the `count` numbers of 16 bits after the first `first`, those of the device
 * against the CPU's: reciprocals and sums in fp32 may round to the next of the numbers that 16 bits hold, so one
 * step is allowed. Of lse, `count` numbers. SPLAT_COMPILE, naming the element as one of heads of `rows` rows of
 * `length`. */
enum splat_status sp_check_numbers(const struct sp_problem *p, const char *name, int64_t first, int64_t count,
                                   int64_t rows, int64_t length);
enum splat_status sp_check_lse(const struct sp_problem *p, int64_t count);

#endif
