"""The operators on a mask: values at allowed pairs (SDDMM), their softmax, their products with dense matrices; and attention's
tensors.

Values are [batch, heads, pairs] in canonical order: row by row, columns ascending. A library that keeps them otherwise (dense, CSR,
blocks) gets its form outside the timing and is checked in canonical order; inside a form's blocks what is not allowed must be
zero, and making it so is timed.
"""
try:
    import torch
except ImportError:  # the implementations can be listed without it
    torch = None

import math

from compare.registry import NotSupported, implementation

BLOCK_SIZES = (16, 32, 64)


class Data:
    """q[n], k[n], v[n], o[n], n < sets: [batch, heads, seq, dim], strided as the layout says. values[n]: input of spmm and softmax;
    out_values[n]: result of sddmm and softmax; both [batch, heads, pairs], a head begins at a multiple of 8 elements. allowed: bool
    [seq, seq]; index: the allowed pairs in the flattened mask. scale: of sddmm and attention."""

    def __init__(self, engine, p, dtype, sets):
        self.engine, self.sets, self.dtype, self.kind, self.p = engine, sets, dtype, p.kind, p
        self.pattern, self.shape = engine.shape(p.setting)
        self.seq, self.heads = p.seq, p.batch * p.heads
        import suite
        self.allowed = torch.cat([suite.rows_of(self.pattern, self.shape, range(r, min(r + 1024, p.seq)), engine.device)
                                  for r in range(0, p.seq, 1024)])
        self.index = self.allowed.flatten().nonzero().flatten()
        self.pairs, self._forms = len(self.index), {}
        if self.pairs == 0:
            raise NotSupported("the mask allows nothing")
        wanted = {"attention": "qkvo", "sddmm": "qk", "softmax": "", "spmm": "vo", "spmm_transposed": "vo"}[p.kind]
        for name in wanted:
            setattr(self, name, [self._tensor(name != "o") for _ in range(sets)])
        self.scale = 1 / math.sqrt(p.dim) if p.kind in ("attention", "sddmm") else None
        size = (p.batch, p.heads, -(-self.pairs // 8) * 8)
        if p.kind in ("softmax", "spmm", "spmm_transposed"):
            self.values = [engine.randn(*size, dtype=dtype)[..., :self.pairs] for _ in range(sets)]
        if p.kind in ("sddmm", "softmax"):
            self.out_values = [torch.empty(size, dtype=dtype, device=engine.device)[..., :self.pairs] for _ in range(sets)]
            self.outputs = self.out_values
        else:
            self.outputs = self.o

    def _tensor(self, random):
        p = self.p
        size = (p.batch, p.heads, p.seq, p.dim) if p.layout == "bhsd" else (p.batch, p.seq, p.heads, p.dim)
        t = self.engine.randn(*size, dtype=self.dtype) if random else torch.empty(size, dtype=self.dtype, device=self.engine.device)
        return t if p.layout == "bhsd" else t.transpose(1, 2)

    # ---- double precision ----

    def reference(self, n):
        one = {"attention": self._attention, "sddmm": self._sddmm, "softmax": self._softmax, "spmm": self._spmm,
               "spmm_transposed": self._spmm}[self.kind]
        p = self.p
        heads = [one(n, b, h) for b in range(p.batch) for h in range(p.heads)]
        return torch.stack(heads).view(p.batch, p.heads, *heads[0].shape)

    def _scores(self, n, b, h):
        return self.q[n][b, h].double() @ self.k[n][b, h].double().t() * self.scale

    def _sddmm(self, n, b, h):
        return self._scores(n, b, h).flatten()[self.index]

    def _matrix(self, n, b, h, fill):
        out = torch.full((self.seq * self.seq,), fill, dtype=torch.float64, device=self.index.device)
        out[self.index] = self.values[n][b, h].double()
        return out.view(self.seq, self.seq)

    def _softmax(self, n, b, h):
        return torch.softmax(self._matrix(n, b, h, float("-inf")), -1).flatten()[self.index]

    def _spmm(self, n, b, h):
        a = self._matrix(n, b, h, 0.0)
        return (a.t() if self.kind == "spmm_transposed" else a) @ self.v[n][b, h].double()

    def _attention(self, n, b, h):
        scores = self._scores(n, b, h).masked_fill(~self.allowed, float("-inf"))
        weights = torch.where(self.allowed.any(-1, keepdim=True), torch.softmax(scores, -1), 0.0)
        return weights @ self.v[n][b, h].double()

    # ---- other forms ----

    def dense(self, n, fill=0.0):
        """[batch * heads, seq, seq] of values[n]."""
        out = torch.full((self.heads, self.seq * self.seq), fill, dtype=self.dtype, device=self.index.device)
        out[:, self.index] = self.values[n].view(self.heads, -1)
        return out.view(self.heads, self.seq, self.seq)

    def from_dense(self, out):
        """Canonical values of a [batch * heads, seq, seq] result."""
        return out.reshape(self.heads, -1)[:, self.index].view(self.p.batch, self.p.heads, -1)

    def csr_pattern(self, transposed=False):
        """(row starts, columns, order of the canonical values) in int32, int32, int64."""
        allowed = self.allowed.t() if transposed else self.allowed
        starts = torch.zeros(self.seq + 1, dtype=torch.int64, device=self.index.device)
        starts[1:] = allowed.sum(-1).cumsum(0)
        place = allowed.flatten().nonzero().flatten()
        order = torch.searchsorted(self.index, place % self.seq * self.seq + place // self.seq) if transposed else None
        return starts.int(), (place % self.seq).int(), order

    def csr(self, values, transposed=False):
        """CSR [batch * heads, seq, seq] of [batch, heads, pairs] values, or of its transpose."""
        starts, columns, order = self._forms.setdefault(("csr", transposed), self.csr_pattern(transposed))
        values = values.reshape(self.heads, -1)
        values = values[:, order] if transposed else values
        return torch.sparse_csr_tensor(starts.expand(self.heads, -1).contiguous(), columns.expand(self.heads, -1).contiguous(),
                                       values.contiguous(), (self.heads, self.seq, self.seq))

    def bsr_pattern(self, size):
        """(row starts, block columns, keep bool [blocks, size, size], index of the allowed pairs in it, in canonical order)."""
        if self.seq % size:
            raise NotSupported(f"S = {self.seq} is no multiple of the block size {size}")
        tiles = self.allowed.view(self.seq // size, size, self.seq // size, size).transpose(1, 2)
        some = tiles.any(-1).any(-1)
        starts = torch.zeros(len(some) + 1, dtype=torch.int64, device=self.index.device)
        starts[1:] = some.sum(-1).cumsum(0)
        number = torch.cumsum(some.flatten(), 0).view(some.shape) - 1  # of a block
        i, j = self.index // self.seq, self.index % self.seq
        index = (number[i // size, j // size] * size + i % size) * size + j % size
        return starts.int(), some.nonzero()[:, 1].int(), tiles[some], index

    def bsr(self, size, values=None, fill=0.0):
        """BSR [batch * heads, seq, seq] of [batch, heads, pairs] values; None = zeros."""
        starts, columns, keep, index = self._forms.setdefault(("bsr", size), self.bsr_pattern(size))
        blocks = torch.full((self.heads, keep.numel()), fill, dtype=self.dtype, device=self.index.device)
        if values is not None:
            blocks[:, index] = values.reshape(self.heads, -1)
        return torch.sparse_bsr_tensor(starts.expand(self.heads, -1).contiguous(), columns.expand(self.heads, -1).contiguous(),
                                       blocks.view(self.heads, *keep.shape), (self.heads, self.seq, self.seq))

    def bsr_keep(self, size):
        """bool [blocks, size, size], or None when every block is all allowed."""
        keep = self._forms.setdefault(("bsr", size), self.bsr_pattern(size))[2]
        return None if keep.all() else keep

    def from_bsr(self, size):
        """canonical(output) for BSR results of this block size."""
        index = self._forms.setdefault(("bsr", size), self.bsr_pattern(size))[3]
        return lambda out: out.values().reshape(self.heads, -1)[:, index].view(self.p.batch, self.p.heads, -1)

    def stack(self, t):
        """[batch * heads, seq, dim] for libraries that take no two batch axes: a view, or in [batch, seq, heads, dim] with
        batch > 1 a copy, made where it is called."""
        return t.reshape(self.heads, *t.shape[2:])


def write(data, n, out):
    """Puts a [batch * heads, seq, dim] result where set n's output lies, when it does not lie there already."""
    data.o[n].copy_(out.view(data.o[n].shape))
    return data.o[n]


# ---- dense ----


@implementation("sddmm", "dense")
def dense_sddmm(p, data):
    """torch.matmul of all pairs, then zero where not allowed"""
    forbidden, q, k = ~data.allowed, data.q, data.k
    out = torch.empty(data.heads, data.seq, data.seq, dtype=data.dtype, device=forbidden.device)

    def call(n):
        torch.baddbmm(out, data.stack(q[n]), data.stack(k[n]).transpose(1, 2), beta=0, alpha=data.scale, out=out)
        return out.masked_fill_(forbidden, 0.0)
    return call, data.from_dense


@implementation("softmax", "dense")
def dense_softmax(p, data):
    """torch.softmax of dense rows that hold -inf where not allowed"""
    scores = [data.dense(n, float("-inf")) for n in range(data.sets)]
    return (lambda n: torch.softmax(scores[n], -1)), data.from_dense


@implementation("spmm spmm_transposed", "dense")
def dense_spmm(p, data):
    """torch.matmul with the zeros"""
    a = [data.dense(n).view(p.batch, p.heads, data.seq, data.seq) for n in range(data.sets)]
    a = [t.transpose(-1, -2) for t in a] if p.kind == "spmm_transposed" else a
    return lambda n: torch.matmul(a[n], data.v[n], out=data.o[n])


@implementation("spmm spmm_transposed", "dense_masked")
def dense_masked_spmm(p, data):
    """torch.matmul after a product with the boolean mask, for a matrix that is not zero yet where not allowed"""
    allowed = data.allowed
    a = [data.dense(n).view(p.batch, p.heads, data.seq, data.seq) for n in range(data.sets)]
    masked = torch.empty_like(a[0])
    factor = masked.transpose(-1, -2) if p.kind == "spmm_transposed" else masked

    def call(n):
        torch.mul(a[n], allowed, out=masked)
        return torch.matmul(factor, data.v[n], out=data.o[n])
    return call


# ---- CSR ----


@implementation("sddmm", "csr")
def csr_sddmm(p, data):
    """cuSPARSE's SDDMM: torch.sparse.sampled_addmm"""
    zero = torch.zeros(p.batch, p.heads, data.pairs, dtype=data.dtype, device=data.index.device)
    out = data.csr(zero)

    def call(n):
        return torch.sparse.sampled_addmm(out, data.stack(data.q[n]), data.stack(data.k[n]).transpose(1, 2), beta=0.0,
                                          alpha=data.scale, out=out)
    return call, lambda result: result.values().view(p.batch, p.heads, -1)


@implementation("softmax", "coo")
def coo_softmax(p, data):
    """torch.sparse.softmax of COO rows"""
    head = torch.arange(data.heads, device=data.index.device).repeat_interleave(data.pairs)
    place = data.index.repeat(data.heads)
    indices = torch.stack([head, place // data.seq, place % data.seq])
    scores = [torch.sparse_coo_tensor(indices, data.values[n].flatten(), (data.heads, data.seq, data.seq), is_coalesced=True)
              for n in range(data.sets)]
    return (lambda n: torch.sparse.softmax(scores[n], 2)), lambda out: out._values().view(p.batch, p.heads, -1)


@implementation("spmm spmm_transposed", "csr")
def csr_spmm(p, data):
    """cuSPARSE's batched SpMM: torch.bmm of a CSR tensor (A^T stored as such)"""
    a = [data.csr(data.values[n], p.kind == "spmm_transposed") for n in range(data.sets)]
    return lambda n: write(data, n, torch.bmm(a[n], data.stack(data.v[n])))


@implementation("spmm spmm_transposed", "csr_heads")
def csr_heads_spmm(p, data):
    """cuSPARSE's SpMM, one call a head (A^T stored as such)"""
    a = []
    for n in range(data.sets):
        whole = data.csr(data.values[n], p.kind == "spmm_transposed")
        starts, columns, values = whole.crow_indices(), whole.col_indices(), whole.values()
        a.append([torch.sparse_csr_tensor(starts[h], columns[h], values[h], (data.seq, data.seq)) for h in range(data.heads)])

    def call(n):
        v, o = data.v[n], data.o[n]
        for h, matrix in enumerate(a[n]):
            out = o[h // p.heads, h % p.heads]
            torch.addmm(out, matrix, v[h // p.heads, h % p.heads], beta=0, alpha=1, out=out)
        return o
    return call


# ---- blocks ----


def triton_ops(data):
    if not data.engine.cuda:
        raise NotSupported("torch's block kernels are Triton's, for a GPU alone")
    from torch.sparse import _triton_ops
    return _triton_ops


def register_blocks(size):
    @implementation("sddmm", f"bsr{size}")
    def bsr_sddmm(p, data):
        ops, out, keep = triton_ops(data), data.bsr(size), data.bsr_keep(size)

        def call(n):
            q, k = data.stack(data.q[n]), data.stack(data.k[n]).transpose(1, 2)
            ops.sampled_addmm(out, q, k, beta=0.0, alpha=data.scale, out=out, skip_checks=True)
            if keep is not None:
                out.values().mul_(keep)
            return out
        return call, data.from_bsr(size)
    bsr_sddmm.__doc__ = f"PyTorch's Triton kernel on {size} x {size} blocks, then zero where not allowed"

    @implementation("softmax", f"bsr{size}")
    def bsr_softmax(p, data):
        ops = triton_ops(data)
        scores = [data.bsr(size, data.values[n], float("-inf")) for n in range(data.sets)]
        return (lambda n: ops.bsr_softmax(scores[n])), data.from_bsr(size)
    bsr_softmax.__doc__ = f"PyTorch's Triton kernel on {size} x {size} blocks that hold -inf where not allowed"

    @implementation("spmm", f"bsr{size}")
    def bsr_spmm(p, data):
        ops = triton_ops(data)
        a = [data.bsr(size, data.values[n]) for n in range(data.sets)]
        return lambda n: write(data, n, ops.bsr_dense_mm(a[n], data.stack(data.v[n]), skip_checks=True))
    bsr_spmm.__doc__ = f"PyTorch's Triton kernel on {size} x {size} blocks, with the parameters that it takes itself"


for _size in BLOCK_SIZES:
    register_blocks(_size)
