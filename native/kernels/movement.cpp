// copy, bitcast, concat, embedding, take, gather, iota: elements move unchanged, so any dtype goes by its size.
//
// Limits: operands may have any strides (tables of `embedding`: dense rows). Indices are int32 or int64 and are checked
// one by one; a row whose index is out of range is left zero and the run ends in a typed error.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "broadcast.h"
#include "check.h"
#include "packed_weight.h"
#include "strided.h"

namespace ingot {

namespace {

void require_same_dtype(const char* kernel, const char* operand, DType dtype, DType expected) {
  require_dtype(kernel, operand, dtype, {expected});
}

/// Elements as they are: copy, and bitcast, whose output has another dtype of their size.
class Copy final : public Kernel {
 public:
  explicit Copy(const char* name) : name_(name) {}
  Scratch plan(Views in, Views out, int) const override {
    require_same_shape(name_, "the output", out[0], in[0]);
    return {};
  }
  std::optional<std::uint64_t> apart(Views, Views) const override { return 1; }
  void run(Views in, Views out, const Worker& worker) const override {
    StridedCopy copy;
    for (int i = 0; i < in[0].rank; ++i) copy.add(in[0].shape[i], out[0].stride[i], in[0].stride[i]);
    copy_strided(copy, out[0].data, in[0].data, size_of(in[0].dtype), worker.index, worker.count);
  }

 private:
  const char* name_;
};

std::unique_ptr<Kernel> make_copy(const nlohmann::json& params, Types in, Types out, Level) {
  Params("copy", params).done();
  require_operands("copy", in, 1, 1, out, 1);
  require_same_dtype("copy", "the output", out[0].dtype, in[0].dtype);
  return std::make_unique<Copy>("copy");
}

std::unique_ptr<Kernel> make_bitcast(const nlohmann::json& params, Types in, Types out, Level) {
  Params("bitcast", params).done();
  require_operands("bitcast", in, 1, 1, out, 1);
  const DType x = in[0].dtype, y = out[0].dtype;
  require(x != DType::boolean && y != DType::boolean, "bitcast", "a bool has no bits of its own");
  require(size_of(x) == size_of(y), "bitcast", "the output's elements must have the size of the operand's");
  return std::make_unique<Copy>("bitcast");
}

class Concat final : public Kernel {
 public:
  explicit Concat(int axis) : axis_(axis) {}
  Scratch plan(Views in, Views out, int) const override {
    std::int64_t total = 0;
    for (const TensorView& x : in) {
      TensorView expected = out[0];
      expected.shape[axis_] = x.shape[axis_];
      require_same_shape("concat", "an operand", x, expected);
      total += x.shape[axis_];
    }
    require(total == out[0].shape[axis_], "concat", "the operands' sizes along the axis do not add up to the output's");
    return {};
  }
  std::optional<std::uint64_t> apart(Views in, Views out) const override {
    return axis_ == 0 || in.size() > 64 ? std::nullopt : std::optional(apart_by_broadcast(in, out[0]));
  }
  void run(Views in, Views out, const Worker& worker) const override {
    std::int64_t start = 0;
    for (const TensorView& x : in) {
      StridedCopy copy;
      for (int i = 0; i < x.rank; ++i) copy.add(x.shape[i], out[0].stride[i], x.stride[i]);
      copy_strided(copy, out[0].at(start * out[0].stride[axis_]), x.data, size_of(x.dtype), worker.index, worker.count);
      start += x.shape[axis_];
    }
  }

 private:
  int axis_;
};

std::unique_ptr<Kernel> make_concat(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("concat", in, 1, 4096, out, 1);
  Params params("concat", json);
  const int axis = params.axis("axis", out[0].rank);
  params.done();
  for (const OperandType& x : in) {
    require_same_dtype("concat", "an operand", x.dtype, out[0].dtype);
    require_rank("concat", "an operand", x.rank, out[0].rank);
  }
  return std::make_unique<Concat>(axis);
}

// ---- embedding ----

/// Rows of a table; packed: the table is a packed matmul weight whose outputs are the rows.
class Embedding final : public Kernel {
 public:
  Embedding(bool packed, std::int64_t rows, std::int64_t width, bool from_end)
      : packed_(packed), from_end_(from_end), rows_(rows), width_(width) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &ids = in[0], &table = in[1], &y = out[0];
    if (packed_) {
      PackedWeight(table.dtype, width_).check("embedding", "the packed table", &table, (rows_ + kPanel - 1) / kPanel);
    } else {
      require_rank("embedding", "the table", table.rank, 2);
      require_dense_rows("embedding", "the table", table);
    }
    require(y.rank == ids.rank + 1, "embedding", "the output must have one dimension more than ids");
    for (int i = 0; i < ids.rank; ++i)
      require(y.shape[i] == ids.shape[i], "embedding", "the output's leading dimensions must be those of ids");
    require(y.shape[ids.rank] == (packed_ ? width_ : table.shape[1]), "embedding",
            "the output's last dimension must be the table's width");
    require_dense_rows("embedding", "the output", y);
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &ids = in[0], &table = in[1], &y = out[0];
    const std::int64_t width = y.shape[y.rank - 1], rows = packed_ ? rows_ : table.shape[0];
    const std::size_t element = size_of(y.dtype);
    TensorView leading = y;
    --leading.rank;
    const Share share = share_of(ids.elements(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const std::int64_t given = integer_at(ids, offset_of(ids, i)), id = from_end_ && given < 0 ? given + rows : given;
      std::byte* to = y.at(offset_of(leading, i));
      if (id < 0 || id >= rows) {
        worker.fail("embedding: id out of range", given, rows, i);
        std::memset(to, 0, static_cast<std::size_t>(width) * element);
      } else if (!packed_) {
        std::memcpy(to, table.at(id * table.stride[0]), static_cast<std::size_t>(width) * element);
      } else {
        unpack_row(table, id, width, to);
      }
    }
  }

 private:
  static void unpack_row(const TensorView& table, std::int64_t id, std::int64_t width, std::byte* to) {
    const PackedWeight weight(table.dtype, width);
    switch (size_of(table.dtype)) {
      case 1: return unpack_elements(weight, table.as<const std::uint8_t>(), id, width, reinterpret_cast<std::uint8_t*>(to));
      case 2: return unpack_elements(weight, table.as<const std::uint16_t>(), id, width, reinterpret_cast<std::uint16_t*>(to));
      default: return unpack_elements(weight, table.as<const std::uint32_t>(), id, width, reinterpret_cast<std::uint32_t*>(to));
    }
  }
  template <class T>
  static void unpack_elements(const PackedWeight& weight, const T* table, std::int64_t id, std::int64_t width, T* to) {
    const std::int64_t depth = weight.depth();
    const T* from = table + weight.begin(id);
    for (std::int64_t k = 0; k < width; k += depth, from += depth * kPanel)
      std::copy_n(from, std::min(depth, width - k), to + k);
  }

  bool packed_, from_end_;
  std::int64_t rows_, width_;
};

std::unique_ptr<Kernel> make_embedding(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("embedding", in, 2, 2, out, 1);
  Params params("embedding", json);
  const bool packed = params.flag("packed", false), from_end = params.flag("from_end", false);
  std::int64_t rows = 0, width = 0;
  if (packed || params.has("n")) rows = params.integer("n", 1, std::int64_t{1} << 32);
  if (packed || params.has("k")) width = params.integer("k", 1, std::int64_t{1} << 32);
  params.done();
  require_dtype("embedding", "ids", in[0].dtype, kIndexTypes);
  if (packed)
    require_dtype("embedding", "the packed table", in[1].dtype, {DType::float32, DType::bfloat16, DType::float16, DType::int8});
  require_same_dtype("embedding", "the output", out[0].dtype, in[1].dtype);
  return std::make_unique<Embedding>(packed, rows, width, from_end);
}

// ---- take, gather ----

/// y[before..., i..., after...] = x[before..., index[i...], after...]; index -1 gives zeros, or those below 0 count from the end.
class Take final : public Kernel {
 public:
  Take(int axis, bool from_end) : axis_(axis), from_end_(from_end) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &index = in[1], &y = out[0];
    require(y.rank == x.rank - 1 + index.rank, "take", "the output's rank must be x's - 1 + the index's");
    for (int i = 0; i < y.rank; ++i) {
      const std::int64_t expected = i < axis_                ? x.shape[i]
                                    : i < axis_ + index.rank ? index.shape[i - axis_]
                                                             : x.shape[i - index.rank + 1];
      require(y.shape[i] == expected, "take", "the output's shape must be x's with the axis replaced by the index's shape");
    }
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &index = in[1], &y = out[0];
    StridedCopy slice;
    for (int i = 0; i < axis_; ++i) slice.add(x.shape[i], y.stride[i], x.stride[i]);
    for (int i = axis_ + 1; i < x.rank; ++i) slice.add(x.shape[i], y.stride[i + index.rank - 1], x.stride[i]);
    StridedCopy nothing = slice;
    std::fill(nothing.from_stride, nothing.from_stride + kMaxRank, 0);
    TensorView places = index;
    for (int i = 0; i < index.rank; ++i) places.stride[i] = y.stride[axis_ + i];

    const std::uint64_t zero = 0;
    const std::size_t element = size_of(x.dtype);
    const std::int64_t count = index.elements(), size = x.shape[axis_];
    // One taken slice is split inside; several are shared out.
    const Share share = count == 1 ? Share{0, 1} : share_of(count, worker.index, worker.count);
    const int part = count == 1 ? worker.index : 0, parts = count == 1 ? worker.count : 1;
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const std::int64_t given = integer_at(index, offset_of(index, i)), at = from_end_ && given < 0 ? given + size : given;
      void* to = y.at(offset_of(places, i));
      if (at >= 0 && at < size) {
        copy_strided(slice, to, x.at(at * x.stride[axis_]), element, part, parts);
      } else {
        if (from_end_ || given != -1) worker.fail("take: index out of range", given, size, i);
        copy_strided(nothing, to, &zero, element, part, parts);
      }
    }
  }

 private:
  int axis_;
  bool from_end_;
};

std::unique_ptr<Kernel> make_take(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("take", in, 2, 2, out, 1);
  Params params("take", json);
  const int axis = params.axis("axis", in[0].rank);
  const bool from_end = params.flag("from_end", false);
  params.done();
  require_dtype("take", "the index", in[1].dtype, kIndexTypes);
  require_same_dtype("take", "the output", out[0].dtype, in[0].dtype);
  return std::make_unique<Take>(axis, from_end);
}

/// y[i...] = x[i... with the axis' coordinate replaced by index[i...]]; an index below 0 counts from the end.
class Gather final : public Kernel {
 public:
  explicit Gather(int axis) : axis_(axis) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &index = in[1];
    require_same_shape("gather", "the output", out[0], index);
    for (int i = 0; i < x.rank; ++i)
      require(i == axis_ || index.shape[i] <= x.shape[i], "gather", "the index is larger than x in another dimension than the axis");
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    switch (size_of(in[0].dtype)) {
      case 1: return run_as<std::uint8_t>(in[0], in[1], out[0], worker);
      case 2: return run_as<std::uint16_t>(in[0], in[1], out[0], worker);
      case 4: return run_as<std::uint32_t>(in[0], in[1], out[0], worker);
      default: return run_as<std::uint64_t>(in[0], in[1], out[0], worker);
    }
  }

 private:
  template <class T>
  void run_as(const TensorView& x, const TensorView& index, const TensorView& y, const Worker& worker) const {
    TensorView elsewhere = index;  // x's strides without the axis, over the index's shape
    std::copy(x.stride, x.stride + x.rank, elsewhere.stride);
    elsewhere.stride[axis_] = 0;
    const std::int64_t size = x.shape[axis_];
    const Share share = share_of(index.elements(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const std::int64_t given = integer_at(index, offset_of(index, i)), at = given < 0 ? given + size : given;
      T& to = y.as<T>()[offset_of(y, i)];
      if (at >= 0 && at < size) {
        to = x.as<const T>()[offset_of(elsewhere, i) + at * x.stride[axis_]];
      } else {
        worker.fail("gather: index out of range", given, size, i);
        to = 0;
      }
    }
  }

  int axis_;
};

std::unique_ptr<Kernel> make_gather(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("gather", in, 2, 2, out, 1);
  require_rank("gather", "the index", in[1].rank, in[0].rank);
  Params params("gather", json);
  const int axis = params.axis("axis", in[0].rank);
  params.done();
  require_dtype("gather", "the index", in[1].dtype, kIndexTypes);
  require_same_dtype("gather", "the output", out[0].dtype, in[0].dtype);
  return std::make_unique<Gather>(axis);
}

// ---- iota ----

class Iota final : public Kernel {
 public:
  Iota(double start, double step) : start_(start), step_(step) {}

  Scratch plan(Views, Views out, int) const override {
    require_contiguous("iota", "the output", out[0]);
    return {};
  }

  void run(Views, Views out, const Worker& worker) const override {
    switch (out[0].dtype) {
      case DType::float32: return fill<float>(out[0], worker);
      case DType::float64: return fill<double>(out[0], worker);
      case DType::int32: return fill<std::int32_t>(out[0], worker);
      default: return fill<std::int64_t>(out[0], worker);
    }
  }

 private:
  template <class T>
  void fill(const TensorView& y, const Worker& worker) const {
    const Share share = share_of(y.elements(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      if constexpr (std::is_floating_point_v<T>)
        y.as<T>()[i] = static_cast<T>(start_ + static_cast<double>(i) * step_);
      else  // unsigned, since the last value may wrap
        y.as<T>()[i] = static_cast<T>(static_cast<std::uint64_t>(static_cast<std::int64_t>(start_)) +
                                      static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(static_cast<std::int64_t>(step_)));
    }
  }

  double start_, step_;
};

std::unique_ptr<Kernel> make_iota(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("iota", in, 0, 0, out, 1);
  require_dtype("iota", "the output", out[0].dtype, {DType::float32, DType::float64, DType::int32, DType::int64});
  Params params("iota", json);
  constexpr double kExact = 9007199254740992.0;  // 2^53: integers up to here are exact in a double
  const double start = params.number("start", -kExact, kExact), step = params.number("step", -kExact, kExact);
  params.done();
  if (!is_float(out[0].dtype))
    require(start == std::floor(start) && step == std::floor(step), "iota", "start and step must be whole for an integer output");
  return std::make_unique<Iota>(start, step);
}

constexpr KernelInfo kKernels[] = {
    {"copy", 1, "x -> y", "", make_copy},
    {"bitcast", 1, "x -> y", "", make_bitcast},
    {"concat", 1, "*xs -> y", "axis: integer", make_concat},
    {"embedding", 1, "ids, table -> y", "packed?: flag, n?: integer, k?: integer, from_end?: flag", make_embedding},
    {"take", 1, "x, index -> y", "axis: integer, from_end?: flag", make_take},
    {"gather", 1, "x, index -> y", "axis: integer", make_gather},
    {"iota", 1, "-> y", "start: number, step: number", make_iota},
};

}  // namespace

std::span<const KernelInfo> movement_kernels() { return kKernels; }

}  // namespace ingot
