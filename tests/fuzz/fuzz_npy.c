/* Any bytes as a .npy file, read as a mask and as a tensor. */
#include "fuzz.h"

#include "cli/npy.h"
#include "cli/mask_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct sp_file file = {data, size, 0};
    struct sp_npy array;
    splat_mask *mask = NULL;
    if (accepted(sp_npy_parse("f.npy", &file, "it must be what it must be", &array), SPLAT_INVALID)) {
        uint64_t sum = 0; /* the extent that was promised is there */
        for (int64_t k = 0; k < array.items * array.item_bytes; k++)
            sum += array.data[k];
        if (sum > (uint64_t)size * 255 || array.data + array.items * array.item_bytes != data + size)
            WRONG("the data do not end where the file does");
    }
    if (accepted(sp_npy_mask("f.npy", &file, &mask), SPLAT_INVALID))
        use_mask(mask);
    return 0;
}
