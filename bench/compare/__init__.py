"""A benchmark of sparse operators that is made to be extended: an implementation is one function, a pattern one line.

    python3 bench/compare list                         what there is to compare
    python3 bench/compare run kron --n 4096 --out DIR  measures; writes DIR/compare.json, compare.md and plots
    python3 bench/compare advise kron --n 4096         the best implementation for a setting, from recorded results

problems.py says what is computed and what it costs at least, registry.py keeps the implementations (attention.py, masked.py,
kron.py), engine.py runs one of them on the GPU, runner.py all of them within a budget, and table, plots and advice are made
from the JSON alone.
"""
