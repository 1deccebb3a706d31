"""Runs one implementation on one problem: tensors, poison, double precision, the clock, the energy counter.

On "cuda" times come from timing.py: graphs that hold many calls over rotating input sets. On "cpu" everything is done the same
but for the clock, which is the wall's, and for energy, which there is none of: a dry run for small settings.
"""
import statistics
import time
import warnings

import torch
import torch._dynamo

import record
import splat_ctypes
import suite
from compare import energy, kron, masked, problems, runner

TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "tf32": torch.float32}
# largest error over the largest |reference|, relative Frobenius norm
TOLERANCE = {"fp16": (2e-3, 1e-3), "bf16": (1e-2, 6e-3), "fp32": (2e-5, 1e-5), "tf32": (4e-3, 2e-3)}
MOST_SETS = 1024
BUSY_STEP_MS = 15.0  # of work that is enqueued at once in an energy window


def allocations(call):
    """Of device memory by the caching allocator in one call, its output included."""
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    output = call()
    count = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    del output
    return count


class CpuTimed:
    """As timing.Timed, by the wall clock."""

    def __init__(self, name, call, sets):
        self.name, self.call, self.sets = name, call, sets

    def measure(self, rounds):
        samples = []
        for _ in range(rounds):
            began = time.perf_counter()
            for n in range(self.sets):
                self.call(n)
            samples.append((time.perf_counter() - began) * 1e3 / self.sets)
        return {"ms": statistics.median(samples), "min_ms": min(samples), "max_ms": max(samples), "samples": rounds,
                "launches_a_sample": self.sets, "method": "wall"}


class Engine:
    def __init__(self, device="cuda", lib=None, rounds=7, target_ms=12.0, energy_seconds=2.0, seed=0, commit=None):
        self.device, self.cuda, self.lib_path = torch.device(device), device == "cuda", lib
        self.rounds, self.target_ms, self.energy_seconds, self.commit = rounds, target_ms, energy_seconds, commit
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self._lib = self._context = self._lib_error = self._counter = None
        self._shapes = {}
        warnings.filterwarnings("ignore", message="Sparse (CSR|BSR|CSC|invariant)|bsr_dense_addmm uses non-optimal")
        if self.cuda:
            torch.zeros(1, device="cuda")
            properties = torch.cuda.get_device_properties(0)
            self.rotate_bytes, self.memory = 3 * properties.L2_cache_size, properties.total_memory
            self.uuid = "GPU-" + str(properties.uuid).removeprefix("GPU-")
            # fp16 and bf16 sums in fp32 for everybody, as splat's.
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        else:
            self.rotate_bytes, self.memory = 0, 16 << 30

    # ---- splat ----

    def lib(self):
        """The library, or the OSError or AttributeError that says why it cannot be used."""
        if self._lib is None and self._lib_error is None:
            try:
                self._lib = splat_ctypes.Splat(self.lib_path)
                self._context = self._lib.context()
            except (OSError, AttributeError) as error:
                self._lib_error = error
        if self._lib_error is not None:
            raise self._lib_error
        return self._lib

    def context(self):
        self.lib()
        return self._context

    # ---- the run ----

    def describe(self):
        try:
            lib = self.lib()
        except (OSError, AttributeError):
            lib = None
        meta = record.metadata(lib, self.commit)
        if not self.cuda:
            meta["gpu"] = "no GPU, a dry run on the CPU"
        if self._lib_error is not None:
            meta["splat_error"] = str(self._lib_error)
        return meta

    def set_precision(self, dtype):
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")

    def rates(self, dtypes):
        rates = {}
        for dtype in dtypes:
            self.set_precision(dtype)
            rates[dtype], copy = self._rate(TORCH[dtype])
        return {"matmul_flops": rates, "copy_bytes": copy}

    def _rate(self, dtype):
        if self.cuda:
            import timing
            top = timing.ceilings(5, dtype)
            return top["matmul_flops"], top["copy_bytes"]
        a, n = torch.ones(512, 512, dtype=dtype), torch.ones(1 << 24, dtype=dtype)
        to = torch.empty_like(n)
        matmul = CpuTimed("matmul", lambda _: a @ a, 1).measure(5)["ms"]
        copy = CpuTimed("copy", lambda _: to.copy_(n), 1).measure(5)["ms"]
        return 2 * 512**3 / (matmul * 1e-3), 2 * n.numel() * n.element_size() / (copy * 1e-3)

    # ---- masks ----

    def pattern(self, name):
        """The suite's pattern of that name, or a splat expression with splat's own rows as its definition."""
        return next((p for p in suite.SUITE if p.name == name), None) or suite.Pattern(name, name, suite.random_blocks(1))

    def shape(self, setting):
        """(pattern, suite.Shape) of a masked setting."""
        at = (setting["pattern"], setting["seq"])
        if at not in self._shapes:
            self._shapes.clear()
            pattern = self.pattern(setting["pattern"])
            if pattern in suite.SUITE:
                lib = self.lib() if pattern.random else None
                shape = suite.shape_of(lib, pattern, setting["seq"], device=self.device)
            else:
                rows = self.lib().expression(pattern.expression, setting["seq"]).rows(range(setting["seq"]))
                table = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(setting["seq"], setting["seq"])
                shape = suite.Shape(setting["seq"], setting["seq"], blocks=table.bool().to(self.device))
            self._shapes[at] = (pattern, shape, suite.count_pairs(pattern, shape, self.device))
        return self._shapes[at][:2]

    def pairs(self, setting):
        if "pattern" not in setting:
            return None
        self.shape(setting)
        return self._shapes[setting["pattern"], setting["seq"]][2]

    # ---- one problem ----

    def open(self, problem):
        """The tensors: data.sets input sets, more than L2 holds together where the memory allows."""
        self.set_precision(problem.dtype)
        if self.cuda:
            torch._dynamo.reset()  # one problem's guards must not slow or stop the next one's compile
        per_set = problem.bytes()
        sets = max(2, min(MOST_SETS, -(-self.rotate_bytes // per_set)))
        data = (kron if problem.kind == "kron" else masked).Data(self, problem, TORCH[problem.dtype], sets)
        data.rotating_bytes, data.timed = sets * per_set, {}
        data.references = {n: data.reference(n) for n in {0, sets - 1}}
        return data

    def close(self, data):
        data.__dict__.clear()
        if self.cuda:
            torch.cuda.empty_cache()

    def randn(self, *size, dtype, scale=1.0):
        out = torch.empty(size, device=self.device, dtype=dtype)
        for part in out.split(max(1, (1 << 26) * size[0] // out.numel())):  # so that fp32 temporaries stay small
            part.copy_(torch.randn(part.shape, generator=self.generator, device=self.device) * scale)
        return out

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def recover(self):
        """After an error: raises DeviceLost when the device is of no more use."""
        if not self.cuda:
            return
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            if int(torch.ones(8, device="cuda").sum()) != 8:
                raise RuntimeError("a sum of ones is wrong")
        except Exception as error:
            raise runner.DeviceLost(str(error).splitlines()[0]) from error

    def prepare(self, implementation, problem, data):
        """(call, {"wrong": sentences, errors, "first_call_s", "allocations"}) of a checked implementation."""
        began = time.perf_counter()
        made = implementation.make(problem, data)
        call, canonical = made if isinstance(made, tuple) else (made, lambda output: output)
        self.poison(data)
        result = {"wrong": [], "error_frobenius": 0.0, "error_max": 0.0}
        for n, reference in data.references.items():
            output = call(n)
            self.synchronize()
            if n == 0:
                result["first_call_s"] = time.perf_counter() - began
            self.compare(canonical(output), reference, problem.dtype, n, result)
            del output
        if self.cuda:
            self.poison(data)
            result["allocations"] = allocations(lambda: call(0))
            own = self.bmm_allocations(TORCH[problem.dtype])
            if own:
                result["allocations_of_bmm"] = own
        return call, result

    def bmm_allocations(self, dtype):
        """Allocations of one torch.bmm that has nothing to copy: a workspace, if anything."""
        a, b, out = (torch.zeros(4, 256, 256, dtype=dtype, device=self.device) for _ in range(3))
        torch.bmm(a, b, out=out)
        return allocations(lambda: torch.bmm(a, b, out=out))

    def poison(self, data):
        """NaN into every output, and into the memory that a fresh output would be taken from."""
        for t in data.outputs:  # one a set
            t.fill_(float("nan"))
        if self.cuda:
            fresh = [torch.full_like(data.outputs[0], float("nan")) for _ in range(3)]
            self.synchronize()
            del fresh

    def compare(self, output, reference, dtype, n, result):
        """Adds to `result` what is wrong with the output of set n, and the largest errors so far."""
        if tuple(output.shape) != tuple(reference.shape):
            result["wrong"].append(f"set {n}: the output is {tuple(output.shape)}, not {tuple(reference.shape)}")
            return
        output = output.double()
        bad = int((~torch.isfinite(output)).sum())
        if bad:
            result["wrong"].append(f"set {n}: {bad} of {output.numel()} outputs are NaN or infinite")
            return
        error = output - reference
        top, norm = float(reference.abs().max()), float(reference.norm())
        most, frobenius = float(error.abs().max()) / max(top, 1e-300), float(error.norm()) / max(norm, 1e-300)
        result["error_max"] = max(result["error_max"], most)
        result["error_frobenius"] = max(result["error_frobenius"], frobenius)
        for what, value, limit in (("largest error over the largest value", most, TOLERANCE[dtype][0]),
                                   ("relative Frobenius error", frobenius, TOLERANCE[dtype][1])):
            if not value <= limit:
                result["wrong"].append(f"set {n}: {what} is {value:.3g} (limit {limit:g})")

    # ---- time and energy ----

    def measure(self, data, calls, then=None):
        """{name: timing}; then(names of those that were measured) is called while they are ready to be run again."""
        if not self.cuda:
            results = {n: CpuTimed(n, call, data.sets).measure(self.rounds) for n, call in calls.items()}
            if then:
                then(list(results))
            return results
        import timing
        timed = [timing.Timed(name, call, data.sets) for name, call in calls.items()]

        def keep(ready):
            data.timed = {t.name: t for t in ready}
            then(list(data.timed))
            data.timed = {}
        return timing.alternate(timed, self.rounds, self.target_ms, keep if then else None)

    def counter(self):
        if not self.cuda:
            raise energy.Unavailable("energy is measured on a GPU alone")
        if self._counter is None:
            self._counter = energy.Counter(self.uuid)
        return self._counter

    def idle(self):
        """Milliwatts of the idle board, after half a second of rest."""
        read = self.counter().read
        self.synchronize()
        time.sleep(0.5)
        return energy.power(read, lambda: time.sleep(0.005), self.energy_seconds)[0]

    def energy(self, data, name, idle_mw):
        """One implementation back to back for at least energy_seconds; its power and its time a call in that window."""
        timed = data.timed[name]
        each = max(statistics.median(timed.samples), 1e-6) * timed.launches
        turns, pending, enqueued = max(1, round(BUSY_STEP_MS / each)), [], 0

        def replay():
            if timed.graph is not None:
                timed.graph.replay()
            else:
                for n in range(timed.launches):
                    timed.call(n % timed.sets)

        def step():
            nonlocal enqueued
            for _ in range(turns):
                replay()
            enqueued += turns * timed.launches
            event = torch.cuda.Event()
            event.record()
            pending.append(event)
            if len(pending) > 2:  # two steps lie ahead of the device, so that it never waits
                pending.pop(0).synchronize()

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(3):
            step()
        power, seconds = energy.power(self.counter().read, step, self.energy_seconds)
        end.record()
        end.synchronize()
        return {**energy.per_call(power, idle_mw, start.elapsed_time(end) / enqueued), "window_s": seconds}
