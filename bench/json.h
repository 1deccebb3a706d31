/* JSON for the C benchmarks: escaped text, and the fields every record opens with (date, commit, machine,
 * versions). */
#ifndef BENCH_JSON_H
#define BENCH_JSON_H

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "splat.h"

static inline void json_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
    }
    fputc('"', file);
}

static inline void json_field(FILE *file, const char *name, const char *text)
{
    fprintf(file, "  \"%s\": ", name);
    json_text(file, text);
    fputs(",\n", file);
}

/* First line that a command prints; "" when there is none. */
static inline void first_line(const char *command, char *line, int size)
{
    line[0] = 0;
    FILE *pipe_file = popen(command, "r");
    if (!pipe_file)
        return;
    if (!fgets(line, size, pipe_file))
        line[0] = 0;
    pclose(pipe_file);
    line[strcspn(line, "\n")] = 0;
}

static inline void json_meta(FILE *file, const char *commit)
{
    char date[64], line[256], gpu[256];
    struct utsname name;
    int capability = 0;
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
    json_field(file, "date", date);
    if (!commit) {
        first_line("git rev-parse HEAD 2>/dev/null", line, sizeof line);
        commit = line;
    }
    json_field(file, "commit", commit);
    json_field(file, "splat", splat_version());
    json_field(file, "gpu", splat_device_query(gpu, sizeof gpu, &capability) == SPLAT_OK ? gpu : "none");
    first_line("nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null", line, sizeof line);
    json_field(file, "driver", line);
    first_line("nvcc --version 2>/dev/null | tail -1", line, sizeof line);
    json_field(file, "nvcc", line);
    first_line("sed -n 's/^model name[^:]*: //p' /proc/cpuinfo", line, sizeof line);
    json_field(file, "cpu", line);
    if (uname(&name) == 0)
        json_field(file, "system", name.release);
    fprintf(file, "  \"cpus\": %ld\n", sysconf(_SC_NPROCESSORS_ONLN));
}

#endif
