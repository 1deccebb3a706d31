/* Kronecker-sparse supports: I_a x 1_(b x c) x I_d, found in an ACSR. */
#ifndef SP_KRON_H
#define SP_KRON_H

#include "splat.h"

/* Row i*b*d + k*d + j (i < a, k < b, j < d) allows columns i*c*d + l*d + j, l < c. */
struct sp_kron {
    int64_t a, b, c, d;
};

/* The support of a mask, from its rows alone. Time linear in the rows, whatever the mask was made from. Where
 * several factorisations have the same support, the one with the least d. SPLAT_UNSUPPORTED, with the first row
 * that deviates, when the mask is not of that form. */
enum splat_status sp_kron_match(const splat_acsr *acsr, struct sp_kron *kron);

#endif
