// fft, rfft, irfft: discrete Fourier transforms along one axis, of any length; complex numbers are pairs in the last dimension.
//
//   fft    x [..., n, ..., 2] -> y of the same shape
//   rfft   x [..., n, ...]    -> y [..., n / 2 + 1, ..., 2], or all n of them
//   irfft  x [..., m, ..., 2] -> y [..., n, ...]; bins that x lacks are zero, those behind n / 2 + 1 are not read
//
// The axis counts dimensions from the front. Operands and results may have any strides. Rows of bfloat16 and float16 are transformed in
// float32 and rounded once. Lengths are split into factors 4, 2, 3, 5 and primes up to 31; others become convolutions. The tables of a
// length that the program states are made when a session first plans the call, and kept; others in the call's working memory, in each run.
//
// Workers take blocks of 16 rows, which go side by side through the same operations: a row does not depend on its company.
#include "level/fft.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numbers>

#include <nlohmann/json.hpp>

#include "check.h"
#include "level/frame.h"

namespace ingot {

namespace {

constexpr std::int64_t kMostPoints = std::int64_t{1} << 20;  // of a complex transform: 16 rows are 256 MiB of working memory
constexpr std::size_t kMostKept = std::size_t{64} << 20;     // bytes of tables that the calls of all engines keep

std::atomic<std::size_t> kept_bytes{0};

enum class Norm { backward, ortho, forward };

// ---- tables ----

/// exp(-2 pi i k / n), exact at quarters: from an angle of at most an eighth.
void root(std::int64_t k, std::int64_t n, double out[2]) {
  const std::int64_t quarter = 4 * (k % n) / n, rest = 4 * (k % n) % n;
  const double step = std::numbers::pi / 2 / static_cast<double>(n);
  double cosine, sine;
  if (2 * rest <= n) {
    cosine = std::cos(step * static_cast<double>(rest)), sine = std::sin(step * static_cast<double>(rest));
  } else {
    cosine = std::sin(step * static_cast<double>(n - rest)), sine = std::cos(step * static_cast<double>(n - rest));
  }
  const double turned[4][2] = {{cosine, -sine}, {-sine, -cosine}, {-cosine, sine}, {sine, cosine}};
  out[0] = turned[quarter][0], out[1] = turned[quarter][1];
}

void store_root(float* table, std::int64_t at, std::int64_t k, std::int64_t n) {
  double value[2];
  root(k, n, value);
  table[2 * at] = static_cast<float>(value[0]), table[2 * at + 1] = static_cast<float>(value[1]);
}

/// The factors of stages for that many points; false where there is a prime that no stage takes.
bool factors_of(std::int64_t points, int* factors, int& count) {
  count = 0;
  for (const int factor : {4, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31})
    for (; points % factor == 0 && points > 1; points /= factor) factors[count++] = factor;
  return points == 1;
}

/// In place, of a power of 2 numbers.
void transform_plainly(double* x, std::int64_t n) {
  for (std::int64_t i = 1, j = 0; i < n; ++i) {
    std::int64_t bit = n / 2;
    for (; j & bit; bit /= 2) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(x[2 * i], x[2 * j]), std::swap(x[2 * i + 1], x[2 * j + 1]);
  }
  for (std::int64_t length = 2; length <= n; length *= 2) {
    for (std::int64_t k = 0; k < length / 2; ++k) {
      double w[2];
      root(k, length, w);
      for (std::int64_t i = k; i < n; i += length) {
        double *const a = x + 2 * i, *const b = a + length;
        const double re = b[0] * w[0] - b[1] * w[1], im = b[0] * w[1] + b[1] * w[0];
        b[0] = a[0] - re, b[1] = a[1] - im;
        a[0] += re, a[1] += im;
      }
    }
  }
}

/// The plan of a complex transform of that many points, and where its tables lie. `real`: it stands for one of twice as many
/// real numbers.
struct Tables {
  FftPlan plan{};
  float* stages[kMostStages] = {};
  float* roots[kMostStages] = {};
  float *chirp = nullptr, *spectrum = nullptr, *halves = nullptr;
  double* work = nullptr;

  Tables(Frame& frame, std::int64_t points, bool real) {
    int factors[kMostStages];
    plan.points = plan.padded = points;
    if (!factors_of(points, factors, plan.stage_count)) {
      for (plan.padded = 1; plan.padded < 2 * points - 1;) plan.padded *= 2;
      factors_of(plan.padded, factors, plan.stage_count);
      plan.chirp = chirp = frame.take<float>(2 * points);
      plan.spectrum = spectrum = frame.take<float>(2 * plan.padded);
      work = frame.take<double>(2 * plan.padded);
    }
    std::int64_t left = plan.padded;
    for (int i = 0; i < plan.stage_count; ++i) {
      const int radix = factors[i];
      if (radix > 5) roots[i] = frame.take<float>(2 * radix);
      stages[i] = frame.take<float>(2 * (radix - 1) * (left / radix));
      plan.stages[i] = {radix, roots[i], stages[i]};
      left /= radix;
    }
    if (real) plan.halves = halves = frame.take<float>(2 * (points + 1));
  }

  void fill() const {
    std::int64_t left = plan.padded;
    for (int i = 0; i < plan.stage_count; ++i) {
      const int radix = plan.stages[i].radix;
      for (int k = 0; roots[i] != nullptr && k < radix; ++k) store_root(roots[i], k, k, radix);
      for (std::int64_t p = 0; p < left / radix; ++p)
        for (int u = 1; u < radix; ++u) store_root(stages[i], (radix - 1) * p + u - 1, p * u, left);
      left /= radix;
    }
    for (std::int64_t k = 0; halves != nullptr && k <= plan.points; ++k) store_root(halves, k, k, 2 * plan.points);
    if (chirp != nullptr) fill_chirp();
  }

 private:
  void fill_chirp() const {
    const std::int64_t n = plan.points, m = plan.padded;
    std::fill(work, work + 2 * m, 0.0);
    for (std::int64_t k = 0; k < n; ++k) {
      double value[2];
      root(k * k % (2 * n), 2 * n, value);
      chirp[2 * k] = static_cast<float>(value[0]), chirp[2 * k + 1] = static_cast<float>(value[1]);
      for (const std::int64_t place : {k, (m - k) % m}) work[2 * place] = value[0], work[2 * place + 1] = -value[1];
    }
    transform_plainly(work, m);
    for (std::int64_t k = 0; k < 2 * m; ++k) spectrum[k] = static_cast<float>(work[k] / static_cast<double>(m));
  }
};

// ---- the kernel ----

struct Memory {
  float *a, *b;

  Memory(Frame& frame, std::int64_t points)
      : a(frame.take<float>(2 * kFftRows * (points + 1))), b(frame.take<float>(2 * kFftRows * (points + 1))) {}
};

struct Transform {
  const char* name;
  FftKind kind;
  bool inverse = false, all = false;
  Norm norm = Norm::backward;
  int axis = 0;

  /// Whether it is computed as a complex transform of half the length.
  bool halved(std::int64_t n) const { return kind != FftKind::complex && n % 2 == 0; }
  std::int64_t points(std::int64_t n) const { return halved(n) ? n / 2 : n; }

  float scale(std::int64_t n) const {
    const bool back = inverse || kind == FftKind::from_spectrum;
    if (norm == Norm::ortho) return static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
    return back == (norm == Norm::backward) ? static_cast<float>(1 / static_cast<double>(n)) : 1.0f;
  }
};

class Fft final : public Kernel {
 public:
  /// `known`: the length where it is known, else -1.
  Fft(const Transform& transform, std::int64_t known, Level level)
      : transform_(transform), known_(known), table_(half_for(fft_halves, level)) {}
  ~Fft() override { kept_bytes -= own_bytes_; }

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &y = out[0];
    const std::int64_t n = length(x, y);
    for (int d = 0; d < dims(x); ++d)
      require(d == transform_.axis || x.shape[d] == y.shape[d], transform_.name, "x and y must have the same sizes but along the axis");
    require(transform_.kind == FftKind::to_spectrum || x.shape[x.rank - 1] == 2, transform_.name, "x must end in pairs");
    require(transform_.kind == FftKind::from_spectrum || y.shape[y.rank - 1] == 2, transform_.name, "y must end in pairs");
    const std::int64_t found = y.shape[transform_.axis];
    if (transform_.kind != FftKind::from_spectrum)
      require(found == (transform_.kind == FftKind::complex || transform_.all ? n : n / 2 + 1), transform_.name,
              "y does not have the size along the axis that x transforms into");
    if (y.elements() == 0) return {};
    require_length(n);
    if (n == known_) std::call_once(once_, [&] { keep_tables(); });
    return {tables_ ? 0 : table_bytes(n), bytes_of_layout<Memory>(tables_at(nullptr, n).plan.padded)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    if (y.elements() == 0) return;
    const std::int64_t n = length(x, y);
    const Tables tables = tables_at(tables_ ? tables_.get() : worker.shared, n);
    if (!tables_) {
      if (worker.index == 0) tables.fill();
      worker.barrier();
    }
    const auto memory = layout_at<Memory>(worker.local, tables.plan.padded);
    FftJob job;
    job.plan = &tables.plan;
    job.dtype = x.dtype, job.kind = transform_.kind, job.inverse = transform_.inverse;
    job.n = n, job.given = x.shape[transform_.axis], job.wanted = y.shape[transform_.axis];
    job.scale = transform_.scale(n);
    job.x_step = x.stride[transform_.axis], job.y_step = y.stride[transform_.axis];
    job.x_pair = x.stride[x.rank - 1], job.y_pair = y.stride[y.rank - 1];
    job.a = memory.a, job.b = memory.b;
    std::int64_t rows = 1;
    for (int d = 0; d < dims(x); ++d) rows *= d == transform_.axis ? 1 : x.shape[d];
    const Share share = share_of((rows + kFftRows - 1) / kFftRows, worker.index, worker.count);
    for (std::int64_t block = share.first; block < share.last; ++block) {
      job.rows = static_cast<int>(std::min<std::int64_t>(kFftRows, rows - block * kFftRows));
      for (int row = 0; row < job.rows; ++row) place(x, y, block * kFftRows + row, job.x[row], job.y[row]);
      table_.run(job);
    }
  }

 private:
  /// The dimensions beside that of pairs.
  int dims(const TensorView& x) const { return transform_.kind == FftKind::to_spectrum ? x.rank : x.rank - 1; }
  std::int64_t length(const TensorView& x, const TensorView& y) const {
    return (transform_.kind == FftKind::from_spectrum ? y : x).shape[transform_.axis];
  }
  Tables tables_at(std::byte* memory, std::int64_t n) const {
    return layout_at<Tables>(memory, transform_.points(n), transform_.halved(n));
  }
  std::size_t table_bytes(std::int64_t n) const { return bytes_of_layout<Tables>(transform_.points(n), transform_.halved(n)); }

  /// Makes the tables of the known length, unless others have taken the room.
  void keep_tables() const {
    const std::size_t bytes = table_bytes(known_);
    if (kept_bytes.fetch_add(bytes) + bytes > kMostKept) {
      kept_bytes -= bytes;
      return;
    }
    own_bytes_ = bytes;
    tables_ = std::make_unique<std::byte[]>(bytes);
    tables_at(tables_.get(), known_).fill();
  }

  void require_length(std::int64_t n) const {
    require(n >= 1, transform_.name, "there is nothing to transform: the axis has size 0");
    require(transform_.points(n) <= kMostPoints, transform_.name, "the axis is longer than 2^20 complex numbers, or 2^21 real ones");
  }

  /// Where a row begins in x and in y.
  void place(const TensorView& x, const TensorView& y, std::int64_t row, const void*& from, void*& to) const {
    std::int64_t in_x = 0, in_y = 0;
    for (int d = dims(x) - 1; d >= 0; --d) {
      if (d == transform_.axis) continue;
      const std::int64_t index = row % x.shape[d];
      row /= x.shape[d];
      in_x += index * x.stride[d], in_y += index * y.stride[d];
    }
    from = x.at(in_x), to = y.at(in_y);
  }

  Transform transform_;
  std::int64_t known_;
  const FftTable& table_;
  mutable std::once_flag once_;
  mutable std::size_t own_bytes_ = 0;
  mutable std::unique_ptr<std::byte[]> tables_;  // null: of a length that only a run shows, or without room
};

std::unique_ptr<Kernel> make(Transform transform, const nlohmann::json& json, Types in, Types out, Level level) {
  const char* const name = transform.name;
  require_operands(name, in, 1, 1, out, 1);
  require_dtype(name, "x", in[0].dtype, kComputeFloats);
  require_dtype(name, "y", out[0].dtype, {in[0].dtype});
  const int pair = transform.kind == FftKind::to_spectrum ? 0 : 1, rank = in[0].rank - pair;
  require(rank >= 1, name, "x must have an axis to transform");
  require_rank(name, "y", out[0].rank, transform.kind == FftKind::from_spectrum ? rank : rank + 1);
  Params params(name, json);
  transform.axis = params.axis("axis", rank);
  transform.norm = static_cast<Norm>(params.choice("norm", {"backward", "ortho", "forward"}));
  if (transform.kind == FftKind::complex) transform.inverse = params.flag("inverse");
  if (transform.kind == FftKind::to_spectrum) transform.all = !params.flag("onesided");
  params.done();
  const OperandType& whole = transform.kind == FftKind::from_spectrum ? out[0] : in[0];
  return std::make_unique<Fft>(transform, whole.shape[transform.axis], level);
}

template <FftKind kind>
std::unique_ptr<Kernel> make_fft(const nlohmann::json& json, Types in, Types out, Level level) {
  constexpr const char* kNames[] = {"fft", "rfft", "irfft"};
  return make({kNames[static_cast<int>(kind)], kind}, json, in, out, level);
}

constexpr KernelInfo kKernels[] = {
    {"fft", 1, "x -> y", "axis: integer, inverse: flag, norm: backward | ortho | forward", make_fft<FftKind::complex>},
    {"rfft", 1, "x -> y", "axis: integer, onesided: flag, norm: backward | ortho | forward", make_fft<FftKind::to_spectrum>},
    {"irfft", 1, "x -> y", "axis: integer, norm: backward | ortho | forward", make_fft<FftKind::from_spectrum>},
};

}  // namespace

std::span<const KernelInfo> fft_kernels() { return kKernels; }

}  // namespace ingot
