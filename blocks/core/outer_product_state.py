"""States that are sums of outer products, many positions at once in chunks: S_t = diag(a_t) S_(t-1)
+ k_t v_t^T.

y_t = S_t^T q_t then is a product of matrices within a chunk, and with the state before it (Yang et
al. 2023, sections 2 and 4; Dao & Gu 2024, section 6). Decays are given as logarithms, and a decay
over several positions is exp of a sum: of what lies between two positions, never a difference of
longer sums. So nothing is lost where one decay is near 0 and the next near 1, and nothing is
divided.

Letters: ... the batch, then heads   T positions   N chunks   C positions of a chunk
         K width of keys   V width of values
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.functional import no_autocast
from blocks.core.loops import is_free, is_one, over_positions

CHUNK = 64
"""How many positions are computed at once by default: about as many as a head is wide makes both
products as large.
"""


def scan_outer_products(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    state: Tensor,
    *,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Run S_t = diag(exp(log_decay_t)) S_(t-1) + k_t v_t^T and y_t = S_t^T q_t over any number of
    positions.

    query, key: (..., T, K), value: (..., T, V), log_decay: (..., T, 1), one for a head, or (..., T,
    K), state: (..., K, V) before the first position -> y: (..., T, V), the state after the last.
    Leading axes are broadcast.

    A masked position has the key 0 and the log decay 0, and then changes no state. All is computed
    in the state's precision, float32 or double. How many positions a chunk has changes nothing but
    speed.
    """
    with no_autocast(state):
        query, key, value, log_decay = (x.to(state.dtype) for x in (query, key, value, log_decay))
        if is_one(query.shape[-2]):
            return step_outer_product(query, key, value, log_decay, state)
        if is_free(query.shape[-2]):
            return by_positions(step_outer_product, (query, key, value, log_decay), state)
        length, chunk = query.shape[-2], min(chunk, query.shape[-2])
        query, key, value, log_decay = (
            split_chunks(x, chunk) for x in (query, key, value, log_decay)
        )
        from_start, to_end = (
            decay_from_start(log_decay),
            decay_to_end(log_decay),
        )  # (..., N, C, 1 or K)
        products = decayed_products(query, key, log_decay)  # (..., N, C, C)
        added = (key * to_end).mT @ value  # (..., N, K, V)
        before, state = scan_chunks(state, added, from_start[..., -1:, :].mT)
        y = products @ value + (query * from_start) @ before  # (..., N, C, V)
        return y.flatten(-3, -2)[..., :length, :], state


def step_outer_product(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run one position of `scan_outer_products`: T = 1."""
    state = torch.addcmul(key.mT * value, log_decay.exp().mT, state)  # (..., K, V)
    return query @ state, state


def by_positions(
    step: Callable[..., tuple[Tensor, Tensor]], inputs: Sequence[Tensor], state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run `y, state = step(*inputs_t, state)` position by position, (..., 1, n) of each input."""

    def run(state: Tensor, *one: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        y, state = step(*(x[..., None, :] for x in one), state)
        return state, (y[..., 0, :],)

    state, (y,) = over_positions(run, state, inputs, dim=-2)
    return y, state


def decayed_products(query: Tensor, key: Tensor, log_decay: Tensor) -> Tensor:
    """Return the products of each query with its own key and those before it, decayed since then.

    A_ij = sum_d q_id k_jd exp(sum of log_decay_md over j < m <= i), and 0 for j > i.
    query, key: (..., C, K), log_decay: (..., C, 1) or (..., C, K) -> (..., C, C)
    """
    if log_decay.shape[-1] == 1:
        return (query @ key.mT * segment_sums(log_decay[..., 0]).exp()).tril()
    return _products_by_halves(query, key, log_decay)


def segment_sums(x: Tensor) -> Tensor:
    """Return the sums of x_m over j < m <= i, below the diagonal, and 0 elsewhere: (..., C) ->
    (..., C, C)
    """
    length = x.shape[-1]
    return x[..., None].expand(*x.shape, length).tril(-1).cumsum(-2)


def _products_by_halves(query: Tensor, key: Tensor, log_decay: Tensor) -> Tensor:
    """Compute `decayed_products` with a decay for each feature, from the diagonal up.

    Of two neighbouring blocks of positions, what the second reads of the first decays up to the
    first one's end, and from there on: two factors, each at most 1, one the key's and one the
    query's. So it is a product of matrices.
    """
    length = query.shape[-2]
    size = 1 << (length - 1).bit_length()
    query, key, log_decay = (F.pad(x, (0, 0, 0, size - length)) for x in (query, key, log_decay))
    decay = log_decay.exp()[..., None, :]  # (..., blocks, 1, K), over all of a block
    products = (query * key).sum(-1)[..., None, None]  # (..., blocks, 1, 1)
    key = key[..., None, :].expand(*torch.broadcast_shapes(key[..., None, :].shape, decay.shape))
    query = query[..., None, :] * decay
    while query.shape[-3] > 1:
        (first_query, later), (earlier, second_key), (until, since), (first, second) = (
            x.unflatten(-3, (-1, 2)).unbind(-3) for x in (query, key, decay, products)
        )
        across = torch.cat(
            (later @ earlier.mT, second), -1
        )  # (..., blocks, positions, 2 positions)
        products = torch.cat((F.pad(first, (0, first.shape[-1])), across), -2)
        query = torch.cat((first_query, later * until), -2)  # decayed from the start of both
        key = torch.cat((earlier * since, second_key), -2)  # to the end of both
        decay = until * since
    return products[..., 0, :length, :length]


def decay_from_start(log_decay: Tensor) -> Tensor:
    """Return the decay of the chunk's first state up to and at each position: (..., C, n)"""
    return log_decay.cumsum(-2).exp()


def decay_to_end(log_decay: Tensor) -> Tensor:
    """Return the decay from each position to the chunk's end, its own excluded: (..., C, n)"""
    after = F.pad(log_decay[..., 1:, :], (0, 0, 0, 1))
    return after.flip(-2).cumsum(-2).flip(-2).exp()


def scan_chunks(state: Tensor, added: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states before each chunk, and the one after the last.

    state: (..., K, V), what each chunk adds: (..., N, K, V), its decay: (..., N, 1 or K, 1)
    -> (..., N, K, V), (..., K, V)
    """
    before = []
    for one, factor in zip(added.unbind(-3), decay.unbind(-3), strict=True):
        before.append(state.expand_as(one))
        state = torch.addcmul(one, factor, state)
    return torch.stack(before, -3), state


def split_chunks(x: Tensor, chunk: int) -> Tensor:
    """Cut positions into chunks, the last one padded with zeros: (..., T, n) -> (..., N, C, n)"""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % chunk)).unflatten(-2, (-1, chunk))
