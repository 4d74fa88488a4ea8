// sort, top_k: elements in order along an axis, and where they were. bucketize: between which of them others belong.
//
// Every element becomes an unsigned key whose order is the wanted one: -0 equals 0, all NaN are equal and the greatest. Equal
// keys go by place, so each row has one order, whatever the algorithm and the number of workers. A row is sorted whole, digit by
// digit of its keys from the lowest up, or when few elements of it are wanted these are selected first. Operands and results may
// have any strides.
#include <algorithm>

#include "check.h"
#include "keys.h"
#include "level/frame.h"
#include "strided.h"

namespace ingot {

namespace {

constexpr int kDigits = 256;                      // values of a byte of a key
constexpr std::int64_t kFew = 128;                // elements below which a sort by comparison is faster
constexpr std::int64_t kInOrder = 16;             // wanted elements that are kept in order while they are selected
constexpr std::int64_t kTogether = 1 << 14;       // elements from which on several workers sort one row
constexpr std::int64_t kNarrow = std::int64_t{1} << 32;

// ---- items ----

/// A key of at most 32 bits with its place: one number, which has their order.
struct Narrow {
  std::uint64_t bits;
  static Narrow of(std::uint64_t key, std::int64_t place) { return {key << 32 | static_cast<std::uint64_t>(place)}; }
  std::uint64_t key() const { return bits >> 32; }
  std::int64_t place() const { return static_cast<std::int64_t>(bits & (kNarrow - 1)); }
  bool operator<(const Narrow& other) const { return bits < other.bits; }
};

struct Wide {
  std::uint64_t bits;
  std::int64_t index;
  static Wide of(std::uint64_t key, std::int64_t place) { return {key, place}; }
  std::uint64_t key() const { return bits; }
  std::int64_t place() const { return index; }
  bool operator<(const Wide& other) const { return bits != other.bits ? bits < other.bits : index < other.index; }
};

// ---- algorithms ----

/// The workers that share a row: one alone, or all of the region.
struct Team {
  int index, count;
  const Worker* region;  // null: alone
  void meet() const {
    if (region != nullptr) region->barrier();
  }
};

template <class Item>
struct SortMemory {
  Item *items, *other;
  std::int64_t* counts;  // [worker][digit]
  std::uint64_t* masks;  // [worker][2]

  SortMemory(Frame& frame, const std::int64_t& count, const int& workers)
      : items(frame.take<Item>(count)),
        other(frame.take<Item>(count)),
        counts(frame.take<std::int64_t>(kDigits * workers)),
        masks(frame.take<std::uint64_t>(2 * workers)) {}
};

/// Sorts memory.items by keys of so many bytes, equal ones as they stand. Gives where they are then: there or in memory.other.
template <class Item>
Item* sort_items(const SortMemory<Item>& memory, std::int64_t count, int bytes, const Team& team) {
  Item *items = memory.items, *other = memory.other;
  if (count < kFew && team.count == 1) {
    std::sort(items, items + count);
    return items;
  }
  const Share share = share_of(count, team.index, team.count);
  std::uint64_t any = 0, all = ~std::uint64_t{0};
  for (std::int64_t i = share.first; i < share.last; ++i) {
    any |= items[i].key();
    all &= items[i].key();
  }
  memory.masks[2 * team.index] = any;
  memory.masks[2 * team.index + 1] = all;
  team.meet();
  for (int w = 0; w < team.count; ++w) {
    any |= memory.masks[2 * w];
    all &= memory.masks[2 * w + 1];
  }
  for (int shift = 0; shift < 8 * bytes; shift += 8) {
    if (((any & ~all) >> shift) % kDigits == 0) continue;  // all have the same digit
    const auto digit = [&](const Item& item) { return item.key() >> shift & (kDigits - 1); };
    std::int64_t* const mine = memory.counts + kDigits * team.index;
    std::fill(mine, mine + kDigits, 0);
    for (std::int64_t i = share.first; i < share.last; ++i) ++mine[digit(items[i])];
    team.meet();
    std::int64_t next[kDigits], begin = 0;  // where this worker's items of a digit go
    for (int d = 0; d < kDigits; ++d)
      for (int w = 0; w < team.count; ++w) {
        if (w == team.index) next[d] = begin;
        begin += memory.counts[kDigits * w + d];
      }
    for (std::int64_t i = share.first; i < share.last; ++i) other[next[digit(items[i])]++] = items[i];
    team.meet();
    std::swap(items, other);
  }
  return items;
}

/// The `most` smallest of all items that it is given.
template <class Item>
class Selection {
 public:
  /// How many items it keeps in hand: a part of them is dropped when there is no more room.
  static std::int64_t room(std::int64_t most, std::int64_t count) { return std::min(count, 2 * std::max<std::int64_t>(most, 64)); }

  Selection(Item* items, std::int64_t most, std::int64_t count) : items_(items), most_(most), room_(room(most, count)) {}
  /// No item of a greater key gets in.
  std::uint64_t bound() const { return bounded_ ? bound_.key() : ~std::uint64_t{0}; }
  void add(const Item& item) {
    if (bounded_ && !(item < bound_)) return;
    items_[count_++] = item;
    if (count_ == room_) drop();
  }
  /// How many are left; they have no order.
  std::int64_t done() {
    drop();
    return count_;
  }

 private:
  void drop() {
    if (count_ <= most_) return;
    std::nth_element(items_, items_ + most_ - 1, items_ + count_);
    count_ = most_;
    bound_ = items_[most_ - 1];
    bounded_ = true;
  }

  Item* items_;
  std::int64_t most_, room_, count_ = 0;
  Item bound_{};
  bool bounded_ = false;
};

/// The same of few: they are kept in order, and each new one finds its place among them. Its place, not its comparison with the
/// greatest of them, is what cannot be foreseen.
template <class Item>
class FewSelected {
 public:
  FewSelected(Item* items, std::int64_t most) : items_(items), most_(most) {}
  std::uint64_t bound() const { return count_ == most_ ? items_[most_ - 1].key() : ~std::uint64_t{0}; }
  void add(const Item& item) {
    if (count_ == most_ && !(item < items_[most_ - 1])) return;
    std::int64_t at = count_ < most_ ? count_++ : most_ - 1;
    for (; at > 0 && item < items_[at - 1]; --at) items_[at] = items_[at - 1];
    items_[at] = item;
  }
  std::int64_t done() const { return count_; }

 private:
  Item* items_;
  std::int64_t most_, count_ = 0;
};

template <class Item>
struct Chosen {
  Item* items;
  Chosen(Frame& frame, const std::int64_t& room) : items(frame.take<Item>(room)) {}
};

/// What each worker of a team chose of its part.
template <class Item>
struct Gathered {
  Item* items;          // [worker][wanted]
  std::int64_t* found;  // by worker
  Gathered(Frame& frame, const std::int64_t& wanted, const int& workers)
      : items(frame.take<Item>(wanted * workers)), found(frame.take<std::int64_t>(workers)) {}
};

// ---- the kernels ----

class Sort final : public Kernel {
 public:
  Sort(const char* name, int axis, bool descending) : name_(name), axis_(axis), descending_(descending) {}

  Scratch plan(Views in, Views out, int threads) const override {
    const TensorView &x = in[0], &y = out[0];
    const std::int64_t count = x.shape[axis_], wanted = y.shape[axis_];
    require_same_shape(name_, "places", out[1], y);
    TensorView expected = x;
    if (std::string_view(name_) == "top_k") expected.shape[axis_] = wanted;
    require_same_shape(name_, "the output", y, expected);
    if (wanted > count)
      refuse(name_, std::to_string(wanted) + " elements are wanted of an axis that has " + std::to_string(count));
    return narrow(x) ? memory<Narrow>(x, y, threads) : memory<Wide>(x, y, threads);
  }

  void run(Views in, Views out, const Worker& worker) const override {
    if (narrow(in[0])) return run_items<Narrow>(in[0], out[0], out[1], worker);
    run_items<Wide>(in[0], out[0], out[1], worker);
  }

 private:
  /// One row of each, as offsets of their first elements.
  struct Row {
    std::int64_t x, y, places;
  };

  bool narrow(const TensorView& x) const { return bytes_of(x.dtype) <= 4 && x.shape[axis_] <= kNarrow; }
  bool few(const TensorView& y) const { return y.shape[axis_] > 0 && y.shape[axis_] <= kInOrder; }
  bool selects(const TensorView& x, const TensorView& y) const { return few(y) || y.shape[axis_] <= x.shape[axis_] / 16; }
  bool together(const TensorView& x, int workers) const {
    return workers > 1 && x.shape[axis_] >= kTogether && x.elements() / x.shape[axis_] < workers;
  }
  TensorView without_axis(TensorView view) const {
    for (int i = axis_; i + 1 < view.rank; ++i) {
      view.shape[i] = view.shape[i + 1];
      view.stride[i] = view.stride[i + 1];
    }
    --view.rank;
    return view;
  }

  template <class Item>
  Scratch memory(const TensorView& x, const TensorView& y, int threads) const {
    const std::int64_t count = x.shape[axis_], wanted = y.shape[axis_];
    const bool shared = together(x, threads);
    if (!selects(x, y)) {
      if (shared) return {bytes_of_layout<SortMemory<Item>>(count, threads), 0};
      return {0, bytes_of_layout<SortMemory<Item>>(count, 1)};
    }
    return {shared ? bytes_of_layout<Gathered<Item>>(wanted, threads) : 0,
            bytes_of_layout<Chosen<Item>>(Selection<Item>::room(wanted, count))};
  }

  template <class Item>
  void run_items(const TensorView& x, const TensorView& y, const TensorView& places, const Worker& worker) const {
    const bool shared = together(x, worker.count);
    const Team team = shared ? Team{worker.index, worker.count, &worker} : Team{0, 1, nullptr};
    const TensorView x_rows = without_axis(x), y_rows = without_axis(y), place_rows = without_axis(places);
    const std::int64_t rows = x_rows.elements();
    const Share share = shared ? Share{0, rows} : share_of(rows, worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const Row row{offset_of(x_rows, i), offset_of(y_rows, i), offset_of(place_rows, i)};
      if (selects(x, y))
        select<Item>(x, y, places, row, team, worker);
      else
        sort<Item>(x, y, places, row, team, worker);
    }
  }

  /// Calls f with each item of the row's part.
  template <class Item, class F>
  void each(const TensorView& x, const Row& row, const Share& part, const F& f) const {
    with_keys(x.dtype, [&](auto key) {
      using Stored = typename decltype(key)::Stored;
      const Stored flip = descending_ ? static_cast<Stored>(~Stored{0}) : Stored{0};
      const Stored* from = x.as<const Stored>() + row.x;
      const std::int64_t step = x.stride[axis_];
      for (std::int64_t j = part.first; j < part.last; ++j)
        f(j, Item::of(static_cast<Stored>(decltype(key)::of(from[j * step]) ^ flip), j));
    });
  }

  /// Gives a selection the items of the row's part. Once it is full few get in: blocks of keys are compared with its bound first, by
  /// vectors where they lie side by side.
  template <class Item, class By>
  void offer(const TensorView& x, const Row& row, const Share& part, By& selection) const {
    with_keys(x.dtype, [&](auto key) {
      using Stored = typename decltype(key)::Stored;
      constexpr std::int64_t kBlock = 64;
      const Stored flip = descending_ ? static_cast<Stored>(~Stored{0}) : Stored{0};
      const Stored* const from = x.as<const Stored>() + row.x;
      const std::int64_t step = x.stride[axis_];
      Stored keys[kBlock];
      for (std::int64_t first = part.first; first < part.last; first += kBlock) {
        const std::int64_t count = std::min(kBlock, part.last - first);
        const Stored bound = static_cast<Stored>(std::min<std::uint64_t>(selection.bound(), static_cast<Stored>(~Stored{0})));
        const auto keys_of = [&](std::int64_t apart) {
          Stored within = 0;
          for (std::int64_t i = 0; i < count; ++i) {
            keys[i] = static_cast<Stored>(decltype(key)::of(from[(first + i) * apart]) ^ flip);
            within = static_cast<Stored>(within | static_cast<Stored>(keys[i] <= bound));
          }
          return within != 0;
        };
        if (!(step == 1 ? keys_of(1) : keys_of(step))) continue;
        for (std::int64_t i = 0; i < count; ++i)
          if (keys[i] <= bound) selection.add(Item::of(keys[i], first + i));
      }
    });
  }

  template <class Item>
  void write(const TensorView& x, const TensorView& y, const TensorView& places, const Row& row, const Item* items,
             const Share& part) const {
    const std::int64_t x_step = x.stride[axis_], y_step = y.stride[axis_], place_step = places.stride[axis_];
    with_keys(x.dtype, [&](auto key) {
      using Stored = typename decltype(key)::Stored;
      const Stored* from = x.as<const Stored>() + row.x;
      Stored* to = y.as<Stored>() + row.y;
      for (std::int64_t j = part.first; j < part.last; ++j) to[j * y_step] = from[items[j].place() * x_step];
    });
    std::int64_t* to = places.as<std::int64_t>() + row.places;
    for (std::int64_t j = part.first; j < part.last; ++j) to[j * place_step] = items[j].place();
  }

  template <class Item>
  void sort(const TensorView& x, const TensorView& y, const TensorView& places, const Row& row, const Team& team,
            const Worker& worker) const {
    const std::int64_t count = x.shape[axis_];
    const auto memory = layout_at<SortMemory<Item>>(team.region == nullptr ? worker.local : worker.shared, count, team.count);
    each<Item>(x, row, share_of(count, team.index, team.count), [&](std::int64_t j, const Item& item) { memory.items[j] = item; });
    const Item* const sorted = sort_items(memory, count, bytes_of(x.dtype), team);
    write(x, y, places, row, sorted, share_of(y.shape[axis_], team.index, team.count));
    team.meet();  // before the next row takes the memory
  }

  template <class Item>
  void select(const TensorView& x, const TensorView& y, const TensorView& places, const Row& row, const Team& team,
              const Worker& worker) const {
    const std::int64_t count = x.shape[axis_], wanted = y.shape[axis_], room = Selection<Item>::room(wanted, count);
    Item* const chosen = layout_at<Chosen<Item>>(worker.local, room).items;
    if (few(y))
      select_by(FewSelected<Item>(chosen, wanted), chosen, x, y, places, row, team, worker);
    else
      select_by(Selection<Item>(chosen, wanted, count), chosen, x, y, places, row, team, worker);
  }

  template <class Item, class By>
  void select_by(By selection, Item* chosen, const TensorView& x, const TensorView& y, const TensorView& places, const Row& row,
                 const Team& team, const Worker& worker) const {
    const std::int64_t count = x.shape[axis_], wanted = y.shape[axis_];
    offer<Item>(x, row, share_of(count, team.index, team.count), selection);
    const std::int64_t found = selection.done();
    if (team.region != nullptr) {
      const auto all = layout_at<Gathered<Item>>(worker.shared, wanted, team.count);
      std::copy_n(chosen, found, all.items + wanted * team.index);
      all.found[team.index] = found;
      team.meet();
      for (int w = 1; w < team.count && team.index == 0; ++w)
        for (std::int64_t j = 0; j < all.found[w]; ++j) selection.add(all.items[wanted * w + j]);
    }
    if (team.index == 0) {
      selection.done();
      if (!few(y)) std::sort(chosen, chosen + wanted);
      write(x, y, places, row, chosen, {0, wanted});
    }
    team.meet();
  }

  const char* name_;
  int axis_;
  bool descending_;
};

/// How many of the boundaries, which ascend, are below a number (or, with `right`, at most it). NaN is above all. Boundaries of
/// several dimensions are rows, one for all numbers that have the same leading coordinates.
class Bucketize final : public Kernel {
 public:
  explicit Bucketize(bool right) : right_(right) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &boundaries = in[1];
    require_same_shape("bucketize", "the output", out[0], x);
    for (int i = 0; i + 1 < boundaries.rank; ++i)
      require(boundaries.shape[i] == x.shape[i], "bucketize", "the boundaries' leading dimensions must be those of x");
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &boundaries = in[1], &y = out[0];
    TensorView rows = x;  // the boundaries' strides over the shape of x
    std::fill(rows.stride, rows.stride + rows.rank, 0);
    std::copy(boundaries.stride, boundaries.stride + boundaries.rank - 1, rows.stride);
    const Share share = share_of(x.elements(), worker.index, worker.count);
    with_keys(x.dtype, [&](auto key) {
      using Stored = typename decltype(key)::Stored;
      const std::int64_t step = boundaries.stride[boundaries.rank - 1], count = boundaries.shape[boundaries.rank - 1];
      for (std::int64_t i = share.first; i < share.last; ++i) {
        const Stored one = decltype(key)::of(x.as<const Stored>()[offset_of(x, i)]);
        const Stored* const marks = boundaries.as<const Stored>() + offset_of(rows, i);
        std::int64_t low = 0, high = count;
        while (low < high) {
          const std::int64_t middle = low + (high - low) / 2;
          const Stored mark = decltype(key)::of(marks[middle * step]);
          (right_ ? mark <= one : mark < one) ? low = middle + 1 : high = middle;
        }
        y.as<std::int64_t>()[offset_of(y, i)] = low;
      }
    });
  }

 private:
  bool right_;
};

std::unique_ptr<Kernel> make_bucketize(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("bucketize", in, 2, 2, out, 1);
  Params params("bucketize", json);
  const bool right = params.flag("right");
  params.done();
  require_dtype("bucketize", "x", in[0].dtype, kOrderedTypes);
  require_dtype("bucketize", "the boundaries", in[1].dtype, {in[0].dtype});
  require_dtype("bucketize", "the output", out[0].dtype, {DType::int64});
  require(in[1].rank == 1 || (in[1].rank > 1 && in[1].rank == in[0].rank), "bucketize",
          "the boundaries must have one dimension, or those of x");
  return std::make_unique<Bucketize>(right);
}

std::unique_ptr<Kernel> make(const char* name, const char* direction, const nlohmann::json& json, Types in, Types out) {
  require_operands(name, in, 1, 1, out, 2);
  Params params(name, json);
  const int axis = params.axis("axis", in[0].rank);
  const bool descending = params.flag(direction);
  params.done();
  require_dtype(name, "x", in[0].dtype, kOrderedTypes);
  require_dtype(name, "the output", out[0].dtype, {in[0].dtype});
  require_dtype(name, "places", out[1].dtype, {DType::int64});
  require_rank(name, "the output", out[0].rank, in[0].rank);
  return std::make_unique<Sort>(name, axis, descending);
}

std::unique_ptr<Kernel> make_sort(const nlohmann::json& params, Types in, Types out, Level) {
  return make("sort", "descending", params, in, out);
}

std::unique_ptr<Kernel> make_top_k(const nlohmann::json& params, Types in, Types out, Level) {
  return make("top_k", "largest", params, in, out);
}

constexpr KernelInfo kKernels[] = {
    {"sort", 1, "x -> y, places", "axis: integer, descending: flag", make_sort},
    {"top_k", 1, "x -> y, places", "axis: integer, largest: flag", make_top_k},
    {"bucketize", 1, "x, boundaries -> y", "right: flag", make_bucketize},
};

}  // namespace

std::span<const KernelInfo> sort_kernels() { return kKernels; }

}  // namespace ingot
