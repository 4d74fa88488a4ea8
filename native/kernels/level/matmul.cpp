// Matrix products with packed weights for vector units: portable, avx2, avx512, bfloat16 at avx512_bf16, int8 at avx_vnni and
// avx512_vnni.
//
// A register tile of up to kRows rows by one or two vectors of 16 outputs; a row of x is broadcast value by value (bfloat16
// dot products: pair by pair; int8: four by four, also with weights of 4 bits). Limits: none beyond matmul.h; any k, any number of rows.
#include <utility>

#include "matmul_floats.h"
#include "matmul_grouped.h"
#include "matmul_pairs.h"
#include "matmul_quads.h"
#include "matmul_register_tile.h"
#include "matmul_small.h"
#include "nibbles.h"
#include "quads.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// Rows of int8 with weights of 4 bits.
struct Nibbles {
  typedef std::int8_t Source;
  typedef std::int8_t Packed;
  typedef Ints Values;
  static constexpr Blocking blocking = kNibbleBlocking;
  static constexpr int k_step = 8, w_depth = 4, w_bytes = kPanel * 4, x_bytes = 4;
  static constexpr bool integers = false, sums_of_groups = true, pads_rows = false, ends_rows = true, scales_sums = true;
  static constexpr int unpacks_rows = kFewRows;
  // One row fetches one stream of weights best, whose sums are chains enough with AVX-512.
  static constexpr int panels_at_once(Packing packing, std::int64_t rows) { return kFewRows > 2 && rows == 1 ? 1 : panels_of(packing != Packing::same, rows); }
  INGOT_INLINE void finish_row(const MatmulJob& job, std::byte* row, int depth) {
    pack_for_nibbles(row, (int)round_up(depth, k_step), job.group);
  }
  INGOT_INLINE Values values(const std::byte* w) { return words_at(w, 0); }
  template <Packing, int N>
  INGOT_INLINE Values values_of(Ints words) { return bytes_of_nibbles<N>(words); }
  INGOT_INLINE void store_values(std::byte* to, Values values) { store((float*)to, from_bits(values)); }
  template <int R, int C>
  INGOT_INLINE void add(Ints (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints v = broadcast_int(*(const std::int32_t*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) add_bytes(a[r][c], b[c], v);
    }
  }
  INGOT_INLINE void unpack(const MatmulJob&, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    unpack_words<Nibbles, Packing::int4>(from, k, panel, std::make_integer_sequence<int, 2>());
  }
  INGOT_INLINE void multiply(const BlockProduct& p) {
    if constexpr (kFewRows > 0) {
      if (p.packing == Packing::int4) return multiply_rows<Nibbles, InWords<Nibbles, Packing::int4>>(p, std::make_integer_sequence<int, kFewRows>());
    }
    multiply_rows<Nibbles, AsRead<Nibbles, true>>(p, std::make_integer_sequence<int, kIntGroupRows>());
  }
};

}  // namespace

// A level has what its instructions make faster than at the level that it extends.
const MatmulTable matmul_table = {
#if defined(__AVX512BF16__)
    .bfloat16 = {.run = run_job<Pairs>, .blocking = Pairs::blocking, .speed = 2, .pack = pack_panel<std::uint16_t, 2>, .small = run_small},
    .int8 = kQuadsProduct,  // whose sums may become bfloat16
    .grouped_bfloat16 = run_grouped<PairWords>,
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    .int8 = kQuadsProduct,
    .int8_int4 = {.run = run_job<Nibbles>, .blocking = Nibbles::blocking},
#if defined(__AVX512VNNI__)
    .grouped_int8 = run_grouped<QuadWords>,
#endif
#else
    .float32 = {.run = run_job<OneByOne<float>>, .blocking = OneByOne<float>::blocking, .pack = pack_panel<std::uint32_t, 1>},
    .float16 = {.run = run_job<OneByOne<float16>>, .blocking = OneByOne<float16>::blocking, .pack = pack_panel<std::uint16_t, 1>},
    .bfloat16 = {.run = run_job<Pairs>, .blocking = Pairs::blocking, .pack = pack_panel<std::uint16_t, 2>},
    .int8 = kQuadsProduct,
    .int8_int4 = {.run = run_job<Nibbles>, .blocking = Nibbles::blocking},
#if defined(__AVX512F__)
    .grouped_float32 = run_grouped<FloatWords>,
#endif
#endif
};

}  // namespace ingot::INGOT_LEVEL
