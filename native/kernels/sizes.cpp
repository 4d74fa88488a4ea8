// read_sizes, sizes_of: numbers of the data that become sizes of what follows. assertion: what has to hold of the data.
//
// A program calls the first to know the sizes; it refuses what can be none, and says which size and what was computed. The second is
// for results [size, 0], which have no elements.
#include <nlohmann/json.hpp>

#include "check.h"
#include "strided.h"

namespace ingot {

namespace {

constexpr std::initializer_list<DType> kIntegers = {DType::int8,  DType::int16,  DType::int32,  DType::int64,
                                                    DType::uint8, DType::uint16, DType::uint32, DType::uint64};
constexpr std::int64_t kMostSizes = 8;
constexpr std::int64_t kMostSize = std::int64_t{1} << 46;

template <class T>
std::int64_t number(const std::byte* at) {
  const T value = *reinterpret_cast<const T*>(at);
  return static_cast<std::uint64_t>(value) > static_cast<std::uint64_t>(INT64_MAX) && value > T{0} ? INT64_MAX
                                                                                                     : static_cast<std::int64_t>(value);
}

std::int64_t number_at(const TensorView& x, std::int64_t element) {
  const std::byte* const at = x.at(offset_of(x, element));
  switch (x.dtype) {
    case DType::int8: return number<std::int8_t>(at);
    case DType::int16: return number<std::int16_t>(at);
    case DType::int32: return number<std::int32_t>(at);
    case DType::uint8: return number<std::uint8_t>(at);
    case DType::uint16: return number<std::uint16_t>(at);
    case DType::uint32: return number<std::uint32_t>(at);
    case DType::uint64: return number<std::uint64_t>(at);
    default: return number<std::int64_t>(at);
  }
}

class ReadSizes final : public Kernel {
 public:
  explicit ReadSizes(std::vector<std::string> faults) : faults_(std::move(faults)) {}

  Scratch plan(Views in, Views out, int) const override {
    const auto count = static_cast<std::int64_t>(faults_.size());
    if (in[0].elements() != count) refuse("read_sizes", "x has " + std::to_string(in[0].elements()) + " elements for " + std::to_string(count) + " names");
    require_shape("read_sizes", "the output", out[0], {count});
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    if (worker.index != 0) return;
    for (std::size_t i = 0; i < faults_.size(); ++i) {
      const std::int64_t size = number_at(in[0], static_cast<std::int64_t>(i));
      if (size < 0 || size > kMostSize) worker.fail(faults_[i].c_str(), size, kMostSize);
      out[0].as<std::int64_t>()[static_cast<std::int64_t>(i) * out[0].stride[0]] = size;
    }
  }

 private:
  std::vector<std::string> faults_;  // by size: what is said of one that can be none
};

class SizesOf final : public Kernel {
 public:
  Scratch plan(Views, Views out, int) const override {
    for (const TensorView& one : out) require_shape("sizes_of", "an output", one, {one.shape[0], 0});
    return {};
  }

  void run(Views, Views, const Worker&) const override {}
};

class Assertion final : public Kernel {
 public:
  explicit Assertion(std::string fault) : fault_(std::move(fault)) {}

  Scratch plan(Views, Views, int) const override { return {}; }

  void run(Views in, Views out, const Worker& worker) const override {
    const Share share = share_of(in[0].elements(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      if (*in[0].at(offset_of(in[0], i)) != std::byte{0}) continue;
      worker.fail(fault_.c_str());
      break;
    }
    if (worker.index == 0) *out[0].as<std::byte>() = std::byte{1};
  }

 private:
  std::string fault_;
};

std::string text_of(const nlohmann::json& value, const char* what) {
  if (!value.is_string()) refuse("read_sizes", std::string(what) + " must be text");
  const auto& text = value.get_ref<const std::string&>();
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

std::unique_ptr<Kernel> make_read(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("read_sizes", in, 1, 1, out, 1);
  Params params("read_sizes", json);
  const nlohmann::json& names = params.value("names");
  const std::string text = params.has("text") ? text_of(params.value("text"), "text") : "";
  params.done();
  require(names.is_array() && !names.empty() && names.size() <= kMostSizes, "read_sizes", "names must be 1 to 8 names");
  require_dtype("read_sizes", "x", in[0].dtype, kIntegers);
  require_dtype("read_sizes", "the output", out[0].dtype, {DType::int64});
  require_rank("read_sizes", "the output", out[0].rank, 1);
  std::vector<std::string> faults;
  for (const nlohmann::json& name : names)
    faults.push_back("the size " + text_of(name, "a name") + " would be out of range" + (text.empty() ? "" : "; it is " + text));
  return std::make_unique<ReadSizes>(std::move(faults));
}

std::unique_ptr<Kernel> make_sizes(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("sizes_of", in, 1, 1, out, out.size());
  Params("sizes_of", json).done();
  require_dtype("sizes_of", "x", in[0].dtype, kIntegers);
  for (const OperandType& one : out) {
    require_dtype("sizes_of", "an output", one.dtype, {DType::boolean});
    require_rank("sizes_of", "an output", one.rank, 2);
  }
  return std::make_unique<SizesOf>();
}

std::unique_ptr<Kernel> make_assertion(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("assertion", in, 1, 1, out, 1);
  Params params("assertion", json);
  const nlohmann::json& message = params.value("message");
  params.done();
  require(message.is_string(), "assertion", "message must be text");
  require_dtype("assertion", "condition", in[0].dtype, {DType::boolean});
  require_dtype("assertion", "the output", out[0].dtype, {DType::boolean});
  require_rank("assertion", "the output", out[0].rank, 0);
  const auto& text = message.get_ref<const std::string&>();
  return std::make_unique<Assertion>("assertion failed" + (text.empty() ? "" : ": " + text));
}

constexpr KernelInfo kKernels[] = {
    {"assertion", 1, "condition -> y", "message: text", make_assertion},
    {"read_sizes", 1, "x -> sizes", "names: texts, text?: text", make_read},
    {"sizes_of", 1, "x -> *made", "", make_sizes},
};

}  // namespace

std::span<const KernelInfo> sizes_kernels() { return kKernels; }

}  // namespace ingot
