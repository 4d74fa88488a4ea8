// Steps of recurrent layers for one level: sums of products with the state, and the gates.
#include "recurrent.h"

#include "simd.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kPanelUnits = 32;
constexpr int kByteRows = 3;  // most rows for which int8 is widened as it is multiplied, and not before
constexpr float kNone[kLanes] = {};

/// Two bfloat16 of neighbouring k, which are moved as a float is; so are four int8.
struct Pair {
  float bits;
};
struct Quad {
  float bits;
};

/// Byte N of each word times 2^24: an operation less than for the byte itself, which is shifted back.
template <int N>
INGOT_INLINE Vec raised(Ints words) {
  if constexpr (N == 0) return to_float(shift_left<24>(words));
  else return to_float(shift_left<24 - 8 * N>(words) & broadcast_int(-(1 << 24)));
}
constexpr float kLower = 0x1p-24f;  // what sums of such are multiplied by, exactly

#if defined(__AVX512F__)
constexpr int kTileRows = 6;
constexpr int tile_vectors(int rows) { return rows <= 3 ? 8 : 4; }  // 24 of 32 registers
constexpr int quad_vectors(int rows) { return rows == 1 ? 8 : 4; }  // as many of words
#elif defined(__AVX2__)
constexpr int kTileRows = 6;
constexpr int tile_vectors(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }  // of two registers: 12 of 16
constexpr int quad_vectors(int rows) { return rows <= 2 ? 2 : 1; }
#else
constexpr int kTileRows = 2;
constexpr int tile_vectors(int) { return 1; }
constexpr int quad_vectors(int) { return 1; }
#endif

/// What one register tile multiplies: a block of k values of rows of the state by vectors of units, each with its own place in
/// the panels. The sums of the blocks before it are in c; the first one's begin with the bias.
struct Tile {
  const float* a;
  std::int64_t a_stride, k;
  bool first;
  const void* const* w;
  const float* const* bias;
  float* c;
  std::int64_t c_stride;
};

/// Adds to a tile's sums what its k values of R rows make with V vectors of weights.
template <class T, int R, int V>
INGOT_INLINE void add_products(const Tile& t, const T* (&w)[V], Vec (&sum)[R][V]) {
  const float* const a = t.a;
  const std::int64_t a_stride = t.a_stride;
  for (std::int64_t k = 0; k < t.k; ++k) {
    Vec column[V];
    each<V>([&](int v) { column[v] = load(w[v] + k * kPanelUnits); });
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec row = broadcast(a[r * a_stride + k]);
      INGOT_UNROLL for (int v = 0; v < V; ++v) sum[r][v] = fma(row, column[v], sum[r][v]);
    }
  }
}

template <int R, int V>
INGOT_INLINE void add_products(const Tile& t, const Pair* (&w)[V], Vec (&sum)[R][V]) {
  const float* const a = t.a;
  const std::int64_t a_stride = t.a_stride;
  for (std::int64_t k = 0; k < t.k; k += 2) {
    Vec words[V];
    each<V>([&](int v) { words[v] = load((const float*)w[v] + k / 2 * kPanelUnits); });
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec row = broadcast(a[r * a_stride + k]);
      INGOT_UNROLL for (int v = 0; v < V; ++v) sum[r][v] = fma(row, from_bits(shift_left<16>(bits(words[v]))), sum[r][v]);
    }
    if (k + 1 == t.k) break;
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec row = broadcast(a[r * a_stride + k + 1]);
      INGOT_UNROLL for (int v = 0; v < V; ++v) sum[r][v] = fma(row, from_bits(bits(words[v]) & broadcast_int(-65536)), sum[r][v]);
    }
  }
}

template <int R, int V>
INGOT_INLINE void add_products(const Tile& t, const Quad* (&w)[V], Vec (&sum)[R][V]) {
  const float* const a = t.a;
  const std::int64_t a_stride = t.a_stride;
  Ints words[V];
  const auto read = [&](std::int64_t k) __attribute__((always_inline)) {
    each<V>([&](int v) { words[v] = bits(load((const float*)w[v] + k / 4 * kPanelUnits)); });
  };
  const auto step = [&]<int N>(std::int64_t k) __attribute__((always_inline)) {
    INGOT_UNROLL for (int v = 0; v < V; ++v) {
      const Vec column = raised<N>(words[v]);
      INGOT_UNROLL for (int r = 0; r < R; ++r) sum[r][v] = fma(broadcast(a[r * a_stride + k + N]), column, sum[r][v]);
    }
  };
  std::int64_t k = 0;
  for (; k + 4 <= t.k; k += 4) {
    read(k);
    step.template operator()<0>(k), step.template operator()<1>(k), step.template operator()<2>(k), step.template operator()<3>(k);
  }
  if (k < t.k) {
    read(k);
    step.template operator()<0>(k);
    if (k + 1 < t.k) step.template operator()<1>(k);
    if (k + 2 < t.k) step.template operator()<2>(k);
  }
}

template <class T, int R, int V>
void multiply(const Tile& t) {
  Vec sum[R][V];
  const T* w[V];
  INGOT_UNROLL for (int v = 0; v < V; ++v) {
    w[v] = (const T*)t.w[v];
    const Vec first = load(t.bias[v]);
    INGOT_UNROLL for (int r = 0; r < R; ++r) sum[r][v] = t.first ? first : load(t.c + r * t.c_stride + v * kLanes);
  }
  add_products(t, w, sum);
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int v = 0; v < V; ++v) store(t.c + r * t.c_stride + v * kLanes, sum[r][v]);
  }
}

template <class T, int R>
void multiply_vectors(Tile t, int count) {
  constexpr int kMost = __is_same(T, Quad) ? quad_vectors(R) : tile_vectors(R);
  while (count > 0) {
    int taken = 1;
    if constexpr (kMost >= 8) {
      if (count >= 8) taken = 8;
      else if (count >= 6) taken = 6;
    }
    if constexpr (kMost >= 4) {
      if (taken == 1 && count >= 4) taken = 4;
      else if (taken == 1 && count >= 3) taken = 3;
    }
    if constexpr (kMost >= 2) {
      if (taken == 1 && count >= 2) taken = 2;
    }
    switch (taken) {
      case 8: if constexpr (kMost >= 8) multiply<T, R, 8>(t); break;
      case 6: if constexpr (kMost >= 8) multiply<T, R, 6>(t); break;
      case 4: if constexpr (kMost >= 4) multiply<T, R, 4>(t); break;
      case 3: if constexpr (kMost >= 4) multiply<T, R, 3>(t); break;
      case 2: if constexpr (kMost >= 2) multiply<T, R, 2>(t); break;
      default: multiply<T, R, 1>(t);
    }
    t.w += taken, t.bias += taken, t.c += taken * kLanes, count -= taken;
  }
}

template <class T>
void multiply_rows(Tile t, int rows, int count) {
  while (rows > 0) {
    const int tiles = (rows + kTileRows - 1) / kTileRows, taken = (rows + tiles - 1) / tiles;
    if constexpr (kTileRows == 6) {
      switch (taken) {
        case 6: multiply_vectors<T, 6>(t, count); break;
        case 5: multiply_vectors<T, 5>(t, count); break;
        case 4: multiply_vectors<T, 4>(t, count); break;
        case 3: multiply_vectors<T, 3>(t, count); break;
        case 2: multiply_vectors<T, 2>(t, count); break;
        default: multiply_vectors<T, 1>(t, count);
      }
    } else {
      taken == 2 ? multiply_vectors<T, 2>(t, count) : multiply_vectors<T, 1>(t, count);
    }
    t.a += taken * t.a_stride, t.c += taken * t.c_stride, rows -= taken;
  }
}

/// The same of a few rows with int8.
void multiply_quads(const Tile& t, int rows, int count) {
  static_assert(kByteRows == 3);
  switch (rows) {
    case 3: return multiply_vectors<Quad, 3>(t, count);
    case 2: return multiply_vectors<Quad, 2>(t, count);
    default: return multiply_vectors<Quad, 1>(t, count);
  }
}

/// A block of int8 as panels of float32, whose first vectors are those of the tile.
void widen(const void* const* w, int count, std::int64_t depth, float* panels) {
  for (int v = 0; v < count; ++v) {
    float* const to = panels + v / 2 * depth * kPanelUnits + v % 2 * kLanes;
    for (std::int64_t k = 0; k < depth; k += 4) {
      const Ints words = bits(load((const float*)w[v] + k / 4 * kPanelUnits));
      store(to + k * kPanelUnits, raised<0>(words));
      if (k + 1 < depth) store(to + (k + 1) * kPanelUnits, raised<1>(words));
      if (k + 2 < depth) store(to + (k + 2) * kPanelUnits, raised<2>(words));
      if (k + 3 < depth) store(to + (k + 3) * kPanelUnits, raised<3>(words));
    }
  }
}

/// Sums of int8 by their scales, and the bias.
void scale(const float* const* scales, const float* const* bias, int vectors, int rows, float* c) {
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vectors; ++v, c += kLanes) store(c, fma(load(c) * broadcast(kLower), load(scales[v]), load(bias[v])));
}

void product(const RecurrentWeight& weight, std::int64_t first, int count, const float* a, std::int64_t a_stride, int rows,
             float* wide, float* c) {
  const void* w[kRecurrentVectors];
  const float *bias[kRecurrentVectors], *scales[kRecurrentVectors], *none[kRecurrentVectors];
  const bool pairs = weight.dtype == DType::bfloat16, bytes = weight.dtype == DType::int8;
  const int beside = bytes ? 4 : pairs ? 2 : 1;                                   // values of k that lie side by side
  const std::int64_t element = bytes ? 1 : weight.dtype == DType::float32 ? 4 : 2;  // bytes
  const std::int64_t panel = (weight.k + beside - 1) / beside * beside * kPanelUnits * element;
  int vectors = 0;
  for (int u = 0; u < count; ++u)
    for (int g = 0; g < weight.gates; ++g, ++vectors) {
      const std::int64_t unit = (first + u) * kLanes, gate = weight.first_gate + g;
      const std::int64_t at = gate * weight.gate_panels + unit / kPanelUnits;
      w[vectors] = (const char*)weight.panels + at * panel + unit % kPanelUnits * beside * element;
      const std::int64_t output = gate * weight.gate_panels * kPanelUnits + unit;
      bias[vectors] = weight.bias + output;
      if (bytes) scales[vectors] = weight.scales + output, none[vectors] = kNone;
    }
  // Where rows take several tiles, all but the first find a block of the weights in L1; of int8 all of them, as float32.
  const bool blocks = rows > (bytes ? kByteRows : kTileRows);
  constexpr int kMost = tile_vectors(kTileRows);
  const int together = !blocks ? vectors : bytes && kMost == 1 ? 2 : kMost;  // what is widened are whole panels
  const std::int64_t depth = blocks ? kRecurrentBlock / (together * kLanes * 4) : weight.k;
  const float* const* begin_with = bytes ? none : bias;
  for (int at = 0; at < vectors; at += together) {
    const int some = vectors - at < together ? vectors - at : together;
    for (std::int64_t begin = 0; begin < weight.k; begin += depth) {
      const std::int64_t taken = weight.k - begin < depth ? weight.k - begin : depth;
      const void* block[kRecurrentVectors];
      for (int v = 0; v < some; ++v) block[v] = (const char*)w[at + v] + begin * kPanelUnits * element;
      const Tile tile{a + begin, a_stride, taken, begin == 0, block, begin_with + at, c + at * kLanes, vectors * kLanes};
      if (bytes && blocks) {
        widen(block, some, taken, wide);
        for (int v = 0; v < some; ++v) block[v] = wide + v / 2 * taken * kPanelUnits + v % 2 * kLanes;
      }
      if (bytes && !blocks)
        multiply_quads(tile, rows, some);
      else if (pairs)
        multiply_rows<Pair>(tile, rows, some);
      else if (weight.dtype == DType::float16)
        multiply_rows<float16>(tile, rows, some);
      else
        multiply_rows<float>(tile, rows, some);
    }
  }
  if (bytes) scale(scales, bias, vectors, rows, c);
}

template <Cell cell, class T>
void cell_as(const CellRow& row) {
  constexpr int kGates = cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : cell == Cell::reset ? 2 : 1;
  const T* x = (const T*)row.x;
  const float* sums = row.sums;
  const std::int64_t units = row.units;
  for (int i = 0; i < row.count; ++i, sums += kGates * kLanes) {
    const std::int64_t u = (row.first + i) * kLanes;
    const auto given = [&](int gate) { return load_tail(x + gate * units, u, units); };
    const auto sum = [&](int gate) { return load(sums + gate * kLanes); };
    Vec y;
    if constexpr (cell == Cell::lstm) {
      const Vec in = sigmoid(given(0) + sum(0)), forget = sigmoid(given(1) + sum(1));
      const Vec fresh = tanh(given(2) + sum(2)), out = sigmoid(given(3) + sum(3));
      const Vec memory = fma(forget, load(row.memory + u), in * fresh);
      store(row.memory + u, memory);
      y = out * tanh(memory);
    } else if constexpr (cell == Cell::gru) {
      const Vec reset = sigmoid(given(0) + sum(0)), keep = sigmoid(given(1) + sum(1));
      const Vec fresh = tanh(fma(reset, sum(2), given(2)));
      y = fma(keep, load(row.state + u) - fresh, fresh);
    } else if constexpr (cell == Cell::reset) {
      store(row.memory + u, sigmoid(given(1) + sum(1)));
      y = sigmoid(given(0) + sum(0)) * load(row.state + u);
    } else if constexpr (cell == Cell::fresh) {
      const Vec fresh = tanh(given(2) + sum(0));
      y = fma(load(row.memory + u), load(row.state + u) - fresh, fresh);
    } else if constexpr (cell == Cell::tanh) {
      y = tanh(given(0) + sum(0));
    } else if constexpr (cell == Cell::relu) {
      y = max_nan(given(0) + sum(0), zero());
    } else {
      y = sum(0);
    }
    store(row.next + u, y);
    if (row.y != nullptr) store_tail((T*)row.y, u, units, y);
  }
}

template <Cell cell>
void cell_of(const CellRow& row) {
  with_floats(row.dtype, row.y, [&]<class T>(T*) { cell_as<cell, T>(row); });
}

void cell(Cell cell, const CellRow& row) {
  switch (cell) {
    case Cell::lstm: return cell_of<Cell::lstm>(row);
    case Cell::gru: return cell_of<Cell::gru>(row);
    case Cell::reset: return cell_of<Cell::reset>(row);
    case Cell::fresh: return cell_of<Cell::fresh>(row);
    case Cell::tanh: return cell_of<Cell::tanh>(row);
    case Cell::relu: return cell_of<Cell::relu>(row);
    case Cell::linear: return cell_of<Cell::linear>(row);
  }
}

}  // namespace

const RecurrentTable recurrent_table = {product, cell, convert};

}  // namespace ingot::INGOT_LEVEL
