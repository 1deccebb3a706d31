"""A thin ctypes binding of include/splat.h for the checks and benchmarks.

Takes device (or host) pointers from torch tensors; needs torch only where a tensor is passed. Handles are owned by the
Python objects and destroyed with them. Every failed call raises SplatError with the library's sentence.

    python3 bench/splat_ctypes.py --layout build/bench/layout      compares struct layouts with the compiler's
"""
import argparse
import ctypes as C
import os
import subprocess
import sys

OK, INVALID, UNSUPPORTED, NO_MEMORY, IO, NO_DEVICE, COMPILE, CUDA, INTERNAL = range(9)
BOTTOM_RIGHT, TOP_LEFT = 0, 1
FP16, BF16, FP32 = 0, 1, 2
ATTENTION, SDDMM, SOFTMAX, SPMM, SPMM_TRANSPOSED = range(5)
DEVICE_AUTO, DEVICE_CPU, DEVICE_GPU = 0, 1, 2
ARCH_AUTO, SM80, SM90A = 0, 80, 90
STAGES = {"acsr": 0, "plan": 1, "spec": 2, "source": 3, "ptx": 4, "log": 5}
CACHE_ENV, CACHE_ON, CACHE_READ_ONLY, CACHE_OFF = range(4)

I32, I64, SIZE, PTR, DOUBLE = C.c_int, C.c_int64, C.c_size_t, C.c_void_p, C.c_double

LogFn = C.CFUNCTYPE(None, I32, C.c_char_p, PTR)
WriteFn = C.CFUNCTYPE(I32, PTR, SIZE, PTR)
class Run(C.Structure):
    _fields_ = [(n, C.c_int32) for n in ("start", "stride", "count", "width")]


class Stretch(C.Structure):
    _fields_ = [("pass_", I64), ("row_tile", I64), ("rows", Run), ("columns", Run), ("tiles", I64), ("kind", I32),
                ("predicate", C.c_char_p)]


TileFn = C.CFUNCTYPE(I32, C.POINTER(Stretch), PTR)


class Options(C.Structure):
    _fields_ = [("struct_size", SIZE), ("dtype", I32), ("device", I32), ("arch", I32)] + [
        (n, I64) for n in ("head_dim", "value_dim", "batch", "heads", "kv_heads", "tile_rows", "tile_cols", "layout")] + [
        ("op", I32)]


OP_ATTENTION, OP_SDDMM, OP_SOFTMAX, OP_SPMM, OP_SPMM_TRANSPOSED = range(5)


class PlanInfo(C.Structure):
    _fields_ = [("struct_size", SIZE)] + [(n, I64) for n in (
        "q_len", "kv_len", "masks", "allowed_pairs", "computed_pairs", "full_tiles", "partial_tiles", "passes",
        "families", "tile_rows", "tile_cols", "descriptor_bytes", "candidates")] + [
        (n, DOUBLE) for n in ("density", "waste", "plan_ms", "predicted_us")]


class ContextOptions(C.Structure):
    _fields_ = [("struct_size", SIZE), ("log", LogFn), ("log_user", PTR), ("cache_dir", C.c_char_p),
                ("cache_mode", I32), ("cache_max_bytes", I64), ("threads", I32), ("self_check", I32)]


class CompileInfo(C.Structure):
    _fields_ = [("struct_size", SIZE), ("key", C.c_char * 33), ("cache_hit", I32), ("ms", DOUBLE), ("registers", I32),
                ("shared_bytes", I32), ("spill_bytes", I32), ("cubin_bytes", I64)]


class Tensor(C.Structure):
    _fields_ = [("data", PTR)] + [(n, I64) for n in ("batch_stride", "head_stride", "row_stride")]


class AttentionArgs(C.Structure):
    _fields_ = [("struct_size", SIZE)] + [(n, I64) for n in ("batch", "heads", "kv_heads", "q_len", "kv_len")] + [
        (n, Tensor) for n in ("q", "k", "v", "o")] + [
        ("lse", PTR), ("lse_batch_stride", I64), ("lse_head_stride", I64), ("scale", C.c_float), ("workspace", PTR),
        ("workspace_bytes", SIZE)]


class Values(C.Structure):
    _fields_ = [("data", PTR), ("batch_stride", I64), ("head_stride", I64)]


class SparseArgs(C.Structure):
    _fields_ = [("struct_size", SIZE)] + [(n, I64) for n in ("batch", "heads", "kv_heads", "q_len", "kv_len")] + [
        (n, Values) for n in ("values", "scores")] + [(n, Tensor) for n in ("q", "k", "x", "y")] + [
        ("lse", PTR), ("lse_batch_stride", I64), ("lse_head_stride", I64), ("scale", C.c_float)]


class LayerOptions(C.Structure):
    _fields_ = [("struct_size", SIZE), ("dtype", I32), ("tf32", I32), ("layout", I32), ("n", I64), ("gradients", I32),
                ("device", I32), ("arch", I32)]


class LayerArgs(C.Structure):
    _fields_ = [("struct_size", SIZE), ("n", I64), ("weights", C.POINTER(PTR)), ("x", PTR), ("x_stride", I64), ("y", PTR),
                ("y_stride", I64), ("bias", PTR), ("dy", PTR), ("dy_stride", I64), ("dx", PTR), ("dx_stride", I64),
                ("weight_gradients", C.POINTER(PTR)), ("workspace", PTR), ("workspace_bytes", SIZE)]


BATCH_FIRST, BATCH_LAST = 0, 1

STRUCTS = {"splat_options": Options, "splat_context_options": ContextOptions, "splat_acsr_run": Run,
           "splat_tensor": Tensor, "splat_attention_args": AttentionArgs,
           "splat_values": Values, "splat_sparse_args": SparseArgs, "splat_plan_info": PlanInfo,
           "splat_compile_info": CompileInfo}

# name: (result, arguments). A result of None marks a void function.
STATUS, OUT = I32, C.POINTER(PTR)
PROTOTYPES = {
    "splat_version": (C.c_char_p, []),
    "splat_status_name": (C.c_char_p, [I32]),
    "splat_last_error": (C.c_char_p, []),
    "splat_device_query": (STATUS, [C.c_char_p, SIZE, C.POINTER(I32)]),
    "splat_mask_from_expression": (STATUS, [C.c_char_p, I64, I64, I32, OUT]),
    "splat_mask_from_bytes": (STATUS, [PTR, I64, I64, I64, OUT]),
    "splat_mask_from_bits": (STATUS, [PTR, I64, I64, I64, OUT]),
    "splat_mask_from_blocks": (STATUS, [PTR, I64, I64, I64, I64, I64, OUT]),
    "splat_mask_map": (STATUS, [C.POINTER(PTR), I64, I64, OUT]),
    "splat_mask_destroy": (None, [PTR]),
    "splat_mask_q_len": (I64, [PTR]),
    "splat_mask_kv_len": (I64, [PTR]),
    "splat_acsr_create": (STATUS, [PTR, OUT]),
    "splat_acsr_destroy": (None, [PTR]),
    "splat_acsr_pairs": (I64, [PTR]),
    "splat_acsr_families": (I64, [PTR]),
    "splat_acsr_expand_row": (STATUS, [PTR, I64, PTR]),
    "splat_options_init": (None, [C.POINTER(Options)]),
    "splat_plan_create": (STATUS, [PTR, C.POINTER(Options), OUT]),
    "splat_plan_destroy": (None, [PTR]),
    "splat_plan_info_init": (None, [C.POINTER(PlanInfo)]),
    "splat_plan_get_info": (STATUS, [PTR, C.POINTER(PlanInfo)]),
    "splat_plan_visit_tiles": (STATUS, [PTR, I64, TileFn, PTR]),
    "splat_dump": (STATUS, [PTR, C.POINTER(Options), I32, WriteFn, PTR]),
    "splat_context_options_init": (None, [C.POINTER(ContextOptions)]),
    "splat_context_create": (STATUS, [C.POINTER(ContextOptions), OUT]),
    "splat_context_destroy": (None, [PTR]),
    "splat_compile": (STATUS, [PTR, PTR, C.POINTER(Options), OUT]),
    "splat_kernel_destroy": (None, [PTR]),
    "splat_compile_info_init": (None, [C.POINTER(CompileInfo)]),
    "splat_compile_to_cache": (STATUS, [PTR, PTR, C.POINTER(Options), C.POINTER(CompileInfo)]),
    "splat_kernel_get_info": (STATUS, [PTR, C.POINTER(CompileInfo)]),
    "splat_kernel_plan": (PTR, [PTR]),
    "splat_kernel_device": (I32, [PTR]),
    "splat_attention_args_init": (None, [C.POINTER(AttentionArgs)]),
    "splat_workspace_bytes": (STATUS, [PTR, I64, I64, C.POINTER(SIZE)]),
    "splat_sparse_args_init": (None, [C.POINTER(SparseArgs)]),
    "splat_run_sparse": (STATUS, [PTR, C.POINTER(SparseArgs), PTR]),
    "splat_run": (STATUS, [PTR, C.POINTER(AttentionArgs), PTR]),
}

# Of a library that has the operators on their own.
OPERATORS = {
    "splat_sparse_args_init": (None, [C.POINTER(SparseArgs)]),
    "splat_run_sparse": (STATUS, [PTR, C.POINTER(SparseArgs), PTR]),
}
# Of a library that has Kronecker-sparse layers.
LAYERS = {
    "splat_layer_options_init": (None, [C.POINTER(LayerOptions)]),
    "splat_layer_compile": (STATUS, [PTR, C.POINTER(PTR), I64, C.POINTER(LayerOptions), OUT]),
    "splat_layer_destroy": (None, [PTR]),
    "splat_layer_args_init": (None, [C.POINTER(LayerArgs)]),
    "splat_layer_workspace_bytes": (STATUS, [PTR, I64, I32, C.POINTER(SIZE)]),
    "splat_layer_forward": (STATUS, [PTR, C.POINTER(LayerArgs), PTR]),
    "splat_layer_backward": (STATUS, [PTR, C.POINTER(LayerArgs), PTR]),
}


class SplatError(RuntimeError):
    def __init__(self, status, name, sentence):
        super().__init__(f"{name}: {sentence}")
        self.status = status


class Handle:
    """Owns one opaque pointer of the library."""

    def __init__(self, lib, pointer, destroy):
        self.lib, self.p, self._destroy = lib, pointer, destroy

    def close(self):
        if self.p:
            self._destroy(self.p)
            self.p = None

    def __del__(self):
        self.close()


class Mask(Handle):
    """q_len x kv_len; knows how to expand itself."""

    @property
    def shape(self):
        return self.lib.c.splat_mask_q_len(self.p), self.lib.c.splat_mask_kv_len(self.p)

    def acsr(self):
        return Handle(self.lib, self.lib.out("splat_acsr_create", self.p), self.lib.c.splat_acsr_destroy)

    def pairs(self):
        return self.lib.c.splat_acsr_pairs(self.acsr().p)

    def rows(self, indices):
        """The given rows as a list of bytearrays of kv_len 0/1 bytes, from the mask's ACSR."""
        acsr, kv_len, rows = self.acsr(), self.shape[1], []
        for i in indices:
            row = (C.c_uint8 * kv_len)()
            self.lib.check(self.lib.c.splat_acsr_expand_row(acsr.p, int(i), C.addressof(row)))
            rows.append(bytearray(row))
        return rows


class Plan(Handle):
    def info(self):
        return self.lib.plan_info(self.p)

    def tiles_by_predicate(self, mask_index=0):
        return self.lib.tiles_by_predicate(self.p, mask_index)


class Kernel(Handle):
    """A compiled kernel. Keeps its context and mask alive."""

    def info(self):
        info = CompileInfo()
        self.lib.c.splat_compile_info_init(C.byref(info))
        self.lib.check(self.lib.c.splat_kernel_get_info(self.p, C.byref(info)))
        fields = {n: getattr(info, n) for n, _ in CompileInfo._fields_ if n != "struct_size"}
        fields["key"] = fields["key"].decode()
        return fields

    def plan_info(self):
        return self.lib.plan_info(self.lib.c.splat_kernel_plan(self.p))

    def tiles_by_predicate(self, mask_index=0):
        return self.lib.tiles_by_predicate(self.lib.c.splat_kernel_plan(self.p), mask_index)

    def on_gpu(self):
        return self.lib.c.splat_kernel_device(self.p) == DEVICE_GPU

    def workspace_bytes(self, batch, heads):
        size = SIZE()
        self.lib.check(self.lib.c.splat_workspace_bytes(self.p, batch, heads, C.byref(size)))
        return size.value

    def run_sparse(self, args, stream=None):
        """Launches an operator with SparseArgs."""
        self.lib.check(self.lib.c.splat_run_sparse(self.p, C.byref(args), stream))

    def run(self, args, stream=None):
        """Launches with AttentionArgs or SparseArgs on a raw stream handle (an int; None = the default stream)."""
        run = self.lib.c.splat_run_sparse if isinstance(args, SparseArgs) else self.lib.c.splat_run
        status = run(self.p, C.byref(args), stream)
        if status:
            self.lib.check(status)


class Layer(Handle):
    """A Kronecker-sparse layer. Keeps its context alive."""

    def workspace_bytes(self, n, backward=False):
        size = SIZE()
        self.lib.check(self.lib.c.splat_layer_workspace_bytes(self.p, n, int(backward), C.byref(size)))
        return size.value

    def forward(self, args, stream=None):
        self.lib.check(self.lib.c.splat_layer_forward(self.p, C.byref(args), stream))

    def backward(self, args, stream=None):
        self.lib.check(self.lib.c.splat_layer_backward(self.p, C.byref(args), stream))


class Context(Handle):
    def compile(self, mask, **options):
        return self.lib.compile(self, mask, **options)

    def compile_to_cache(self, mask, **options):
        info, opts = CompileInfo(), self.lib.options(**options)
        self.lib.c.splat_compile_info_init(C.byref(info))
        self.lib.check(self.lib.c.splat_compile_to_cache(self.p, mask.p, C.byref(opts), C.byref(info)))
        return {n: getattr(info, n) for n, _ in CompileInfo._fields_ if n not in ("struct_size", "key")}


class Splat:
    """The library: load once, make everything else from it."""

    def __init__(self, path=None):
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.path = path or os.environ.get("SPLAT_LIB") or os.path.join(root, "build", "libsplat.so")
        self.c = C.CDLL(os.path.abspath(self.path))
        self.has_operators = all(hasattr(self.c, name) for name in OPERATORS)
        self.has_layers = all(hasattr(self.c, name) for name in LAYERS)
        prototypes = {**PROTOTYPES, **(OPERATORS if self.has_operators else {}), **(LAYERS if self.has_layers else {})}
        for name, (result, arguments) in prototypes.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        self.messages = []

    def check(self, status):
        if status != OK:
            raise SplatError(status, self.c.splat_status_name(status).decode(),
                             self.c.splat_last_error().decode(errors="replace"))

    def out(self, name, *arguments):
        pointer = PTR()
        self.check(getattr(self.c, name)(*arguments, C.byref(pointer)))
        return pointer.value

    def version(self):
        return self.c.splat_version().decode()

    def device(self):
        name, capability = C.create_string_buffer(256), I32()
        self.check(self.c.splat_device_query(name, 256, C.byref(capability)))
        return name.value.decode(), capability.value

    def _mask(self, pointer):
        return Mask(self, pointer, self.c.splat_mask_destroy)

    def expression(self, text, q_len, kv_len=None, align=BOTTOM_RIGHT):
        return self._mask(self.out("splat_mask_from_expression", text.encode(), q_len,
                                   q_len if kv_len is None else kv_len, align))

    def from_bytes(self, array):
        """A 2-d uint8 or bool torch CPU tensor, last axis contiguous."""
        assert array.element_size() == 1 and array.stride(1) == 1 and array.device.type == "cpu"
        return self._mask(self.out("splat_mask_from_bytes", array.data_ptr(), array.shape[0], array.shape[1],
                                   array.stride(0)))

    def from_bits(self, packed, q_len, kv_len):
        """A 2-d uint8 torch CPU tensor of bits, least significant first."""
        assert packed.element_size() == 1 and packed.stride(1) == 1 and packed.device.type == "cpu"
        return self._mask(self.out("splat_mask_from_bits", packed.data_ptr(), q_len, kv_len, packed.stride(0)))

    def map(self, masks, batch, heads):
        assert len(masks) == batch * heads
        entries = (PTR * len(masks))(*[m.p for m in masks])
        return self._mask(self.out("splat_mask_map", entries, batch, heads))

    def options(self, **fields):
        options = Options()
        self.c.splat_options_init(C.byref(options))
        for name, value in fields.items():
            if not hasattr(options, name):
                raise TypeError(f"splat_options has no field {name}")
            setattr(options, name, value)
        return options

    def plan(self, mask, **options):
        opts = self.options(**options)
        return Plan(self, self.out("splat_plan_create", mask.p, C.byref(opts)), self.c.splat_plan_destroy)

    def context(self, cache_dir=None, cache_mode=CACHE_ENV, threads=0):
        options = ContextOptions()
        self.c.splat_context_options_init(C.byref(options))
        log = LogFn(lambda level, text, user: self.messages.append((level, text.decode(errors="replace"))))
        options.log, options.cache_mode, options.threads = log, cache_mode, threads
        options.cache_dir = cache_dir.encode() if cache_dir else None
        context = Context(self, self.out("splat_context_create", C.byref(options)), self.c.splat_context_destroy)
        context.log = log  # the callback lives as long as the context
        return context

    def compile(self, context, mask, **options):
        opts = self.options(**options)
        kernel = Kernel(self, self.out("splat_compile", context.p, mask.p, C.byref(opts)), self.c.splat_kernel_destroy)
        kernel.context, kernel.mask = context, mask
        return kernel

    def layer(self, context, masks, **fields):
        """The layer of these factors' masks, the one applied first at masks[0]."""
        options = LayerOptions()
        self.c.splat_layer_options_init(C.byref(options))
        for name, value in fields.items():
            if not hasattr(options, name):
                raise TypeError(f"splat_layer_options has no field {name}")
            setattr(options, name, value)
        pointers = (PTR * len(masks))(*[m.p for m in masks])
        layer = Layer(self, self.out("splat_layer_compile", context.p, pointers, len(masks), C.byref(options)),
                      self.c.splat_layer_destroy)
        layer.context = context
        return layer

    def layer_args(self, n, weights, weight_gradients=None, workspace=None, **named):
        """LayerArgs: weights and weight_gradients are lists of tensors, x, y, bias, dy, dx packed tensors; keeps them alive."""
        args = LayerArgs()
        self.c.splat_layer_args_init(C.byref(args))
        args.n, args.weights = n, (PTR * len(weights))(*[w.data_ptr() for w in weights])
        if weight_gradients is not None:
            args.weight_gradients = (PTR * len(weight_gradients))(*[w.data_ptr() for w in weight_gradients])
        for name, t in named.items():
            assert t.is_contiguous(), name
            setattr(args, name, t.data_ptr())
        if workspace is not None:
            args.workspace, args.workspace_bytes = workspace.data_ptr(), workspace.numel() * workspace.element_size()
        args.tensors = (weights, weight_gradients, workspace, named)
        return args

    def plan_info(self, plan):
        info = PlanInfo()
        self.c.splat_plan_info_init(C.byref(info))
        self.check(self.c.splat_plan_get_info(plan, C.byref(info)))
        return {n: getattr(info, n) for n, _ in PlanInfo._fields_ if n != "struct_size"}

    def tiles_by_predicate(self, plan, mask_index=0):
        """{predicate name: tiles} of one distinct mask; FULL tiles count under "none"."""
        counts = {}

        def visit(stretch, _user):
            name = stretch[0].predicate.decode()
            counts[name] = counts.get(name, 0) + stretch[0].tiles
            return 0

        self.check(self.c.splat_plan_visit_tiles(plan, mask_index, TileFn(visit), None))
        return counts

    def dump(self, mask, stage, **options):
        pieces, opts = [], self.options(**options)

        def write(text, size, _user):
            pieces.append(C.string_at(text, size))
            return 0

        self.check(self.c.splat_dump(mask.p, C.byref(opts), STAGES[stage], WriteFn(write), None))
        return b"".join(pieces).decode()

    def args(self, q, k, v, o, lse=None, scale=0.0, workspace=None):
        """AttentionArgs of [batch, heads, rows, D] tensors (any strides, D contiguous); keeps the tensors alive."""
        for name, t in (("q", q), ("k", k), ("v", v), ("o", o)):
            assert t.dim() == 4 and (t.stride(3) == 1 or t.shape[3] == 1), name
        args = AttentionArgs()
        self.c.splat_attention_args_init(C.byref(args))
        args.batch, args.heads, args.q_len = q.shape[0], q.shape[1], q.shape[2]
        args.kv_heads, args.kv_len = k.shape[1], k.shape[2]
        args.q, args.k, args.v, args.o = (tensor(t) for t in (q, k, v, o))
        if lse is not None:
            assert lse.dim() == 3 and (lse.stride(2) == 1 or lse.shape[2] == 1)
            args.lse = lse.data_ptr()
            args.lse_batch_stride, args.lse_head_stride = lse.stride(0), lse.stride(1)
        args.scale = scale
        if workspace is not None:
            args.workspace = workspace.data_ptr()
            args.workspace_bytes = workspace.numel() * workspace.element_size()
        args.tensors = (q, k, v, o, lse, workspace)
        return args

    def sparse_args(self, q_len, kv_len, values, scores=None, q=None, k=None, x=None, y=None, lse=None, scale=0.0,
                    kv_heads=0):
        """SparseArgs of values [batch, heads, at least the pairs] and [batch, heads, rows, D] tensors; keeps them alive."""
        args = SparseArgs()
        self.c.splat_sparse_args_init(C.byref(args))
        args.batch, args.heads, args.kv_heads, args.q_len, args.kv_len = *values.shape[:2], kv_heads, q_len, kv_len
        for name, t in (("values", values), ("scores", scores)):
            if t is not None:
                assert t.dim() == 3 and t.stride(2) == 1, name
                setattr(args, name, Values(t.data_ptr(), t.stride(0), t.stride(1)))
        for name, t in (("q", q), ("k", k), ("x", x), ("y", y)):
            if t is not None:
                assert t.dim() == 4 and t.stride(3) == 1, name
                setattr(args, name, tensor(t))
        if lse is not None:
            args.lse, args.lse_batch_stride, args.lse_head_stride = lse.data_ptr(), lse.stride(0), lse.stride(1)
        args.scale = scale
        args.tensors = (values, scores, q, k, x, y, lse)
        return args


def tensor(t):
    """splat_tensor of a 4-d torch tensor [batch, heads, rows, D]."""
    return Tensor(t.data_ptr(), t.stride(0), t.stride(1), t.stride(2))


def layout_differences(program):
    """Compares every struct with what the C program prints; returns sentences, none when all agree."""
    theirs, problems = {}, []
    for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        struct, field, value = line.split()
        theirs[struct, field] = int(value)
    ours = {}
    for name, struct in STRUCTS.items():
        ours[name, "size"] = C.sizeof(struct)
        for field in struct._fields_:
            ours[name, field[0]] = getattr(struct, field[0]).offset
    for key in sorted(set(ours) | set(theirs)):
        if ours.get(key) != theirs.get(key):
            problems.append(f"{key[0]}.{key[1]}: {ours.get(key)} here, {theirs.get(key)} in C")
    return problems, len(ours)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layout", required=True, help="path of the built bench/layout.c")
    problems, count = layout_differences(parser.parse_args().layout)
    print("\n".join(problems) if problems else f"{count} offsets and sizes agree")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
