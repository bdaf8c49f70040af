"""The norm of the rows that a group of threads is about to multiply, which each group makes for itself.

The rows end up in the memory of the group, in the type of the arithmetic. A group takes all of its threads for them:
as many for each row, and each holds some elements in registers. The first weights are on their way meanwhile.

- CUDA: the two sums of a row go through the shuffles of a warp, and over its warps.
- WGSL, which has no shuffles here: what a thread holds becomes a mean and the squares of what is left after it. Such
  pairs are joined in two steps, a root of them at once: two barriers, where halving takes one a step. The mean that is
  taken off is that of the pairs that are joined, so that nothing cancels.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.kernels.templates import ceil_div, log2, power_of_two_at_least
from gpubench.kernels.templates.rows import EPSILON
from gpubench.kernels.templates.wgsl import Storage

# Weights that a thread loads before the norm: they are there when it is done.
_MOST_AHEAD = 4


class RowNorm(msgspec.Struct, frozen=True):
    """The norm of rows, made by a group that multiplies them."""

    rows: int  # rows of the group
    k: int  # elements of a row
    threads: int  # threads of the group
    shares: int  # threads of which one reads a row of the weights

    @property
    def held_rows(self) -> int:
        """A power of two, or threads would have no row."""
        return power_of_two_at_least(self.rows)

    @property
    def lanes(self) -> int:
        """Threads of a row."""
        return max(1, self.threads // self.held_rows)

    @property
    def elements(self) -> int:
        """Return the elements of a row that a thread holds at most."""
        return ceil_div(self.k, self.lanes)

    @property
    def chunks(self) -> int:
        """Pairs of a row that are left after the first join in WGSL, where about as many are joined each time."""
        return 1 << self.lanes.bit_length() // 2

    # ------------------------------------------------------------ CUDA

    def cuda_bytes(self, real_bytes: int) -> int:
        """Return the bytes of a block's memory that it takes."""
        return real_bytes * (self.held_rows * self.k + 2 * ceil_div(self.threads, 32))

    def cuda_head(self) -> str:
        """Return the constants and the function that folds a row. A row needs at least one warp of threads."""
        ahead = min(_MOST_AHEAD, ceil_div(self.k, self.shares))
        return f"""
const int K = {self.k}, HELD_ROWS = {self.held_rows}, ROW_THREADS = {self.lanes}, HELD = {self.elements};
const int AHEAD = {ahead};
{_CUDA_FOLD}"""

    # ------------------------------------------------------------ WGSL

    def wgsl_bytes(self, real_bytes: int) -> int:
        """Return the bytes of a group's memory that it takes."""
        return real_bytes * (self.held_rows * self.k + 2 * self.threads + 2 * self.held_rows * self.chunks)

    @property
    def wgsl_ahead(self) -> int:
        """Weights that every thread loads ahead."""
        return min(_MOST_AHEAD, self.k // self.shares)

    def wgsl_head(self, real: str) -> str:
        """The group's memory, and how many elements of a row a thread holds and a joined pair stands for."""
        pair = f"vec2<{real}>"
        return f"""
var<workgroup> rows: array<{real}, {self.held_rows * self.k}>;
var<workgroup> parts: array<{pair}, {self.threads}>;
var<workgroup> chunks: array<{pair}, {self.held_rows * self.chunks}>;
fn held(lane: u32) -> {real} {{ return {self._count(real, self.lanes)}; }}
fn stands_for(chunk: u32) -> {real} {{ return {self._count(real, self.chunks, "chunk")}; }}"""

    def _count(self, real: str, lanes: int, lane: str = "lane") -> str:
        """Elements of a row whose place is that of the lane, by so many lanes."""
        least, rest = divmod(self.k, lanes)
        return f"{real}({least}u + select(0u, 1u, {lane} < {rest}u))" if rest else f"{real}({least}.0)"

    def wgsl_rows(self, single: Storage) -> str:
        """Statements that leave the norms in `rows`, row by row; `first` is the first one, `p.n` their number."""
        real, lanes, chunks, places = single.real, self.lanes, self.chunks, range(self.elements)
        partly = self.k % lanes  # lanes that hold an element more than the others

        def inside(place: int, value: str) -> str:
            last = partly and place == self.elements - 1
            return f"select({real}(), {value}, lane < {partly}u)" if last else value

        lines = [
            f"let lane = thread & {lanes - 1}u;",
            f"let own = thread >> {log2(lanes)}u;",
            f"let start = min(first + own, p.n - 1u) * {self.k}u;",
        ]
        for place in places:
            at = f"lane + {place * lanes}u"
            at = f"min({at}, {self.k - 1}u)" if partly and place == self.elements - 1 else at
            lines += [
                f"let at{place} = {at};",
                f"let v{place} = {single.decode(f'x_in[start + at{place}]')[0]};",
                f"let gain{place} = {single.decode(f'g_in[at{place}]')[0]};",
                f"let shift{place} = {single.decode(f'c_in[at{place}]')[0]};",
            ]
        total = _add([inside(place, f"v{place}") for place in places])
        squares = _add([inside(place, f"(v{place} - middle) * (v{place} - middle)") for place in places])
        lines += [
            f"let middle = {total} / {_some('held(lane)', real)};",
            f"parts[thread] = vec2<{real}>(middle, {squares});",
            "workgroupBarrier();",
            f"let chunk = lane & {chunks - 1}u;",
        ]
        joins = lanes // chunks
        lines += [f"let a{j} = parts[thread - lane + chunk + {j * chunks}u];" for j in range(joins)]
        lines += [f"let n{j} = held(chunk + {j * chunks}u);" for j in range(joins)]
        lines += _join("a", "n", joins, "near", _some("stands_for(chunk)", real))
        lines += [
            f"if (lane < {chunks}u) {{ chunks[own * {chunks}u + chunk] = vec2<{real}>(near, near_squares); }}",
            "workgroupBarrier();",
            *(f"let b{j} = chunks[own * {chunks}u + {j}u];" for j in range(chunks)),
            *(f"let m{j} = stands_for({j}u);" for j in range(chunks)),
            *_join("b", "m", chunks, "mean", f"{real}({self.k}.0)"),
            f"let by = {real}(1.0) / sqrt(mean_squares / {real}({self.k}.0) + {real}({EPSILON}));",
        ]
        for place in places:
            store = f"rows[own * {self.k}u + at{place}] = (v{place} - mean) * by * gain{place} + shift{place};"
            last = partly and place == self.elements - 1
            lines.append(f"if (lane < {partly}u) {{ {store} }}" if last else store)
        return "\n".join(f"  {line}" for line in [*lines, "workgroupBarrier();"])


def _add(terms: Sequence[str]) -> str:
    """The sum of these in pairs, so that no addition waits for all before it."""
    terms = list(terms)
    while len(terms) > 1:
        pairs = [f"({a} + {b})" for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(terms) // 2 * 2 :]
    return terms[0]


def _some(count: str, real: str) -> str:
    """A divisor: nobody divides by the count of nothing."""
    return f"max({count}, {real}(1.0))"


def _join(pair: str, count: str, joins: int, mean: str, counted: str) -> list[str]:
    """`mean` and `mean`_squares of so many pairs, which stand for so many elements each, `counted` in all."""
    far = [f"{pair}{j}.y + {count}{j} * ({pair}{j}.x - {mean}) * ({pair}{j}.x - {mean})" for j in range(joins)]
    return [
        f"let {mean} = {_add([f'{count}{j} * {pair}{j}.x' for j in range(joins)])} / {counted};",
        f"let {mean}_squares = {_add([f'({term})' for term in far])};",
    ]


_CUDA_FOLD = """__device__ __forceinline__ real over_row(real value, real* spare) {
  #pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
  if (ROW_THREADS > 32) {
    if (threadIdx.x % 32 == 0) spare[threadIdx.x / 32] = value;
    __syncthreads();
    const int begin = threadIdx.x / ROW_THREADS * (ROW_THREADS / 32);
    value = spare[begin];
    #pragma unroll
    for (int i = 1; i < ROW_THREADS / 32; ++i) value += spare[begin + i];
  }
  return value;
}"""
# In place of the loop over the weights; `own`, `first`, `unit` and `total` are those of few rows.
CUDA_SUMS = """
  const int share = threadIdx.x / UNITS;
  Unit ahead[AHEAD];
  #pragma unroll
  for (int a = 0; a < AHEAD; ++a)
    if (own < m && share + a * SHARES < K)
      ahead[a] = *reinterpret_cast<const Unit*>(w_ + (share + a * SHARES) * m + own);
  __shared__ real rows[HELD_ROWS][K], spare[2][THREADS / 32];
  {
    const int r = threadIdx.x / ROW_THREADS, lane = threadIdx.x % ROW_THREADS;
    const stored* const from = x_ + min(first + r, n - 1) * K;
    real held[HELD], gain[HELD], shift[HELD], sum = 0, squares = 0;
    #pragma unroll
    for (int h = 0; h < HELD; ++h) {
      const int i = lane + h * ROW_THREADS, at = i < K ? i : 0;
      held[h] = wide(from[at]);
      gain[h] = wide(g_[at]);
      shift[h] = wide(c_[at]);
      if (i < K) sum += held[h];
    }
    const real mean = over_row(sum, spare[0]) / real(K);
    #pragma unroll
    for (int h = 0; h < HELD; ++h)
      if (lane + h * ROW_THREADS < K) squares += (held[h] - mean) * (held[h] - mean);
    const real by = real(1) / sqrt(over_row(squares, spare[1]) / real(K) + real(EPSILON));
    #pragma unroll
    for (int h = 0; h < HELD; ++h) {
      const int i = lane + h * ROW_THREADS;
      if (i < K) rows[r][i] = (held[h] - mean) * by * gain[h] + shift[h];
    }
  }
  __syncthreads();
  const auto add = [&](const Unit& w, int i) {
    #pragma unroll
    for (int r = 0; r < ROWS; ++r)
      #pragma unroll
      for (int j = 0; j < WIDTH; ++j) total[r][j] += rows[r][i] * wide(w.lane[j]);
  };
  if (own < m) {
    #pragma unroll
    for (int a = 0; a < AHEAD; ++a)
      if (share + a * SHARES < K) add(ahead[a], share + a * SHARES);
    #pragma unroll 4
    for (int i = share + AHEAD * SHARES; i < K; i += SHARES)
      add(*reinterpret_cast<const Unit*>(w_ + i * m + own), i);
  }
""".replace("EPSILON", str(EPSILON))
