/* Any bytes as a portable bitmap. */
#include "fuzz.h"

#include "cli/mask_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct sp_file file = {data, size, 0};
    splat_mask *mask = NULL;
    if (size < 2) /* the caller has seen the magic */
        return 0;
    if (accepted(sp_pbm_mask("f.pbm", &file, &mask), SPLAT_INVALID))
        use_mask(mask);
    return 0;
}
