/* The expression language: recursive descent over
 *     union      = difference { "|" difference }
 *     difference = meet { "-" meet }
 *     meet       = factor { "&" factor }
 *     factor     = "~" factor | "(" union ")" | name [ "(" arguments ")" ]
 * and evaluation of the tree on affine rows. */
#include "acsr/expr.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/strbuf.h"

#define MAX_DEPTH 200

struct parser {
    const char *text, *at;
    struct sp_expr *expr;
    struct sp_shape shape;
    enum splat_status status; /* the first failure sticks */
    int depth;
};

static void skip_space(struct parser *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
}

static int column(const struct parser *p, const char *at)
{
    return (int)(at - p->text) + 1;
}

/* Fails at `at` with what stands there and what should. */
static int expected(struct parser *p, const char *at, const char *what)
{
    char found[32];
    size_t size = 0;
    while (at[size] && (isalnum((unsigned char)at[size]) || at[size] == '_') && size < 24)
        size++;
    if (size == 0 && !*at)
        snprintf(found, sizeof found, "the end");
    else if (size == 0 && (*at < ' ' || *at > '~')) /* a part of a character, or an order to the terminal */
        snprintf(found, sizeof found, "byte 0x%02x", (unsigned char)*at);
    else
        snprintf(found, sizeof found, "'%.*s'", size ? (int)size : 1, at);
    if (p->status == SPLAT_OK)
        p->status = sp_fail(SPLAT_INVALID, "pattern, column %d: found %s, expected %s", column(p, at), found, what);
    return -1;
}

static int no_memory(struct parser *p, size_t bytes)
{
    if (p->status == SPLAT_OK)
        p->status = sp_no_memory("a pattern expression", bytes);
    return -1;
}

static int add_node(struct parser *p, struct sp_expr_node node)
{
    struct sp_expr *expr = p->expr;
    if (expr->count == expr->capacity) {
        int capacity = expr->capacity ? 2 * expr->capacity : 16;
        struct sp_expr_node *grown = realloc(expr->nodes, (size_t)capacity * sizeof *grown);
        if (!grown) {
            free(node.args.values);
            free(node.args.derived);
            return no_memory(p, (size_t)capacity * sizeof *grown);
        }
        expr->nodes = grown;
        expr->capacity = capacity;
    }
    expr->nodes[expr->count] = node;
    return expr->count++;
}

/* ---- Names ---- */

static int edit_distance(const char *a, size_t n, const char *b)
{
    int row[40];
    size_t m = strlen(b);
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

static const struct sp_primitive *find_primitive(const char *name, size_t size)
{
    for (int i = 0; i < sp_primitive_count; i++)
        if (strlen(sp_primitives[i].name) == size && memcmp(sp_primitives[i].name, name, size) == 0)
            return &sp_primitives[i];
    return NULL;
}

static int unknown_name(struct parser *p, const char *name, size_t size)
{
    const struct sp_primitive *nearest = &sp_primitives[0];
    int best = 1000;
    for (int i = 0; i < sp_primitive_count; i++) {
        int distance = edit_distance(name, size < 32 ? size : 32, sp_primitives[i].name);
        if (distance < best) {
            best = distance;
            nearest = &sp_primitives[i];
        }
    }
    if (p->status == SPLAT_OK)
        p->status = sp_fail(SPLAT_INVALID,
                            "pattern, column %d: found '%.*s', expected the name of a pattern; the nearest is '%s'",
                            column(p, name), (int)(size < 40 ? size : 40), name, nearest->name);
    return -1;
}

static size_t word_size(const char *at)
{
    size_t size = 0;
    if (isalpha((unsigned char)*at))
        while (isalnum((unsigned char)at[size]) || at[size] == '_')
            size++;
    return size;
}

/* ---- Arguments ---- */

static bool parse_number(struct parser *p, int64_t *value)
{
    skip_space(p);
    const char *start = p->at;
    bool negative = *p->at == '-';
    if (negative)
        p->at++;
    if (!isdigit((unsigned char)*p->at)) {
        expected(p, start, "a whole number");
        return false;
    }
    int64_t sum = 0;
    for (; isdigit((unsigned char)*p->at); p->at++)
        if (__builtin_mul_overflow(sum, (int64_t)10, &sum) || __builtin_add_overflow(sum, *p->at - '0', &sum)) {
            if (p->status == SPLAT_OK)
                p->status =
                    sp_fail(SPLAT_INVALID, "pattern, column %d: the number does not fit 64 bits", column(p, start));
            return false;
        }
    if (isalpha((unsigned char)*p->at) || *p->at == '_' || *p->at == '.') {
        expected(p, p->at, "',' or ')' after the number");
        return false;
    }
    *value = negative ? -sum : sum;
    return true;
}

static bool parse_named(struct parser *p, const struct sp_primitive *primitive, struct sp_args *args)
{
    const char *word = p->at;
    size_t size = word_size(word);
    bool dilation = size == 8 && memcmp(word, "dilation", 8) == 0;
    bool stride = size == 6 && memcmp(word, "stride", 6) == 0;
    if (!primitive->named || (!dilation && !stride)) {
        expected(p, word, primitive->named ? "a whole number, 'dilation=' or 'stride='" : "a whole number");
        return false;
    }
    p->at += size;
    skip_space(p);
    if (*p->at != '=') {
        expected(p, p->at, "'='");
        return false;
    }
    p->at++;
    int64_t value;
    const char *start = p->at;
    if (!parse_number(p, &value))
        return false;
    if (value < 1 || (dilation ? args->dilation : args->stride)) {
        expected(p, start, value < 1 ? "a number of at least 1" : "each named argument once");
        return false;
    }
    *(dilation ? &args->dilation : &args->stride) = value;
    return true;
}

static bool add_value(struct parser *p, struct sp_args *args, int64_t value)
{
    if ((args->count & (args->count - 1)) == 0) { /* full at every power of two */
        size_t bytes = (size_t)(args->count ? 2 * args->count : 1) * sizeof *args->values;
        int64_t *grown = realloc(args->values, bytes);
        if (!grown)
            return no_memory(p, bytes) == 0;
        args->values = grown;
    }
    args->values[args->count++] = value;
    return true;
}

/* After '(': values and named arguments up to and including ')'. */
static bool parse_arguments(struct parser *p, const struct sp_primitive *primitive, struct sp_args *args)
{
    for (;;) {
        skip_space(p);
        int64_t value;
        if (word_size(p->at)) {
            if (!parse_named(p, primitive, args))
                return false;
        } else if (args->dilation || args->stride) {
            expected(p, p->at, "'dilation=' or 'stride=': numbers come first");
            return false;
        } else if (!parse_number(p, &value) || !add_value(p, args, value)) {
            return false;
        }
        skip_space(p);
        char next = *p->at;
        if (next == ';' && primitive->named && !args->split && args->count)
            args->split = args->count;
        else if (next != ',' && next != ')') {
            expected(p, p->at, "',' or ')'");
            return false;
        }
        p->at++;
        if (next == ')')
            return true;
    }
}

static int descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static bool derive(struct parser *p, const struct sp_primitive *primitive, struct sp_args *args)
{
    size_t bytes = (size_t)args->count * sizeof *args->derived;
    if (args->count == 0 || primitive->max_args >= 0)
        return true;
    if (!(args->derived = malloc(bytes)))
        return no_memory(p, bytes) == 0;
    memcpy(args->derived, args->values, bytes);
    if (primitive->max_args == SP_ANY_SORTED)
        qsort(args->derived, (size_t)args->count, sizeof *args->derived, descending);
    else
        for (int k = 1; k < args->count; k++)
            args->derived[k] = (int64_t)((uint64_t)args->derived[k] + (uint64_t)args->derived[k - 1]);
    return true;
}

static bool check_arguments(struct parser *p, const char *name, const struct sp_primitive *primitive,
                            const struct sp_args *args)
{
    char message[200];
    if (args->count < primitive->min_args || (primitive->max_args >= 0 && args->count > primitive->max_args)) {
        if (p->status == SPLAT_OK)
            p->status =
                sp_fail(SPLAT_INVALID, "pattern, column %d: '%s' has %d argument%s; it is written %s",
                        column(p, name), primitive->name, args->count, sp_plural(args->count), primitive->usage);
        return false;
    }
    if (primitive->check(args, &p->shape, message))
        return true;
    if (p->status == SPLAT_OK)
        p->status = sp_fail(SPLAT_INVALID, "pattern, column %d: %s: %s", column(p, name), primitive->name, message);
    return false;
}

/* ---- Grammar ---- */

static int parse_union(struct parser *p);

static int parse_primitive(struct parser *p)
{
    const char *name = p->at;
    size_t size = word_size(name);
    const struct sp_primitive *primitive = find_primitive(name, size);
    if (!primitive)
        return unknown_name(p, name, size);
    p->at += size;
    skip_space(p);
    struct sp_expr_node node = {.kind = SP_EXPR_PRIMITIVE, .left = -1, .right = -1, .primitive = primitive};
    bool sound = true;
    if (*p->at == '(') {
        p->at++;
        sound = parse_arguments(p, primitive, &node.args);
    }
    sound = sound && derive(p, primitive, &node.args);
    if (!sound || !check_arguments(p, name, primitive, &node.args)) {
        free(node.args.values);
        free(node.args.derived);
        return -1;
    }
    return add_node(p, node);
}

static int parse_factor(struct parser *p)
{
    skip_space(p);
    if (++p->depth > MAX_DEPTH) {
        if (p->status == SPLAT_OK)
            p->status = sp_fail(SPLAT_INVALID, "pattern, column %d: nested deeper than %d levels", column(p, p->at),
                                MAX_DEPTH);
        return -1;
    }
    int result;
    if (*p->at == '~') {
        p->at++;
        int inner = parse_factor(p);
        result =
            inner < 0 ? -1 : add_node(p, (struct sp_expr_node){.kind = SP_EXPR_NOT, .left = inner, .right = -1});
    } else if (*p->at == '(') {
        p->at++;
        result = parse_union(p);
        skip_space(p);
        if (result >= 0 && *p->at != ')')
            result = expected(p, p->at, "')', '&', '-' or '|'");
        else
            p->at += result >= 0;
    } else if (word_size(p->at)) {
        result = parse_primitive(p);
    } else {
        result = expected(p, p->at, "a pattern, '~' or '('");
    }
    p->depth--;
    return result;
}

/* A left-associative chain of one operator over the next tighter level. */
static int parse_chain(struct parser *p, char operator, enum sp_expr_kind kind, int (*tighter)(struct parser *))
{
    int left = tighter(p);
    for (;;) {
        skip_space(p);
        if (left < 0 || *p->at != operator)
            return left;
        p->at++;
        int right = tighter(p);
        if (right < 0)
            return -1;
        left = add_node(p, (struct sp_expr_node){.kind = kind, .left = left, .right = right});
    }
}

static int parse_meet(struct parser *p)
{
    return parse_chain(p, '&', SP_EXPR_AND, parse_factor);
}

static int parse_difference(struct parser *p)
{
    return parse_chain(p, '-', SP_EXPR_MINUS, parse_meet);
}

static int parse_union(struct parser *p)
{
    return parse_chain(p, '|', SP_EXPR_OR, parse_difference);
}

static char *without_space(const char *text)
{
    char *copy = malloc(strlen(text) + 1), *to = copy;
    for (; copy && *text; text++)
        if (!isspace((unsigned char)*text))
            *to++ = *text;
    if (copy)
        *to = 0;
    return copy;
}

enum splat_status sp_expr_parse(const char *text, int64_t q_len, int64_t kv_len, enum splat_align align,
                                struct sp_expr **result)
{
    struct sp_expr *expr = calloc(1, sizeof *expr);
    if (!expr)
        return sp_no_memory("a pattern expression", sizeof *expr);
    struct parser p = {.text = text, .at = text, .expr = expr, .shape = {q_len, kv_len}};
    expr->q_len = q_len;
    expr->kv_len = kv_len;
    expr->off = align == SPLAT_ALIGN_BOTTOM_RIGHT ? kv_len - q_len : 0;
    if (parse_union(&p) >= 0) {
        skip_space(&p);
        if (*p.at)
            expected(&p, p.at, "'&', '-', '|' or the end");
    }
    if (p.status == SPLAT_OK && !(expr->text = without_space(text)))
        no_memory(&p, strlen(text) + 1);
    if (p.status != SPLAT_OK) {
        sp_expr_free(expr);
        return p.status;
    }
    *result = expr;
    return SPLAT_OK;
}

void sp_expr_free(struct sp_expr *expr)
{
    if (!expr)
        return;
    for (int i = 0; i < expr->count; i++) {
        free(expr->nodes[i].args.values);
        free(expr->nodes[i].args.derived);
    }
    free(expr->nodes);
    free(expr->text);
    free(expr);
}

/* ---- Evaluation ---- */

static void evaluate_row(struct sp_row_source *self, struct sp_row_eval *eval, struct sp_runs *out)
{
    struct sp_expr_source *source = (struct sp_expr_source *)self;
    const struct sp_expr *expr = source->expr;
    eval->off = expr->off;
    for (int i = 0; i < expr->count; i++) {
        const struct sp_expr_node *node = &expr->nodes[i];
        struct sp_runs *list = i == expr->count - 1 ? out : &source->lists[i];
        const struct sp_runs *left = node->left >= 0 ? &source->lists[node->left] : NULL;
        const struct sp_runs *right = node->right >= 0 ? &source->lists[node->right] : NULL;
        list->count = 0;
        switch (node->kind) {
        case SP_EXPR_PRIMITIVE:
            node->primitive->row(eval, &node->args, list);
            break;
        case SP_EXPR_NOT:
            sp_runs_complement(eval, left, list);
            break;
        case SP_EXPR_AND:
            sp_runs_combine(eval, SPLAT_INTERSECTION, left, right, list);
            break;
        case SP_EXPR_MINUS:
            sp_runs_combine(eval, SPLAT_DIFFERENCE, left, right, list);
            break;
        case SP_EXPR_OR:
            sp_runs_combine(eval, SPLAT_UNION, left, right, list);
            break;
        }
    }
}

enum splat_status sp_expr_source_init(struct sp_expr_source *source, const struct sp_expr *expr)
{
    *source = (struct sp_expr_source){.base.row = evaluate_row, .expr = expr};
    source->lists = calloc((size_t)expr->count, sizeof *source->lists);
    return source->lists ? SPLAT_OK
                         : sp_no_memory("a pattern expression", (size_t)expr->count * sizeof *source->lists);
}

void sp_expr_source_free(struct sp_expr_source *source)
{
    for (int i = 0; source->lists && i < source->expr->count; i++)
        sp_runs_free(&source->lists[i]);
    free(source->lists);
    source->lists = NULL;
}
