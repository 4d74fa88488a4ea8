// Steps of recurrent layers for one level: sums of products with the state, and the gates.
#include "recurrent.h"

#include "simd.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kPanelUnits = 32;
constexpr std::int64_t kNear = 24 << 10;  // bytes that stay in L1 beside the state

/// Two bfloat16 of neighbouring k, which are moved as a float is.
struct Pair {
  float bits;
};

#if defined(__AVX512F__)
constexpr int kTileRows = 6;
constexpr int tile_vectors(int rows) { return rows <= 3 ? 8 : 4; }  // 24 of 32 registers
#elif defined(__AVX2__)
constexpr int kTileRows = 6;
constexpr int tile_vectors(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }  // of two registers: 12 of 16
#else
constexpr int kTileRows = 2;
constexpr int tile_vectors(int) { return 1; }
#endif

/// What one register tile multiplies: values [begin, k) of rows of the state by vectors of units, each with its own place in the
/// panels. Those before `begin` are in c already.
struct Tile {
  const float* a;
  std::int64_t a_stride, begin, k;
  const void* const* w;
  const float* const* bias;
  float* c;
  std::int64_t c_stride;
};

template <class T, int R, int V>
void multiply(const Tile& t) {
  Vec sum[R][V];
  const T* w[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    w[v] = (const T*)t.w[v];
    const Vec first = load(t.bias[v]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r][v] = t.begin == 0 ? first : load(t.c + r * t.c_stride + v * kLanes);
  }
  const float* a = t.a;
  const std::int64_t a_stride = t.a_stride;
  if constexpr (__is_same(T, Pair)) {
    for (std::int64_t k = t.begin; k < t.k; k += 2) {
      Vec words[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) words[v] = load((const float*)w[v] + k / 2 * kPanelUnits);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec row = broadcast(a[r * a_stride + k]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[r][v] = fma(row, from_bits(shift_left<16>(bits(words[v]))), sum[r][v]);
      }
      if (k + 1 == t.k) break;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec row = broadcast(a[r * a_stride + k + 1]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[r][v] = fma(row, from_bits(bits(words[v]) & broadcast_int(-65536)), sum[r][v]);
      }
    }
  } else {
    for (std::int64_t k = t.begin; k < t.k; ++k) {
      Vec column[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) column[v] = load(w[v] + k * kPanelUnits);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec row = broadcast(a[r * a_stride + k]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[r][v] = fma(row, column[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(t.c + r * t.c_stride + v * kLanes, sum[r][v]);
}

template <class T, int R>
void multiply_vectors(Tile t, int count) {
  constexpr int kMost = tile_vectors(R);
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

void product(const RecurrentWeight& weight, std::int64_t first, int count, const float* a, std::int64_t a_stride, int rows,
             float* c) {
  const void* w[kRecurrentVectors];
  const float* bias[kRecurrentVectors];
  const bool pairs = weight.dtype == DType::bfloat16;
  const std::int64_t element = weight.dtype == DType::float16 ? 2 : 4;  // a pair of bfloat16 is one
  const std::int64_t panel = (pairs ? (weight.k + 1) / 2 : weight.k) * kPanelUnits * element;
  int vectors = 0;
  for (int u = 0; u < count; ++u)
    for (int g = 0; g < weight.gates; ++g, ++vectors) {
      const std::int64_t unit = (first + u) * kLanes, gate = weight.first_gate + g;
      const std::int64_t at = gate * weight.gate_panels + unit / kPanelUnits;
      w[vectors] = (const char*)weight.panels + at * panel + unit % kPanelUnits * element;
      bias[vectors] = weight.bias + gate * weight.gate_panels * kPanelUnits + unit;
    }
  // Where rows take several tiles, all but the first find a block of the weights in L1.
  const bool blocks = rows > kTileRows;
  const int together = blocks ? tile_vectors(kTileRows) : vectors;
  const std::int64_t depth = blocks ? kNear / (together * kLanes * 4) : weight.k;
  for (int at = 0; at < vectors; at += together) {
    const int some = vectors - at < together ? vectors - at : together;
    for (std::int64_t begin = 0; begin < weight.k; begin += depth) {
      const std::int64_t end = weight.k - begin < depth ? weight.k : begin + depth;
      const Tile tile{a, a_stride, begin, end, w + at, bias + at, c + at * kLanes, vectors * kLanes};
      if (pairs)
        multiply_rows<Pair>(tile, rows, some);
      else if (weight.dtype == DType::float16)
        multiply_rows<float16>(tile, rows, some);
      else
        multiply_rows<float>(tile, rows, some);
    }
  }
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
