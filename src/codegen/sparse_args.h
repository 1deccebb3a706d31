/* The parameter of the kernels of operators on values: shared word for word by host and generated source, as
 * launch_args.h is, behind which it stands. */
#ifndef SP_SPARSE_ARGS_H
#define SP_SPARSE_ARGS_H

struct sp_sparse_args {
    struct sp_launch_args plan; /* the plan's tables and, as q, k, v and o, the tensors: v is x and o is y */
    const void *values;         /* read */
    void *results;              /* values, written */
    sp_i64 values_batch, values_head, results_batch, results_head; /* strides in elements */
    const sp_i64 *row_offsets; /* where the rows of values begin, and the end of the last: of distinct mask 0, then
                                  of 1, ... */
    const sp_i64
        *tile_values; /* transposed: of the columns of tile t of a row tile, from (first_tiles[row tile] + t) *
                         TILE_COLS on: place of the first value in the tile, and from bit 48 on their number */
    const sp_i64 *first_tiles;
    int value_rows; /* of A */
    int reserved;
};

#endif
