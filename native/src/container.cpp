// Reading and checking a container. Everything that a stranger can choose is checked before it is used.
#include "container.h"

#include <algorithm>
#include <cstring>

#include "error.h"
#include "json.h"
#include "sha256.h"
#include "thread_pool.h"
#include "version.h"

namespace ingot {
namespace {

constexpr std::string_view kBeforeDigest = R"({"__metadata__":{"ingot.sha256":")";
constexpr std::string_view kAfterDigest = R"(","ingot":")";
constexpr std::size_t kDigest = 64;
constexpr std::size_t kPage = 4096;

[[noreturn]] void fail(const std::string& why) { throw Error(code::engine_file, why); }

struct Code {
  std::string_view code;
  DType dtype;
};
constexpr Code kCodes[] = {
    {"F32", DType::float32},  {"BF16", DType::bfloat16}, {"F16", DType::float16}, {"F64", DType::float64},
    {"I8", DType::int8},      {"I16", DType::int16},     {"I32", DType::int32},   {"I64", DType::int64},
    {"U8", DType::uint8},     {"U16", DType::uint16},    {"U32", DType::uint32},  {"U64", DType::uint64},
    {"BOOL", DType::boolean}, {"F8_E4M3", DType::float8_e4m3fn},
};

/// A tensor as the header describes it; `begin` and `end` count from the start of the data section.
struct Described {
  Tensor tensor;
  std::uint64_t begin = 0, end = 0;
  int members = 0;  // dtype, shape and data_offsets seen, as bits
};

/// Reads the safetensors header: {"__metadata__": {"ingot.sha256": …, "ingot": …}, NAME: {dtype, shape, data_offsets},
/// …}.
class HeaderReader final : public JsonEvents {
 public:
  std::string ours;
  std::vector<Described> described;

  void begin(bool object) override {
    ++depth_;
    const bool list_here = depth_ == 3 && (member_ == kShape || member_ == kOffsets);
    if (depth_ <= 2 ? !object : (object || !list_here)) unexpected();
    numbers_.clear();
  }

  void key(std::string& name) override {
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      if (in_metadata_) return;
      if (described.size() == kMaxTensors)
        fail("the header lists more than " + std::to_string(kMaxTensors) + " tensors");
      check_name(name);
      described.emplace_back().tensor.name = std::move(name);
      return;
    }
    if (in_metadata_) {
      member_ = name == "ingot" ? kOurs : name == "ingot.sha256" ? kHash : 0;
    } else {
      member_ = name == "dtype" ? kDtype : name == "shape" ? kShape : name == "data_offsets" ? kOffsets : 0;
      described.back().members |= member_;
    }
    if (member_ == 0) fail(where() + ": the key " + quote(name) + " is unknown");
  }

  void scalar(Json&& value) override {
    if (depth_ == 3 && value.is_number_integer() && !value.is_number_unsigned()) {
      numbers_.push_back(value.get<std::int64_t>());
    } else if (depth_ == 2 && value.is_string() && (member_ == kOurs || member_ == kHash)) {
      if (member_ == kOurs) ours = std::move(value.get_ref<std::string&>());
    } else if (depth_ == 2 && value.is_string() && member_ == kDtype) {
      set_dtype(value.get_ref<const std::string&>());
    } else {
      unexpected();
    }
  }

  void end() override {
    if (depth_ == 3) {
      member_ == kShape ? set_shape() : set_offsets();
    } else if (depth_ == 2 && !in_metadata_ && described.back().members != (kDtype | kShape | kOffsets)) {
      fail(where() + ": dtype, shape and data_offsets are all needed");
    }
    --depth_;
  }

 private:
  enum : int { kDtype = 1, kShape = 2, kOffsets = 4, kOurs = 8, kHash = 16 };

  int depth_ = 0;
  int member_ = 0;
  bool in_metadata_ = false;
  std::vector<std::int64_t> numbers_;

  std::string where() const {
    return in_metadata_        ? "the metadata"
           : described.empty() ? "the header"
                               : "tensor " + quote(described.back().tensor.name);
  }

  [[noreturn]] void unexpected() const { fail(where() + ": a value of an unexpected type or depth"); }

  static void check_name(const std::string& name) {
    const bool control =
        std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (name.empty() || name.size() > kMaxTensorName || control) {
      fail("the tensor name " + quote(name) + " (" + std::to_string(name.size()) + " bytes) is not allowed: 1 to " +
           std::to_string(kMaxTensorName) + " bytes without control characters");
    }
    // Nothing here makes paths of names, but other tools unpack them.
    if (name[0] == '/' || ("/" + name + "/").find("/../") != std::string::npos)
      fail("the tensor name " + quote(name) + " is a path that leads outside");
  }

  void set_dtype(const std::string& text) {
    const auto* found =
        std::find_if(std::begin(kCodes), std::end(kCodes), [&](const Code& c) { return c.code == text; });
    if (found == std::end(kCodes)) fail(where() + ": the dtype " + quote(text) + " is unknown");
    described.back().tensor.dtype = found->dtype;
  }

  void set_shape() {
    if (numbers_.size() > kMaxRank) {
      fail(where() + ": rank " + std::to_string(numbers_.size()) + "; at most " + std::to_string(kMaxRank) +
           " is allowed");
    }
    for (std::int64_t dim : numbers_) {
      if (dim < 1) fail(where() + ": the dimension " + std::to_string(dim) + " must be positive");
    }
    described.back().tensor.shape = numbers_;
  }

  void set_offsets() {
    if (numbers_.size() != 2 || numbers_[0] < 0 || numbers_[1] < numbers_[0]) {
      fail(where() + ": data_offsets must be two ascending numbers");
    }
    described.back().begin = static_cast<std::uint64_t>(numbers_[0]);
    described.back().end = static_cast<std::uint64_t>(numbers_[1]);
  }

  static constexpr int kMaxRank = 8;
};

/// The bytes that dtype and shape make; fails when they do not fit in 63 bits.
std::uint64_t logical_bytes(const Tensor& tensor) {
  auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  for (std::int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes))
      fail("tensor " + quote(tensor.name) + ": the product of its dimensions overflows");
  }
  return static_cast<std::uint64_t>(bytes);
}

bool is_padding(const Tensor& tensor) { return tensor.name.starts_with("~pad."); }

void check_padding(const Described& pad) {
  const std::string& name = pad.tensor.name;
  const bool digits =
      name.size() > 5 && std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; });
  const bool shape = pad.tensor.dtype == DType::uint8 && pad.tensor.shape.size() == 1;
  if (!digits || !shape || pad.end - pad.begin >= kTensorAlignment) {
    fail("tensor " + quote(name) + ": padding must be named ~pad.NUMBER and be U8 of rank 1 with fewer than 64 bytes");
  }
}

/// Checks that the tensors tile the data section, points them at their data and drops the padding.
std::vector<Tensor> place(std::vector<Described>&& described, std::string_view data) {
  std::vector<Tensor> tensors;
  tensors.reserve(described.size());
  std::uint64_t position = 0;
  for (Described& item : described) {
    Tensor& tensor = item.tensor;
    const auto at = [&] { return "tensor " + quote(tensor.name) + ": "; };
    if (item.begin != position) {
      fail(at() + "it begins at byte " + std::to_string(item.begin) +
           " of the data, but the tensor before it ends at " + std::to_string(position) +
           " (holes, overlaps and another order are refused)");
    }
    if (item.end > data.size()) {
      fail(at() + "it ends at byte " + std::to_string(item.end) + " of the data, which has only " +
           std::to_string(data.size()) + " bytes: the file is cut off");
    }
    tensor.bytes = logical_bytes(tensor);
    if (tensor.bytes != item.end - item.begin) {
      fail(at() + "dtype and shape make " + std::to_string(tensor.bytes) + " bytes, data_offsets " +
           std::to_string(item.end - item.begin));
    }
    position = item.end;
    if (is_padding(tensor)) {
      check_padding(item);
      continue;
    }
    if (item.begin % kTensorAlignment != 0)
      fail(at() + "byte " + std::to_string(item.begin) + " of the data is no multiple of 64");
    tensor.data = reinterpret_cast<const std::byte*>(data.data()) + item.begin;
    tensors.push_back(std::move(tensor));
  }
  if (position != data.size()) fail(std::to_string(data.size() - position) + " bytes follow the last tensor");
  return tensors;
}

/// The header of a file: its length, its literal beginning and its digest are in order.
std::string_view checked_header(std::string_view file) {
  if (file.size() < 8) fail("the file has " + std::to_string(file.size()) + " bytes: it is cut off or no engine");
  std::uint64_t n = 0;
  for (int i = 7; i >= 0; --i) n = n << 8 | static_cast<unsigned char>(file[static_cast<std::size_t>(i)]);
  if (n == 0 || n > kMaxHeaderBytes || (8 + n) % kPage != 0) {
    fail("the header length " + std::to_string(n) +
         " is not allowed (1 to 64 MiB, header and length together whole pages of " + std::to_string(kPage) +
         "): this is no engine file, or its first bytes are damaged");
  }
  if (n > file.size() - 8) {
    fail("the header has " + std::to_string(n) + " bytes, the file only " + std::to_string(file.size()) +
         ": it is cut off");
  }
  const std::string_view header = file.substr(8, n);
  const std::size_t digest_at = kBeforeDigest.size();
  const std::size_t text_at = digest_at + kDigest + kAfterDigest.size();
  if (n < text_at || !header.starts_with(kBeforeDigest) ||
      header.substr(digest_at + kDigest, kAfterDigest.size()) != kAfterDigest) {
    fail("the header does not begin as an engine's does: this may be a safetensors file, but it is no engine");
  }
  Sha256 sha;
  sha.update(header.substr(0, digest_at));
  sha.update(std::string(kDigest, '0'));
  sha.update(header.substr(digest_at + kDigest));
  if (sha.hex() != header.substr(digest_at, kDigest))
    fail("the header's checksum is wrong: the file is damaged or was changed");
  return header;
}

/// Why a header is refused. Tensors are read before the description beside them, so one that breaks a rule of these may
/// be of a newer format: that is then the reason.
Error reason(const Error& error, const std::string& ours) {
  if (ours.empty()) return error;  // the fault came before the description
  try {
    const Json known = parse_json(ours, code::engine_file, "the engine's description", {"format", "producer"});
    try {
      check_format(known);
    } catch (const Error& format) {
      return explained(format.code == std::string_view(code::engine_version) ? format : error, producer_of(known));
    }
    return explained(error, producer_of(known));
  } catch (const Error&) {
    return error;  // the description is no JSON: what was found first stands
  }
}

}  // namespace

Container Container::parse(std::string_view bytes) {
  const std::string_view header = checked_header(bytes);
  const std::size_t last = header.find_last_not_of(' ');
  if (last == std::string_view::npos || header[last] != '}') fail("the header is not followed by spaces alone");
  HeaderReader reader;
  Container container;
  try {
    parse_json(header.substr(0, last + 1), code::engine_file, "the header", reader);
    container.tensors_ = place(std::move(reader.described), bytes.substr(8 + header.size()));
  } catch (const Error& error) {
    throw reason(error, reader.ours);
  }
  container.header_ = std::move(reader.ours);
  container.index();
  return container;
}

Container Container::open(const std::string& path, WeightPlace place) {
  auto file = std::make_unique<MappedFile>(path);
  try {
    Container container = parse({file->data(), file->size()});
    container.file_ = std::move(file);
    if (place == WeightPlace::resident) container.make_resident();
    return container;
  } catch (const Error& error) {
    throw Error(error.code, path + ": " + error.what());
  }
}

Container Container::from_memory(std::string header, std::vector<Tensor> tensors, std::shared_ptr<void> owner) {
  Container container;
  container.header_ = std::move(header);
  container.tensors_ = std::move(tensors);
  container.owner_ = std::move(owner);
  container.index();
  return container;
}

void Container::make_resident() {
  if (tensors_.empty()) return;
  const std::byte* const begin = tensors_.front().data;
  const auto bytes = static_cast<std::size_t>(tensors_.back().data - begin) + tensors_.back().bytes;
  resident_ = Pages(bytes, "the weights");
  const int workers = default_threads();
  ThreadPool::get(workers).run([&](int worker) {
    const std::size_t each = bytes / static_cast<std::size_t>(workers), first = each * static_cast<std::size_t>(worker);
    std::memcpy(resident_.data() + first, begin + first, worker + 1 == workers ? bytes - first : each);
  });
  for (Tensor& tensor : tensors_) tensor.data = resident_.data() + (tensor.data - begin);
  file_.reset();
}

void Container::index() {
  by_name_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const Tensor* Container::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::uint64_t Container::tensor_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const Tensor& tensor : tensors_) sum += tensor.bytes;
  return sum;
}

}  // namespace ingot
