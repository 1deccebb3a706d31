// asm statements of a kernel's text, turned into calls that C++ compilers take.
//
//     asm volatile("text" "more" : "+f"(x), "=r"(y) : "l"(z) : "memory");
// becomes
//     asm_statement("text" "more" , {asm_operand("+f", x), asm_operand("=r", y)}, {asm_operand("l", z)});
//
// Lines stay where they are. What lies between "#ifndef SPLAT_MACHINE" and its "#endif" is not compiled and stays
// as it is.
#include "compile.h"

#include <cstring>

namespace machine
{

// The place behind the string literal that begins at `at`.
static size_t skip_literal(const std::string &text, size_t at)
{
    for (++at; at < text.size() && text[at] != '"'; ++at)
        at += text[at] == '\\';
    return at + 1;
}

// The place of the bracket that closes the one at `at`.
static size_t find_close(const std::string &text, size_t at)
{
    int depth = 0;
    while (at < text.size()) {
        if (text[at] == '"') {
            at = skip_literal(text, at);
            continue;
        }
        depth += text[at] == '(' ? 1 : text[at] == ')' ? -1 : 0;
        if (depth == 0)
            return at;
        ++at;
    }
    return at;
}

// What stands between the brackets of an asm statement.
static std::string translate_statement(const std::string &inside)
{
    static const char *const between[] = {", {", "}, {", "}); //"};
    std::string out = "asm_statement(";
    int colons = 0;
    for (size_t at = 0; at < inside.size();) {
        if (inside[at] == ':' && colons < 3) {
            out += between[colons++];
            ++at;
        } else if (inside[at] == '"' && colons > 0) {
            const size_t end = skip_literal(inside, at), open = inside.find('(', end);
            if (open == std::string::npos)
                return out + inside.substr(at); // of a clobber, behind "//"
            const size_t close = find_close(inside, open);
            out += "asm_operand(" + inside.substr(at, end - at) + ", " + inside.substr(open + 1, close - open);
            at = close + 1;
        } else if (inside[at] == '"') {
            const size_t end = skip_literal(inside, at);
            out += inside.substr(at, end - at);
            at = end;
        } else {
            out += inside[at++];
        }
    }
    static const char *const ends[] = {", {}, {})", "}, {})", "})", ""};
    return out + ends[colons];
}

std::string translate_asm(const std::string &text)
{
    static const char begin[] = "asm volatile(", left_out[] = "#ifndef SPLAT_MACHINE\n", end_if[] = "\n#endif";
    std::string out;
    for (size_t at = 0; at < text.size();) {
        if (text.compare(at, strlen(left_out), left_out) == 0) {
            const size_t end = text.find(end_if, at);
            const size_t next = end == std::string::npos ? text.size() : end;
            out += text.substr(at, next - at);
            at = next;
        } else if (text.compare(at, strlen(begin), begin) == 0) {
            const size_t open = at + strlen(begin) - 1, close = find_close(text, open);
            out += translate_statement(text.substr(open + 1, close - open - 1));
            at = close + 1;
        } else {
            out += text[at++];
        }
    }
    return out;
}

} // namespace machine
