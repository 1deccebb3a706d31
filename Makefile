# splat: one plain Makefile.
#
#   make            shared and static library, build/splatc
#   make demo       everything on a fresh machine: packages, build, one mask through all stages
#   make check      everything tests need, then all tests; ends with one line "N passed, M failed"
#   make check-deep the same attacks for longer: kernels, fuzzing, faults, races, valgrind
#   make help       the targets and the variables
#
# All output goes to $(BUILD), so that one tree may be built in several folders at once. No CUDA header or toolkit is
# needed to build: the driver and NVRTC are opened at run time.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

VERSION := 0.1.0
SOVERSION := 0
SOURCE_DIR := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))

# ---- What the user may set ----

ifeq ($(origin CC),default)
CC := gcc
endif
AR ?= ar
SAN ?=
STATIC ?=
V ?=
WERROR ?= 1
DEPS ?= build
PREFIX ?= /usr/local
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
comma := ,
BUILD ?= build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-7s %s\n' '$(1)' '$(2)')

# ---- Flags ----

OPT ?= $(if $(SAN),-O1,-O2)
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion $(if $(filter 1,$(WERROR)),-Werror)
# Instrumented loops are not vectorised, of which clang warns where OpenMP asks for it.
SAN_FLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all $(if $(findstring clang,$(CC)),-Wno-pass-failed))
CFLAGS ?=
LDFLAGS ?=
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE $(OPT) -g $(WARN) $(SAN_FLAGS) -Iinclude -Isrc $(CFLAGS)
LIB_CFLAGS = $(ALL_CFLAGS) -fPIC -fvisibility=hidden -fopenmp -DSPLAT_BUILDING
LIB_LIBS := -ldl -lpthread -lm
CLI_LIBS := -lpng -lz -ljansson
OPENMP_LIBS := -fopenmp

# STATIC=1: splatc needs nothing but the C library, so that it can be copied to another machine. (Built by clang it needs
# libomp too, which Debian has as a shared library alone.)
ifneq ($(STATIC),)
CLI_LIBS := -Wl,-Bstatic -lpng -lz -ljansson -Wl,-Bdynamic
OPENMP_LIBS := $(if $(findstring clang,$(CC)),-fopenmp,-static-libgcc -Wl$(comma)-Bstatic -lgomp -Wl$(comma)-Bdynamic)
endif

# ---- Sources, by wildcard: a new file needs no edit here ----

LIB_DIRS := common acsr analysis codegen runtime
LIB_SOURCES := $(sort $(foreach d,$(LIB_DIRS),$(wildcard src/$(d)/*.c)))
CLI_SOURCES := $(sort $(wildcard src/cli/*.c))
UNIT_SOURCES := $(sort $(wildcard tests/unit/test_*.c))
UNIT_HELPERS := $(sort $(filter-out $(UNIT_SOURCES),$(wildcard tests/unit/*.c)))
EXAMPLE_SOURCES := $(sort $(wildcard examples/*.c))
BENCH_SOURCES := $(sort $(wildcard bench/*.c))
MACHINE_SOURCES := $(sort $(wildcard tests/machine/*.cc))
FAULT_SOURCES := $(sort $(wildcard tests/faults/test_*.c))
FUZZ_SOURCES := $(sort $(wildcard tests/fuzz/fuzz_*.c))

object = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
LIB_OBJECTS := $(call object,$(LIB_SOURCES))
CLI_OBJECTS := $(call object,$(CLI_SOURCES))
UNIT_HELPER_OBJECTS := $(call object,$(UNIT_HELPERS))
UNIT_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(UNIT_SOURCES))
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(EXAMPLE_SOURCES))
MACHINE_OBJECTS := $(patsubst %.cc,$(BUILD)/obj/%.o,$(MACHINE_SOURCES))
MACHINE_PROGRAMS := $(patsubst %.cc,$(BUILD)/%,$(filter tests/machine/run_%,$(MACHINE_SOURCES)))
FAULT_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(FAULT_SOURCES))
STAND_INS := $(patsubst tests/faults/%.c,$(BUILD)/tests/faults/%.so,$(wildcard tests/faults/stand_in_*.c))

STATIC_LIB := $(BUILD)/libsplat.a
SHARED_LIB := $(BUILD)/libsplat.so.$(VERSION)
SHARED_LINKS := $(BUILD)/libsplat.so.$(SOVERSION) $(BUILD)/libsplat.so

# ---- Targets ----

.PHONY: all lib help demo check check-deep check-mutants tests fuzz races examples bench install uninstall clean format format-check lint FORCE
all: lib $(BUILD)/splatc

lib: $(STATIC_LIB) $(SHARED_LINKS)

help:
	@echo 'make                  libsplat.a, libsplat.so and splatc, in build/'
	@echo 'make demo             install what is missing, build, take one mask through all stages'
	@echo 'make check            install what tests need, build, run all tests'
	@echo 'make check-mutants    put faults into kernels; the tests must find each (part of check)'
	@echo 'make check-deep       the attacks of check for longer, and races and valgrind: half an hour and more'
	@echo 'make tests            build the test programs only'
	@echo 'make fuzz             build the fuzz targets, with clang, into build/fuzz/'
	@echo 'make bench            build bench/*.c into build/bench/ (see bench/README.md)'
	@echo 'make examples         build examples/*.c into build/examples/'
	@echo 'make install          PREFIX=/usr/local DESTDIR= LIBDIR=$$PREFIX/lib; then ldconfig, or see README.md'
	@echo 'make uninstall        with the same variables'
	@echo 'make format           clang-format over the C sources (format-check only tells)'
	@echo 'make lint             clang-tidy and cppcheck, where installed'
	@echo 'make clean            remove the build folder'
	@echo
	@echo 'BUILD=DIR             where everything goes (build)'
	@echo 'CC=gcc|clang          OPT=-O2   CFLAGS=   LDFLAGS=   WERROR=0 keeps warnings warnings'
	@echo 'SAN=address,undefined or SAN=thread: sanitizers, in a build folder of their own; SAN=thread wants CC=clang,'
	@echo '                      for GCC'"'"'s OpenMP hides its barriers from the sanitizer'
	@echo 'STATIC=1              splatc with libpng, zlib, jansson and OpenMP inside: copy it anywhere'
	@echo 'V=1                   show the commands'

# A changed compiler or flag rebuilds; an unchanged one does not touch the stamps.
COMPILE_KEY := $(CC) $(CXX) $(OPT) $(WARN) $(SAN_FLAGS) $(CFLAGS)
LINK_KEY := $(LDFLAGS) $(CLI_LIBS) $(OPENMP_LIBS)
$(BUILD)/compile.key: FORCE
	@mkdir -p $(BUILD)
	@echo '$(COMPILE_KEY)' | cmp -s - $@ || echo '$(COMPILE_KEY)' >$@
$(BUILD)/link.key: FORCE
	@mkdir -p $(BUILD)
	@echo '$(LINK_KEY)' | cmp -s - $@ || echo '$(LINK_KEY)' >$@

# Tells what is missing before the compiler does.
$(BUILD)/deps.ok: tools/deps.sh
	@mkdir -p $(BUILD)
	@CC='$(CC)' tools/deps.sh --tell $(DEPS)
	@touch $@

$(LIB_OBJECTS): FLAGS = $(LIB_CFLAGS)
$(CLI_OBJECTS): FLAGS = $(ALL_CFLAGS)
$(UNIT_HELPER_OBJECTS): FLAGS = $(ALL_CFLAGS)

# The templates are part of the library: embed.c includes their bytes.
$(BUILD)/obj/src/codegen/embed.o: EXTRA = -DSP_SOURCE_DIR=\"$(SOURCE_DIR)\"
$(BUILD)/obj/src/codegen/embed.o: $(wildcard templates/*) $(wildcard src/codegen/*_args.h)

$(BUILD)/obj/%.o: %.c $(BUILD)/compile.key | $(BUILD)/deps.ok
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(FLAGS) $(EXTRA) -MMD -MP -c $< -o $@

# A removed source file must leave the library: the archive is made anew, and the list of objects is a prerequisite.
$(BUILD)/objects.key: FORCE
	@mkdir -p $(BUILD)
	@echo '$(LIB_OBJECTS) $(CLI_OBJECTS)' | cmp -s - $@ || echo '$(LIB_OBJECTS) $(CLI_OBJECTS)' >$@

$(STATIC_LIB): $(LIB_OBJECTS) $(BUILD)/objects.key
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(LIB_OBJECTS)

$(SHARED_LIB): $(LIB_OBJECTS) $(BUILD)/objects.key $(BUILD)/link.key
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(SAN_FLAGS) -Wl,-soname,libsplat.so.$(SOVERSION) $(if $(SAN),,-Wl$(comma)-z$(comma)defs) \
	    $(LIB_OBJECTS) $(LDFLAGS) -fopenmp $(LIB_LIBS) -o $@

$(SHARED_LINKS): $(SHARED_LIB)
	$(Q)ln -sf $(notdir $(SHARED_LIB)) $@

$(BUILD)/splatc: $(CLI_OBJECTS) $(STATIC_LIB) $(BUILD)/link.key
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN_FLAGS) $(CLI_OBJECTS) $(STATIC_LIB) $(LDFLAGS) $(CLI_LIBS) $(OPENMP_LIBS) $(LIB_LIBS) -o $@

# ---- Tests and examples ----

# Sanitizers do not know the machine's fibers, and replace malloc and system calls themselves.
SHIMMED := test_long_life test_memory test_store test_tool
tests: $(UNIT_PROGRAMS) $(if $(SAN),,$(MACHINE_PROGRAMS) fuzz) \
    $(if $(SAN),$(filter-out $(SHIMMED:%=$(BUILD)/tests/faults/%),$(FAULT_PROGRAMS)),$(FAULT_PROGRAMS))

$(BUILD)/tests/unit/%: tests/unit/%.c $(UNIT_HELPER_OBJECTS) $(STATIC_LIB) $(BUILD)/compile.key | $(BUILD)/deps.ok
	$(call say,TEST,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -fopenmp -MMD -MP -MF $@.d -MT $@ $< $(UNIT_HELPER_OBJECTS) $(STATIC_LIB) \
	    $(LDFLAGS) -lcmocka $(LIB_LIBS) -o $@

# Fault tests replace functions of the C library, or open stand-ins for NVRTC and the driver.
$(FAULT_PROGRAMS): $(BUILD)/%: %.c $(CLI_OBJECTS) $(STATIC_LIB) $(STAND_INS) $(BUILD)/compile.key
	$(call say,TEST,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -fopenmp -MMD -MP -MF $@.d -MT $@ $< $(filter-out %/main.o,$(CLI_OBJECTS)) $(STATIC_LIB) \
	    $(LDFLAGS) -lcmocka $(CLI_LIBS) $(LIB_LIBS) -o $@

$(STAND_INS): $(BUILD)/%.so: %.c $(BUILD)/compile.key | $(BUILD)/deps.ok
	$(call say,TEST,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -fPIC -shared -fvisibility=hidden $(if $(findstring cuda,$@),-Wl$(comma)-soname$(comma)libcuda.so.1) \
	    -MMD -MP -MF $@.d -MT $@ $< $(LDFLAGS) -o $@

# Fuzz targets are clang's alone: the library is built again with its instrumentation. Without clang there are none, and the
# tests say that they were skipped.
ifneq ($(FUZZING),)
fuzz-programs: $(FUZZ_SOURCES:tests/fuzz/%.c=$(BUILD)/%)
$(BUILD)/fuzz_%: tests/fuzz/fuzz_%.c tests/fuzz/fuzz.h $(BUILD)/obj/src/cli/npy.o $(BUILD)/obj/src/cli/pbm.o $(BUILD)/obj/src/cli/file.o $(STATIC_LIB)
	$(call say,FUZZ,$<)
	$(Q)$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer $< $(filter %.o,$^) $(STATIC_LIB) $(LDFLAGS) -fopenmp $(LIB_LIBS) -o $@
endif

fuzz:
	+@if command -v clang >/dev/null; then $(MAKE) --no-print-directory CC=clang FUZZING=1 OPT=-O1 \
	    SAN=fuzzer-no-link,address,undefined BUILD=$(BUILD)/fuzz fuzz-programs; else echo 'clang is not installed: no fuzzing'; fi

# The programs whose threads share something, built to find races.
races:
	+@if command -v clang >/dev/null; then $(MAKE) --no-print-directory CC=clang SAN=thread BUILD=$(BUILD)/races \
	    $(foreach t,unit/test_cache unit/test_compile unit/test_cpu unit/test_run_refusals faults/test_crowd faults/test_driver,$(BUILD)/races/tests/$(t)); \
	    else echo 'clang is not installed: no search for races'; fi

# The machine that kernels run on in tests (docs/testing.md). Kernels are compiled by the programs themselves, while they
# run, against headers in tests/machine; their symbols are resolved in the program.
MACHINE_CXXFLAGS = -std=c++17 -O2 -g -Wall -Wextra -Wshadow $(if $(filter 1,$(WERROR)),-Werror) -Iinclude -Isrc \
    -DMACHINE_CXX='"$(CXX)"' -DMACHINE_SOURCE='"$(SOURCE_DIR)/tests/machine"' \
    -DMACHINE_OBJECTS='"$(abspath $(BUILD))/tests/machine/objects"'

$(MACHINE_OBJECTS): $(BUILD)/obj/%.o: %.cc $(BUILD)/compile.key | $(BUILD)/deps.ok
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(MACHINE_CXXFLAGS) -MMD -MP -c $< -o $@

$(MACHINE_PROGRAMS): $(BUILD)/%: $(BUILD)/obj/%.o $(filter-out $(BUILD)/obj/tests/machine/run_%,$(MACHINE_OBJECTS)) $(STATIC_LIB)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CXX) -rdynamic $^ $(LDFLAGS) -fopenmp $(LIB_LIBS) -o $@

# Faults put into kernels on purpose: each must be found.
check-mutants:
	@tools/deps.sh --install build tests
	+@$(MAKE) --no-print-directory $(BUILD)/tests/machine/run_mutants
	@$(BUILD)/tests/machine/run_mutants

# Examples are built as a user would build them: the public header and the library, nothing else.
examples: $(EXAMPLES)

$(BUILD)/examples/%: examples/%.c $(STATIC_LIB) $(BUILD)/compile.key | $(BUILD)/deps.ok
	$(call say,EXAMPLE,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -O2 -g $(WARN) $(SAN_FLAGS) -Iinclude $(CFLAGS) -MMD -MP -MF $@.d -MT $@ $< $(STATIC_LIB) \
	    $(LDFLAGS) -fopenmp $(LIB_LIBS) -o $@

bench: $(BENCH_SOURCES:bench/%.c=$(BUILD)/bench/%)

$(BUILD)/bench/plan_time: $(BUILD)/bench/suite.inc

$(BUILD)/bench/suite.inc: bench/suite.py
	$(call say,SUITE,$@)
	@mkdir -p $(@D)
	$(Q)python3 bench/suite.py --c > $@.new && mv $@.new $@

$(BUILD)/bench/%: bench/%.c $(STATIC_LIB) $(BUILD)/compile.key | $(BUILD)/deps.ok
	$(call say,BENCH,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g $(WARN) $(SAN_FLAGS) -Iinclude -I$(BUILD)/bench $(CFLAGS) -MMD -MP -MF $@.d -MT $@ $< $(STATIC_LIB) \
	    $(LDFLAGS) -fopenmp $(LIB_LIBS) -o $@

check:
	@tools/deps.sh --install build tests
	+@$(MAKE) --no-print-directory all tests examples
	@BUILD='$(BUILD)' SAN='$(SAN)' CC='$(CC)' MAKE='$(MAKE)' tests/run.sh

check-deep:
	@tools/deps.sh --install build tests deep
	+@$(MAKE) --no-print-directory all tests races
	@BUILD='$(BUILD)' SPLAT_DEEP=1 tests/run.sh machine faults pytest races valgrind

demo:
	@tools/deps.sh --install build
	+@$(MAKE) --no-print-directory all
	@BUILD='$(BUILD)' tools/demo.sh

# ---- Install ----

PC_EDIT = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|'

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 755 $(BUILD)/splatc $(DESTDIR)$(PREFIX)/bin/splatc
	install -m 644 include/splat.h $(DESTDIR)$(PREFIX)/include/splat.h
	install -m 644 $(STATIC_LIB) $(DESTDIR)$(LIBDIR)/libsplat.a
	install -m 755 $(SHARED_LIB) $(DESTDIR)$(LIBDIR)/libsplat.so.$(VERSION)
	ln -sf libsplat.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libsplat.so.$(SOVERSION)
	ln -sf libsplat.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libsplat.so
	$(PC_EDIT) splat.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/splat.pc

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/splatc $(DESTDIR)$(PREFIX)/include/splat.h $(DESTDIR)$(LIBDIR)/libsplat.* \
	    $(DESTDIR)$(LIBDIR)/pkgconfig/splat.pc

clean:
	rm -rf $(BUILD)

# ---- Style ----

FORMATTED := $(wildcard include/*.h src/*/*.h src/*/*.c examples/*.c tests/unit/*.c tests/unit/*.h tests/faults/*.c tests/faults/*.h \
    tests/fuzz/*.c tests/fuzz/*.h tests/machine/*.h tests/machine/*.cc)
format:
	clang-format -i $(FORMATTED)
format-check:
	clang-format --dry-run --Werror $(FORMATTED)
# Off: advice to use functions that glibc does not have, a check that takes va_start for a use, padding, and sizes that
# the analyser cannot see to be positive.
TIDY := clang-analyzer-*,-clang-analyzer-optin.performance.Padding,-clang-analyzer-optin.portability.UnixAPI,\
    -clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling,\
    -clang-analyzer-valist.Uninitialized
lint:
	@if command -v clang-tidy >/dev/null; then clang-tidy --quiet --checks='$(TIDY)' --warnings-as-errors='*' \
	    $(LIB_SOURCES) $(CLI_SOURCES) -- \
	    -std=c11 -D_GNU_SOURCE -Iinclude -Isrc -DSP_SOURCE_DIR='"$(SOURCE_DIR)"'; else echo 'clang-tidy is not installed'; fi
	@if command -v cppcheck >/dev/null; then cppcheck --quiet --enable=warning,performance,portability --inline-suppr \
	    --error-exitcode=1 -Iinclude -Isrc $(LIB_SOURCES) $(CLI_SOURCES); else echo 'cppcheck is not installed'; fi

-include $(LIB_OBJECTS:.o=.d) $(CLI_OBJECTS:.o=.d) $(UNIT_HELPER_OBJECTS:.o=.d) $(MACHINE_OBJECTS:.o=.d) $(addsuffix .d,$(UNIT_PROGRAMS) $(FAULT_PROGRAMS) $(STAND_INS) $(EXAMPLES))
