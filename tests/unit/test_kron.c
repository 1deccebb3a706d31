/* Kronecker-sparse supports: the expression against its definition, and their detection from rows alone. */
#include "analysis/kron.h"
#include "support.h"

struct factor {
    int64_t a, b, c, d;
};

/* From docs/patterns.md: row (i, k, j) allows columns i*c*d + l*d + j. */
static uint8_t *dense_of(const struct factor *f, int64_t *rows, int64_t *columns)
{
    *rows = f->a * f->b * f->d;
    *columns = f->a * f->c * f->d;
    uint8_t *bytes = calloc((size_t)(*rows * *columns), 1);
    for (int64_t i = 0; i < f->a; i++)
        for (int64_t k = 0; k < f->b; k++)
            for (int64_t j = 0; j < f->d; j++)
                for (int64_t l = 0; l < f->c; l++)
                    bytes[(i * f->b * f->d + k * f->d + j) * *columns + i * f->c * f->d + l * f->d + j] = 1;
    return bytes;
}

static splat_acsr *acsr_of_own(splat_mask *mask)
{
    splat_acsr *acsr;
    OK(splat_acsr_create(mask, &acsr));
    splat_mask_destroy(mask);
    return acsr;
}

static splat_acsr *acsr_of_bytes(const uint8_t *bytes, int64_t rows, int64_t columns)
{
    splat_mask *mask;
    OK(splat_mask_from_bytes(bytes, rows, columns, columns, &mask));
    return acsr_of_own(mask);
}

static splat_acsr *acsr_of_csr(const uint8_t *bytes, int64_t rows, int64_t columns)
{
    int64_t *indptr = malloc((size_t)(rows + 1) * sizeof *indptr), count = 0;
    int64_t *indices = malloc((size_t)(rows * columns) * sizeof *indices);
    for (int64_t i = 0; i < rows; i++) {
        indptr[i] = count;
        for (int64_t j = columns - 1; j >= 0; j--)
            if (bytes[i * columns + j])
                indices[count++] = j;
    }
    indptr[rows] = count;
    splat_mask *mask;
    OK(splat_mask_from_csr(indptr, indices, rows, columns, &mask));
    free(indptr);
    free(indices);
    return acsr_of_own(mask);
}

static splat_acsr *acsr_of_text(const char *text, int64_t rows, int64_t columns)
{
    splat_mask *mask;
    OK(splat_mask_from_expression(text, rows, columns, SPLAT_ALIGN_BOTTOM_RIGHT, &mask));
    return acsr_of_own(mask);
}

static void check_match(const splat_acsr *acsr, const struct factor *f, const char *from)
{
    struct sp_kron k = {0};
    struct factor want = *f;
    if (want.b == 1 && want.c == 1) /* the identity: all of its factorisations are one support */
        want = (struct factor){f->a * f->d, 1, 1, 1};
    else if (want.a * want.b * want.c * want.d == 0)
        FAIL("no factor");
    OK(sp_kron_match(acsr, &k));
    if (k.a != want.a || k.b != want.b || k.c != want.c || k.d != want.d)
        FAIL("kron(%d, %d, %d, %d) from %s: found (%d, %d, %d, %d)", (int)f->a, (int)f->b, (int)f->c, (int)f->d,
             from, (int)k.a, (int)k.b, (int)k.c, (int)k.d);
}

static const int64_t sizes[] = {1, 2, 3, 5, 8};
#define EACH(x) for (size_t x = 0; x < sizeof sizes / sizeof sizes[0]; x++)

static void every_small_factor(void **state)
{
    (void)state;
    EACH(a) EACH(b) EACH(c) EACH(d)
    {
        struct factor f = {sizes[a], sizes[b], sizes[c], sizes[d]};
        int64_t rows, columns;
        uint8_t *bytes = dense_of(&f, &rows, &columns);
        char text[64];
        snprintf(text, sizeof text, "kron(%d, %d, %d, %d)", (int)f.a, (int)f.b, (int)f.c, (int)f.d);
        splat_acsr *from_bytes = acsr_of_bytes(bytes, rows, columns), *from_csr = acsr_of_csr(bytes, rows, columns);
        splat_acsr *from_text = acsr_of_text(text, rows, columns);
        assert_true(splat_acsr_equal(from_text, from_bytes));
        assert_true(splat_acsr_equal(from_csr, from_bytes));
        uint8_t *row = malloc((size_t)columns);
        for (int64_t i = 0; i < rows; i++) {
            OK(splat_acsr_expand_row(from_text, i, row));
            if (memcmp(row, bytes + i * columns, (size_t)columns) != 0)
                FAIL("%s: row %d differs", text, (int)i);
        }
        check_match(from_text, &f, "the expression");
        check_match(from_bytes, &f, "bytes");
        check_match(from_csr, &f, "CSR");
        free(row);
        free(bytes);
        splat_acsr_destroy(from_bytes);
        splat_acsr_destroy(from_csr);
        splat_acsr_destroy(from_text);
    }
}

static void names_do_not_matter(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t rows, columns;
        struct factor want;
    } cases[] = {
        {"full", 24, 40, {1, 24, 40, 1}},
        {"blocks(8)", 64, 64, {8, 8, 8, 1}},
        {"strided(16)", 64, 96, {1, 4, 6, 16}},
        {"blocks(32) & strided(8)", 96, 96, {3, 4, 4, 8}},
        {"window(0)", 50, 50, {50, 1, 1, 1}},
        {"kron(64, 48, 48, 4)", 12288, 12288, {64, 48, 48, 4}},
        {"kron(4, 64, 64, 64)", 16384, 16384, {4, 64, 64, 64}},
        {"kron(1, 768, 192, 2)", 1536, 384, {1, 768, 192, 2}},
        {"kron(512, 2, 2, 1024)", 1048576, 1048576, {512, 2, 2, 1024}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        splat_acsr *acsr = acsr_of_text(cases[k].text, cases[k].rows, cases[k].columns);
        check_match(acsr, &cases[k].want, cases[k].text);
        splat_acsr_destroy(acsr);
    }
}

/* One pair more or less anywhere, and the mask is something else. */
static void any_flip_is_found(void **state)
{
    (void)state;
    static const struct factor factors[] = {{2, 3, 2, 3}, {3, 2, 3, 1}, {2, 2, 1, 4}, {1, 2, 4, 4}, {4, 1, 1, 1}};
    for (size_t n = 0; n < sizeof factors / sizeof factors[0]; n++) {
        int64_t rows, columns;
        uint8_t *bytes = dense_of(&factors[n], &rows, &columns);
        for (int64_t p = 0; p < rows * columns; p++) {
            bytes[p] ^= 1;
            splat_acsr *acsr = acsr_of_bytes(bytes, rows, columns);
            struct sp_kron k;
            check_refused("a flipped pair", sp_kron_match(acsr, &k), SPLAT_UNSUPPORTED,
                          "not Kronecker-sparse: row ", NULL);
            splat_acsr_destroy(acsr);
            bytes[p] ^= 1;
        }
        free(bytes);
    }
}

static void deviations_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t rows, columns;
        const char *word;
    } cases[] = {
        {"causal", 16, 16, "row 1 allows 2 columns from 0"},
        {"window(3)", 16, 16, "row 1 allows"},
        {"full - full", 8, 8, "row 0 allows no column"},
        {"cols(1, 3)", 8, 8, "row 0 allows 2 columns from 1, 1 apart"},
        {"blocks(8)", 60, 60, "row 0 allows 8 columns from 0, 1 apart, which gives c = 8 and d = 1"},
        {"comb(8, 2)", 16, 16, "row 0 allows"},
        {"random_blocks(1, 9, 1)", 64, 64, "row 0 allows"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        splat_acsr *acsr = acsr_of_text(cases[k].text, cases[k].rows, cases[k].columns);
        struct sp_kron found;
        check_refused(cases[k].text, sp_kron_match(acsr, &found), SPLAT_UNSUPPORTED, cases[k].word, NULL);
        splat_acsr_destroy(acsr);
    }
    struct sp_kron found;
    check_refused("no ACSR", sp_kron_match(NULL, &found), SPLAT_INVALID, "acsr is null", NULL);
}

static void lengths_must_fit(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"kron(2, 3, 4, 5)", "a*b*d is 30; it must be the number of rows (q_len), 31"},
        {"kron(1, 31, 4, 1)", "a*c*d is 4; it must be the number of columns (kv_len), 40"},
        {"kron(0, 3, 4, 5)", "a is 0; it must be from 1"},
        {"kron(2, 3, 4)", "has 3 arguments"},
        {"kron(1073741824, 1073741824, 1073741824, 1073741824)", "a*b*d is more than 1073741824"},
        {"kron(1, 1, 1073741824, 31)", "a*c*d is more than 1073741824"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        splat_mask *mask;
        check_refused(cases[k].text,
                      splat_mask_from_expression(cases[k].text, 31, 40, SPLAT_ALIGN_BOTTOM_RIGHT, &mask),
                      SPLAT_INVALID, cases[k].word, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_factor), cmocka_unit_test(names_do_not_matter),
        cmocka_unit_test(any_flip_is_found),  cmocka_unit_test(deviations_are_named),
        cmocka_unit_test(lengths_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
