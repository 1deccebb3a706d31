"""The correctness groups: each a function of an Env that calls env.check for every case.

GROUPS lists them as (name, function, needs a GPU). Sizes shrink with env.quick, which serves the CPU engine.
"""
import torch

import splat_ctypes
import suite
from check_env import pack_bits, same_bits

FP16, BF16 = torch.float16, torch.bfloat16
ALIGNS = ((splat_ctypes.BOTTOM_RIGHT, "bottom right"), (splat_ctypes.TOP_LEFT, "top left"))


def small(name):
    """A pattern of the small suite by the start of its name."""
    return next(p for p in suite.SMALL if p.name.startswith(name))


# ---- The suite ----

def suite_at_8192(dtype, dim):
    def group(env):
        q_len = 1024 if env.quick else 8192
        q, k, v = env.qkv(dtype, dim, q_len=q_len)
        for pattern in suite.SUITE:
            env.check(pattern.name, env.compare_pattern, pattern, q, k, v, rows=env.sampled(q_len))
    return group


def suite_small(dtype, dim):
    def group(env):
        for q_len in (129, 17) if env.quick else (384, 1000, 129, 17, 1):
            q, k, v = env.qkv(dtype, dim, q_len=q_len)
            for pattern in suite.SMALL + suite.SUITE:
                env.check(f"{pattern.expression} at {q_len}", env.compare_pattern, pattern, q, k, v)
    return group


def lengths(env):
    """Lengths that are not a multiple of a tile, of a period, of 8."""
    for q_len in (2, 63, 127) if env.quick else (1, 2, 17, 63, 64, 65, 127, 128, 129, 191, 257, 1000, 4095):
        q, k, v = env.qkv(BF16, q_len=q_len)
        for start in ("causal", "window37", "strided3", "st_fixed"):
            env.check(f"{start} at {q_len}", env.compare_pattern, small(start), q, k, v)


# ---- Shapes of the tensors ----

def head_dims(env):
    dims = [(8, 8), (40, 40), (72, 72), (80, 80), (96, 96), (192, 192), (256, 256), (64, 128), (128, 64), (192, 128),
            (40, 96), (256, 8), (16, 256)]
    for dim, value_dim in dims[:3] + dims[10:11] if env.quick else dims:
        for dtype in (FP16, BF16):
            q, k, v = env.qkv(dtype, dim, q_len=300, value_dim=value_dim)
            for start in ("causal_window", "longformer", "st_fixed"):
                env.check(f"{start} {dtype} D {dim} Dv {value_dim}", env.compare_pattern, small(start), q, k, v)


def grouped_heads(env):
    for ratio in (3, 5, 7):
        for kv_heads in (1, 2):
            q, k, v = env.qkv(BF16, heads=ratio * kv_heads, kv_heads=kv_heads, batch=2, q_len=200)
            for start in ("causal", "bigbird"):
                env.check(f"{start}, {ratio} query heads on each of {kv_heads}", env.compare_pattern, small(start), q,
                          k, v)


def layouts(env):
    """[B, S, H, D] and [B, H, S, D] by strides, mixed, and a batch of 2."""
    for q_layout, kv_layout in (("bshd", "bshd"), ("bhsd", "bshd"), ("bshd", "bhsd")):
        for dtype in (FP16, BF16):
            q = env.guarded(2, 4, 333, 64, dtype, q_layout)[0]
            k, v = (env.guarded(2, 4, 333, 64, dtype, kv_layout)[0] for _ in range(2))
            for start in ("causal", "longformer"):
                env.check(f"{start} {dtype} q {q_layout} kv {kv_layout}", env.compare_pattern, small(start), q, k, v,
                          layout=q_layout)
    packed = env.guarded(2, 3 * 4, 300, 64, BF16, "bshd")[0]  # one [B, S, 3H, D] projection
    q, k, v = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    env.check("q, k, v cut out of one packed tensor", env.compare_pattern, small("window37"), q, k, v)


def unequal_lengths(env):
    shapes = ((100, 260), (260, 100), (1, 700), (700, 1), (65, 1), (129, 1000), (1000, 129))
    for q_len, kv_len in shapes[:3] if env.quick else shapes:
        q, k, v = env.qkv(BF16, q_len=q_len, kv_len=kv_len)
        for align, name in ALIGNS:
            for start in ("causal", "window37", "st_strided", "prefix", "bigbird"):
                env.check(f"{start} {q_len} x {kv_len} {name}", env.compare_pattern, small(start), q, k, v, align=align)


# ---- Masks ----

def head_masks(env):
    """A mask for each (batch, head), one head with nothing allowed."""
    n = 300
    random = env.random_mask(n, n, 0.3)
    empty = torch.zeros((n, n), dtype=torch.uint8)
    lower = torch.ones((n, n), dtype=torch.uint8).tril()
    band = lower.triu(-40)
    tables = [lower, empty, band, random]
    masks = [env.lib.expression("causal", n), env.lib.from_bytes(empty), env.lib.expression("window(40, 0)", n),
             env.lib.from_bytes(random)]
    for batch, heads, label in ((1, 4, "a mask a head"), (2, 1, "a mask a batch entry"), (2, 4, "both")):
        order = [(3 * b + h) % 4 for b in range(batch) for h in range(heads)]
        mask = env.lib.map([masks[m] for m in order], batch, heads)
        allowed = torch.stack([tables[m] for m in order]).view(batch, heads, n, n)
        for dtype in (FP16, BF16):
            q, k, v = env.qkv(dtype, batch=2, heads=4, q_len=n)
            env.check(f"{label} {dtype}", env.compare, mask, allowed, q, k, v)
            q, k, v = env.qkv(dtype, batch=2, heads=4, kv_heads=2, q_len=n)
            env.check(f"{label} {dtype}, grouped heads", env.compare, mask, allowed, q, k, v)


def empty_rows(env):
    n = 300
    cuts = {"first": [0], "middle": [150], "last": [n - 1], "a whole tile": list(range(128, 256)),
            "all": list(range(n)), "every second": list(range(0, n, 2)), "all but one": list(range(1, n))}
    for label, rows in cuts.items():
        table = env.random_mask(n, n, 0.3)
        table[rows] = 0
        for dtype in (FP16, BF16):
            q, k, v = env.qkv(dtype, q_len=n)
            env.check(f"{label} {dtype}", env.compare, env.lib.from_bytes(table), table, q, k, v)
    table = env.random_mask(n, n, 0.3)
    table[::3, :192] = 0  # first column tiles empty for some rows of each tile, later ones not
    table[1::3, 192:] = 0
    q, k, v = env.qkv(BF16, q_len=n)
    env.check("first tiles empty for a third of the rows", env.compare, env.lib.from_bytes(table), table, q, k, v)
    for expression in ("rows(0, 0)", "full - full"):
        mask = env.lib.expression(expression, n)
        env.check(expression, env.compare, mask, torch.zeros((n, n)), q, k, v)


def random_bytes(env):
    for density in (0.001, 0.02, 0.5, 0.98):
        for q_len, kv_len in ((257, 257), (129, 400), (400, 65)):
            table = env.random_mask(q_len, kv_len, density)
            for dtype, dim in ((FP16, 128), (BF16, 64)):
                q, k, v = env.qkv(dtype, dim, q_len=q_len, kv_len=kv_len)
                env.check(f"{density} {q_len} x {kv_len} {dtype}", env.compare, env.lib.from_bytes(table), table, q,
                          k, v)
    lo = torch.randint(0, 400, (400, 1), generator=env.host)
    hi = lo + torch.randint(0, 200, (400, 1), generator=env.host)
    j = torch.arange(400)[None, :]
    table = ((j >= lo) & (j < hi)).to(torch.uint8)
    q, k, v = env.qkv(BF16, q_len=400)
    env.check("one random interval a row", env.compare, env.lib.from_bytes(table), table, q, k, v)
    single = torch.zeros((400, 400), dtype=torch.uint8)
    single[torch.arange(400), torch.randint(1, 400, (400,), generator=env.host)] = 1
    env.check("one random key a row", env.compare, env.lib.from_bytes(single), single, q, k, v)


def same_mask_other_source(env):
    """The same pairs from bytes, bits and an expression: bitwise the same output."""
    n = 200 if env.quick else 777
    for pattern in suite.SMALL:
        shape = suite.shape_of(env.lib, pattern, n)
        table = suite.rows_of(pattern, shape, range(n)).to(torch.uint8).contiguous()
        q, k, v = env.qkv(BF16, q_len=n)
        runs = {"expression": env.attend(env.lib.expression(pattern.expression, n), q, k, v),
                "bytes": env.attend(env.lib.from_bytes(table), q, k, v),
                "bits": env.attend(env.lib.from_bits(pack_bits(table), n, n), q, k, v)}
        for other in ("bytes", "bits"):
            env.check(f"{pattern.name} {other}", same_bits, (runs["expression"], runs[other]), f"from {other}")
    for n in (129, 1000):
        q, k, v = env.qkv(FP16, q_len=n)
        pair = [env.attend(env.lib.expression(e, n), q, k, v) for e in (f"window({n - 1}, 0)", "causal")]
        env.check(f"window(S-1, 0) is causal at {n}", same_bits, pair, "between window(S-1, 0) and causal")


# ---- Values ----

def nonfinite(env):
    n, nan, inf = 400, float("nan"), float("inf")
    holes = "(full - cols(100, 165)) - cols(399, 400)"
    j = torch.arange(n)
    keep = ~(((j >= 100) & (j < 165)) | (j == n - 1))
    for dtype in (FP16, BF16):
        for expression, base in (("full", torch.ones((n, n), dtype=torch.bool)),
                                 ("causal", torch.ones((n, n), dtype=torch.bool).tril()),
                                 ("strided(3)", (j[:, None] - j[None, :]) % 3 == 0)):
            q, k, v = env.qkv(dtype, q_len=n)
            for t in (k, v):
                t[:, :, 100:165:2], t[:, :, 101:165:2], t[:, :, n - 1] = nan, inf, -inf
            mask = env.lib.expression(f"({expression}) & ({holes})", n)
            env.check(f"NaN and Inf in masked K and V, {expression} {dtype}", env.compare, mask, base & keep, q, k, v)
        for expression in ("causal", "window(70)", "causal & strided(3)", "blocks(90)"):
            q, k, v = env.qkv(dtype, q_len=n)
            v[:, :, 170, 3:6] = nan
            v[:, 1:, 200] = nan
            mask = env.lib.expression(expression, n)
            allowed = torch.tensor([list(row) for row in mask.rows(range(n))], dtype=torch.bool)
            env.check(f"NaN in an allowed V key, {expression} {dtype}", env.compare, mask, allowed, q, k, v)
        table = env.random_mask(n, n, 0.5)
        q, k, v = env.qkv(dtype, q_len=n)
        v[:, :, 65] = nan
        env.check(f"NaN in V under a random mask {dtype}", env.compare, env.lib.from_bytes(table), table, q, k, v)


def low_scores(env):
    """Every valid score lies below -5e4: integers, exact in fp32. A finite sentinel would lose them."""
    n = 300
    for dtype, dim in ((FP16, 64), (BF16, 64), (BF16, 128)):
        q, k, v = env.qkv(dtype, dim, q_len=n)
        q.fill_(32.0), k.fill_(-32.0)
        for t, top in ((q, 2), (k, 3)):
            t[..., -4:] = torch.randint(0, top, t[..., -4:].shape, generator=env.generator, device=env.device).to(dtype)
        for expression in ("causal", "window(37)", "full", "strided(3)"):
            mask = env.lib.expression(expression, n)
            allowed = torch.tensor([list(row) for row in mask.rows(range(n))], dtype=torch.bool)
            env.check(f"{expression} {dtype} D {dim}", env.compare, mask, allowed, q, k, v, scale=1.0, loosen=10.0)
    for scale in (0.01, 3.0):
        q, k, v = env.qkv(BF16, q_len=n)
        allowed = torch.ones((n, n), dtype=torch.bool).tril()
        env.check(f"scale {scale}", env.compare, env.lib.expression("causal", n), allowed, q, k, v, scale=scale,
                  loosen=2.0)
    q, k, v = env.qkv(BF16, q_len=n)
    env.check("lse not wanted", env.compare, env.lib.expression("causal", n), allowed, q, k, v, lse=False)


def rising_scores(env):
    """Scores that rise along the keys: by more than fp16 holds from tile to tile, and by more than fp32 does. A maximum that is
    kept from the first tiles must be raised, or the item done again."""
    n = 700
    for dtype, dim in ((FP16, 64), (BF16, 64), (FP16, 128), (BF16, 128)):
        for name, step in (("rise", 12.5), ("leap", 105.0)):
            q, k, v = env.qkv(dtype, dim, q_len=n)
            root = (step * dim**0.5) ** 0.5
            q[..., 0] = root
            k[..., 0] = torch.arange(n, device=env.device).div(70, rounding_mode="floor") * root
            for expression in ("causal", "causal & window(200, 0)", "full", "causal & (window(90, 0) | strided(8))"):
                mask = env.lib.expression(expression, n)
                allowed = torch.tensor([list(row) for row in mask.rows(range(n))], dtype=torch.bool)
                env.check(f"{name} {expression} {dtype} D {dim}", env.compare, mask, allowed, q, k, v, loosen=2.0)


# ---- Tiles ----

def tile_shapes(env):
    """Every forced tile shape gives the right answer or is refused as unsupported; one at least must run."""
    n = 200 if env.quick else 777
    table = env.random_mask(n, n, 0.4)
    table[:, 256:384] = 1
    for dim in (64,) if env.quick else (64, 128, 256):
        ran = 0
        for rows in (64, 128):
            for cols in (32, 64, 128):
                ran += one_tile_shape(env, n, table, dim, rows, cols)
        env.check(f"some shape runs at D {dim}", lambda: [] if ran else ["every tile shape was refused"])


def one_tile_shape(env, n, table, dim, rows, cols):
    q, k, v = env.qkv(BF16, dim, q_len=n)
    forced = {"tile_rows": rows, "tile_cols": cols}
    try:
        env.compile(env.lib.expression("causal", n), q, k, v, **forced)
    except splat_ctypes.SplatError as error:
        if error.status != splat_ctypes.UNSUPPORTED:
            env.failures.append(f"{rows} x {cols} D {dim}: {error}")
        else:
            env.skip(f"{rows} x {cols} D {dim}")
        return 0
    for start in ("causal_window", "strided3", "longformer", "st_fixed", "na2d"):
        env.check(f"{start} {rows} x {cols} D {dim}", env.compare_pattern, small(start), q, k, v, **forced)
    env.check(f"random {rows} x {cols} D {dim}", env.compare, env.lib.from_bytes(table), table, q, k, v, **forced)
    return 1


# ---- Few queries before a long cache, row tiles in parts ----

def decode(env):
    """Heads of a group in one row tile, keys in parts: groups that are and are not a power of two, up to 16 queries."""
    sizes = ((1, 100), (3, 700)) if env.quick else ((1, 64), (1, 1000), (2, 333), (5, 8193), (16, 4096), (33, 3000))
    for q_len, kv_len in sizes:
        for heads, kv_heads in ((8, 2), (6, 2), (5, 1), (8, 8), (24, 2)):
            for expression in ("causal", "causal & window(500, 0)", "full", "comb(16, 4)", "causal & strided(3)"):
                for dim, tile in ((64, {}), (128, {}), (128, {"tile_rows": 64, "tile_cols": 32})):
                    mask = env.lib.expression(expression, q_len, kv_len)
                    allowed = torch.tensor([list(row) for row in mask.rows(range(q_len))], dtype=torch.bool)
                    q, k, v = env.qkv(BF16, dim, heads=heads, kv_heads=kv_heads, batch=2, q_len=q_len, kv_len=kv_len)
                    v[:, :, kv_len // 2] = float("nan")  # for the rows that may see it alone
                    env.check(f"{expression} {q_len} x {kv_len}, {heads} heads on {kv_heads}, D {dim} {tile}", env.compare,
                              mask, allowed, q, k, v, lse=heads != 5, **tile)
    q, k, v = env.qkv(BF16, 128, heads=8, kv_heads=2, q_len=1, kv_len=5000)
    kernel = env.compile(env.lib.expression("full", 1, 5000), q, k, v)
    for heads, kv_heads in ((8, 2), (16, 4), (16, 1), (3, 3)):  # other counts than it was compiled for
        q, k, v = env.qkv(BF16, 128, heads=heads, kv_heads=kv_heads, q_len=1, kv_len=5000)
        env.check(f"{heads} heads on {kv_heads} by a kernel for 8 on 2", env.compare, None, torch.ones((1, 5000)), q, k, v,
                  kernel=kernel)
    for batch_masks in ("causal & window(99, 0)", "full - full"):
        masks = [env.lib.expression("full", 2, 900), env.lib.expression(batch_masks, 2, 900)]
        allowed = torch.stack([torch.tensor([list(row) for row in m.rows(range(2))], dtype=torch.bool) for m in masks])
        q, k, v = env.qkv(BF16, 64, heads=8, kv_heads=2, batch=2, q_len=2, kv_len=900)
        env.check(f"a mask a batch entry, {batch_masks}", env.compare, env.lib.map(masks, 2, 1), allowed[:, None], q, k, v)


def long_rows(env):
    """Row tiles that are longer than all else, so that they come in parts; merged parts too."""
    for expression in ("window(30) | rows(0, 40) | cols(0, 9)", "rows(100, 101)", "causal & (window(50, 0) | rows(1900, 2000))",
                       "window(30) | strided(2)", "full", "random_blocks(64, 2, 5) | rows(64, 128)"):
        for dim in (64, 128, 256):
            for layout in range(0, 5):
                n = 600 if env.quick else 2000
                mask = env.lib.expression(expression, n)
                allowed = torch.tensor([list(row) for row in mask.rows(range(n))], dtype=torch.bool)
                q, k, v = env.qkv(BF16, dim, q_len=n)
                v[:, :, n // 3] = float("nan")
                try:
                    kernel = env.compile(mask, q, k, v, layout=layout)
                except splat_ctypes.SplatError as error:
                    if error.status != splat_ctypes.UNSUPPORTED:
                        env.failures.append(f"{expression} layout {layout}: {error}")
                    continue
                env.check(f"{expression} D {dim} layout {layout}", env.compare, mask, allowed, q, k, v, kernel=kernel,
                          lse=layout % 2 == 0)


# ---- Views ----

VIEW_MASKS = ("strided(5)", "dilated(40, 3)", "causal & (window(20, 0) | strided(32))", "causal & (blocks(32) | comb(32, 8))",
              "comb(48, 5) - window(9)", "axial(24)", "grid(32, 5)", "grid(30, 7)", "swin(32, 8, 4)", "checkerboard(24)",
              "strided(6) | strided(9)", "~strided(7)", "causal & ~comb(40, 16)")
LAYOUTS_TRIED = 8


def views(dim, family):
    """Every layout that a mask suggests; lengths that do and do not fit the lattice. "portable" forces a tile shape that
    only the portable kernel has."""
    tile = {"tile_rows": 128, "tile_cols": 32} if family == "portable" else {}

    def group(env):
        ran = 0
        for q_len, kv_len in ((768, 768), (700, 651)) if env.quick else ((768, 768), (700, 651), (333, 720), (2048, 2048)):
            for expression in VIEW_MASKS:
                ran += views_of(env, dim, tile, expression, q_len, kv_len)
        env.check(f"views run at D {dim}, {family}", lambda: [] if ran >= 40 else [f"only {ran} layouts with views ran"])
    return group


def views_of(env, dim, tile, expression, q_len, kv_len):
    try:
        mask = env.lib.expression(expression, q_len, kv_len)
    except splat_ctypes.SplatError:
        return 0  # wants other lengths
    allowed = torch.tensor([list(row) for row in mask.rows(range(q_len))], dtype=torch.bool)
    q, k, v = env.qkv(BF16, dim, q_len=q_len, kv_len=kv_len)
    v[:, :, kv_len // 2] = float("nan")  # for the rows that may see it alone
    ran = 0
    for layout in range(2, LAYOUTS_TRIED):
        try:
            kernel = env.compile(mask, q, k, v, layout=layout, **tile)
        except splat_ctypes.SplatError as error:
            if error.status != splat_ctypes.UNSUPPORTED:
                env.failures.append(f"{expression} layout {layout}: {error}")
            continue
        ran += 1
        env.check(f"{expression} {q_len} x {kv_len} layout {layout} D {dim} {tile}", env.compare, mask, allowed, q, k, v,
                  kernel=kernel, lse=ran % 2 == 0)
    return ran


GROUPS = [(f"suite8192_{name}_d{dim}", suite_at_8192(dtype, dim), False)
          for dtype, name in ((FP16, "fp16"), (BF16, "bf16")) for dim in (64, 128)]
GROUPS += [(f"suite_small_{name}_d{dim}", suite_small(dtype, dim), False)
           for dtype, name in ((FP16, "fp16"), (BF16, "bf16")) for dim in (64, 128)]
GROUPS += [(f.__name__, f, False) for f in (lengths, head_dims, grouped_heads, layouts, unequal_lengths, head_masks,
                                            empty_rows, random_bytes, same_mask_other_source, nonfinite, low_scores, rising_scores,
                                            tile_shapes, decode, long_rows)]
GROUPS += [(f"views_d{dim}_{family}", views(dim, family), False) for dim in (64, 128) for family in ("default", "portable")]
