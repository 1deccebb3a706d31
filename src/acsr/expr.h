/* Pattern expressions: text -> tree -> rows. */
#ifndef SP_EXPR_H
#define SP_EXPR_H

#include "acsr/patterns.h"

enum sp_expr_kind { SP_EXPR_PRIMITIVE, SP_EXPR_NOT, SP_EXPR_AND, SP_EXPR_MINUS, SP_EXPR_OR };

struct sp_expr_node {
    enum sp_expr_kind kind;
    int left, right; /* child nodes; NOT uses left */
    const struct sp_primitive *primitive;
    struct sp_args args;
};

struct sp_expr {
    struct sp_expr_node *nodes; /* children before parents; the last is the root */
    int count, capacity;
    char *text; /* as given, without white space */
    int64_t q_len, kv_len, off;
};

/* Parses `text` and checks arguments against the lengths. SPLAT_INVALID with a sentence that gives column, found,
 * expected and the nearest name; SPLAT_NO_MEMORY. */
enum splat_status sp_expr_parse(const char *text, int64_t q_len, int64_t kv_len, enum splat_align align,
                                struct sp_expr **expr);
void sp_expr_free(struct sp_expr *expr);

/* A row source that evaluates the expression. Not thread-safe: it owns scratch lists. */
struct sp_expr_source {
    struct sp_row_source base;
    const struct sp_expr *expr;
    struct sp_runs *lists; /* one a node */
};
enum splat_status sp_expr_source_init(struct sp_expr_source *source, const struct sp_expr *expr);
void sp_expr_source_free(struct sp_expr_source *source);

#endif
