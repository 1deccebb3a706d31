"""Kronecker-sparse layers: y = W x with W of the support I_a x 1_(b x c) x I_d, that is a * d dense b x c blocks.

Feature (i, l, j) of the input is i*c*d + l*d + j, feature (i, k, j) of the output i*b*d + k*d + j; weights are [a, d, b, c]. The
gradient of the input is the forward product of (a, c, b, d) with each block transposed, and is posed as just that: every
implementation of the forward product serves it. Weights are packed outside the timing, for everybody.
"""
import math

try:
    import torch
except ImportError:  # the implementations can be listed without it
    torch = None

from compare import problems
from compare.registry import NotSupported, implementation


class Data:
    """x[n], w[n] and y[n], n < sets: input and output, [batch, features] or [features, batch], and weights [a, d, b, c]. For the
    gradient of the weights y[n] is an input too, the output's gradient, and dw[n] in place of w[n] the result. a, b, c, d are those of the
    product that is computed: b and c change places for the gradient of the input."""

    def __init__(self, engine, p, dtype, sets):
        a, b, c, d = problems.blocks(p.setting)
        if p.op == "grad_input":
            b, c = c, b
        self.engine, self.sets, self.dtype = engine, sets, dtype
        self.a, self.b, self.c, self.d, self.n = a, b, c, d, p.n
        self.rows, self.cols, self.first = a * b * d, a * c * d, p.layout == "batch_first"
        self.gradient = p.op == "grad_weight"
        every = range(sets)
        self.x = [engine.randn(*self.size(self.cols), dtype=dtype) for _ in every]
        if self.gradient:
            self.y = [engine.randn(*self.size(self.rows), dtype=dtype, scale=1 / math.sqrt(p.n)) for _ in every]
            self.outputs = self.dw = [torch.empty(a, d, b, c, dtype=dtype, device=engine.device) for _ in every]
        else:
            self.w = [engine.randn(a, d, b, c, dtype=dtype, scale=1 / math.sqrt(c)) for _ in every]
            self.outputs = self.y = [torch.empty(self.size(self.rows), dtype=dtype, device=engine.device) for _ in every]

    def size(self, features):
        return (self.n, features) if self.first else (features, self.n)

    def split(self, t, width):
        """A tensor of features (i, width, j) with the axes apart: [n, a, width, d] or [a, width, d, n]. A view."""
        return t.view(self.n, self.a, width, self.d) if self.first else t.view(self.a, width, self.d, self.n)

    def blocks(self, t, width):
        """[a, d, n, width] (batch first) or [a, d, width, n]: one matrix a block. A view, whatever its strides."""
        t = self.split(t, width)
        return t.permute(1, 3, 0, 2) if self.first else t.permute(0, 2, 1, 3)

    def reference(self, n):
        x = self.split(self.x[n], self.c).double()
        if self.gradient:
            y = self.split(self.y[n], self.b).double()
            return torch.einsum("nabd,nacd->adbc" if self.first else "abdn,acdn->adbc", y, x)
        out = torch.einsum("nacd,adbc->nabd" if self.first else "acdn,adbc->abdn", x, self.w[n].double())
        return out.reshape(self.size(self.rows))


def product(data, x, y, w):
    """The matrices to multiply: (left, right, out) of y = x w^T (batch first) or y = w x, or of the gradient of the weights.
    x, y and w are stacks of blocks."""
    if data.gradient:
        return (y.transpose(-1, -2), x, w) if data.first else (y, x.transpose(-1, -2), w)
    return (x, w.transpose(-1, -2), y) if data.first else (w, x, y)


def gemm_ready(t):
    """A stack of matrices as cuBLAS takes it, or NotSupported: one stride of a matrix must be 1."""
    rows, columns = t.shape[-2:]
    if t.stride(-1) == 1 or columns == 1 or t.stride(-2) == 1 or rows == 1:
        return t
    raise NotSupported(f"a block has strides {t.stride(-2)} and {t.stride(-1)}, neither is 1: bmm would copy")


@implementation("kron", "bmm_views", no_copies=True)
def bmm_views(p, data):
    """One torch.bmm on views, where a = 1 or d = 1 makes them; nothing is copied"""
    if data.a > 1 and data.d > 1:
        raise NotSupported("with a > 1 and d > 1 the blocks are no batch of one stride: bmm_views_loop")

    def stack(t, width):
        t = data.blocks(t, width)
        return t[:, 0] if data.d == 1 else t[0]

    parts = []
    for n, w in enumerate(data.dw if data.gradient else data.w):
        whole = product(data, stack(data.x[n], data.c), stack(data.y[n], data.b), w.view(-1, data.b, data.c))
        parts.append([gemm_ready(t) for t in whole])

    def call(n):
        left, right, out = parts[n]
        torch.bmm(left, right, out=out)
        return data.dw[n] if data.gradient else data.y[n]
    return call


@implementation("kron", "bmm_views_loop", no_copies=True)
def bmm_views_loop(p, data):
    """torch.bmm on views, one for each index of the shorter of a and d; nothing is copied"""
    if data.a == 1 or data.d == 1:
        raise NotSupported("with a = 1 or d = 1 it is bmm_views")
    axis = 0 if data.a <= data.d else 1
    parts = []
    for n, w in enumerate(data.dw if data.gradient else data.w):
        whole = product(data, data.blocks(data.x[n], data.c), data.blocks(data.y[n], data.b), w)
        parts.append([[gemm_ready(t.select(axis, k)) for t in whole] for k in range(min(data.a, data.d))])

    def call(n):
        for left, right, out in parts[n]:
            torch.bmm(left, right, out=out)
        return data.dw[n] if data.gradient else data.y[n]
    return call


@implementation("kron", "bmm_permute")
def bmm_permute(p, data):
    """torch.bmm between permuted copies of the input and of the output"""
    count = data.a * data.d

    def stacked(t, width):
        t = data.blocks(t, width)
        return t.reshape(count, *t.shape[2:])  # copies where it must

    if data.gradient:
        def call(n):
            left, right, out = product(data, stacked(data.x[n], data.c), stacked(data.y[n], data.b),
                                       data.dw[n].view(count, data.b, data.c))
            torch.bmm(left, right, out=out)
            return data.dw[n]
        return call

    def call(n):
        x, w = stacked(data.x[n], data.c), data.w[n].view(count, data.b, data.c)
        out = torch.bmm(x, w.transpose(1, 2)) if data.first else torch.bmm(w, x)
        data.blocks(data.y[n], data.b).copy_(out.view(data.a, data.d, *out.shape[1:]))
        return data.y[n]
    return call


def einsum_of(data):
    """call(n) by a function of tensors, through `wrap`, that einsum computes."""
    if data.gradient:
        words = "nabd,nacd->adbc" if data.first else "abdn,acdn->adbc"
    else:
        words = "nacd,adbc->nabd" if data.first else "acdn,adbc->abdn"

    def function(s, t):
        return torch.einsum(words, s, t)

    def call_of(f):
        if data.gradient:
            return lambda n: f(data.split(data.y[n], data.b), data.split(data.x[n], data.c))
        size = data.size(data.rows)
        return lambda n: f(data.split(data.x[n], data.c), data.w[n]).reshape(size)
    return function, call_of


@implementation("kron", "einsum")
def einsum(p, data):
    """torch.einsum"""
    function, call_of = einsum_of(data)
    return call_of(function)


def compiled_einsum(data, **options):
    if not data.engine.cuda:
        raise NotSupported("torch.compile is timed on a GPU alone")
    function, call_of = einsum_of(data)
    return call_of(torch.compile(function, dynamic=False, **options))


@implementation("kron", "einsum_compiled")
def einsum_compiled(p, data):
    """torch.compile of the einsum"""
    return compiled_einsum(data)


@implementation("kron", "einsum_autotuned")
def einsum_autotuned(p, data):
    """torch.compile of the einsum, mode max-autotune-no-cudagraphs; its compile takes long"""
    return compiled_einsum(data, mode="max-autotune-no-cudagraphs")


@implementation("kron", "dense")
def dense(p, data):
    """The whole weight matrix with its zeros: F.linear's product, or w x"""
    size = data.rows * data.cols * data.x[0].element_size() * (1 if data.gradient else data.sets)
    if size > data.engine.memory // 4:
        raise NotSupported(f"dense weights of {size / 1e9:.0f} GB are more than a quarter of the device's memory")
    if data.gradient:
        def call(n):
            whole = data.y[n].t() @ data.x[n] if data.first else data.y[n] @ data.x[n].t()
            own = whole.view(data.a, data.b, data.d, data.a, data.c, data.d).diagonal(0, 0, 3).diagonal(0, 1, 3)
            data.dw[n].copy_(own.permute(2, 3, 0, 1))
            return data.dw[n]
        return call

    def whole(blocks):
        w = torch.zeros(data.a, data.b, data.d, data.a, data.c, data.d, dtype=data.dtype, device=data.engine.device)
        w.diagonal(0, 0, 3).diagonal(0, 1, 3).copy_(blocks.permute(2, 3, 0, 1))
        return w.view(data.rows, data.cols)
    weights = [whole(w) for w in data.w]

    def call(n):
        left, right = (data.x[n], weights[n].t()) if data.first else (weights[n], data.x[n])
        return torch.mm(left, right, out=data.y[n])
    return call


def sparse_rows(data, values):
    """The weights in CSR, values [a, d, b, c]; each row holds c of them."""
    i, k, j, l = (torch.arange(m, device=data.engine.device) for m in (data.a, data.b, data.d, data.c))
    columns = (i[:, None, None, None] * data.c * data.d + l * data.d + j[:, None]).expand(data.a, data.b, data.d, data.c)
    starts = torch.arange(data.rows + 1, device=data.engine.device) * data.c
    return torch.sparse_csr_tensor(starts.int(), columns.reshape(-1).int(), values.permute(0, 2, 1, 3).reshape(-1),
                                   (data.rows, data.cols))


@implementation("kron", "csr")
def csr(p, data):
    """cuSPARSE's CSR product (the gradient of the weights: torch.sparse.sampled_addmm)"""
    if data.gradient:
        w = sparse_rows(data, torch.zeros(data.a, data.d, data.b, data.c, dtype=data.dtype, device=data.engine.device))

        def call(n):
            left, right = (data.y[n].t(), data.x[n]) if data.first else (data.y[n], data.x[n].t())
            return torch.sparse.sampled_addmm(w, left, right, beta=0.0, alpha=1.0, out=w)
        return call, lambda out: out.values().view(data.a, data.b, data.d, data.c).permute(0, 2, 1, 3)
    weights = [sparse_rows(data, w) for w in data.w]

    def call(n):
        out, x = (data.y[n].t(), data.x[n].t()) if data.first else (data.y[n], data.x[n])
        torch.addmm(out, weights[n], x, beta=0, alpha=1, out=out)
        return data.y[n]
    return call


@implementation("kron", "bsr")
def bsr(p, data):
    """Block-diagonal BSR of square blocks (gcd(b, c)) between permuted copies where d > 1"""
    if data.gradient:
        raise NotSupported("torch has no product of dense matrices sampled at BSR blocks with a public name")
    size, count = math.gcd(data.b, data.c), data.a * data.d
    rows, cols = data.b // size, data.c // size
    if size < 16:
        raise NotSupported(f"blocks of gcd(b, c) = {size}; BSR kernels take 16 and more")
    starts = torch.arange(count * rows + 1, device=data.engine.device) * cols
    columns = (torch.arange(count, device=data.engine.device)[:, None, None] * cols
               + torch.arange(cols, device=data.engine.device)).expand(count, rows, cols)
    starts, columns = starts.int(), columns.reshape(-1).int()

    def blocked(w):
        values = w.view(count, rows, size, cols, size).permute(0, 1, 3, 2, 4).reshape(-1, size, size).contiguous()
        return torch.sparse_bsr_tensor(starts, columns, values, (count * data.b, count * data.c))
    weights = [blocked(w) for w in data.w]

    def flat(t, width):
        """[n, count * width] or [count * width, n], the blocks one after the other; a copy where d > 1."""
        t = data.split(t, width)
        return (t.transpose(2, 3).reshape(data.n, -1) if data.first else t.transpose(1, 2).reshape(-1, data.n))

    def call(n):
        x, w = flat(data.x[n], data.c), weights[n]
        out = torch.nn.functional.linear(x, w) if data.first else w @ x
        if data.d == 1:
            return out
        y = data.split(data.y[n], data.b)
        y = y.transpose(2, 3) if data.first else y.transpose(1, 2)
        y.copy_(out.view(y.shape))
        return data.y[n]
    return call
