/* Prints size and field offsets of the public structs, one "struct field offset" a line ("size" for the whole), so
 * that bench/splat_ctypes.py can compare its own layout with the compiler's. Takes and keeps nothing. */
#include <stddef.h>
#include <stdio.h>

#include "splat.h"

#define FIELD(type, field) printf("%s %s %zu\n", #type, #field, offsetof(type, field))
#define SIZE(type)         printf("%s size %zu\n", #type, sizeof(type))

static void print_inputs(void)
{
    FIELD(splat_options, struct_size);
    FIELD(splat_options, dtype);
    FIELD(splat_options, device);
    FIELD(splat_options, arch);
    FIELD(splat_options, head_dim);
    FIELD(splat_options, value_dim);
    FIELD(splat_options, batch);
    FIELD(splat_options, heads);
    FIELD(splat_options, kv_heads);
    FIELD(splat_options, tile_rows);
    FIELD(splat_options, tile_cols);
    FIELD(splat_options, layout);
    FIELD(splat_options, op);
    SIZE(splat_options);
    FIELD(splat_context_options, struct_size);
    FIELD(splat_context_options, log);
    FIELD(splat_context_options, log_user);
    FIELD(splat_context_options, cache_dir);
    FIELD(splat_context_options, cache_mode);
    FIELD(splat_context_options, cache_max_bytes);
    FIELD(splat_context_options, threads);
    FIELD(splat_context_options, self_check);
    SIZE(splat_context_options);
    FIELD(splat_acsr_run, start);
    FIELD(splat_acsr_run, stride);
    FIELD(splat_acsr_run, count);
    FIELD(splat_acsr_run, width);
    SIZE(splat_acsr_run);
}

static void print_launch(void)
{
    FIELD(splat_tensor, data);
    FIELD(splat_tensor, batch_stride);
    FIELD(splat_tensor, head_stride);
    FIELD(splat_tensor, row_stride);
    SIZE(splat_tensor);
    FIELD(splat_attention_args, struct_size);
    FIELD(splat_attention_args, batch);
    FIELD(splat_attention_args, heads);
    FIELD(splat_attention_args, kv_heads);
    FIELD(splat_attention_args, q_len);
    FIELD(splat_attention_args, kv_len);
    FIELD(splat_attention_args, q);
    FIELD(splat_attention_args, k);
    FIELD(splat_attention_args, v);
    FIELD(splat_attention_args, o);
    FIELD(splat_attention_args, lse);
    FIELD(splat_attention_args, lse_batch_stride);
    FIELD(splat_attention_args, lse_head_stride);
    FIELD(splat_attention_args, scale);
    FIELD(splat_attention_args, workspace);
    FIELD(splat_attention_args, workspace_bytes);
    SIZE(splat_attention_args);
    FIELD(splat_values, data);
    FIELD(splat_values, batch_stride);
    FIELD(splat_values, head_stride);
    SIZE(splat_values);
    FIELD(splat_sparse_args, struct_size);
    FIELD(splat_sparse_args, batch);
    FIELD(splat_sparse_args, heads);
    FIELD(splat_sparse_args, kv_heads);
    FIELD(splat_sparse_args, q_len);
    FIELD(splat_sparse_args, kv_len);
    FIELD(splat_sparse_args, values);
    FIELD(splat_sparse_args, scores);
    FIELD(splat_sparse_args, q);
    FIELD(splat_sparse_args, k);
    FIELD(splat_sparse_args, x);
    FIELD(splat_sparse_args, y);
    FIELD(splat_sparse_args, lse);
    FIELD(splat_sparse_args, lse_batch_stride);
    FIELD(splat_sparse_args, lse_head_stride);
    FIELD(splat_sparse_args, scale);
    SIZE(splat_sparse_args);
}

static void print_infos(void)
{
    FIELD(splat_plan_info, struct_size);
    FIELD(splat_plan_info, q_len);
    FIELD(splat_plan_info, kv_len);
    FIELD(splat_plan_info, masks);
    FIELD(splat_plan_info, allowed_pairs);
    FIELD(splat_plan_info, computed_pairs);
    FIELD(splat_plan_info, full_tiles);
    FIELD(splat_plan_info, partial_tiles);
    FIELD(splat_plan_info, passes);
    FIELD(splat_plan_info, families);
    FIELD(splat_plan_info, tile_rows);
    FIELD(splat_plan_info, tile_cols);
    FIELD(splat_plan_info, descriptor_bytes);
    FIELD(splat_plan_info, candidates);
    FIELD(splat_plan_info, density);
    FIELD(splat_plan_info, waste);
    FIELD(splat_plan_info, plan_ms);
    FIELD(splat_plan_info, predicted_us);
    SIZE(splat_plan_info);
    FIELD(splat_compile_info, struct_size);
    FIELD(splat_compile_info, key);
    FIELD(splat_compile_info, cache_hit);
    FIELD(splat_compile_info, ms);
    FIELD(splat_compile_info, registers);
    FIELD(splat_compile_info, shared_bytes);
    FIELD(splat_compile_info, spill_bytes);
    FIELD(splat_compile_info, cubin_bytes);
    SIZE(splat_compile_info);
}

int main(void)
{
    print_inputs();
    print_launch();
    print_infos();
    return 0;
}
