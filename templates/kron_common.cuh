// What the kernels of Kronecker-sparse layers share: elements of any type, words of shared memory, results on their way out.
//
// Takes ELEMENT, IS_BF16 and OUT_FLOAT (params_default_kron.cuh says what they mean).

__device__ __forceinline__ unsigned load_element(const char *address)
{
    return ELEMENT == 2 ? *reinterpret_cast<const unsigned short *>(address)
                        : *reinterpret_cast<const unsigned *>(address);
}

__device__ __forceinline__ int smaller(int a, int b)
{
    return a < b ? a : b;
}

// Words from shared memory, as few loads as its alignment allows: COUNT is 1, 2, 4 or 8.
template <int COUNT> __device__ __forceinline__ void load_words(unsigned *to, unsigned address)
{
    if constexpr (COUNT == 1) {
        to[0] = load_shared_u32(address);
    } else if constexpr (COUNT == 2) {
        unsigned pair[2];
        load_shared_pair(pair, address);
        to[0] = pair[0];
        to[1] = pair[1];
    } else {
#pragma unroll
        for (int c = 0; c < COUNT / 4; ++c) {
            const Chunk chunk = load_shared_chunk(address + 16 * c);
#pragma unroll
            for (int w = 0; w < 4; ++w)
                to[4 * c + w] = chunk.word[w];
        }
    }
}

__device__ __forceinline__ unsigned pack(float low, float high)
{
    return IS_BF16 ? pack_bf16(low, high) : pack_f16(low, high);
}

__device__ __forceinline__ float load_bias(const char *address)
{
    const unsigned bits = load_element(address);
    if (ELEMENT == 4)
        return __int_as_float(static_cast<int>(bits));
    return IS_BF16 ? __int_as_float(static_cast<int>(bits << 16)) : unpack_f16(bits, 0);
}

constexpr bool OUT_32 = OUT_FLOAT || ELEMENT == 4;
constexpr int OUT_BYTES = OUT_32 ? 4 : 2;

struct alignas(8) Pair {
    unsigned word[2];
};

__device__ __forceinline__ void store_element(char *to, float value)
{
    if constexpr (OUT_32)
        *reinterpret_cast<float *>(to) = value;
    else
        *reinterpret_cast<unsigned short *>(to) = static_cast<unsigned short>(pack(value, value));
}

// COUNT consecutive results: one store where they are 4, 8 or 16 bytes and `vector`, else the first `present` of them
// one by one.
template <int COUNT>
__device__ __forceinline__ void store_elements(char *to, const float (&values)[COUNT], int present, bool vector)
{
    constexpr int WORDS = COUNT * OUT_BYTES / 4;
    if (WORDS > 0 && vector && present >= COUNT) {
        unsigned words[WORDS > 0 ? WORDS : 1];
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            if constexpr (OUT_32)
                words[w] = static_cast<unsigned>(__float_as_int(values[w]));
            else
                words[w] = pack(values[2 * w], values[2 * w + 1]);
        }
        if constexpr (WORDS == 4)
            *reinterpret_cast<Chunk *>(to) = Chunk{{words[0], words[1], words[2], words[3]}};
        else if constexpr (WORDS == 2)
            *reinterpret_cast<Pair *>(to) = Pair{{words[0], words[1]}};
        else
            *reinterpret_cast<unsigned *>(to) = words[0];
        return;
    }
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
        if (e < present)
            store_element(to + e * OUT_BYTES, values[e]);
}

// Four column tiles of a row, 16 bits a result: lane t of the quad gets the eight columns of tile t.
template <int TILES>
__device__ __forceinline__ Chunk gather_row(const float (&sums)[TILES][4], int n, int half, int t)
{
    unsigned w[4];
#pragma unroll
    for (int q = 0; q < 4; ++q)
        w[q] = pack(sums[(n + q) % TILES][2 * half], sums[(n + q) % TILES][2 * half + 1]);
    const bool odd = t % 2 != 0, upper = t / 2 != 0;
    unsigned x = shuffle_xor_u32(odd ? w[0] : w[1], 1), y = shuffle_xor_u32(odd ? w[2] : w[3], 1);
    w[0] = odd ? x : w[0];
    w[1] = odd ? w[1] : x;
    w[2] = odd ? y : w[2];
    w[3] = odd ? w[3] : y;
    x = shuffle_xor_u32(upper ? w[0] : w[2], 2);
    y = shuffle_xor_u32(upper ? w[1] : w[3], 2);
    w[0] = upper ? x : w[0];
    w[2] = upper ? w[2] : x;
    w[1] = upper ? y : w[1];
    w[3] = upper ? w[3] : y;
    return Chunk{{w[0], w[1], w[2], w[3]}};
}
