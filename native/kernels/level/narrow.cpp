// Convolutions with few outputs for one level: vectors along a patch, a block of neighbouring pixels and some outputs in registers.
#include "narrow.h"

#include "simd.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr int kSums = 24;  // of 32 registers
#elif defined(__AVX2__)
constexpr int kSums = 6;  // of two registers: 12 of 16
#else
constexpr int kSums = 2;
#endif

/// sum[o][p] += the products of `length` values of P pixels, `apart` bytes from one to the next, with those of N outputs.
template <class T, int N, int P>
INGOT_INLINE void add_run(Vec (&sum)[N][P], const std::byte* x, std::int64_t apart, const float* w, std::int64_t w_output,
                          std::int64_t length) {
  const auto add = [&](std::int64_t at, const auto& read) __attribute__((always_inline)) {
    Vec weight[N];
#pragma GCC unroll 4
    for (int o = 0; o < N; ++o) weight[o] = read(w + o * w_output + at);
#pragma GCC unroll 24
    for (int p = 0; p < P; ++p) {
      const Vec value = read((const T*)(x + p * apart) + at);
#pragma GCC unroll 4
      for (int o = 0; o < N; ++o) sum[o][p] = fma(value, weight[o], sum[o][p]);
    }
  };
  std::int64_t at = 0;
  for (; at + kLanes <= length; at += kLanes) add(at, [](const auto* from) __attribute__((always_inline)) { return load(from); });
  const int rest = (int)(length - at);
  if (rest > 0) add(at, [=](const auto* from) __attribute__((always_inline)) { return load_partial(from, rest); });
}

#if defined(__AVX512F__)
/// reduce_add of eight vectors, in its order.
INGOT_INLINE void store_lane_sums(float* to, const Vec (&v)[8]) {
  const auto added = [](Vec x, Vec y) __attribute__((always_inline)) {  // [x's eight sums, y's]
    return _mm512_shuffle_f32x4(x.v, y.v, 0x44) + _mm512_shuffle_f32x4(x.v, y.v, 0xee);
  };
  const auto halved = [](__m512 x, __m512 y) __attribute__((always_inline)) {  // four sums of each of four
    return _mm512_shuffle_f32x4(x, y, 0x88) + _mm512_shuffle_f32x4(x, y, 0xdd);
  };
  const __m512 first = halved(added(v[0], v[1]), added(v[2], v[3])), second = halved(added(v[4], v[5]), added(v[6], v[7]));
  const __m512 two = _mm512_shuffle_ps(first, second, 0x44) + _mm512_shuffle_ps(first, second, 0xee);
  const __m512 one = two + _mm512_shuffle_ps(two, two, 0xb1);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, one)));
}
#endif

/// The sums of lanes of N outputs from `output` on, of P pixels, to where they lie among all `outputs`.
template <int N, int P>
INGOT_INLINE void store_sums(const Vec (&sum)[N][P], int outputs, int output, float* values) {
  int first = 0;  // pixel
#if defined(__AVX512F__)
  constexpr int kTogether = 8 / N;  // pixels
  if (outputs == N) {
#pragma GCC unroll 4
    for (; first + kTogether <= P; first += kTogether) {
      Vec v[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) v[i] = sum[i % N][first + i / N];
      store_lane_sums(values + first * N, v);
    }
  }
#endif
#pragma GCC unroll 24
  for (int p = first; p < P; ++p)
#pragma GCC unroll 4
    for (int o = 0; o < N; ++o) values[p * outputs + output + o] = reduce_add(sum[o][p]);
}

constexpr int kGathered = 64;  // values of a pixel's run at a time

/// As add_run, of a run whose taps have gaps between them. x: of the first pixel's first tap.
template <class T, int N, int P>
INGOT_INLINE void add_gathered(Vec (&sum)[N][P], const NarrowJob& job, const std::byte* x, std::int64_t apart, const float* w, std::int64_t length) {
  alignas(64) float values[P][kGathered];
  for (std::int64_t at = 0; at < length; at += kGathered) {
    const std::int64_t count = length - at < kGathered ? length - at : kGathered;
    for (std::int64_t i = 0, run; i < count; i += run) {
      const std::int64_t tap = (at + i) / job.channels, channel = (at + i) % job.channels;
      run = job.channels - channel < count - i ? job.channels - channel : count - i;
      for (int p = 0; p < P; ++p)
        convert((const T*)(x + p * apart + tap * job.x_step[2]) + channel, job.dtype, values[p] + i, DType::float32, run);
    }
    add_run<float, N, P>(sum, (const std::byte*)values, sizeof values[0], w + at, job.w_output, count);
  }
}

/// P neighbouring outputs from `column` on, of N channels from `output` on. `across`: the taps that they all find along the line.
/// Gathered: as the job says, by code of its own, for beside it GCC 12 keeps sums of the other in memory.
template <class T, bool Gathered, int N, int P>
INGOT_INLINE void narrow_tile(const NarrowJob& job, int output, const Span& across, float* values) {
  Vec sum[N][P];
#pragma GCC unroll 4
  for (int o = 0; o < N; ++o)
#pragma GCC unroll 24
    for (int p = 0; p < P; ++p) sum[o][p] = zero();
  const std::int64_t apart = job.axis[2].stride * job.x_step[2];
  [[maybe_unused]] const std::int64_t runs = job.together ? across.count > 0 : across.count;
  const std::int64_t length = job.together ? across.count * job.channels : job.channels;
  for (std::int64_t z = 0; z < job.planes.count; ++z)
    for (std::int64_t y = 0; y < job.lines.count; ++y) {
      const std::byte* x = job.x + (job.planes.first + z * job.axis[0].dilation) * job.x_step[0] +
                           (job.lines.first + y * job.axis[1].dilation) * job.x_step[1] + across.first * job.x_step[2];
      const std::int64_t line = (job.planes.skipped + z) * job.axis[1].kernel + job.lines.skipped + y;
      const float* w = job.w + output * job.w_output + line * job.w_line + across.skipped * job.channels;
      if constexpr (Gathered) add_gathered<T, N, P>(sum, job, x, apart, w, length);
      else
        for (std::int64_t i = 0; i < runs; ++i, x += job.axis[2].dilation * job.x_step[2], w += job.channels)
          add_run<T, N, P>(sum, x, apart, w, job.w_output, length);
    }
  store_sums(sum, job.outputs, output, values);
}

/// Outputs [first, last) of the line, of N channels.
template <class T, bool Gathered, int N>
void narrow_columns(const NarrowJob& job, int output, std::int64_t first, std::int64_t last, float* values) {
  constexpr int kBlock = kSums / N < 12 ? kSums / N : 12;
  const WindowAxis& axis = job.axis[2];
  for (std::int64_t column = first; column < last;) {
    const Span across = span_of(axis, column);
    if constexpr (kBlock > 1) {
      // The taps that a block's first and last pixel find are all found by those between them.
      if (last - column >= kBlock && across.count == axis.kernel && span_of(axis, column + kBlock - 1).count == axis.kernel) {
        narrow_tile<T, Gathered, N, kBlock>(job, output, across, values);
        column += kBlock, values += kBlock * job.outputs;
        continue;
      }
    }
    narrow_tile<T, Gathered, N, 1>(job, output, across, values);
    ++column, values += job.outputs;
  }
}

template <class T, bool Gathered>
void narrow_outputs(const NarrowJob& job, std::int64_t first, std::int64_t last) {
  int output = 0;
  if constexpr (kSums >= 4)
    for (; output + 4 <= job.outputs; output += 4) narrow_columns<T, Gathered, 4>(job, output, first, last, job.values);
  for (; output + 2 <= job.outputs; output += 2) narrow_columns<T, Gathered, 2>(job, output, first, last, job.values);
  if (output < job.outputs) narrow_columns<T, Gathered, 1>(job, output, first, last, job.values);
}

constexpr int kFolded = 2 * kLanes;  // columns

/// What several rows of few outputs read of the epilogue's extras as one row: each of its own row, which all rows share, over and over.
struct FoldedExtras {
  alignas(64) std::byte rows[kMaxInputs][kFolded * 4];
  TileOperand operands[kMaxInputs];
};

/// Whether rows of a job's outputs can be ended as rows of kFolded: then `folded` is that epilogue.
inline bool fold(const NarrowJob& job, FoldedExtras& extras, EpilogueJob& folded) {
  const EpilogueJob& epilogue = job.epilogue;
  if (job.outputs == 1 || kFolded % job.outputs != 0 || epilogue.out.row_stride != job.outputs) return false;
  for (int i = 0; i < epilogue.extra_count; ++i) {
    const TileOperand& o = epilogue.extras[i];
    const int bytes = bytes_of(o.dtype);
    if (o.row_stride != 0 || bytes > 4) return false;
    for (int c = 0; c < kFolded; ++c)
      __builtin_memcpy(extras.rows[i] + c * bytes, o.data + c % job.outputs * o.column_stride * bytes, bytes);
    extras.operands[i] = {extras.rows[i], o.dtype, 0, 1};
  }
  folded = epilogue;
  folded.extras = extras.operands;
  folded.out.row_stride = kFolded;
  return true;
}

/// The same epilogue over one long row in the place of rows of one output.
inline EpilogueJob turned(const EpilogueJob& epilogue, TileOperand* extras) {
  EpilogueJob row = epilogue;
  for (int i = 0; i < epilogue.extra_count; ++i) {
    const TileOperand& o = epilogue.extras[i];
    extras[i] = {o.data, o.dtype, 0, o.row_stride};
  }
  row.extras = extras;
  row.out = {epilogue.out.data, epilogue.out.dtype, 0, 1};
  return row;
}

void run(const NarrowJob& job) {
  TileOperand extras[kMaxInputs];
  const bool one_row = job.outputs == 1 && job.epilogue.out.row_stride == 1;
  const EpilogueJob epilogue = one_row ? turned(job.epilogue, extras) : job.epilogue;
  EpilogueTile tile, folded_tile;
  begin_epilogue(epilogue, tile);
  FoldedExtras folded_extras;
  EpilogueJob folded;
  const bool folds = fold(job, folded_extras, folded);
  if (folds) begin_epilogue(folded, folded_tile);
  const std::int64_t step = kNarrowValues / job.outputs, together = kFolded / job.outputs;
  for (std::int64_t first = job.first; first < job.last; first += step) {
    const std::int64_t last = job.last - first < step ? job.last : first + step;
    if (job.dtype == DType::int8) narrow_outputs<std::int8_t, false>(job, first, last);
    else with_floats(job.dtype, (const void*)job.x, [&]<class T>(const T*) {
      job.gathered ? narrow_outputs<T, true>(job, first, last) : narrow_outputs<T, false>(job, first, last);
    });
    const std::int64_t row = first - job.first, rows = last - first, whole = folds ? rows / together * together : 0;
    if (whole > 0) run_epilogue(folded, folded_tile, job.values, kFolded, row / together, whole / together, 0, kFolded);
    if (!one_row) run_epilogue(epilogue, tile, job.values + whole * job.outputs, job.outputs, row + whole, rows - whole, 0, job.outputs);
    for (std::int64_t at = 0; one_row && at < rows; at += kTile)
      run_epilogue(epilogue, tile, job.values + at, 0, 0, 1, row + at, rows - at < kTile ? rows - at : kTile);
  }
}

}  // namespace

const NarrowTable narrow_table = {run, convert};

}  // namespace ingot::INGOT_LEVEL
