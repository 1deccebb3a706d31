"""The Kronecker-sparse factors that layers are checked and timed with, and their floor.

A line of FACTORS is one shape; adding one is adding a line.
"""
FACTORS = [
    # a, b, c, d
    (64, 48, 48, 4),    # many matrices, little work a byte
    (1, 48, 48, 4),     # fits L2: launch and L2
    (6, 64, 64, 1),     # ViT-S/16, up, first
    (1, 768, 192, 2),   # ViT-S/16, up, second
    (6, 64, 256, 1),    # ViT-S/16, down, first
    (4, 64, 64, 64),    # large d
    (32, 96, 96, 4),
    (4, 128, 128, 4),
    (1, 256, 256, 16),  # a = 1: views suffice for bmm, batch last
    (1, 768, 768, 4),   # bound by products
    (16, 128, 128, 1),  # d = 1: an ordinary batched product
    (1, 32, 32, 32),    # Monarch
    (32, 2, 2, 32),     # radix 2
]
BATCHES = [25088, 4096, 256, 1000]
# name: torch dtype, bytes, whether products are tf32
TYPES = {"fp16": ("float16", 2, False), "bf16": ("bfloat16", 2, False), "fp32": ("float32", 4, False),
         "tf32": ("float32", 4, True)}
LAYOUTS = ["batch_first", "batch_last"]
# Dense rates of an H200 in FLOP/s (specifications), and its memory in bytes/s.
RATES = {"fp16": 989e12, "bf16": 989e12, "tf32": 494e12, "fp32": 67e12}
MEMORY = 4.8e12


def inputs(f):
    return f[0] * f[2] * f[3]


def outputs(f):
    return f[0] * f[1] * f[3]


def moved_bytes(f, n, kind):
    a, b, c, d = f
    return TYPES[kind][1] * (n * a * d * (b + c) + a * b * c * d)


def flops(f, n):
    a, b, c, d = f
    return 2 * n * a * b * c * d


def floor_us(f, n, kind):
    """The longer of the products at the dense rate, and of moving x, y and the weights once."""
    return 1e6 * max(flops(f, n) / RATES[kind], moved_bytes(f, n, kind) / MEMORY)


def name_of(f):
    return ",".join(map(str, f))
