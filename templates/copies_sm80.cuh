// Tiles of a tensor to shared memory, by cp.async.
//
// Takes, from the template that it is pasted into, THREADS, LATTICE, and what plan_common.cuh gives.

// ---- Copies ----

// How many columns of chunks the threads of a block are laid out in: a power of two, the surplus idle, so that a
// thread stays in one column and steps down by the same number of rows, at most all of them.
__host__ __device__ constexpr int thread_columns(int rows, int chunks)
{
    int columns = 1;
    while (columns < chunks || columns * rows < THREADS)
        columns *= 2;
    return columns;
}

// Calls visit(row, chunk) for this thread's share of ROWS rows of CHUNKS chunks. The same thread gets the same ones
// each time.
template <int ROWS, int CHUNKS, class Visit> __device__ __forceinline__ void for_own_chunks(Visit visit)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS), STEP = THREADS / COLUMNS;
    static_assert(ROWS % STEP == 0, "every thread has the same number of rows");
    const int row = static_cast<int>(threadIdx.x) / COLUMNS, chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    if (chunk < CHUNKS)
#pragma unroll
        for (int step = 0; step < ROWS; step += STEP)
            visit(row + step, chunk);
}

// The address of this thread's first chunk among ROWS rows of CHUNKS chunks.
template <int ROWS, int CHUNKS>
__device__ __forceinline__ const char *own_source(const char *rows, sp_i64 row_bytes)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS);
    const int row = static_cast<int>(threadIdx.x) / COLUMNS, chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    return settle(rows + row * row_bytes + 16 * chunk);
}

// Starts copying rows first .. first + ROWS of a tensor to rows PITCH bytes apart; `source` is own_source of its
// row 0. Its rows hold FILLED chunks; rows from `limit` on, and chunks from FILLED on, become zero (`anywhere` is a
// valid address for them). Shares the chunks out like for_own_chunks; the source address moves on by additions, so
// that no other need be kept.
template <int ROWS, int CHUNKS, int FILLED, int PITCH>
__device__ __forceinline__ void copy_rows(unsigned shared, const char *source, sp_i64 row_bytes, int first,
                                          int limit, const void *anywhere)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS), STEP = THREADS / COLUMNS;
    static_assert(ROWS % STEP == 0, "every thread has the same number of rows");
    const int row = static_cast<int>(threadIdx.x) / COLUMNS, chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    const int rows_left = CHUNKS == FILLED || chunk < FILLED ? limit - first - row : 0;
    source += first * row_bytes;
    if (chunk < CHUNKS)
#pragma unroll
        for (int step = 0; step < ROWS; step += STEP) {
            const bool present = step < rows_left;
            copy_async_chunk(shared + (row + step) * PITCH + 16 * chunk, present ? source : anywhere, present);
            source += STEP * row_bytes;
        }
}

// The same for the ROWS tokens of a tile at position `first` of a view; `rows` is the head's row 0.
template <int ROWS, int CHUNKS, int FILLED, int PITCH>
__device__ __forceinline__ void copy_lattice(unsigned shared, const char *rows, sp_i64 row_bytes,
                                             const sp_launch_view &view, int first, int limit, const void *anywhere)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS), STEP = THREADS / COLUMNS;
    const Place place = place_of(view, first);
    const int chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    if (chunk < CHUNKS)
#pragma unroll 1
        for (int row = static_cast<int>(threadIdx.x) / COLUMNS; row < ROWS; row += STEP) {
            const int token = token_of(view, place, row);
            const bool present = token < limit && (CHUNKS == FILLED || chunk < FILLED);
            copy_async_chunk(shared + row * PITCH + 16 * chunk,
                             present ? rows + token * row_bytes + 16 * chunk : anywhere, present);
        }
}

// One tile of queries, keys or values, under its view: `rows` is the head's row 0, or this thread's own_source of it without
// views.
template <int ROWS, int CHUNKS, int FILLED, int PITCH>
__device__ __forceinline__ void copy_tile(unsigned shared, const char *rows, sp_i64 row_bytes,
                                          const sp_launch_view &view, int first, int limit, const void *anywhere)
{
    if constexpr (LATTICE)
        copy_lattice<ROWS, CHUNKS, FILLED, PITCH>(shared, rows, row_bytes, view, first, limit, anywhere);
    else
        copy_rows<ROWS, CHUNKS, FILLED, PITCH>(shared, rows, row_bytes, first, limit, anywhere);
}
