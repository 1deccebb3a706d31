// The library's headers that these tests use, for C++.
#pragma once

extern "C" {
#include "splat.h"

#include "analysis/plan.h"
#include "codegen/launch_args.h"
#include "codegen/spec.h"
#include "codegen/kron_args.h"
#include "codegen/kron_source.h"
#include "common/hash.h"
#include "runtime/kernel.h"
#include "runtime/layer.h"
}
