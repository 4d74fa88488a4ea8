// What it costs that a row's result does not depend on its company: the products of TinyLlama's shape beside ways whose bits depend on how many rows there are.
//
// Compiled and run by benchmarks/invariance.py. Run: ./bench THREADS ROUNDS ROWS WEIGHTS [GROUP]; ROWS are of bfloat16 or int8, WEIGHTS same, int8 or int4
// in groups of GROUP. Prints JSON: for 1, 16 and 512 rows the time in which each way multiplies them with the weights of a layer, cold, and the
// largest difference to ours, of the largest result. The ways take turns; a round's time of a product is the median of a few.
//
// - "two chains", "four chains": one row has so many sums of each output, which are added at the end of a block: no product waits for the last one.
// - "shared k": every thread sums a part of k for all outputs, and then all add the parts of some.
// - "rounded weights": of int4, many rows meet weights that were multiplied by their scales and rounded to bfloat16, once for all rows.
// - "unpacked weights": many rows meet weights of x's type, which lie in memory as such: what no unpacking, in whatever order, can beat by much.
// - "vectors": the level below tiles.
#include "bench.h"

#include "level/matmul_pairs.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512BF16__)
/// One row by C vectors of outputs, the sums of each in so many chains.
template <class Kind, class Way, int Chains, int C>
INGOT_INLINE void chained_tile(const BlockProduct& p, const Sums& sums, Ahead ahead) {
  constexpr int kSteps = Way::depth / Kind::w_depth;  // of the kind's in one of the way
  constexpr int kTurn = kSteps < Chains ? Chains / kSteps : 1;
  const std::byte *x = p.x, *w = p.w;
  Vec a[1][C];
  INGOT_UNROLL for (int c = 0; c < C; ++c) a[0][c] = p.first ? zero() : load(p.accumulators + c / 2 * p.apart + c % 2 * kLanes);
  const int steps = (p.k + Way::depth - 1) / Way::depth, of_group = Way::groups ? p.group / Way::depth : steps;
  const std::byte* scales = p.scales;
  int s = 0;
  while (s < steps) {
    Vec chain[Chains][1][C];
    INGOT_UNROLL for (int i = 0; i < Chains; ++i) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) chain[i][0][c] = zero();
    }
    const int end = s + of_group < steps ? s + of_group : steps;
    const auto step = [&]<int First, int... N>(std::integral_constant<int, First>, std::integer_sequence<int, N...>) __attribute__((always_inline)) {
      if (s == ahead.turn) ahead.from = ahead.then;
      INGOT_UNROLL for (int panel = 0; panel < C / 2; ++panel) {
        __builtin_prefetch(ahead.from + panel * p.w_apart);
        __builtin_prefetch(ahead.from + panel * p.w_apart + 64);
      }
      ahead.from += ahead.advance;
      const auto add = [&]<int I>(std::integral_constant<int, I>) __attribute__((always_inline)) {
        typename Kind::Values b[C];
        INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = Way::template values<I>(w + c / 2 * p.w_apart + c % 2 * (Way::bytes / 2));
        Kind::template add<1, C>(chain[(First + I) % Chains], x + I * Kind::x_bytes, b);
      };
      (add(std::integral_constant<int, N>()), ...);
      x += Kind::x_bytes * kSteps;
      w += Way::bytes;
      ++s;
    };
    constexpr auto all = std::make_integer_sequence<int, kSteps>();
    for (; s + kTurn <= end;)
      [&]<int... T>(std::integer_sequence<int, T...>) __attribute__((always_inline)) { (step(std::integral_constant<int, T * kSteps>(), all), ...); }
      (std::make_integer_sequence<int, kTurn>());
    while (s < end) step(std::integral_constant<int, 0>(), all);
    INGOT_UNROLL for (int i = Chains / 2; i > 0; i /= 2) {
      INGOT_UNROLL for (int j = 0; j < i; ++j) {
        INGOT_UNROLL for (int c = 0; c < C; ++c) chain[j][0][c] = chain[j][0][c] + chain[j + i][0][c];
      }
    }
    if constexpr (Way::groups) {
      Vec scale[C];
      take_scales(p, scales, scale);
      scales += p.scales_step;
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[0][c] = fma(chain[0][0][c], scale[c], a[0][c]);
    } else {
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[0][c] = a[0][c] + chain[0][0][c];
    }
  }
  end_sums<Kind>(p, a, sums);
}

template <class Kind, class Way, int Chains>
void chained(const BlockProduct& p, int, const Sums& sums, const Ahead& ahead) {
  if (p.panels == 2) chained_tile<Kind, Way, Chains, 4>(p, sums, ahead);
  else chained_tile<Kind, Way, Chains, 2>(p, sums, ahead);
}

template <class Kind, Packing How>
struct WayOf {
  typedef InWords<Kind, How> Type;
};
template <class Kind>
struct WayOf<Kind, Packing::same> {
  typedef AsRead<Kind, false> Type;
};

/// For one row.
template <Packing How, int Chains>
struct Chained : Pairs {
  static constexpr int panels_at_once(Packing, std::int64_t) { return 2; }  // four chains of more have too few registers
  INGOT_INLINE void multiply(const BlockProduct& p) {
    typedef typename WayOf<Pairs, How>::Type Way;
    const int distance = (Way::narrow ? kNarrowAhead : kAhead) / p.panels, steps = (p.k + Way::depth - 1) / Way::depth;
    multiply_block(chained<Pairs, Way, Chains>, p, 0, 1, {p.w + distance, Way::bytes, p.ahead, steps - distance / Way::bytes});
  }
};

/// Weights of 4 bits times their scales, rounded to bfloat16, for any number of rows.
struct Rounded : Pairs {
  static constexpr bool scales_sums = false;
  static constexpr int unpacks_rows = 0;
  template <int... N>
  INGOT_INLINE void unpack_step(const std::byte* from, std::byte* panel, const Vec (&scale)[2], std::integer_sequence<int, N...>) {
    alignas(64) static constexpr std::uint16_t kTurned[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                              8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i turned = _mm512_load_si512(kTurned);
    INGOT_UNROLL for (int half = 0; half < 2; ++half) {
      const Ints words = words_at(from, half * kLanes);
      const auto one = [&]<int I>(std::integral_constant<int, I>) __attribute__((always_inline)) {
        const Vec even = value_of<4, I>(words) * scale[half], odd = value_of<4, I + 4>(words) * scale[half];  // as pair_halves lays out rows
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd.v, even.v);
        _mm512_storeu_si512(panel + I * w_bytes + half * w_bytes / 2, _mm512_permutexvar_epi16(turned, both));
      };
      (one(std::integral_constant<int, N>()), ...);
    }
  }
  __attribute__((noinline)) static void unpack(const MatmulJob& job, std::int64_t number, const std::byte* from, std::int64_t begin, int k, std::byte* panel) {
    const std::int64_t step = kPanel * job.scale_bytes, groups = (job.k + job.group - 1) / job.group;
    const std::byte* scales = job.scales + (number * groups + begin / job.group) * step;
    for (int row = 0; row < k; scales += step) {
      Vec scale[2];
      load_scales(scales, (int)step, 0, scale);
      for (const int end = row + job.group < k ? row + job.group : k; row < end; row += 8, from += kPackedBytes, panel += 4 * w_bytes)
        unpack_step(from, panel, scale, std::make_integer_sequence<int, 4>());
    }
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_rows<Pairs, AsRead<Pairs, false>>(p, std::make_integer_sequence<int, kRows>()); }
};
#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL

namespace {

struct Format {
  DType rows;
  Packing packing;
  int group = 0;

  std::int64_t width() const { return bytes_of(rows); }
  DType out() const { return DType::bfloat16; }
  DType stored() const { return packing == Packing::int4 ? DType::uint8 : rows; }
  Format wide() const { return {rows, Packing::same}; }
  std::int64_t panel_bytes(std::int64_t k) const {
    const std::int64_t depth = packing == Packing::same ? 4 / width() : packed_depth(packing);
    return round_up(k, depth) / depth * kPackedBytes;
  }
  std::int64_t groups(std::int64_t k) const { return group == 0 ? 0 : (k + group - 1) / group; }
};

struct Shape {
  std::int64_t n, k;
  std::int64_t panels() const { return n / kPanel; }
};

// q, k and v as one, what follows attention, gate and up as one, and down.
constexpr Shape kLayer[] = {{2560, 2048}, {2048, 2048}, {11264, 2048}, {2048, 5632}};
constexpr std::int64_t kResults = 16 << 20, kScales = kPool / 4;  // bytes

const Epilogue& identity(DType out) {
  static constexpr DType kFloat = DType::float32, kHalf = DType::bfloat16;
  static const auto made = [](const DType& to) {
    return Epilogue(Expression("bench", R"({"steps": [["input", "float32", 0]], "outputs": [0]})"_json, {&kFloat, 1}, {&to, 1}), current_level());
  };
  static const Epilogue to_half = made(kHalf), to_float = made(kFloat);
  return out == kFloat ? to_float : to_half;
}

typedef void (*Product)(const MatmulJob&);

struct Operands {
  Team& team;
  const std::byte *x, *w, *scales;
  std::byte *y, *parts;
  std::vector<std::byte*> scratch;
};

/// Units [first, last) of a product, to y as that type, by that thread.
void multiply_units(const Operands& o, int thread, const Format& format, Product run, const Shape& shape, std::int64_t rows, MatmulJob job,
                    std::int64_t first, std::int64_t last, DType out, std::byte* y) {
  const Epilogue& epilogue = identity(out);
  job.rows = rows;
  job.k = shape.k;
  job.w += format.panel_bytes(shape.k) * first;
  job.packing = format.packing;
  job.group = format.group;
  job.scale_bytes = 2;
  job.scales = o.scales + first * format.groups(shape.k) * kPanel * 2;
  job.units = last - first;
  job.parts = 1;
  job.columns = shape.n - first * kPanel;
  Frame frame(o.scratch[static_cast<std::size_t>(thread)]);
  job.unpacked = frame.take<std::byte>(2 * kUnpackedPanel);
  job.epilogue = epilogue.job(nullptr, 0, epilogue.take(frame));
  job.epilogue.out = {y + first * kPanel * bytes_of(out), out, shape.n, 1};
  job.scratch = frame.take<std::byte>(0);
  run(job);
}

MatmulJob job_of(const std::byte* x, std::int64_t stride, const std::byte* w) {
  MatmulJob job{};
  job.x = x;
  job.x_stride = stride;
  job.w = w;
  return job;
}

/// Threads share the outputs.
void by_outputs(const Operands& o, const Format& format, Product run, const Shape& shape, std::int64_t rows) {
  const std::int64_t units = shape.panels(), count = o.team.size();
  o.team.run([&](int i) {
    multiply_units(o, i, format, run, shape, rows, job_of(o.x, shape.k * format.width(), o.w), units * i / count, units * (i + 1) / count, format.out(), o.y);
  });
}

/// Threads share k; the weights of each thread's part lie together.
void by_depth(const Operands& o, const Format& format, Product run, const Shape& shape, std::int64_t rows) {
  const std::int64_t count = o.team.size(), values = rows * shape.n;
  const Shape part{shape.n, shape.k / count};
  std::atomic<std::int64_t> done{0};
  o.team.run([&](int i) {
    const MatmulJob job = job_of(o.x + i * part.k * format.width(), shape.k * format.width(), o.w + i * part.panels() * format.panel_bytes(part.k));
    multiply_units(o, i, format, run, part, rows, job, 0, part.panels(), DType::float32, o.parts + i * values * 4);
    done.fetch_add(1);
    while (done.load(std::memory_order_acquire) < count) {
    }
    using namespace INGOT_LEVEL;
    for (std::int64_t at = values * i / count & -kLanes; at < (i + 1 == count ? values : values * (i + 1) / count & -kLanes); at += kLanes) {
      Vec sum = load(reinterpret_cast<const float*>(o.parts) + at);
      for (std::int64_t other = 1; other < count; ++other) sum = sum + load(reinterpret_cast<const float*>(o.parts + other * values * 4) + at);
      store(reinterpret_cast<bfloat16*>(o.y) + at, sum);
    }
  });
}

struct Way {
  const char* name;
  bool one, many;  // rows that it is for
  Format format;
  void (*multiply)(const Operands&, const Format&, Product, const Shape&, std::int64_t);
  Product run;
  bool compared;  // whether its weights are those of ours
};

template <Packing How>
void add_chains(std::vector<Way>& ways, const Format& format) {
#if defined(__AVX512BF16__)
  using namespace INGOT_LEVEL;
  ways.push_back({"two chains", true, false, format, by_outputs, run_job<Chained<How, 2>>, true});
  ways.push_back({"four chains", true, false, format, by_outputs, run_job<Chained<How, 4>>, true});
#endif
}

std::vector<Way> all_ways(const Format& format) {
  const auto at = [](Level level, const Format& of) { return product_for(level, of.rows, of.stored()).run; };
  const Product ours = at(current_level(), format);
  std::vector<Way> ways = {{"ours", true, true, format, by_outputs, ours, true}, {"shared k", true, true, format, by_depth, ours, false}};
  if (format.packing != Packing::same) ways.push_back({"unpacked weights", false, true, format.wide(), by_outputs, at(current_level(), format.wide()), false});
  if (current_level() == Level::amx) ways.push_back({"vectors", true, true, format, by_outputs, at(Level::avx512_bf16, format), true});
  if (format.rows != DType::bfloat16) return ways;
  if (format.packing == Packing::same) add_chains<Packing::same>(ways, format);
  if (format.packing == Packing::int8) add_chains<Packing::int8>(ways, format);
  if (format.packing == Packing::int4) add_chains<Packing::int4>(ways, format);
#if defined(__AVX512BF16__)
  if (format.packing == Packing::int4) ways.push_back({"rounded weights", false, true, format, by_outputs, INGOT_LEVEL::run_job<INGOT_LEVEL::Rounded>, true});
#endif
  return ways;
}

/// The largest difference of two results of n values, of the largest value.
double difference(const std::byte* a, const std::byte* b, std::int64_t n) {
  double most = 0, largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = [i](const std::byte* y) {
      std::uint16_t half;
      std::memcpy(&half, y + i * 2, 2);
      return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16));
    };
    most = std::max(most, std::abs(value(a) - value(b)));
    largest = std::max(largest, std::abs(value(a)));
  }
  return most / largest;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Memory that holds one piece of random numbers again and again: bfloat16, or bytes.
std::byte* numbers(std::int64_t bytes, DType dtype) {
  constexpr std::int64_t kPiece = 1 << 20;
  std::byte* const p = huge(static_cast<std::size_t>(bytes));
  for (std::int64_t i = 0; i < kPiece; i += 2) {
    const float v = uniform();
    const std::int8_t narrow[2] = {static_cast<std::int8_t>(v * 127), static_cast<std::int8_t>(uniform() * 127)};
    std::memcpy(p + i, dtype == DType::bfloat16 ? reinterpret_cast<const std::byte*>(&v) + 2 : reinterpret_cast<const std::byte*>(narrow), 2);
  }
  for (std::int64_t at = kPiece; at < bytes; at += kPiece) std::memcpy(p + at, p, kPiece);
  return p;
}

/// Seconds of a layer's products by each way, in turns; the first round warms up, and compares.
void measure(Operands& o, const std::vector<Way>& ways, std::int64_t rows, int rounds, std::byte* before, const char*& comma) {
  const int repeats = rows == 1 ? 9 : rows == 16 ? 5 : 3;
  std::vector<std::vector<double>> times(ways.size());
  std::vector<double> differences(ways.size());
  std::int64_t turn = 0;
  for (int round = 0; round <= rounds; ++round)
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const Way& way = ways[i];
      if (!(rows == 1 ? way.one : way.many)) continue;
      double sum = 0;
      for (std::size_t product = 0; product < std::size(kLayer); ++product) {
        const Shape& shape = kLayer[product];
        const std::int64_t step = round_up(shape.panels() * way.format.panel_bytes(shape.k), 4096), values = rows * shape.n;
        const std::int64_t scales_step = round_up(shape.panels() * way.format.groups(shape.k) * kPanel * 2, 4096);
        const std::int64_t copies = std::min(kPool / step, scales_step == 0 ? kPool : kScales / scales_step);
        std::vector<double> seen;
        for (int repeat = 0; repeat < repeats; ++repeat) {
          const std::int64_t copy = round == 0 ? 0 : ++turn % copies;
          o.w += copy * step, o.scales += copy * scales_step;
          const double start = now();
          way.multiply(o, way.format, way.run, shape, rows);
          seen.push_back(now() - start);
          o.w -= copy * step, o.scales -= copy * scales_step;
        }
        sum += median(seen);
        if (round > 0 || !way.compared) continue;
        std::byte* const kept = before + static_cast<std::int64_t>(product) * kResults;
        if (i == 0) std::memcpy(kept, o.y, static_cast<std::size_t>(values * 2));
        differences[i] = std::max(differences[i], difference(kept, o.y, values));
      }
      if (round > 0) times[i].push_back(sum);
    }
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (times[i].empty()) continue;
    std::printf("%s{\"rows\": %ld, \"way\": \"%s\", \"difference\": %.2g, \"seconds\": [", comma, rows, ways[i].name, differences[i]);
    for (std::size_t round = 0; round < times[i].size(); ++round) std::printf("%s%.4e", round == 0 ? "" : ", ", times[i][round]);
    std::printf("]}");
    comma = ", ";
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const int threads = std::atoi(argv[1]), rounds = std::atoi(argv[2]);
  const std::string_view weights = argv[4];
  Format format{DType::bfloat16, weights == "int4" ? Packing::int4 : weights == "int8" ? Packing::int8 : Packing::same, argc > 5 ? std::atoi(argv[5]) : 0};
  if (!dtype_from_name(argv[3], &format.rows)) return 2;
  Team team(threads);
  const DType held = format.packing == Packing::same ? format.rows : DType::int8;
  Operands o{team, numbers(64 << 20, format.rows), numbers(kPool + (64 << 20), held), huge(kScales + (64 << 20)), huge(64 << 20), huge(static_cast<std::size_t>(threads) * 2 * kResults), {}};
  for (std::int64_t at = 0; at < kScales + (64 << 20); at += 2) {
    const auto scale = static_cast<std::uint16_t>(0x1400 + at % 4096 / 4);  // of float16, about 0.001: denormal ones would take longer
    std::memcpy(const_cast<std::byte*>(o.scales) + at, &scale, 2);
  }
  for (int i = 0; i < threads; ++i) o.scratch.push_back(huge(64 << 20));
  std::byte* const before = huge(std::size(kLayer) * kResults);
  std::printf("{\"level\": \"%s\", \"found\": [", name_of(current_level()).data());
  const char* comma = "";
  for (const std::int64_t rows : {1, 16, 512}) measure(o, all_ways(format), rows, rounds, before, comma);
  std::printf("]}\n");
  return 0;
}
