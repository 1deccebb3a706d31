"""libsplat.so through ctypes: the structs and prototypes of include/splat.h, and errors as exceptions.

The library is `$SPLAT_LIB`, else the one inside this package, else the one that `make` built beside it. Calls release the
GIL. Nothing here touches a GPU.
"""

from __future__ import annotations

import ctypes as C
import os
import pathlib
from typing import Any, ClassVar

BOTTOM_RIGHT, TOP_LEFT = 0, 1
ALIGNMENTS = {"bottom_right": BOTTOM_RIGHT, "top_left": TOP_LEFT}
UNION, INTERSECTION, DIFFERENCE = 0, 1, 2
FP16, BF16, FP32 = 0, 1, 2
DTYPES = {"float16": FP16, "bfloat16": BF16, "float32": FP32}
ATTENTION, SDDMM, SOFTMAX, SPMM, SPMM_TRANSPOSED = range(5)
DEVICE_AUTO, DEVICE_CPU, DEVICE_GPU = 0, 1, 2
DEVICES = {"auto": DEVICE_AUTO, "cpu": DEVICE_CPU, "gpu": DEVICE_GPU}
ARCHS = {"auto": 0, "sm_80": 80, "sm_90a": 90}
STAGES = {"acsr": 0, "plan": 1, "spec": 2, "source": 3, "ptx": 4, "log": 5}
OK, INVALID, UNSUPPORTED, NO_MEMORY, IO, NO_DEVICE, COMPILE, CUDA, INTERNAL = range(9)

_int, _i64, _size, _ptr, _double = C.c_int, C.c_int64, C.c_size_t, C.c_void_p, C.c_double

LogFn = C.CFUNCTYPE(None, _int, C.c_char_p, _ptr)
WriteFn = C.CFUNCTYPE(_int, _ptr, _size, _ptr)


# Structs that the library fills and may lengthen in a later version: room for that, so that it never writes past ours.
_ROOM: Any = [("room", C.c_char * 128)]


class AcsrRun(C.Structure):
    _fields_: ClassVar[Any] = [(name, C.c_int32) for name in ("start", "stride", "count", "width")]


class Options(C.Structure):
    _fields_: ClassVar[Any] = (
        [("struct_size", _size), ("dtype", _int), ("device", _int), ("arch", _int)]
        + [(name, _i64) for name in ("head_dim", "value_dim", "batch", "heads", "kv_heads", "tile_rows", "tile_cols", "layout")]
        + [("op", _int)]
        + _ROOM
    )


class PlanInfo(C.Structure):
    _fields_: ClassVar[Any] = (
        [("struct_size", _size)]
        + [
            (name, _i64)
            for name in (
                "q_len", "kv_len", "masks", "allowed_pairs", "computed_pairs", "full_tiles", "partial_tiles", "passes",
                "families", "tile_rows", "tile_cols", "descriptor_bytes", "candidates",
            )
        ]
        + [(name, _double) for name in ("density", "waste", "plan_ms", "predicted_us")]
        + _ROOM
    )  # fmt: skip


class ContextOptions(C.Structure):
    _fields_: ClassVar[Any] = [
        ("struct_size", _size),
        ("log", LogFn),
        ("log_user", _ptr),
        ("cache_dir", C.c_char_p),
        ("cache_mode", _int),
        ("cache_max_bytes", _i64),
        ("threads", _int),
        ("self_check", _int),
    ] + _ROOM


class Tensor(C.Structure):
    _fields_: ClassVar[Any] = [("data", _ptr), ("batch_stride", _i64), ("head_stride", _i64), ("row_stride", _i64)]


class AttentionArgs(C.Structure):
    _fields_: ClassVar[Any] = (
        [("struct_size", _size)]
        + [(name, _i64) for name in ("batch", "heads", "kv_heads", "q_len", "kv_len")]
        + [(name, Tensor) for name in ("q", "k", "v", "o")]
        + [("lse", _ptr), ("lse_batch_stride", _i64), ("lse_head_stride", _i64), ("scale", C.c_float)]
        + [("workspace", _ptr), ("workspace_bytes", _size)]
        + _ROOM
    )


class Values(C.Structure):
    _fields_: ClassVar[Any] = [("data", _ptr), ("batch_stride", _i64), ("head_stride", _i64)]


class SparseArgs(C.Structure):
    _fields_: ClassVar[Any] = (
        [("struct_size", _size)]
        + [(name, _i64) for name in ("batch", "heads", "kv_heads", "q_len", "kv_len")]
        + [(name, Values) for name in ("values", "scores")]
        + [(name, Tensor) for name in ("q", "k", "x", "y")]
        + [("lse", _ptr), ("lse_batch_stride", _i64), ("lse_head_stride", _i64), ("scale", C.c_float)]
        + _ROOM
    )


STRUCTS = {
    "splat_acsr_run": AcsrRun,
    "splat_options": Options,
    "splat_plan_info": PlanInfo,
    "splat_context_options": ContextOptions,
    "splat_tensor": Tensor,
    "splat_attention_args": AttentionArgs,
    "splat_values": Values,
    "splat_sparse_args": SparseArgs,
}

_out = C.POINTER(_ptr)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "splat_version": (C.c_char_p, []),
    "splat_status_name": (C.c_char_p, [_int]),
    "splat_last_error": (C.c_char_p, []),
    "splat_pattern_help": (C.c_char_p, []),
    "splat_device_query": (_int, [C.c_char_p, _size, C.POINTER(_int)]),
    "splat_mask_from_expression": (_int, [C.c_char_p, _i64, _i64, _int, _out]),
    "splat_mask_from_bytes": (_int, [_ptr, _i64, _i64, _i64, _out]),
    "splat_mask_from_bits": (_int, [_ptr, _i64, _i64, _i64, _out]),
    "splat_mask_from_blocks": (_int, [_ptr, _i64, _i64, _i64, _i64, _i64, _out]),
    "splat_mask_from_csr": (_int, [_ptr, _ptr, _i64, _i64, _out]),
    "splat_mask_map": (_int, [_out, _i64, _i64, _out]),
    "splat_mask_from_acsr": (_int, [_ptr, _out]),
    "splat_mask_destroy": (None, [_ptr]),
    "splat_acsr_create": (_int, [_ptr, _out]),
    "splat_acsr_combine": (_int, [_ptr, _int, _ptr, _out]),
    "splat_acsr_complement": (_int, [_ptr, _out]),
    "splat_acsr_destroy": (None, [_ptr]),
    "splat_acsr_pairs": (_i64, [_ptr]),
    "splat_acsr_families": (_i64, [_ptr]),
    "splat_acsr_equal": (_int, [_ptr, _ptr]),
    "splat_acsr_row": (_int, [_ptr, _i64, C.POINTER(AcsrRun), _i64, C.POINTER(_i64)]),
    "splat_acsr_expand_row": (_int, [_ptr, _i64, _ptr]),
    "splat_acsr_row_offsets": (_int, [_ptr, _ptr]),
    "splat_acsr_to_csr": (_int, [_ptr, _ptr, _ptr]),
    "splat_acsr_transpose": (_int, [_ptr, _out]),
    "splat_options_init": (None, [C.POINTER(Options)]),
    "splat_plan_create": (_int, [_ptr, C.POINTER(Options), _out]),
    "splat_plan_destroy": (None, [_ptr]),
    "splat_plan_info_init": (None, [C.POINTER(PlanInfo)]),
    "splat_plan_get_info": (_int, [_ptr, C.POINTER(PlanInfo)]),
    "splat_plan_candidate": (
        _int, [_ptr, _i64, C.POINTER(C.c_char_p), C.POINTER(C.c_char_p), C.POINTER(_double)]
    ),
    "splat_dump": (_int, [_ptr, C.POINTER(Options), _int, WriteFn, _ptr]),
    "splat_context_options_init": (None, [C.POINTER(ContextOptions)]),
    "splat_context_create": (_int, [C.POINTER(ContextOptions), _out]),
    "splat_context_destroy": (None, [_ptr]),
    "splat_compile": (_int, [_ptr, _ptr, C.POINTER(Options), _out]),
    "splat_kernel_destroy": (None, [_ptr]),
    "splat_kernel_device": (_int, [_ptr]),
    "splat_attention_args_init": (None, [C.POINTER(AttentionArgs)]),
    "splat_workspace_bytes": (_int, [_ptr, _i64, _i64, C.POINTER(_size)]),
    "splat_sparse_args_init": (None, [C.POINTER(SparseArgs)]),
    "splat_run_sparse": (_int, [_ptr, C.POINTER(SparseArgs), _ptr]),
    "splat_run": (_int, [_ptr, C.POINTER(AttentionArgs), _ptr]),
}  # fmt: skip


class SplatError(RuntimeError):
    """A call of the library failed; the message is the library's sentence.

    Attributes
    ----------
    status : str
        Name of the status, such as ``"SPLAT_CUDA"``.
    """

    status = "SPLAT_INTERNAL"


class UnsupportedError(SplatError, NotImplementedError):
    """The request is meaningful, but nothing here can do it. The sentence says what can be done instead."""

    status = "SPLAT_UNSUPPORTED"


class NoDeviceError(SplatError):
    """There is no usable GPU, driver or NVRTC on this machine; the sentence says which and why."""

    status = "SPLAT_NO_DEVICE"


class CompileError(SplatError):
    """The generated kernel did not compile."""

    status = "SPLAT_COMPILE"


class CudaError(SplatError):
    """The CUDA driver reported an error."""

    status = "SPLAT_CUDA"


_EXCEPTIONS: dict[int, type[Exception]] = {
    INVALID: ValueError,
    UNSUPPORTED: UnsupportedError,
    NO_MEMORY: MemoryError,
    IO: OSError,
    NO_DEVICE: NoDeviceError,
    COMPILE: CompileError,
    CUDA: CudaError,
}


def library_path() -> pathlib.Path:
    """Path of the shared library that is used."""
    given = os.environ.get("SPLAT_LIB")
    if given:
        return pathlib.Path(given).resolve()
    here = pathlib.Path(__file__).resolve().parent
    bundled, built = here / "libsplat.so", here.parent.parent / "build" / "libsplat.so"
    return bundled if bundled.exists() or not built.exists() else built


def _load() -> C.CDLL:
    path = library_path()
    try:
        library = C.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"splat: the library {path} cannot be loaded ({error}); install the package with pip, or build the library "
            "with make, or set SPLAT_LIB to its path"
        ) from None
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(f"splat: {path} has no {name}; it must be a libsplat.so of this version")
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()
VERSION: str = lib.splat_version().decode()


def exception(status: int) -> Exception:
    """The exception for a status that was just returned on this thread."""
    sentence = lib.splat_last_error().decode(errors="replace")
    kind = _EXCEPTIONS.get(status)
    if kind is None:
        return SplatError(f"{sentence} ({lib.splat_status_name(status).decode()})")
    return kind(sentence)


def check(status: int) -> None:
    if status:
        raise exception(status)


class Handle:
    """Owns one opaque pointer of the library; `value` is its address."""

    __slots__ = ("_destroy", "value", "__weakref__")

    def __init__(self, kind: str, make: Any, *arguments: Any) -> None:
        self.value: int | None = None
        self._destroy = getattr(lib, f"splat_{kind}_destroy")
        pointer = C.c_void_p()
        check(make(*arguments, C.byref(pointer)))
        self.value = pointer.value

    def __del__(self) -> None:
        if getattr(self, "value", None) is not None:
            self._destroy(self.value)
            self.value = None


def make_options(**fields: int) -> Options:
    options = Options()
    lib.splat_options_init(C.byref(options))
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def choice(name: str, value: str, choices: dict[str, int]) -> int:
    """The number of one of a few words."""
    if value in choices:
        return choices[value]
    raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def dump(mask: int, options: Options, stage: str) -> str:
    pieces: list[bytes] = []

    def write(text: int, size: int, _user: object) -> int:
        pieces.append(C.string_at(text, size))
        return 0

    check(lib.splat_dump(mask, C.byref(options), STAGES[stage], WriteFn(write), None))
    return b"".join(pieces).decode()


def device_name() -> str | None:
    """Name of the GPU that is used, or None when there is no usable one."""
    name, capability = C.create_string_buffer(256), C.c_int()
    if lib.splat_device_query(name, len(name), C.byref(capability)):
        return None
    return name.value.decode(errors="replace")
