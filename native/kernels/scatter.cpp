// scatter, scatter_nd, gather_nd, masked_scatter: elements put to, or taken from, places that indices or a mask say.
//
// A scatter starts as x. Updates go in row-major order, each onto what is there: in its place, or added, multiplied, the smaller or
// the greater of both (NaN wins). So of several for one place the last stays, and sums have one order, with any number of workers:
// these divide the places, not the updates. Indices are int32 or int64, count from the end below 0 (a scatter says whether), and are checked one by one; an
// update whose index is out of range is left out, and the run ends in a typed error. Operands and results may have any strides.
// Elements that are only moved may have any type; those that are computed with are float32, float64 or integers, which wrap.
#include <algorithm>
#include <array>
#include <type_traits>

#include "broadcast.h"
#include "check.h"
#include "strided.h"

namespace ingot {

namespace {

constexpr std::initializer_list<DType> kComputed = {DType::float32, DType::float64, DType::int8,   DType::int16,  DType::int32,
                                                    DType::int64,   DType::uint8,   DType::uint16, DType::uint32, DType::uint64};
constexpr std::int64_t kLines = 64;  // lines along the axis that go side by side

enum class Mode : std::uint8_t { replace, add, mul, min, max };

/// An update of one element.
template <class T, Mode mode>
struct Update {
  using Stored = T;
  static void put(T& to, T from) {
    if constexpr (mode == Mode::replace) {
      to = from;
    } else if constexpr (mode == Mode::add || mode == Mode::mul) {
      if constexpr (std::is_floating_point_v<T>) {
        to = mode == Mode::add ? to + from : to * from;
      } else {
        const auto a = static_cast<std::uint64_t>(to), b = static_cast<std::uint64_t>(from);
        to = static_cast<T>(mode == Mode::add ? a + b : a * b);
      }
    } else {
      if constexpr (std::is_floating_point_v<T>)
        if (to != to) return;
      if (from != from || (mode == Mode::min ? from < to : to < from)) to = from;
    }
  }
};

template <class T, class F>
void with_mode(Mode mode, const F& f) {
  switch (mode) {
    case Mode::add: return f(Update<T, Mode::add>{});
    case Mode::mul: return f(Update<T, Mode::mul>{});
    case Mode::min: return f(Update<T, Mode::min>{});
    case Mode::max: return f(Update<T, Mode::max>{});
    default: return f(Update<T, Mode::replace>{});
  }
}

/// Calls f with the update of that mode and element type.
template <class F>
void with_update(Mode mode, DType dtype, const F& f) {
  if (mode == Mode::replace) {
    switch (size_of(dtype)) {
      case 1: return f(Update<std::uint8_t, Mode::replace>{});
      case 2: return f(Update<std::uint16_t, Mode::replace>{});
      case 4: return f(Update<std::uint32_t, Mode::replace>{});
      default: return f(Update<std::uint64_t, Mode::replace>{});
    }
  }
  switch (dtype) {
    case DType::float32: return with_mode<float>(mode, f);
    case DType::float64: return with_mode<double>(mode, f);
    case DType::int8: return with_mode<std::int8_t>(mode, f);
    case DType::int16: return with_mode<std::int16_t>(mode, f);
    case DType::int32: return with_mode<std::int32_t>(mode, f);
    case DType::int64: return with_mode<std::int64_t>(mode, f);
    case DType::uint8: return with_mode<std::uint8_t>(mode, f);
    case DType::uint16: return with_mode<std::uint16_t>(mode, f);
    case DType::uint32: return with_mode<std::uint32_t>(mode, f);
    default: return with_mode<std::uint64_t>(mode, f);
  }
}

void copy_part(const TensorView& from, const TensorView& to, const Worker& worker) {
  StridedCopy copy;
  for (int i = 0; i < from.rank; ++i) copy.add(from.shape[i], to.stride[i], from.stride[i]);
  copy_strided(copy, to.data, from.data, size_of(from.dtype), worker.index, worker.count);
}

/// An index counted from the front, or -1 when it is out of range.
std::int64_t from_front(std::int64_t index, std::int64_t size) {
  if (index < 0) index += size;
  return index >= 0 && index < size ? index : -1;
}

TensorView without_axis(TensorView view, int axis) {
  std::copy(view.shape + axis + 1, view.shape + view.rank, view.shape + axis);
  std::copy(view.stride + axis + 1, view.stride + view.rank, view.stride + axis);
  --view.rank;
  return view;
}

/// The dimensions [first, last) of a view.
TensorView dimensions(const TensorView& view, int first, int last) {
  TensorView part = view;
  part.rank = last - first;
  std::copy(view.shape + first, view.shape + last, part.shape);
  std::copy(view.stride + first, view.stride + last, part.stride);
  return part;
}

void require_types(const char* name, Mode mode, Types in, Types out) {
  require_dtype(name, "the index", in[1].dtype, kIndexTypes);
  require_dtype(name, "the updates", in[2].dtype, {in[0].dtype});
  require_dtype(name, "the output", out[0].dtype, {in[0].dtype});
  if (mode != Mode::replace) require_dtype(name, "x", in[0].dtype, kComputed);
}

Mode mode_of(Params& params) { return static_cast<Mode>(params.choice("mode", {"replace", "add", "mul", "min", "max"})); }

// ---- scatter ----

/// y[i... with the axis' coordinate replaced by index[i...]] takes updates[i...].
class Scatter final : public Kernel {
 public:
  Scatter(int axis, Mode mode, bool from_end) : axis_(axis), mode_(mode), from_end_(from_end) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &index = in[1];
    require_same_shape("scatter", "the output", out[0], x);
    require_same_shape("scatter", "the updates", in[2], index);
    for (int i = 0; i < x.rank; ++i)
      require(i == axis_ || index.shape[i] <= x.shape[i], "scatter", "the index is larger than x in another dimension than the axis");
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    copy_part(in[0], out[0], worker);
    worker.barrier();
    with_update(mode_, in[0].dtype, [&](auto update) { put<decltype(update)>(in[1], in[2], out[0], worker); });
  }

 private:
  /// Where one line along the axis begins in each.
  struct Line {
    std::int64_t index, updates, y;
  };

  template <class Put>
  void put(const TensorView& index, const TensorView& updates, const TensorView& y, const Worker& worker) const {
    using T = typename Put::Stored;
    const TensorView index_lines = without_axis(index, axis_), update_lines = without_axis(updates, axis_);
    TensorView y_lines = without_axis(y, axis_);
    std::copy(index_lines.shape, index_lines.shape + index_lines.rank, y_lines.shape);
    const std::int64_t lines = index_lines.elements(), size = y.shape[axis_], positions = index.shape[axis_];
    // Each worker has lines of its own; where there are too few, places along all of them.
    const bool by_lines = lines >= worker.count;
    const Share share = by_lines ? share_of(lines, worker.index, worker.count) : Share{0, lines};
    const Share places = by_lines ? Share{0, size} : share_of(size, worker.index, worker.count);
    const std::int64_t together = axis_ == index.rank - 1 ? 1 : kLines;
    std::array<Line, kLines> line;
    for (std::int64_t first = share.first; first < share.last; first += together) {
      const std::int64_t count = std::min(together, share.last - first);
      for (std::int64_t r = 0; r < count; ++r)
        line[static_cast<std::size_t>(r)] = {offset_of(index_lines, first + r), offset_of(update_lines, first + r),
                                             offset_of(y_lines, first + r)};
      for (std::int64_t p = 0; p < positions; ++p)
        for (std::int64_t r = 0; r < count; ++r) {
          const Line& at = line[static_cast<std::size_t>(r)];
          const std::int64_t given = integer_at(index, at.index + p * index.stride[axis_]);
          const std::int64_t place = from_end_ || given >= 0 ? from_front(given, size) : -1;
          if (place < 0)
            worker.fail("scatter: index out of range", given, size, element(index, first + r, p));
          else if (place >= places.first && place < places.last)
            Put::put(y.as<T>()[at.y + place * y.stride[axis_]], updates.as<const T>()[at.updates + p * updates.stride[axis_]]);
        }
    }
  }

  /// The row-major number of the element at a position of a line.
  std::int64_t element(const TensorView& index, std::int64_t line, std::int64_t position) const {
    std::int64_t inner = 1;
    for (int i = axis_ + 1; i < index.rank; ++i) inner *= index.shape[i];
    return (line / inner * index.shape[axis_] + position) * inner + line % inner;
  }

  int axis_;
  Mode mode_;
  bool from_end_;
};

std::unique_ptr<Kernel> make_scatter(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("scatter", in, 3, 3, out, 1);
  Params params("scatter", json);
  const int axis = params.axis("axis", in[0].rank);
  const Mode mode = mode_of(params);
  const bool from_end = params.flag("from_end", true);
  params.done();
  require_types("scatter", mode, in, out);
  require_rank("scatter", "the index", in[1].rank, in[0].rank);
  return std::make_unique<Scatter>(axis, mode, from_end);
}

// ---- scatter_nd, gather_nd ----

/// index[..., :] as coordinates of the leading dimensions of a tensor behind `first` batch dimensions.
class Coordinates {
 public:
  Coordinates(const char* message, const TensorView& index, const TensorView& x, int first)
      : message_(message), rows_(dimensions(index, 0, index.rank - 1)), index_(index), x_(x), first_(first),
        depth_(static_cast<int>(index.shape[index.rank - 1])) {}

  std::int64_t count() const { return rows_.elements(); }
  int depth() const { return depth_; }
  /// How many places there are to choose from.
  std::int64_t places() const { return dimensions(x_, first_, first_ + depth_).elements(); }

  /// A place: its row-major number among all, and its offset in x. The number is -1 where a coordinate is out of range.
  struct Place {
    std::int64_t number, offset;
  };
  Place at(std::int64_t row, const Worker& worker) const {
    const std::int64_t begin = offset_of(rows_, row);
    Place place{0, 0};
    for (int d = 0; d < depth_; ++d) {
      const std::int64_t given = integer_at(index_, begin + d * index_.stride[index_.rank - 1]);
      const std::int64_t size = x_.shape[first_ + d], coordinate = from_front(given, size);
      if (coordinate < 0) {
        worker.fail(message_, given, size, row * depth_ + d);
        return {-1, 0};
      }
      place.number = place.number * size + coordinate;
      place.offset += coordinate * x_.stride[first_ + d];
    }
    return place;
  }

 private:
  const char* message_;
  TensorView rows_, index_, x_;
  int first_, depth_;
};

/// Refuses an index whose last dimension is no number of coordinates, or another tensor than it asks for.
void check_coordinates(const char* kernel, const char* operand, const TensorView& slices, const TensorView& index,
                       const TensorView& x, int first) {
  const std::int64_t depth = index.shape[index.rank - 1];
  require(depth > 0 && depth <= x.rank - first, kernel, "the index's last dimension must be a number of coordinates that x has");
  TensorView expected = dimensions(index, 0, index.rank - 1);
  const int rest = x.rank - first - static_cast<int>(depth);
  require(expected.rank + rest <= kMaxRank, kernel, "the index and x have too many dimensions together");
  for (int i = 0; i < rest; ++i) expected.shape[expected.rank++] = x.shape[x.rank - rest + i];
  require_same_shape(kernel, operand, slices, expected);
}

/// y at the coordinates index[i..., :] takes the slice updates[i...].
class ScatterND final : public Kernel {
 public:
  explicit ScatterND(Mode mode) : mode_(mode) {}

  Scratch plan(Views in, Views out, int) const override {
    require_same_shape("scatter_nd", "the output", out[0], in[0]);
    check_coordinates("scatter_nd", "the updates", in[2], in[1], in[0], 0);
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    copy_part(in[0], out[0], worker);
    worker.barrier();
    with_update(mode_, in[0].dtype, [&](auto update) { put<decltype(update)>(in[1], in[2], out[0], worker); });
  }

 private:
  template <class Put>
  void put(const TensorView& index, const TensorView& updates, const TensorView& y, const Worker& worker) const {
    using T = typename Put::Stored;
    const Coordinates coordinates("scatter_nd: index out of range", index, y, 0);
    const Share share = share_of(coordinates.places(), worker.index, worker.count);
    const TensorView rows = dimensions(updates, 0, index.rank - 1);
    StridedCopy slice;
    for (int i = coordinates.depth(); i < y.rank; ++i)
      slice.add(y.shape[i], y.stride[i], updates.stride[index.rank - 1 + i - coordinates.depth()]);
    const std::int64_t count = coordinates.count();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto place = coordinates.at(i, worker);
      if (place.number < share.first || place.number >= share.last) continue;
      put_slice<Put>(slice, 0, y.as<T>() + place.offset, updates.as<const T>() + offset_of(rows, i));
    }
  }

  template <class Put, class T>
  static void put_slice(const StridedCopy& slice, int dim, T* to, const T* from) {
    if (dim == slice.rank) return Put::put(*to, *from);
    for (std::int64_t i = 0; i < slice.shape[dim]; ++i) {
      if (dim + 1 == slice.rank)
        Put::put(to[i * slice.to_stride[dim]], from[i * slice.from_stride[dim]]);
      else
        put_slice<Put>(slice, dim + 1, to + i * slice.to_stride[dim], from + i * slice.from_stride[dim]);
    }
  }

  Mode mode_;
};

std::unique_ptr<Kernel> make_scatter_nd(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("scatter_nd", in, 3, 3, out, 1);
  Params params("scatter_nd", json);
  const Mode mode = mode_of(params);
  params.done();
  require_types("scatter_nd", mode, in, out);
  require(in[1].rank > 0, "scatter_nd", "the index must have at least one dimension");
  return std::make_unique<ScatterND>(mode);
}

/// y[i...] = the slice of x, in the batch that i... begins with, at the coordinates index[i..., :].
class GatherND final : public Kernel {
 public:
  explicit GatherND(int batch_dims) : batch_dims_(batch_dims) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &index = in[1];
    for (int i = 0; i < batch_dims_; ++i)
      require(x.shape[i] == index.shape[i], "gather_nd", "x and the index must have the same batch dimensions");
    check_coordinates("gather_nd", "the output", out[0], index, x, batch_dims_);
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &index = in[1], &y = out[0];
    const Coordinates coordinates("gather_nd: index out of range", index, x, batch_dims_);
    const TensorView rows = dimensions(y, 0, index.rank - 1);
    TensorView batches = dimensions(index, 0, index.rank - 1);  // x's strides over the index's rows
    std::fill(batches.stride, batches.stride + batches.rank, 0);
    std::copy(x.stride, x.stride + batch_dims_, batches.stride);
    StridedCopy slice;
    for (int i = batch_dims_ + coordinates.depth(), j = rows.rank; i < x.rank; ++i, ++j) slice.add(x.shape[i], y.stride[j], x.stride[i]);
    StridedCopy nothing = slice;
    std::fill(nothing.from_stride, nothing.from_stride + kMaxRank, 0);
    const std::uint64_t zero = 0;
    const std::size_t element = size_of(x.dtype);
    const Share share = share_of(coordinates.count(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const auto place = coordinates.at(i, worker);
      void* const to = y.at(offset_of(rows, i));
      if (place.number < 0)
        copy_strided(nothing, to, &zero, element);
      else
        copy_strided(slice, to, x.at(offset_of(batches, i) + place.offset), element);
    }
  }

 private:
  int batch_dims_;
};

std::unique_ptr<Kernel> make_gather_nd(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("gather_nd", in, 2, 2, out, 1);
  Params params("gather_nd", json);
  const std::int64_t batch_dims = params.integer("batch_dims", 0, kMaxRank - 1);
  params.done();
  require_dtype("gather_nd", "the index", in[1].dtype, kIndexTypes);
  require_dtype("gather_nd", "the output", out[0].dtype, {in[0].dtype});
  require(batch_dims < in[0].rank && batch_dims < in[1].rank, "gather_nd", "there are fewer dimensions than batch dimensions");
  return std::make_unique<GatherND>(static_cast<int>(batch_dims));
}

// ---- masked_scatter ----

/// x, where the elements of the source, in order, stand in the places in which the mask is true.
class MaskedScatter final : public Kernel {
 public:
  Scratch plan(Views in, Views out, int threads) const override {
    require_same_shape("masked_scatter", "the output", out[0], in[0]);
    require(broadcasts(in[1], in[0]), "masked_scatter", "the mask does not broadcast to x");
    return {static_cast<std::size_t>(threads) * sizeof(std::int64_t), 0};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &source = in[2];
    TensorView mask = x;
    mask.data = in[1].data;
    mask.dtype = in[1].dtype;
    for (int i = 0; i < x.rank; ++i) mask.stride[i] = broadcast_stride(in[1], x.rank, i);
    auto* const counts = reinterpret_cast<std::int64_t*>(worker.shared);
    const Share share = share_of(x.elements(), worker.index, worker.count);
    std::int64_t mine = 0;
    for (std::int64_t i = share.first; i < share.last; ++i) mine += chosen(mask, i);
    counts[worker.index] = mine;
    worker.barrier();
    std::int64_t before = 0, all = 0;
    for (int w = 0; w < worker.count; ++w) {
      if (w == worker.index) before = all;
      all += counts[w];
    }
    if (all > source.elements())
      return worker.fail("masked_scatter: the mask has more places than the source elements", all, source.elements());
    with_update(Mode::replace, x.dtype, [&](auto update) {
      using T = typename decltype(update)::Stored;
      for (std::int64_t i = share.first; i < share.last; ++i)
        out[0].as<T>()[offset_of(out[0], i)] =
            chosen(mask, i) ? source.as<const T>()[offset_of(source, before++)] : x.as<const T>()[offset_of(x, i)];
    });
  }

 private:
  static bool chosen(const TensorView& mask, std::int64_t i) { return mask.as<const std::uint8_t>()[offset_of(mask, i)] != 0; }
};

std::unique_ptr<Kernel> make_masked_scatter(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("masked_scatter", in, 3, 3, out, 1);
  Params("masked_scatter", json).done();
  require_dtype("masked_scatter", "the mask", in[1].dtype, {DType::boolean});
  require_dtype("masked_scatter", "the source", in[2].dtype, {in[0].dtype});
  require_dtype("masked_scatter", "the output", out[0].dtype, {in[0].dtype});
  return std::make_unique<MaskedScatter>();
}

constexpr KernelInfo kKernels[] = {
    {"scatter", 1, "x, index, updates -> y", "axis: integer, mode: replace | add | mul | min | max, from_end?: flag", make_scatter},
    {"scatter_nd", 1, "x, index, updates -> y", "mode: replace | add | mul | min | max", make_scatter_nd},
    {"gather_nd", 1, "x, index -> y", "batch_dims: integer", make_gather_nd},
    {"masked_scatter", 1, "x, mask, source -> y", "", make_masked_scatter},
};

}  // namespace

std::span<const KernelInfo> scatter_kernels() { return kKernels; }

}  // namespace ingot
