#!/bin/bash
# Stands in the place of splatc in the tests of the tool: the same, under valgrind. An error or a leak is exit code 99,
# which no test expects. UNDER_VALGRIND names the splatc that is run.
exec valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
    --show-leak-kinds=definite "$UNDER_VALGRIND" "$@"
