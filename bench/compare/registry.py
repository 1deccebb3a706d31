"""The implementations. Adding one is one function in a module that load() imports, or in one that --load names:

    @implementation("kron", "bmm_permute")
    def bmm_permute(p, data):
        "torch.bmm between two permuted copies"      # what `list` shows; its first line
        def call(n): ...                             # enqueues one run on input set n, returns the output
        return call

p is the Problem, data its tensors (masked.Data, kron.Data). What happens in the function itself (packing of weights, block
masks, compiling) is outside the timing. An implementation whose output has another form than data's reference returns
(call, canonical) with canonical(output) in that form. raise NotSupported(reason) for what it does not do.
"""
import fnmatch
import importlib
from typing import Callable, NamedTuple


class NotSupported(Exception):
    """This implementation does not serve this setting; the message says why."""


class Implementation(NamedTuple):
    kind: str
    name: str
    make: Callable
    no_copies: bool  # claims to allocate nothing in a call, which is checked

    @property
    def summary(self):
        return (self.make.__doc__ or "").strip().split("\n")[0]


_MODULES = ("attention", "masked", "kron", "splat_calls")
_all = {}  # (kind, name) -> Implementation


def implementation(kinds, name, no_copies=False):
    """Registers a function for one kind of problem or several (separated by spaces)."""
    def register(make):
        for kind in kinds.split():
            if (kind, name) in _all:
                raise ValueError(f"{name} is registered twice for {kind}")
            _all[kind, name] = Implementation(kind, name, make, no_copies)
        return make
    return register


def load(more=()):
    """Imports the package's implementations and the modules named, so that they register themselves."""
    for module in _MODULES:
        importlib.import_module(f"compare.{module}")
    for module in more:
        importlib.import_module(module)


def implementations(kind):
    return [i for (k, _), i in _all.items() if k == kind]


def select(kind, wanted=("*",), unwanted=()):
    """Those of a kind whose names match a glob of `wanted` and none of `unwanted`, in the order of registration."""
    def matches(name, globs):
        return any(fnmatch.fnmatchcase(name, g) for g in globs)
    return [i for i in implementations(kind) if matches(i.name, wanted) and not matches(i.name, unwanted)]


def unmatched(kinds, globs):
    """The globs that name no implementation of any of these kinds."""
    names = [i.name for k in kinds for i in implementations(k)]
    return [g for g in globs if not fnmatch.filter(names, g)]
