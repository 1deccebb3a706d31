/* The expression language's text: what parses, what does not, and what the refusal says. */
#include "brute.h"

static enum splat_status parse(const char *text)
{
    splat_mask *mask = NULL;
    enum splat_status status = splat_mask_from_expression(text, 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT, &mask);
    if (status != SPLAT_OK && mask)
        FAIL("\"%s\": the output was written although the call failed", text);
    splat_mask_destroy(mask);
    return status;
}

/* The sentence must point at column `column` (from 1) and hold the words. */
static void refuse(const char *text, int column, const char *word1, const char *word2)
{
    char place[32];
    snprintf(place, sizeof place, "column %d:", column);
    check_refused(text, parse(text), SPLAT_INVALID, place, word1, word2, (const char *)NULL);
}

/* As many as a quadratic check would take minutes for. */
static void long_lists_are_checked(void **state)
{
    (void)state;
    enum { COUNT = 400000 };
    char *text = need(12 * COUNT);
    for (int again = 0; again < 2; again++) {
        size_t size = (size_t)sprintf(text, "diagonals(");
        for (int k = 0; k < COUNT; k++)
            size += (size_t)sprintf(text + size, "%d, ", k % 2 ? k : -k);
        sprintf(text + size, "%d)", again ? 77 : COUNT);
        if (again) {
            refuse(text, 1, "d is 77", "twice");
        } else {
            splat_mask *mask = NULL;
            OK(splat_mask_from_expression(text, 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT, &mask));
            splat_mask_destroy(mask);
        }
    }
    free(text);
}

static void unknown_names_get_the_nearest(void **state)
{
    (void)state;
    refuse("windw(3)", 1, "'windw'", "'window'");
    refuse("causal & stridded(4)", 10, "'stridded'", "'strided'");
    refuse("full - cosal", 8, "'cosal'", "'causal'");
    refuse("~logspars", 2, "'logspars'", "'logsparse'");
    refuse("dialted(2, 2)", 1, "'dialted'", "'dilated'");
    refuse("Causal", 1, "'Causal'", "'causal'"); /* names are lower case */
    refuse("xyzzy", 1, "'xyzzy'", "nearest");
}

static void refusals_say_found_and_expected(void **state)
{
    (void)state;
    refuse("", 1, "found the end", "expected");
    refuse("   ", 4, "found the end", "expected");
    refuse("causal &", 9, "found the end", "expected");
    refuse("causal causal", 8, "found 'causal'", "expected");
    refuse("(causal", 8, "found the end", "')'");
    refuse("causal)", 7, "found ')'", "expected");
    refuse("& causal", 1, "found '&'", "expected");
    refuse("causal | | full", 10, "found '|'", "expected");
    refuse("window(3", 9, "found the end", "')'");
    refuse("window(3 4)", 10, "found '4'", "','");
    refuse("window(3,)", 10, "found ')'", "whole number");
    refuse("window(a)", 8, "found 'a'", "whole number");
    refuse("window(1.5)", 9, "found '.'", "expected");
    refuse("window(1e3)", 9, "found 'e3'", "expected");
    refuse("window(- 3)", 8, "found '-'", "whole number");
    refuse("causal ^ full", 8, "found '^'", "expected");
    refuse("causal && full", 9, "found '&'", "expected");
    refuse("grid(8, 3, dilaton=2)", 12, "found 'dilaton'", "dilation");
    refuse("window(3, stride=2)", 11, "found 'stride'", "whole number");
    refuse("grid(8, 3, dilation 2)", 21, "found '2'", "'='");
    refuse("grid(8, 3, stride=0)", 19, "found '0'", "at least 1");
}

static void wrong_counts_of_arguments(void **state)
{
    (void)state;
    refuse("window", 1, "0 arguments", "window(");
    refuse("window(1, 2, 3)", 1, "3 arguments", "window(");
    refuse("full(1)", 1, "1 argument", "full");
    refuse("causal | blocks(2, 3)", 10, "2 arguments", "blocks(b)");
    refuse("diagonals", 1, "0 arguments", "diagonals(");
    refuse("grid(8)", 1, "1 argument", "grid(");
    refuse("grid(8, 3, 3, 3)", 1, "grid", "(");
    refuse("grid(4,4; 1,1,1,1)", 1, "grid", "(");
}

static void arguments_out_of_range(void **state)
{
    (void)state;
    refuse("window(-1)", 1, "-1", "from 0 to");
    refuse("window(2, -5)", 1, "-5", "from 0 to");
    refuse("window(1073741825)", 1, "1073741825", "1073741824");
    refuse("window(99999999999999999999)", 8, "64 bits", "number");
    refuse("strided(0)", 1, "0", "from 1 to");
    refuse("full & blocks(0)", 8, "0", "from 1 to");
    refuse("dilated(1, 0)", 1, "d is 0", "from 1 to");
    refuse("rows(5, 3)", 1, "b is 3", "from 5 to");
    refuse("cols(-1, 3)", 1, "a is -1", "from 0 to");
    refuse("comb(4, 5)", 1, "c is 5", "to 4");
    refuse("banded_blocks(4, -1, 1)", 1, "p is -1", "from 0 to");
    refuse("documents(30, 30)", 1, "60", "64");
    refuse("documents(64, 0)", 1, "0", "from 1 to");
    refuse("diagonals(1, 2, 1)", 1, "1", "once");
    refuse("swin(8, 4, 4)", 1, "shift is 4", "to 3");
    refuse("axial(0)", 1, "0", "from 1 to");
    refuse("grid(2,2,2; 1,1,1)", 1, "8", "64");
    refuse("grid(0, 3)", 1, "W is 0", "from 1 to");
    refuse("grid(9,1073741824,1073741824; 9,1,1)", 1, "H*W is 1073741824 * 1073741824", "1073741824");
    refuse("butterfly(0)", 1, "0", "from 1 to");
    refuse("checkerboard(0)", 1, "0", "from 1 to");
    refuse("random_blocks(0, 1, 1)", 1, "b is 0", "from 1 to");
    refuse("random_blocks(8, -1, 1)", 1, "r is -1", "from 0 to");
}

static void deep_nesting_is_refused_not_crashed(void **state)
{
    (void)state;
    enum { DEPTH = 200000 };
    char *text = need(2 * DEPTH + 8);
    memset(text, '(', DEPTH);
    strcpy(text + DEPTH, "full");
    memset(text + DEPTH + 4, ')', DEPTH);
    text[2 * DEPTH + 4] = 0;
    REFUSED(parse(text), SPLAT_INVALID, "column");
    memset(text, '~', DEPTH);
    strcpy(text + DEPTH, "full");
    REFUSED(parse(text), SPLAT_INVALID, "column");
    free(text);
}

static void long_chains_parse(void **state)
{
    (void)state;
    char text[20000] = "full";
    size_t at = 4;
    for (int k = 0; k < 500; k++)
        at += (size_t)snprintf(text + at, sizeof text - at, " & window(%d)", k + 20);
    splat_acsr *chain = acsr_of_expression(text, 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr *same = acsr_of_expression("window(20)", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    assert_true(splat_acsr_equal(chain, same));
    splat_acsr_destroy(chain);
    splat_acsr_destroy(same);
}

static void every_damage_of_a_sound_text_is_safe(void **state)
{
    (void)state;
    /* Replace each character by each of a set, and cut at each place: parse or refuse, never crash; a refusal
     * speaks. */
    static const char sound[] = "causal & (window(7, 0) | ~strided(3)) - grid(2,4,8; 1,3,3, dilation=2)";
    static const char put[] = "()~&|-,;=0 a\t_9.";
    char text[sizeof sound];
    int parsed = 0;
    for (size_t at = 0; at < sizeof sound - 1; at++)
        for (const char *c = put; *c; c++) {
            memcpy(text, sound, sizeof sound);
            text[at] = *c;
            for (int cut = 0; cut < 2; cut++) {
                if (cut)
                    text[at + 1] = 0;
                if (parse(text) == SPLAT_OK)
                    parsed++;
                else if (!strstr(splat_last_error(), "column"))
                    FAIL("\"%s\": the sentence \"%s\" has no column", text, splat_last_error());
            }
        }
    assert_in_range(parsed, 50, 1500);
}

static void white_space_is_free(void **state)
{
    (void)state;
    static const char *const same[] = {"causal&(window(7,0)|~strided(3))",
                                       " causal & ( window( 7 , 0 ) | ~ strided(3) ) ",
                                       "\tcausal\n&\n(window (7, 0)|~ strided\t(3))\n"};
    splat_acsr *first = acsr_of_expression(same[0], 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    for (int k = 1; k < 3; k++) {
        splat_acsr *other = acsr_of_expression(same[k], 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
        assert_true(splat_acsr_equal(first, other));
        splat_acsr_destroy(other);
    }
    splat_acsr_destroy(first);
}

static void precedence_is_not_and_minus_or(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"~causal & window(3)", "(~causal) & window(3)"},
        {"causal - blocks(8) & strided(2)", "causal - (blocks(8) & strided(2))"},
        {"blocks(8) & strided(2) - causal", "(blocks(8) & strided(2)) - causal"},
        {"strided(3) | causal - blocks(8)", "strided(3) | (causal - blocks(8))"},
        {"causal - blocks(8) | strided(3)", "(causal - blocks(8)) | strided(3)"},
        {"full - causal - blocks(8)", "(full - causal) - blocks(8)"},
        {"full - blocks(8) - ~causal | cols(0, 2) & rows(9, 40)",
         "((full - blocks(8)) - (~causal)) | (cols(0,2) & rows(9,40))"},
        {"~~causal", "causal"},
        {"~(causal | strided(3))", "~causal & ~strided(3)"},
        {"~(causal & strided(3))", "~causal | ~strided(3)"},
        {"causal - strided(3)", "causal & ~strided(3)"},
    };
    for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
        splat_acsr *a = acsr_of_expression(pairs[k][0], 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
        splat_acsr *b = acsr_of_expression(pairs[k][1], 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
        if (!splat_acsr_equal(a, b))
            FAIL("\"%s\" differs from \"%s\"", pairs[k][0], pairs[k][1]);
        splat_acsr_destroy(a);
        splat_acsr_destroy(b);
    }
    /* The groupings that the precedence excludes would give other masks, so the equalities above say something. */
    splat_acsr *a = acsr_of_expression("causal - blocks(8) & strided(2)", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr *b = acsr_of_expression("(causal - blocks(8)) & strided(2)", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    assert_false(splat_acsr_equal(a, b));
    splat_acsr_destroy(a);
    splat_acsr_destroy(b);
}

static void help_lists_every_primitive(void **state)
{
    (void)state;
    static const char *const names[] = {"full",
                                        "causal",
                                        "window(l, r)",
                                        "dilated(r, d)",
                                        "strided(d)",
                                        "blocks(b)",
                                        "banded_blocks(b, p, n)",
                                        "rows(a, b)",
                                        "cols(a, b)",
                                        "comb(l, c)",
                                        "grid(W, k)",
                                        "grid(D,H,W; kz,ky,kx)",
                                        "dilation=",
                                        "stride=",
                                        "swin(W, m, shift)",
                                        "axial(W)",
                                        "documents(n1, n2, ...)",
                                        "random_blocks(b, r, seed)",
                                        "diagonals(d1, d2, ...)",
                                        "logsparse",
                                        "butterfly(b)",
                                        "checkerboard(b)"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        if (!strstr(splat_pattern_help(), names[k]))
            FAIL("splat_pattern_help() does not hold \"%s\"", names[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_lists_are_checked),
        cmocka_unit_test(unknown_names_get_the_nearest),
        cmocka_unit_test(refusals_say_found_and_expected),
        cmocka_unit_test(wrong_counts_of_arguments),
        cmocka_unit_test(arguments_out_of_range),
        cmocka_unit_test(deep_nesting_is_refused_not_crashed),
        cmocka_unit_test(long_chains_parse),
        cmocka_unit_test(every_damage_of_a_sound_text_is_safe),
        cmocka_unit_test(white_space_is_free),
        cmocka_unit_test(precedence_is_not_and_minus_or),
        cmocka_unit_test(help_lists_every_primitive),
    };
    return cmocka_run_group_tests_name("parser", tests, NULL, NULL);
}
