// Weight gradients: the sums over the parts that kron_sm80.cuh leaves in fp32, in ascending order, rounded once.

// splat:region(params)
constexpr int ELEMENT = 2;     // bytes of a result
constexpr bool IS_BF16 = true; // 16-bit results are bf16; false: fp16
// splat:end

// splat:region(kron_args)
#include "../src/codegen/kron_args.h"
// splat:end

// splat:region(ptx)
#include "ptx_sm80.cuh"
#include "ptx_kron.cuh"
// splat:end

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) splat_kron_sum(const sp_kron_sum_args args)
{
    const sp_kron_i64 at = static_cast<sp_kron_i64>(block_index()) * THREADS + threadIdx.x;
    if (at >= args.count)
        return;
    float sum = args.parts[at];
    for (int s = 1; s < args.splits; ++s)
        sum += args.parts[s * args.count + at];
    if constexpr (ELEMENT == 4)
        static_cast<float *>(args.out)[at] = sum;
    else
        static_cast<unsigned short *>(args.out)[at] =
            static_cast<unsigned short>(IS_BF16 ? pack_bf16(sum, sum) : pack_f16(sum, sum));
}
