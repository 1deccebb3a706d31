/* Dense and CSR masks -> ACSR, row by row, in one pass over the caller's data. */
#ifndef SP_INPUTS_H
#define SP_INPUTS_H

#include "acsr/acsr.h"

enum splat_status sp_acsr_from_bytes(const uint8_t *bytes, int64_t q_len, int64_t kv_len, int64_t row_stride,
                                     splat_acsr **acsr);
enum splat_status sp_acsr_from_bits(const uint8_t *bits, int64_t q_len, int64_t kv_len, int64_t row_stride,
                                    splat_acsr **acsr);
enum splat_status sp_acsr_from_blocks(const uint8_t *blocks, int64_t q_len, int64_t kv_len, int64_t block_rows,
                                      int64_t block_cols, int64_t row_stride, splat_acsr **acsr);
enum splat_status sp_acsr_from_csr(const int64_t *indptr, const int64_t *indices, int64_t q_len, int64_t kv_len,
                                   splat_acsr **acsr);
enum splat_status sp_acsr_from_callback(splat_mask_fn allowed, void *user, int64_t q_len, int64_t kv_len,
                                        splat_acsr **acsr);

/* From rows that `read` writes as bits, ascending: bit j % 64 of packed[j / 64]; those from kv_len on must be 0. A
 * status other than SPLAT_OK ends it. */
typedef enum splat_status (*sp_packed_row_fn)(void *user, int64_t i, uint64_t *packed);
enum splat_status sp_acsr_from_packed(sp_packed_row_fn read, void *user, int64_t q_len, int64_t kv_len,
                                      splat_acsr **acsr);

#endif
