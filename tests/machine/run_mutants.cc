// Runs every mutant, and first the cases that they are made of unchanged; reports in TAP and ends with "N passed, M
// failed".
//
//   run_mutants             all of them, with the first line of each report
//   run_mutants WORD...     those whose names hold one of the words, or whose case is it, with whole reports
//
// A mutant passes when its fault is found, by a report of the machine or by a difference from the reference, and
// the words are those that the list asks for. A mutant whose text is not found, or that does not compile, fails.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

#include <unistd.h>

#include "compile.h"
#include "jobs.h"
#include "machine.h"
#include "mutants.h"
#include "problem.h"

using namespace machine;

constexpr unsigned SEEDS = 3, SECONDS = 60;

// How a job ends. FAULT_EXIT is a report of the machine.
enum Ending { SAME = 0, DIFFERENT = 1, NO_MUTANT = 2 };

static int run_text(const Problem &problem, const std::string &text, unsigned seeds)
{
    std::string words;
    const std::string object = compile_kernel(text, problem.entries(), "-O0 -DMACHINE_QUICK", &words);
    if (object.empty()) {
        printf("does not compile\n%s\n", words.c_str());
        return NO_MUTANT;
    }
    alarm(SECONDS);
    for (unsigned seed = 0; seed < seeds; ++seed) {
        const std::string difference = problem.run(object, seed);
        if (!difference.empty()) {
            printf("%s\n", difference.c_str());
            return DIFFERENT;
        }
    }
    return SAME;
}

static int run_mutant(const Problem &problem, const Mutant &mutant)
{
    std::string text = problem.text();
    const size_t from = text.find(mutant.after);
    const size_t at = from == std::string::npos ? from : text.find(mutant.find, from + strlen(mutant.after));
    if (at == std::string::npos) {
        printf("the text of %s has no \"%s\" behind \"%s\"\n", mutant.of, mutant.find, mutant.after);
        return NO_MUTANT;
    }
    text.replace(at, strlen(mutant.find), mutant.replace);
    return run_text(problem, text, SEEDS);
}

static bool is_wanted(const Mutant &mutant, int count, char **words)
{
    for (int w = 0; w < count; ++w)
        if (strstr(mutant.name, words[w]) || strcmp(mutant.of, words[w]) == 0)
            return true;
    return count == 0;
}

static bool is_caught(const Mutant &mutant, const Outcome &outcome)
{
    return outcome.code != SAME && outcome.code != NO_MUTANT && outcome.words.find(mutant.by) != std::string::npos;
}

static std::string first_line(const std::string &words)
{
    return words.substr(0, words.find('\n'));
}

int main(int argc, char **argv)
{
    std::map<std::string, std::unique_ptr<Problem>> problems;
    std::vector<const Mutant *> mutants;
    for (const auto *list : {&portable_mutants(), &hopper_mutants(), &sparse_mutants()})
        for (const Mutant &mutant : *list)
            if (is_wanted(mutant, argc - 1, argv + 1)) {
                mutants.push_back(&mutant);
                if (!problems.count(mutant.of))
                    problems[mutant.of] = std::make_unique<Problem>(case_named(mutant.of));
            }
    std::vector<std::function<int()>> jobs;
    std::vector<std::string> names;
    for (const auto &[name, problem] : problems) {
        names.push_back(name);
        const Problem *unchanged = problem.get();
        jobs.push_back([=] { return run_text(*unchanged, unchanged->text(), 1); });
    }
    for (const Mutant *mutant : mutants) {
        names.push_back(std::string(mutant->of) + ": " + mutant->name);
        const Problem *problem = problems[mutant->of].get();
        jobs.push_back([=] { return run_mutant(*problem, *mutant); });
    }
    printf("1..%zu\n", jobs.size());
    size_t passed = 0;
    run_jobs(jobs, [&](size_t job, const Outcome &outcome) {
        const bool changed = job >= problems.size();
        const bool good = changed ? is_caught(*mutants[job - problems.size()], outcome) : outcome.code == SAME;
        passed += good;
        if (!good)
            printf("%s\n", changed && outcome.code == SAME ? "not caught" : outcome.words.c_str());
        else if (changed && argc > 1)
            printf("%s", outcome.words.c_str());
        printf("%sok %zu - %s%s%s\n", good ? "" : "not ", job + 1, names[job].c_str(), good ? ": " : "",
               !good     ? ""
               : changed ? first_line(outcome.words).c_str()
                         : "unchanged");
        fflush(stdout);
    });
    printf("%zu passed, %zu failed\n", passed, jobs.size() - passed);
    return passed == jobs.size() ? 0 : 1;
}
