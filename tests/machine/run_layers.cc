// Runs the kernels of Kronecker-sparse layers, and faults put into them on purpose, and reports in TAP.
//
//   run_layers                    every case, 2 seeds each, then every mutant: each must be found
//   run_layers --seeds N CASE...  the cases and mutants with these words in their names, N seeds
//   run_layers --from K ...       from seed K on instead of 0
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "jobs.h"
#include "layers.h"
#include "machine.h"

using namespace machine;

constexpr unsigned CASE_SECONDS = 300;

int main(int argc, char **argv)
{
    unsigned seeds = 2, from = 0;
    std::vector<const char *> words;
    for (int a = 1; a < argc; ++a) {
        if (strcmp(argv[a], "--seeds") == 0 && a + 1 < argc)
            seeds = static_cast<unsigned>(atoi(argv[++a]));
        else if (strcmp(argv[a], "--from") == 0 && a + 1 < argc)
            from = static_cast<unsigned>(atoi(argv[++a]));
        else
            words.push_back(argv[a]);
    }
    const auto wanted = [&](const std::string &name) {
        for (const char *word : words)
            if (name.find(word) != std::string::npos)
                return true;
        return words.empty();
    };
    std::vector<std::function<int()>> jobs;
    std::vector<std::string> names;
    std::vector<const LayerMutant *> mutants;
    for (const LayerCase &one : layer_cases())
        if (wanted(one.name)) {
            names.push_back(one.name);
            mutants.push_back(nullptr);
            jobs.push_back([&one, from, seeds] {
                alarm(CASE_SECONDS);
                return run_layer(one, nullptr, from, seeds);
            });
        }
    for (const LayerMutant &mutant : layer_mutants())
        for (const LayerCase &one : layer_cases())
            if (strcmp(one.name, mutant.of) == 0 && wanted(std::string(mutant.of) + ": " + mutant.name)) {
                names.push_back(std::string(mutant.of) + ": " + mutant.name);
                mutants.push_back(&mutant);
                jobs.push_back([&one, &mutant] {
                    alarm(CASE_SECONDS);
                    return run_layer(one, &mutant, 0, 2);
                });
            }
    printf("1..%zu\n", jobs.size());
    bool passed = true;
    run_jobs(jobs, [&](size_t job, const Outcome &outcome) {
        const LayerMutant *mutant = mutants[job];
        const bool found = outcome.code == 1 || outcome.code == FAULT_EXIT;
        const bool good = mutant ? found && outcome.words.find(mutant->by) != std::string::npos : outcome.code == 0;
        passed &= good;
        if (!good)
            printf("%s\n", mutant && outcome.code == 0 ? "not caught" : outcome.words.c_str());
        printf("%sok %zu - %s\n", good ? "" : "not ", job + 1, names[job].c_str());
        fflush(stdout);
    });
    return passed ? 0 : 1;
}
