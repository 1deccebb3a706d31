/* Any bytes as a cache entry. The first byte of the input says whether magic, version and checksum are made to fit,
 * so that what lies behind them is reached; the rest is the file.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/hash.h"
#include "runtime/cache_entry.h"
#include "runtime/cubin.h"

static int folder = -1;
static char path[64];
static const char name[] = "00000000000000000000000000000000.splat";
static const char key[] = "a key";

static void remove_folder(void)
{
    unlinkat(folder, name, 0);
    rmdir(path);
}

static void open_folder(void)
{
    strcpy(path, access("/dev/shm", W_OK) == 0 ? "/dev/shm/splat_fuzz_XXXXXX" : "/tmp/splat_fuzz_XXXXXX");
    if (!mkdtemp(path) || (folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        WRONG("no folder %s", path);
    atexit(remove_folder);
}

static void seal(uint8_t *entry, size_t size)
{
    static const uint8_t head[16] = {0x89, 'S', 'P', 'L', 'A', 'T', '\r', '\n', SP_ENTRY_FORMAT,
                                     0,    0,   0,   64,  0,   0,   0};
    memcpy(entry, head, sizeof head);
    const struct sp_hash sum = sp_hash_bytes(entry + 32, size - 32);
    memcpy(entry + 16, &sum.low, 8);
    memcpy(entry + 24, &sum.high, 8);
}

/* A sound entry holds parts that lie in the file, whatever its lengths say. */
static void check_image(const struct sp_image *image, size_t size)
{
    if (image->cubin_bytes + strlen(image->log) + 64 > size)
        WRONG("the parts are larger than the file");
    sp_cubin_fault(image->cubin, image->cubin_bytes, 90, "splat_attention");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (folder < 0)
        open_folder();
    if (size < 1)
        return 0;
    uint8_t *entry = malloc(size);
    const size_t bytes = size - 1;
    memcpy(entry, data + 1, bytes);
    if (data[0] & 1 && bytes >= 32)
        seal(entry, bytes);
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, entry, bytes) != (ssize_t)bytes || close(fd) != 0)
        WRONG("the entry cannot be written");
    for (int keyed = 0; keyed < 2; keyed++) {
        struct sp_image image = {0};
        const char *reason = NULL;
        enum sp_entry_state state = sp_entry_read(folder, name, keyed ? key : NULL, 0, &image, &reason);
        if (state == SP_ENTRY_SOUND)
            check_image(&image, bytes);
        else if (state != SP_ENTRY_DAMAGED || !reason || strlen(reason) < 5)
            WRONG("state %d, reason %s", (int)state, reason ? reason : "none");
        if (state == SP_ENTRY_SOUND && !(data[0] & 1) && bytes < 64)
            WRONG("%zu bytes pass for an entry", bytes);
        sp_image_free(&image);
    }
    free(entry);
    return 0;
}
