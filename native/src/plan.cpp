// Evaluating shapes, checking views, placing buffers, asking the kernels.
#include "plan.h"

#include <algorithm>
#include <map>

#include "error.h"
#include "micro_batches.h"
#include "tiling.h"

namespace ingot {
namespace {

/// A buffer that lies where another one does, whose last call makes it.
struct Replacement {
  int buffer, of;
};

class Planner {
 public:
  explicit Planner(const PlanRequest& request)
      : request_(request),
        loaded_(request.loaded),
        program_(*request.loaded.program),
        stage_(request.loaded.stages[static_cast<std::size_t>(request.stage)]) {}

  StagePlan run(PlanParts parts) {
    plan_.symbols.assign(request_.symbols.begin(), request_.symbols.end());
    plan_.dims = request_.before != nullptr ? request_.before->dims : std::vector<std::int64_t>(program_.dims.size());
    plan_.offsets =
        request_.before != nullptr ? request_.before->offsets : std::vector<std::uint64_t>(program_.buffers.size());
    program_.dims.evaluate(request_.stage, request_.symbols, plan_.dims);
    check_sizes();
    describe_buffers();
    check_parts();
    batches_ = find_micro_batches(loaded_, stage_, {buffers_, view_offset_}, request_.threads);
    place();
    if (parts == PlanParts::layout) return std::move(plan_);
    find_bases();
    reserve_views();
    add_entering();
    add_steps();
    if (request_.stage + 1 == program_.stages) {
      plan_.leaving.first = static_cast<std::uint32_t>(plan_.views.size());
      for (const Output& output : program_.outputs) add_view(output.buffer, plan_.leaving);
    }
    add_working_memory();
    std::stable_sort(plan_.relocations.begin(), plan_.relocations.end(),
                     [](const Relocation& a, const Relocation& b) { return a.base < b.base; });
    return std::move(plan_);
  }

 private:
  const PlanRequest& request_;
  const LoadedProgram& loaded_;
  const Program& program_;
  const Stage& stage_;
  StagePlan plan_;
  std::vector<TensorView> buffers_;        // by buffer; data is set for weights only
  std::vector<std::int64_t> view_offset_;  // by buffer, in elements
  std::vector<std::uint32_t> base_of_;     // by buffer: on which base it lies
  std::vector<MicroBatches> batches_;
  std::vector<Replacement> replaced_;
  std::vector<std::int64_t> inner_;  // by buffer that holds few images at a time: the bytes of all such of one stream; else -1
  int groups_ = 0;
  std::uint64_t shared_ = 0, local_ = 0;

  static std::size_t slot(int buffer) { return static_cast<std::size_t>(buffer); }
  std::int64_t dim(DimId id) const { return plan_.dims[static_cast<std::size_t>(id)]; }

  [[noreturn]] void refuse(const char* error_code, std::size_t buffer, const std::string& why) const {
    throw Error(error_code, Place{"buffers", buffer}.text() + " " + program_.spec(static_cast<int>(buffer)) + ": " +
                                why + known_symbols());
  }

  /// " (with T=3, S=4)"
  std::string known_symbols() const {
    std::string bound;
    const auto symbols = program_.dims.symbols();
    for (std::size_t s = 0; s < symbols.size(); ++s) {
      if (symbols[s].stage <= request_.stage)
        bound += (bound.empty() ? " (with " : ", ") + symbols[s].name + "=" + std::to_string(plan_.symbols[s]);
    }
    return bound.empty() ? "" : bound + ")";
  }

  /// What nothing proves of sizes, and this run shows.
  void check_sizes() const {
    for (const SizeCheck& check : program_.checks) {
      if (check.stage != request_.stage) continue;
      const std::int64_t size = dim(check.size), wanted = dim(check.wanted);
      if (size == wanted || (check.or_one && size == 1)) continue;
      throw Error(check.stage == 0 ? code::input : code::value,
                  check.text + "; here " + std::to_string(size) + " and " + std::to_string(wanted) + known_symbols());
    }
  }

  void describe_buffers() {
    buffers_.resize(program_.buffers.size());
    plan_.bytes.resize(program_.buffers.size());
    view_offset_.resize(program_.buffers.size());
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (buffer.stage > request_.stage || buffer.kind == BufferKind::state) continue;
      TensorView& view = buffers_[b];
      view.dtype = buffer.dtype;
      view.rank = static_cast<int>(buffer.shape.size());
      plan_.bytes[b] = set_shape(b, view);
      if (buffer.kind == BufferKind::view) {
        set_window(b, view);
      } else {
        view.data = loaded_.weights.empty() ? nullptr : const_cast<std::byte*>(loaded_.weights[b]);
      }
    }
    for (const StateView& state : request_.states) {
      buffers_[static_cast<std::size_t>(state.buffer)] = state.view;
      buffers_[static_cast<std::size_t>(state.buffer)].data = nullptr;
    }
  }

  /// Shape and row-major strides; returns the bytes.
  std::uint64_t set_shape(std::size_t index, TensorView& view) const {
    const Buffer& buffer = program_.buffers[index];
    const std::int64_t most = kMaxBytes / static_cast<std::int64_t>(size_of(buffer.dtype));
    std::int64_t stride = 1;
    bool empty = false;
    for (int i = view.rank - 1; i >= 0; --i) {
      const std::int64_t size = dim(buffer.shape[static_cast<std::size_t>(i)]);
      if (size < 0)
        refuse(code::input, index, "its dimension " + std::to_string(i) + " would be " + std::to_string(size));
      view.shape[i] = size;
      view.stride[i] = stride;
      empty = empty || size == 0;
      if (__builtin_mul_overflow(stride, std::max<std::int64_t>(size, 1), &stride) || stride > most) {
        refuse(code::memory, index, "it would need more than " + std::to_string(kMaxBytes >> 40) + " TiB");
      }
    }
    const auto bytes = static_cast<std::uint64_t>(stride) * size_of(buffer.dtype);
    return empty ? 0 : bytes;
  }

  /// A view's own strides and offset, which must stay inside its buffer whatever the index.
  void set_window(std::size_t index, TensorView& view) {
    const Buffer& buffer = program_.buffers[index];
    const auto of = static_cast<std::size_t>(buffer.of);
    if (view.elements() == 0) {  // of nothing, any place is as good; its strides stay those of set_shape
      view_offset_[index] = 0;
    } else {
      set_strides(index, view, buffers_[of].elements());
      if (buffer.written && overlaps_itself(view))
        refuse(code::program, index, "a view that is written may not reach an element twice");
      view_offset_[index] = dim(buffer.offset);
    }
    std::byte* const data = static_cast<std::byte*>(buffers_[of].data);
    view.data = data == nullptr ? nullptr : data + view_offset_[index] * static_cast<std::int64_t>(size_of(view.dtype));
  }

  /// The strides of a view that is not empty. A dimension of size 1 gets the stride with which it continues the next one:
  /// nothing depends on it, so kernels meet no other that could overflow or mislead them.
  void set_strides(std::size_t index, TensorView& view, std::int64_t available) const {
    const Buffer& buffer = program_.buffers[index];
    __int128 low = dim(buffer.offset), high = low;
    std::int64_t next = 1;
    for (int i = view.rank - 1; i >= 0; --i) {
      const std::int64_t own = dim(buffer.stride[static_cast<std::size_t>(i)]);
      view.stride[i] = view.shape[i] == 1 ? next : own;
      const __int128 reach = view.shape[i] == 1 ? 0 : static_cast<__int128>(view.shape[i] - 1) * own;
      (reach < 0 ? low : high) += reach;
      if (low < 0 || high >= available) break;  // the next product could overflow
      next = view.shape[i] * view.stride[i];
    }
    if (low >= 0 && high < available) return;
    const bool always = program_.is_fixed(buffer) && program_.is_fixed(program_.buffer(buffer.of));
    refuse(always ? code::program : code::input, index,
           "the view reaches outside buffer " + std::to_string(buffer.of) + " of " + std::to_string(available) +
               " elements" + (always ? "" : ": inputs of these sizes do not fit together"));
  }

  /// Whether two indices may reach one element: false only when every dimension steps over all smaller ones.
  static bool overlaps_itself(const TensorView& view) {
    int order[kMaxRank];
    int count = 0;
    for (int i = 0; i < view.rank; ++i) {
      if (view.shape[i] <= 1) continue;
      int at = count++;
      for (; at > 0 && std::abs(view.stride[order[at - 1]]) > std::abs(view.stride[i]); --at) order[at] = order[at - 1];
      order[at] = i;
    }
    __int128 reach = 0;
    for (int k = 0; k < count; ++k) {
      const std::int64_t step = std::abs(view.stride[order[k]]);
      if (step <= reach) return true;
      reach += static_cast<__int128>(step) * (view.shape[order[k]] - 1);
    }
    return false;
  }

  /// A buffer that is written in parts must be written all over, and no element of it twice.
  void check_parts() const {
    std::map<std::size_t, std::vector<Tile>> parts;
    for (int part : program_.parts) {
      const auto index = static_cast<std::size_t>(part);
      if (program_.buffer(part).stage == request_.stage)
        parts[static_cast<std::size_t>(program_.base(part))].push_back({view_offset_[index], buffers_[index]});
    }
    for (const auto& [base, windows] : parts) {
      const Tiling found = tiling_of(buffers_[base].elements(), windows);
      if (found == Tiling::exact) continue;
      refuse(code::program, base,
             found == Tiling::overlap ? "two of the views written reach one element"
             : found == Tiling::gap   ? "the views written leave elements unwritten"
                                      : "the views written interleave in too many ways to be checked");
    }
  }

  /// The operand of a call in whose place its result may lie, or -1: a buffer that dies there, by `lives`, of which the call sees all and once.
  int replaced_by(int index, std::span<const Lifetime* const> lives) const {
    const Call& call = program_.calls[static_cast<std::size_t>(index)];
    const Kernel* const kernel = loaded_.kernels[static_cast<std::size_t>(index)].get();
    const auto is_own = [&](int buffer) { return lives[slot(buffer)] != nullptr && program_.buffer(buffer).kind == BufferKind::temp; };
    if (kernel == nullptr || call.out.size() != 1 || !is_own(call.out[0]) || lives[slot(call.out[0])]->first != index) return -1;
    const TensorView& result = buffers_[slot(call.out[0])];
    for (std::size_t i = 0; i < call.in.size(); ++i) {
      const int base = program_.base(call.in[i]);
      const auto uses = std::count_if(call.in.begin(), call.in.end(), [&](int other) { return program_.base(other) == base; });
      if (!is_own(base) || lives[slot(base)]->last != index || uses != 1 || plan_.bytes[slot(base)] != plan_.bytes[slot(call.out[0])]) continue;
      const TensorView& view = buffers_[slot(call.in[i])];
      if (view.dtype != result.dtype || view_offset_[slot(call.in[i])] != 0 || !view.contiguous() || view.elements() != result.elements()) continue;
      std::vector<TensorView> in;
      for (int operand : call.in) in.push_back(buffers_[slot(operand)]);
      if (kernel->replaces(i, in, {&result, 1})) return base;
    }
    return -1;
  }

  /// Takes results of these calls out of the lives that lie where an operand does, which then lives as long as they do.
  void replace(std::vector<Lifetime>& all, int first_call, int end_call) {
    if (loaded_.kernels.empty()) return;
    std::vector<const Lifetime*> lives(program_.buffers.size());
    for (const Lifetime& life : all)
      if (slot(life.buffer) < lives.size()) lives[slot(life.buffer)] = &life;
    std::vector<int> place(lives.size(), -1), last(lives.size(), -1);  // by buffer: where it lies, and until when
    for (int c = first_call; c < end_call; ++c) {
      const int base = replaced_by(c, lives);
      if (base < 0) continue;
      const int result = program_.calls[static_cast<std::size_t>(c)].out[0], of = place[slot(base)] < 0 ? base : place[slot(base)];
      place[slot(result)] = of;
      last[slot(of)] = lives[slot(result)]->last;
      replaced_.push_back({result, of});
    }
    for (Lifetime& life : all)
      if (slot(life.buffer) < last.size() && last[slot(life.buffer)] >= 0) life.last = last[slot(life.buffer)];
    std::erase_if(all, [&](const Lifetime& life) { return slot(life.buffer) < place.size() && place[slot(life.buffer)] >= 0; });
  }

  /// Of calls in micro-batches only what they alone use: what they share with others one may need whole for the next images.
  void replace_all(Lifetimes& lives) {
    int next = stage_.first_call;
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      replace(lives.outer, next, batches_[i].first_call);
      replace(lives.inner[i], batches_[i].first_call, batches_[i].end_call);
      next = batches_[i].end_call;
    }
    replace(lives.outer, next, stage_.end_call);
  }

  void place() {
    inner_.assign(program_.buffers.size(), -1);
    Lifetimes lives = lifetimes_of(program_, stage_, batches_);
    replace_all(lives);
    std::vector<std::uint64_t> bytes = plan_.bytes, offsets = plan_.offsets;
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const MicroBatches& part = batches_[i];
      const auto few = [&](std::uint64_t of) { return of / static_cast<std::uint64_t>(part.images) * static_cast<std::uint64_t>(part.each); };
      for (const Lifetime& life : lives.inner[i]) bytes[slot(life.buffer)] = few(bytes[slot(life.buffer)]);
      const Layout stream = place_buffers(events_of(lives.inner[i], part.first_call), bytes, offsets);
      for (const Lifetime& life : lives.inner[i]) inner_[slot(life.buffer)] = static_cast<std::int64_t>(stream.bytes);
      // What streams hold lies side by side, for they are at different calls.
      lives.outer.push_back({static_cast<int>(bytes.size()), part.first_call, part.end_call - 1});
      bytes.push_back(stream.bytes * static_cast<std::uint64_t>(part.streams));
      offsets.push_back(0);
    }
    plan_.layout = place_buffers(events_of(lives.outer, stage_.first_call), bytes, offsets);
    for (std::size_t i = 0; i < batches_.size(); ++i)
      for (const Lifetime& life : lives.inner[i]) offsets[slot(life.buffer)] += offsets[program_.buffers.size() + i];
    for (const Replacement& r : replaced_) {
      offsets[slot(r.buffer)] = offsets[slot(r.of)];
      bytes[slot(r.buffer)] = bytes[slot(r.of)];
      inner_[slot(r.buffer)] = inner_[slot(r.of)];
    }
    std::copy_n(bytes.begin(), plan_.bytes.size(), plan_.bytes.begin());
    std::copy_n(offsets.begin(), plan_.offsets.size(), plan_.offsets.begin());
    if (plan_.layout.bytes > static_cast<std::uint64_t>(kMaxBytes)) {
      throw Error(code::memory, "the arena would need " + std::to_string(plan_.layout.bytes >> 30) + " GiB");
    }
  }

  /// Inputs lie on bases of their own, and so do outputs that are buffers of the last stage; the rest lies in arenas.
  void find_bases() {
    const auto number = [](std::size_t n) { return static_cast<std::uint32_t>(n); };
    const std::size_t stages = loaded_.stages.size(), inputs = program_.inputs.size();
    plan_.bases.assign(number_of_bases(loaded_), nullptr);
    base_of_.resize(program_.buffers.size());
    for (std::size_t b = 0; b < base_of_.size(); ++b) base_of_[b] = static_cast<std::uint32_t>(program_.buffers[b].stage);
    if (program_.is_body) return;
    for (std::size_t i = 0; i < inputs; ++i) base_of_[static_cast<std::size_t>(program_.inputs[i])] = number(stages + i);
    if (request_.stage + 1 != program_.stages) return;
    plan_.movable.assign(program_.outputs.size(), 0);
    for (std::size_t i = 0; i < program_.outputs.size(); ++i) {
      const int shown = program_.outputs[i].buffer;
      const auto b = static_cast<std::size_t>(program_.base(shown));
      const Buffer& buffer = program_.buffers[b];
      if (buffer.kind != BufferKind::temp || buffer.stage != request_.stage || base_of_[b] >= stages) continue;
      const TensorView& view = buffers_[static_cast<std::size_t>(shown)];  // the whole buffer, maybe in another shape
      if (!view.contiguous() || view.elements() != buffers_[b].elements() || view_offset_[static_cast<std::size_t>(shown)] != 0) continue;
      base_of_[b] = number(stages + inputs + i);
      plan_.movable[i] = 1;
    }
  }

  void reserve_views() {
    std::size_t views = program_.inputs.size() + program_.outputs.size();
    std::size_t steps = static_cast<std::size_t>(stage_.end_call - stage_.first_call);
    for (int c = std::max(stage_.first_call - 1, 0); c < stage_.end_call; ++c) {
      const Call& call = program_.calls[static_cast<std::size_t>(c)];
      views += call.in.size() + call.out.size();
    }
    for (const MicroBatches& part : batches_) {
      for (int c = part.first_call; c < part.end_call; ++c) {
        const Call& call = program_.calls[static_cast<std::size_t>(c)];
        views += static_cast<std::size_t>(part.count()) * (call.in.size() + call.out.size());
        steps += static_cast<std::size_t>(part.count());
      }
    }
    plan_.views.reserve(views);
    plan_.apart.reserve(views);
    plan_.relocations.reserve(views);
    plan_.steps.reserve(steps);
  }

  /// Some images of a batch, for which calls run.
  struct Images {
    std::int64_t first, count;
    int group;  // that one worker runs alone, or -1
  };

  void add_view(int buffer, ViewRange& range, const Images* images = nullptr) {
    const int base = program_.base(buffer);
    const Buffer& owner = program_.buffer(base);
    TensorView view = buffers_[static_cast<std::size_t>(buffer)];
    std::int64_t within = view_offset_[static_cast<std::size_t>(buffer)] * bytes_of(view.dtype), apart = 0;
    if (images != nullptr) {
      const std::int64_t block = inner_[static_cast<std::size_t>(base)];
      const std::int64_t before = block < 0 ? images->first * view.stride[0] * bytes_of(view.dtype) : 0;
      within += before;
      if (view.data != nullptr) view.data = view.as<std::byte>() + before;
      view.shape[0] = images->count;
      if (images->group >= 0) apart = std::max<std::int64_t>(block, 0);
    }
    if (owner.kind == BufferKind::input && program_.is_body) {
      const auto input = std::find(program_.inputs.begin(), program_.inputs.end(), base) - program_.inputs.begin();
      plan_.handed.push_back({static_cast<std::uint32_t>(plan_.views.size()), static_cast<std::uint32_t>(input), static_cast<std::uint64_t>(within)});
    } else if (owner.kind == BufferKind::input || owner.kind == BufferKind::temp) {
      const std::uint32_t on = base_of_[static_cast<std::size_t>(base)];
      const bool in_arena = on < loaded_.stages.size();
      plan_.relocations.push_back({static_cast<std::uint32_t>(plan_.views.size()), on,
                                   (in_arena ? plan_.offsets[static_cast<std::size_t>(base)] : 0) + static_cast<std::uint64_t>(within)});
    }
    push_view(view, apart);
    ++range.count;
  }

  void push_view(const TensorView& view, std::int64_t apart) {
    plan_.views.push_back(view);
    plan_.apart.push_back(static_cast<std::uint64_t>(apart));
  }

  void add_entering() {
    if (request_.stage == 0) {
      for (int input : program_.inputs) add_view(input, plan_.entering);
    } else if (const Call& call = program_.calls[static_cast<std::size_t>(stage_.first_call - 1)]; call.shapes_results()) {
      for (int result : call.out) add_view(result, plan_.entering);
    }
  }

  void add_steps() {
    int next = stage_.first_call;
    for (const MicroBatches& part : batches_) {
      for (; next < part.first_call; ++next) add_step(next);
      const int first_whole = static_cast<int>(plan_.wholes.size());
      for (; next < part.end_call; ++next) {
        plan_.wholes.push_back(whole_of(next));
        ask(plan_.wholes.back());  // what does not fit together may fit in parts
      }
      const std::int64_t own = part.streams > 1 ? part.own() : 0, apart = own * part.streams;
      const std::size_t first_step = plan_.steps.size();
      // Smaller groups come last, for whoever is done with the others.
      for (std::int64_t done = 0; done < own; done += part.each)
        for (int stream = 0; stream < part.streams; ++stream)
          add_images(part, {stream * own + done, std::min(part.each, own - done), groups_++}, first_whole);
      if (plan_.steps.size() > first_step) plan_.steps.back().meets = true;
      for (std::int64_t done = apart; done < part.images; done += part.each)
        add_images(part, {done, std::min(part.each, part.images - done), -1}, first_whole);
    }
    for (; next < stage_.end_call; ++next) add_step(next);
  }

  /// The steps for these images.
  void add_images(const MicroBatches& part, const Images& some, int first_whole) {
    for (int c = part.first_call; c < part.end_call; ++c) {
      const int at = c - part.first_call;
      add_step(c, &some, part.operands[static_cast<std::size_t>(at)], first_whole + at);
    }
  }

  /// A call as a profile shows it.
  Step whole_of(int index) {
    const Call& call = program_.calls[static_cast<std::size_t>(index)];
    Step step;
    step.call = index;
    step.kernel = loaded_.kernels[static_cast<std::size_t>(index)].get();
    const auto show = [&](const std::vector<int>& buffers, ViewRange& range) {
      range = {static_cast<std::uint32_t>(plan_.views.size()), static_cast<std::uint32_t>(buffers.size())};
      for (int buffer : buffers) push_view(buffers_[static_cast<std::size_t>(buffer)], 0);
    };
    show(call.in, step.in);
    show(call.out, step.out);
    return step;
  }

  /// Of some images only the operands in `parts` have a part, and the results.
  void add_step(int index, const Images* images = nullptr, std::uint64_t parts = 0, int whole = -1) {
    const Call& call = program_.calls[static_cast<std::size_t>(index)];
    Step step;
    step.call = index;
    step.kernel = loaded_.kernels[static_cast<std::size_t>(index)].get();
    step.whole = whole;
    if (images != nullptr) step.group = images->group;
    step.meets = step.group < 0;
    step.in.first = static_cast<std::uint32_t>(plan_.views.size());
    for (std::size_t i = 0; i < call.in.size(); ++i) add_view(call.in[i], step.in, i < 64 && (parts >> i & 1) != 0 ? images : nullptr);
    step.out.first = static_cast<std::uint32_t>(plan_.views.size());
    for (int result : call.out) {
      if (!call.shapes_results()) add_view(result, step.out, images);
    }
    if (step.kernel != nullptr) {
      const Scratch scratch = ask(step);
      const std::uint64_t shared = align_up(scratch.shared);
      if (step.group < 0) shared_ = std::max(shared_, shared);
      else step.shared = shared;
      local_ = std::max<std::uint64_t>(local_, step.shared + align_up(scratch.per_thread));
    }
    if (call.control != Control::none) plan_bodies(call, index, step);
    bind_states(call, step);
    if (!writes_nothing(step)) plan_.steps.push_back(step);
  }

  /// Whether it is a kernel whose results have no element, which every worker would only wait for.
  bool writes_nothing(const Step& step) const {
    const std::span<const TensorView> out = plan_.at(step.out);
    return step.kernel != nullptr && !out.empty() &&
           std::all_of(out.begin(), out.end(), [](const TensorView& view) { return view.elements() == 0; });
  }

  /// The working memory that a kernel needs, where it can do what it is asked.
  Scratch ask(const Step& step) const {
    try {
      return step.kernel->plan(plan_.at(step.in), plan_.at(step.out), step.group < 0 ? request_.threads : 1);
    } catch (const Refused& refused) {
      const Call& call = program_.calls[static_cast<std::size_t>(step.call)];
      throw Error(code::kernel_refused, call.name + " in " + quote(call.where) + ": " + refused.what());
    }
  }

  /// Plans the first stage of each body at the sizes that the call gives it, and takes the memory that one of them needs.
  /// A branch that these sizes do not fit is at fault only where it is the one that runs.
  void plan_bodies(const Call& call, int index, Step& step) {
    step.bodies = static_cast<std::uint32_t>(plan_.bodies.size());
    for (std::size_t b = 0; b < call.bodies.size(); ++b) {
      const LoadedProgram& body = loaded_.bodies[static_cast<std::size_t>(index)][b];
      const std::string who = (call.where.empty() ? "" : call.where + ": ") + call.name + ": body " + std::to_string(b);
      plan_.bodies.emplace_back();
      try {
        const std::vector<std::int64_t> symbols = symbols_of(*body.program, call.bodies[b].sizes);
        StagePlan made = make_plan({body, 0, request_.threads, symbols, nullptr, {}});
        check_body(call, *body.program, made, step, b);
        plan_.bodies.back() = std::move(made);
      } catch (const Error& error) {
        if (call.control != Control::cond || std::string_view(error.code) != code::input)
          throw Error(error.code, who + ": " + error.what());
        plan_.bodies.back().unfit = who + ": " + error.what();
      }
      shared_ = std::max<std::uint64_t>(shared_, align_up(plan_.bodies.back().arena_bytes));
    }
  }

  std::vector<std::int64_t> symbols_of(const Program& body, std::span<const DimId> sizes) const {
    std::vector<std::int64_t> values(sizes.size(), 0);
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      if (sizes[s] < 0) continue;
      const Symbol& symbol = body.dims.symbols()[s];
      values[s] = dim(sizes[s]);
      if (values[s] < symbol.min || values[s] > symbol.max)
        throw Error(code::input, symbol.name + "=" + std::to_string(values[s]) + " is not in " + std::to_string(symbol.min) +
                                     " … " + std::to_string(symbol.max));
    }
    return values;
  }

  static bool same_shape(const TensorView& whole, const TensorView& inner, int skipped) {
    return std::equal(inner.shape, inner.shape + inner.rank, whole.shape + skipped);
  }

  /// The shapes of a body's inputs and outputs are those of what the call gives it and takes from it.
  void check_body(const Call& call, const Program& body, const StagePlan& plan, const Step& step, std::size_t which) {
    const std::size_t first = call.control == Control::cond ? 1 : 0;
    const std::int64_t length = call.control == Control::scan ? dim(call.length) : 0;
    if (length < 0) throw Error(code::input, "its length would be " + std::to_string(length));
    const auto refuse = [](const char* what, std::size_t i, const TensorView& whole, const TensorView& inner) {
      throw Error(code::input, std::string(what) + " " + std::to_string(i) + " is " + describe(whole) +
                                   ", which does not fit the body's " + describe(inner));
    };
    for (std::size_t i = 0; i < body.inputs.size(); ++i) {
      const TensorView& operand = plan_.views[step.in.first + first + i];
      const bool part = call.control == Control::scan && i >= call.carried && i < call.carried + call.scanned;
      const TensorView& inner = plan.views[plan.entering.first + i];
      if (!same_shape(operand, inner, part ? 1 : 0) || (part && operand.shape[0] != length) || !operand.contiguous())
        refuse("operand", first + i, operand, inner);
    }
    if (call.control == Control::loop && which == 0) return;
    for (std::size_t i = 0; i < body.outputs.size(); ++i) {
      const bool part = call.control != Control::cond && i >= call.carried;
      const TensorView inner = output_of(body, plan, i);
      if (call.control == Control::loop && !part && !same_shape(plan_.views[step.in.first + i], inner, 0))
        refuse("operand", i, plan_.views[step.in.first + i], inner);
      if (call.shapes_results()) continue;
      const TensorView& result = plan_.views[step.out.first + i];
      if (!same_shape(result, inner, part ? 1 : 0) || (part && result.shape[0] != length) || !result.contiguous())
        refuse("result", i, result, inner);
      if (!part && call.control == Control::scan && !same_shape(plan_.views[step.in.first + i], inner, 0))
        refuse("operand", i, plan_.views[step.in.first + i], inner);
    }
  }

  void bind_states(const Call& call, const Step& step) {
    for (std::uint32_t i = 0; i < step.in.count; ++i) {
      if (program_.buffer(call.in[i]).kind != BufferKind::state) continue;
      const auto state = std::find_if(request_.states.begin(), request_.states.end(),
                                      [&](const StateView& s) { return s.buffer == call.in[i]; });
      plan_.views[step.in.first + i].data = state->view.data;
    }
  }

  void add_working_memory() {
    plan_.shared_offset = plan_.layout.bytes;
    plan_.local_offset = plan_.shared_offset + shared_;
    plan_.local_bytes = local_;
    plan_.arena_bytes = plan_.local_offset + local_ * static_cast<std::uint64_t>(request_.threads);
  }
};

}  // namespace

std::span<const TensorView> StagePlan::at(ViewRange range, int worker, TensorView* room) const {
  if (worker == 0) return at(range);
  for (std::uint32_t i = 0; i < range.count; ++i) {
    room[i] = views[range.first + i];
    const std::uint64_t bytes = apart[range.first + i];
    if (bytes != 0) room[i].data = room[i].as<std::byte>() + bytes * static_cast<std::uint64_t>(worker);
  }
  return {room, range.count};
}

void StagePlan::relocate(std::span<std::byte* const> moved) {
  for (std::uint32_t b = 0; b < bases.size(); ++b) {
    if (bases[b] == moved[b]) continue;
    bases[b] = moved[b];
    auto one = std::lower_bound(relocations.begin(), relocations.end(), b,
                                [](const Relocation& relocation, std::uint32_t base) { return relocation.base < base; });
    for (; one != relocations.end() && one->base == b; ++one) views[one->view].data = moved[b] + one->offset;
  }
}

std::size_t number_of_bases(const LoadedProgram& loaded) {
  return loaded.stages.size() + loaded.program->inputs.size() + loaded.program->outputs.size();
}

void StagePlan::hand(std::span<const TensorView> operands) {
  for (const Handed& one : handed) views[one.view].data = static_cast<std::byte*>(operands[one.input].data) + one.offset;
}

TensorView output_of(const Program& body, const StagePlan& plan, std::size_t index) {
  const Buffer& buffer = body.buffer(body.outputs[index].buffer);
  TensorView view;
  view.dtype = buffer.dtype;
  for (DimId id : buffer.shape) view.shape[view.rank++] = plan.dims[static_cast<std::size_t>(id)];
  return view;
}

StagePlan make_plan(const PlanRequest& request, PlanParts parts) { return Planner(request).run(parts); }

}  // namespace ingot
