"""Fused attention by others: FlexAttention and PyTorch's scaled_dot_product_attention. Tensors are masked.Data's."""
from compare.registry import NotSupported, implementation


def sets_of(data):
    return list(zip(data.q, data.k, data.v))


@implementation("attention", "flex")
def flex(p, data):
    """FlexAttention, compiled; the block mask is made outside the timing"""
    if not data.engine.cuda:
        raise NotSupported("FlexAttention is timed on a GPU alone")
    import peers
    return peers.flex(data.pattern, data.shape, sets_of(data))[0]


def sdpa(p, data, backend):
    if p.pattern not in ("full", "causal"):
        raise NotSupported("it takes no mask but full and causal")
    import peers
    call = peers.sdpa(backend, p.pattern == "causal", sets_of(data))
    try:
        call(0)
    except RuntimeError as error:
        if "No viable backend" in str(error) or "No available kernel" in str(error):
            raise NotSupported(str(error)) from error
        raise
    return call


@implementation("attention", "cudnn")
def cudnn(p, data):
    """cuDNN through scaled_dot_product_attention"""
    return sdpa(p, data, "cudnn")


@implementation("attention", "fa2")
def fa2(p, data):
    """FlashAttention-2 through scaled_dot_product_attention"""
    return sdpa(p, data, "fa2")


@implementation("attention", "sdpa_mask")
def sdpa_mask(p, data):
    """scaled_dot_product_attention with a boolean mask, whatever backend takes it"""
    if not bool(data.allowed.any(-1).all()):
        raise NotSupported("rows with nothing allowed come out as NaN")
    import torch
    return lambda n: torch.nn.functional.scaled_dot_product_attention(data.q[n], data.k[n], data.v[n], attn_mask=data.allowed)
