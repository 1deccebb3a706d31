/* The parameter of the kernels of Kronecker-sparse layers: shared word for word by the host (C) and by the
 * generated source (CUDA), which pastes this file. Only fixed-width types and 8-byte alignment, so that both sides
 * agree.
 *
 * A launch does out[i][j] = left[i][j] x right[i][j]^T for every block i and every matrix j of it: `rows` x `depth`
 * by `cols` x `depth`. What left, right and out are (weights, activations, gradients) is in their strides alone. */
#ifndef SP_KRON_ARGS_H
#define SP_KRON_ARGS_H

typedef long long sp_kron_i64;

/* Element (i, j, row, k) is at data + i*block + j*matrix + row*row_stride + k*k_stride. */
struct sp_kron_operand {
    const void *data;
    sp_kron_i64 block, matrix, row, k; /* strides in elements */
};

struct sp_kron_args {
    struct sp_kron_operand left, right;
    void *out;
    sp_kron_i64 out_block, out_matrix, out_row, out_col, out_split; /* likewise */
    const void *bias; /* one for each row, or each column, of out; or null */
    sp_kron_i64 bias_block, bias_matrix, bias_step;
    int rows, cols, depth;
    int matrices;               /* of a block: d */
    int runs;                   /* of RUN matrices each, in a block */
    int row_blocks, col_blocks; /* thread blocks along rows and columns: tiles, or fewer that take several */
    int splits, split_depth;    /* parts of the depth, each of split_depth but the last */
    int left_vector, right_vector, out_vector; /* 1: accesses of 16 bytes are possible */
};

/* The Hopper kernel (kron_sm90.cuh): out[s][f] = the sum over the inputs of matrix (i, j) for each sample s and
 * each feature f = i*bias_block + output*bias_step + j. Samples and weights come by tensor maps, which follow this
 * parameter. The grid is a multiple of `teams`; team t takes the units u whose run is number u*teams + t. */
struct sp_kron_hopper_args {
    void *out;
    sp_kron_i64 out_feature, out_sample; /* strides in elements */
    const void *bias;                    /* one for each feature, or null */
    sp_kron_i64 bias_block, bias_step;   /* features from block to block, and from output to output: d */
    int samples, outputs;                /* outputs of a matrix */
    int matrices;                        /* of a block: d */
    int runs;                            /* of RUN matrices each, in a block */
    int teams, units;                    /* units of a team */
    int sample_tiles, output_tiles;
    int out_vector; /* 1: stores of whole chunks are possible */
    int reserved;
};

/* The sums over splits: out[v] = the sum of parts[s*count + v] over s. */
struct sp_kron_sum_args {
    const float *parts;
    void *out;
    sp_kron_i64 count;
    int splits, reserved;
};

#endif
