/* strbuf, error sentences, hashes, status names, version. */
#include <pthread.h>

#include "support.h"

#include "common/error.h"
#include "common/hash.h"
#include "common/strbuf.h"

static void strbuf_grows_and_stays_terminated(void **state)
{
    (void)state;
    struct sp_strbuf buf = SP_STRBUF_INIT;
    char want[40001];
    size_t size = 0;
    for (int k = 0; k < 5000; k++) {
        sp_strbuf_printf(&buf, "%d,", k);
        size += (size_t)sprintf(want + size, "%d,", k);
        assert_int_equal(buf.size, size);
        assert_int_equal(buf.text[buf.size], 0);
    }
    assert_int_equal(buf.failed, 0);
    assert_string_equal(buf.text, want);
    sp_strbuf_puts(&buf, "");
    assert_int_equal(buf.size, size);
    sp_strbuf_free(&buf);
}

static void strbuf_keeps_bytes_and_long_formats(void **state)
{
    (void)state;
    struct sp_strbuf buf = SP_STRBUF_INIT;
    sp_strbuf_add(&buf, "a\0b", 3);
    assert_int_equal(buf.size, 3);
    assert_memory_equal(buf.text, "a\0b", 4);
    char *wide = need(100001);
    memset(wide, 'x', 100000);
    wide[100000] = 0;
    sp_strbuf_printf(&buf, "%s!", wide); /* far beyond any stack buffer */
    assert_int_equal(buf.size, 100004);
    assert_int_equal(buf.text[100003], '!');
    assert_int_equal(buf.text[100004], 0);
    assert_int_equal(buf.text[50000], 'x');
    free(wide);
    sp_strbuf_free(&buf);
    assert_int_equal(buf.size, 0);
    sp_strbuf_puts(&buf, "again"); /* a freed buffer is an empty one */
    assert_string_equal(buf.text, "again");
    sp_strbuf_free(&buf);
}

static void fail_returns_its_status_and_keeps_the_sentence(void **state)
{
    (void)state;
    assert_int_equal(sp_fail(SPLAT_IO, "size is %d; the limit is %s", 7, "six"), SPLAT_IO);
    assert_string_equal(splat_last_error(), "size is 7; the limit is six");
    assert_int_equal(sp_fail(SPLAT_CUDA, "second"), SPLAT_CUDA);
    assert_string_equal(splat_last_error(), "second");
    assert_int_equal(sp_no_memory("the tile list", 123456), SPLAT_NO_MEMORY);
    assert_non_null(strstr(splat_last_error(), "the tile list"));
    assert_non_null(strstr(splat_last_error(), "123456"));
}

static void fail_survives_sentences_without_end(void **state)
{
    (void)state;
    char *wide = need(200001);
    memset(wide, 'y', 200000);
    wide[200000] = 0;
    assert_int_equal(sp_fail(SPLAT_INVALID, "value is %s", wide), SPLAT_INVALID);
    assert_int_equal(strncmp(splat_last_error(), "value is yyyy", 13), 0);
    /* A sentence may quote the last one. */
    sp_fail(SPLAT_INVALID, "inner");
    sp_fail(SPLAT_INVALID, "outer (%s)", splat_last_error());
    assert_string_equal(splat_last_error(), "outer (inner)");
    free(wide);
}

static void *other_thread(void *seen)
{
    strcpy((char *)seen, splat_last_error());
    sp_fail(SPLAT_INVALID, "of the other thread");
    return NULL;
}

static void errors_are_kept_per_thread(void **state)
{
    (void)state;
    char seen[64] = "unset";
    pthread_t thread;
    sp_fail(SPLAT_INVALID, "of this thread");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, seen), 0);
    pthread_join(thread, NULL);
    assert_string_equal(seen, ""); /* "" when none has failed */
    assert_string_equal(splat_last_error(), "of this thread");
}

static void success_leaves_the_last_error(void **state)
{
    (void)state;
    sp_fail(SPLAT_INVALID, "kept");
    splat_mask *mask = mask_of("full", 4, 4, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_mask_destroy(mask);
    assert_string_equal(splat_last_error(), "kept");
}

static void hashes_tell_contents_apart(void **state)
{
    (void)state;
    unsigned char data[300];
    for (int k = 0; k < 300; k++)
        data[k] = (unsigned char)(k * 7);
    struct sp_hash base = sp_hash_bytes(data, sizeof data);
    assert_true(sp_hash_equal(base, sp_hash_bytes(data, sizeof data)));
    assert_false(sp_hash_equal(base, sp_hash_bytes(data, sizeof data - 1)));
    for (int k = 0; k < 300; k++) {
        data[k] ^= 1;
        assert_false(sp_hash_equal(base, sp_hash_bytes(data, sizeof data)));
        data[k] ^= 1;
    }
    struct sp_hash a = {1, 2}, b = {1, 3}, c = {2, 2};
    assert_false(sp_hash_equal(a, b));
    assert_false(sp_hash_equal(a, c));
    assert_true(sp_hash_equal(a, a));
}

static void hex_is_32_lower_case_digits(void **state)
{
    (void)state;
    char hex[40];
    memset(hex, '#', sizeof hex);
    sp_hash_hex((struct sp_hash){0x0123456789abcdefu, 0xfedcba9876543210u}, hex);
    assert_string_equal(hex, "fedcba98765432100123456789abcdef");
    assert_int_equal(hex[33], '#');
    /* XXH3-128 of nothing, as its authors publish it: the function must not drift, or every cache goes cold. */
    sp_hash_hex(sp_hash_bytes("", 0), hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
}

static void names_and_version(void **state)
{
    (void)state;
    static const char *const names[] = {"SPLAT_OK",        "SPLAT_INVALID", "SPLAT_UNSUPPORTED",
                                        "SPLAT_NO_MEMORY", "SPLAT_IO",      "SPLAT_NO_DEVICE",
                                        "SPLAT_COMPILE",   "SPLAT_CUDA",    "SPLAT_INTERNAL"};
    for (int k = 0; k < 9; k++)
        assert_string_equal(splat_status_name((enum splat_status)k), names[k]);
    assert_non_null(splat_status_name((enum splat_status)99));
    assert_string_equal(splat_version(), SPLAT_VERSION);
    char built[32];
    snprintf(built, sizeof built, "%d.%d.%d", SPLAT_VERSION_MAJOR, SPLAT_VERSION_MINOR, SPLAT_VERSION_PATCH);
    assert_string_equal(built, SPLAT_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strbuf_grows_and_stays_terminated),
        cmocka_unit_test(strbuf_keeps_bytes_and_long_formats),
        cmocka_unit_test(fail_returns_its_status_and_keeps_the_sentence),
        cmocka_unit_test(fail_survives_sentences_without_end),
        cmocka_unit_test(errors_are_kept_per_thread),
        cmocka_unit_test(success_leaves_the_last_error),
        cmocka_unit_test(hashes_tell_contents_apart),
        cmocka_unit_test(hex_is_32_lower_case_digits),
        cmocka_unit_test(names_and_version),
    };
    return cmocka_run_group_tests_name("common", tests, NULL, NULL);
}
