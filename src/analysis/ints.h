/* Small integer helpers of the analysis stage, all in 64 bits. */
#ifndef SP_INTS_H
#define SP_INTS_H

#include <stdbool.h>
#include <stdint.h>

static inline int64_t sp_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t sp_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline double sp_max_double(double a, double b)
{
    return a > b ? a : b;
}

static inline int64_t sp_clamp64(int64_t value, int64_t low, int64_t high)
{
    return sp_min64(sp_max64(value, low), high);
}

/* Quotients rounded down and up, for any sign of `a`; b > 0. */
static inline int64_t sp_floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static inline int64_t sp_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b > 0);
}

/* The non-negative remainder; b > 0. */
static inline int64_t sp_mod64(int64_t a, int64_t b)
{
    int64_t r = a % b;
    return r < 0 ? r + b : r;
}

static inline bool sp_fits_int32(int64_t value)
{
    return value >= INT32_MIN && value <= INT32_MAX;
}

#endif
