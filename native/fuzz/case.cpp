// Saving, reading, running and comparing cases.
#include "case.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "copy_strided.h"
#include "error.h"
#include "level.h"
#include "sha256.h"

namespace ingot::fuzz {
namespace {

constexpr std::string_view kBeforeDigest = R"({"__metadata__":{"ingot.sha256":")";
constexpr std::uint64_t kMostArena = 4 << 20;
constexpr std::pair<DType, const char*> kCodes[] = {
    {DType::float32, "F32"}, {DType::bfloat16, "BF16"}, {DType::float16, "F16"}, {DType::float64, "F64"},
    {DType::int8, "I8"},     {DType::int16, "I16"},     {DType::int32, "I32"},   {DType::int64, "I64"},
    {DType::uint8, "U8"},    {DType::uint16, "U16"},    {DType::uint32, "U32"},  {DType::uint64, "U64"},
    {DType::boolean, "BOOL"}};

const char* code_of(DType dtype) {
  for (const auto& [type, text] : kCodes)
    if (type == dtype) return text;
  std::abort();
}

Json sizes_json(const std::vector<std::int64_t>& sizes) {
  Json list = Json::array();
  for (std::int64_t size : sizes) list.push_back(size);
  return list;
}

/// Entries of a safetensors header and the bytes that they describe.
class TensorWriter {
 public:
  std::string entries, data;

  void add(const std::string& name, const Array& array) {
    if (const std::size_t gap = (64 - data.size() % 64) % 64; gap != 0) {
      entry("~pad." + std::to_string(pads_++), "U8", {static_cast<std::int64_t>(gap)}, gap);
      data.append(gap, '\0');
    }
    entry(name, code_of(array.dtype), array.shape, array.bytes.size());
    data.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  }

 private:
  int pads_ = 0;

  void entry(const std::string& name, const char* dtype, const std::vector<std::int64_t>& shape, std::size_t bytes) {
    const Json described = {
        {"dtype", dtype}, {"shape", sizes_json(shape)}, {"data_offsets", {data.size(), data.size() + bytes}}};
    entries += "," + Json(name).dump() + ":" + described.dump();
  }
};

/// Tensors in memory of exactly their size, so that the sanitizer sees where each ends.
struct ExactCopies {
  std::vector<void*> blocks;
  ~ExactCopies() {
    for (void* block : blocks) std::free(block);
  }
};

Container exact_container(const Json& header, const Arrays& weights) {
  auto copies = std::make_shared<ExactCopies>();
  std::vector<Tensor> tensors;
  for (const auto& [name, array] : weights) {
    void* block = nullptr;
    if (posix_memalign(&block, kTensorAlignment, array.bytes.size()) != 0) throw std::bad_alloc();
    copies->blocks.push_back(block);
    std::copy(array.bytes.begin(), array.bytes.end(), static_cast<std::byte*>(block));
    tensors.push_back({name, array.dtype, array.shape, static_cast<const std::byte*>(block), array.bytes.size()});
  }
  return Container::from_memory(header.dump(), std::move(tensors), std::move(copies));
}

bool is_nan(DType dtype, const std::byte* at) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, size_of(dtype));
  switch (dtype) {
    case DType::float32: return (bits & 0x7fffffffu) > 0x7f800000u;
    case DType::bfloat16: return (bits & 0x7fffu) > 0x7f80u;
    case DType::float16: return (bits & 0x7fffu) > 0x7c00u;
    case DType::float64: return (bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
    default: return false;
  }
}

std::string hex(const std::byte* at, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, size);
  char text[20];
  std::snprintf(text, sizeof text, "%0*llx", static_cast<int>(2 * size), static_cast<unsigned long long>(bits));
  return text;
}

/// Whether two floats are sums (or products) of the same numbers in two orders. Measured on 3,000 lists of up to 66,000
/// numbers of either sign: sums differ by at most 2^-23.9 of their magnitudes, products of 513 by 2^-18 of the result;
/// eight and thirty times as much is allowed. A result may be rounded to either side, and near its limit one may have
/// overflowed; products on the way do not, since templates take factors near one.
bool are_reordered(DType dtype, double x, double y, double magnitude) {
  const double rounding = dtype == DType::bfloat16 ? 0x1p-7 : dtype == DType::float16 ? 0x1p-10 : 0x1p-13;
  const double limit = dtype == DType::float16 ? 65504 : 3.3e38;
  const double larger = std::max(std::abs(x), std::abs(y)), smaller = std::min(std::abs(x), std::abs(y));
  if (std::isinf(larger)) return smaller > limit * 0.99 && std::signbit(x) == std::signbit(y);
  const double least = dtype == DType::float16 ? 0x1p-24 : 0x1p-126;
  return std::abs(x - y) <= least + 0x1p-21 * magnitude + rounding * larger;
}

/// Where two arrays differ in more than the bits of a NaN; empty when they do not.
std::string difference(const std::string& name, const Array& a, const Array& b, double magnitude) {
  if (a.dtype != b.dtype || a.shape != b.shape) return name + " has another dtype or shape";
  const std::size_t size = size_of(a.dtype);
  std::int64_t count = 0, first = -1;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    const std::byte* x = a.bytes.data() + static_cast<std::size_t>(i) * size;
    const std::byte* y = b.bytes.data() + static_cast<std::size_t>(i) * size;
    if (std::memcmp(x, y, size) == 0 || (is_nan(a.dtype, x) && is_nan(b.dtype, y))) continue;
    if (magnitude >= 0 && is_float(a.dtype) && are_reordered(a.dtype, a.number(i), b.number(i), magnitude)) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return "";
  const auto at = static_cast<std::size_t>(first) * size;
  return name + ": " + std::to_string(count) + " of " + std::to_string(a.elements()) + " elements differ, first " +
         std::to_string(first) + ": strided " + hex(a.bytes.data() + at, size) + ", plain " +
         hex(b.bytes.data() + at, size);
}

}  // namespace

std::string seal(std::string text, const std::string& data) {
  text.append((4096 - (8 + text.size()) % 4096) % 4096, ' ');
  text.replace(kBeforeDigest.size(), 64, 64, '0');
  Sha256 sha;
  sha.update(text);
  text.replace(kBeforeDigest.size(), 64, sha.hex());
  const std::uint64_t bytes = text.size();
  std::string length(8, '\0');
  std::memcpy(length.data(), &bytes, 8);
  return length + text + data;
}

Json engine_header(const std::string& entry, const Json& program) {
  return {{"format", 1}, {"producer", "fuzz"}, {"programs", {{"cpu", {{"entries", {{entry, program}}}}}}}};
}

std::string encode(const Case& one) {
  Json header = engine_header("strided", one.strided.program);
  header["programs"]["cpu"]["entries"]["plain"] = one.plain.program;
  header["config"]["fuzz_case"] = {{"name", one.name},
                                   {"level", std::string(name_of(one.level))},
                                   {"blocks", one.cache.blocks},
                                   {"block_size", one.cache.block_size},
                                   {"magnitude", one.magnitude},
                                   {"threads", {one.strided.threads, one.plain.threads}}};
  TensorWriter tensors;
  for (const auto& [name, array] : one.weights) tensors.add(name, array);
  for (const auto& [name, array] : one.strided.inputs) tensors.add("strided/" + name, array);
  for (const auto& [name, array] : one.plain.inputs) tensors.add("plain/" + name, array);
  const std::string text = std::string(kBeforeDigest) + std::string(64, '0') + R"(","ingot":)" +
                           Json(header.dump()).dump() + "}" + tensors.entries + "}";
  return seal(text, tensors.data);
}

bool is_case(const Json& header) {
  return header.is_object() && header.contains("config") && header["config"].is_object() &&
         header["config"].contains("fuzz_case");
}

Case decode(const Container& container) {
  const Json header = Json::parse(container.header());
  const Json& described = header["config"]["fuzz_case"];
  Case one;
  one.name = described["name"];
  for (Level level : usable_levels())
    if (name_of(level) == described["level"].get<std::string>()) one.level = level;
  one.cache = {described["blocks"], described["block_size"]};
  one.magnitude = described["magnitude"];
  one.strided.program = header["programs"]["cpu"]["entries"]["strided"];
  one.plain.program = header["programs"]["cpu"]["entries"]["plain"];
  one.strided.threads = described["threads"][0];
  one.plain.threads = described["threads"][1];
  for (const Tensor& tensor : container.tensors()) {
    const std::size_t slash = tensor.name.find('/');
    const std::string owner = slash == std::string::npos ? "" : tensor.name.substr(0, slash);
    Array array(tensor.dtype, tensor.shape);
    std::copy_n(tensor.data, array.bytes.size(), array.bytes.begin());
    (owner == "strided" ? one.strided.inputs : owner == "plain" ? one.plain.inputs : one.weights)[tensor.name.substr(
        owner.empty() ? 0 : slash + 1)] = std::move(array);
  }
  return one;
}

Outcome run_variant(const Case& one, const Variant& variant) {
  Outcome outcome;
  try {
    const auto engine =
        std::make_shared<const Engine>(exact_container(engine_header("main", variant.program), one.weights), one.level);
    Session session(engine, "main", {variant.threads, one.cache}, nullptr);
    std::vector<Array> arrays;
    std::vector<TensorView> views;
    const Program& program = session.program();
    for (int input : program.inputs) arrays.push_back(variant.inputs.at(program.buffer(input).name));
    for (Array& array : arrays) views.push_back(array.view());
    std::map<std::string, std::int64_t> symbols;
    for (const Symbol& symbol : program.dims.symbols())
      if (!symbol.unbacked) symbols[symbol.name] = variant.inputs.at("bind." + symbol.name).shape[0];
    // Of a program that binds symbols as it runs nothing is known before; templates keep such sizes small.
    if (program.stages == 1 && session.planned(symbols).arena > kMostArena) throw Error(code::memory, "too large for the fuzzer");
    for (const CallProfile& call : session.profile(views))
      outcome.kernels.push_back(program.calls[static_cast<std::size_t>(call.call)].name);
    const Session::Run results(session);
    for (std::size_t i = 0; i < program.outputs.size(); ++i) {
      const TensorView from = results.outputs()[i];
      Array array(from.dtype, {from.shape, from.shape + from.rank});
      copy_strided(from, array.view());
      outcome.outputs[program.outputs[i].name] = std::move(array);
    }
  } catch (const Error& error) {
    outcome.code = error.code;
    outcome.message = error.what();
  }
  return outcome;
}

std::string contradiction(const Case& one, const Outcome& strided, const Outcome& plain) {
  const auto declined = [](const Outcome& outcome) {
    return outcome.code == code::kernel_refused || outcome.code == code::memory;
  };
  if (declined(strided) || declined(plain)) return "";
  if (strided.code != plain.code) {
    return "strided ends in " + strided.code + " (" + strided.message + "), plain in " + plain.code + " (" +
           plain.message + ")";
  }
  for (const auto& [name, array] : plain.outputs) {
    const std::string text = difference(name, strided.outputs.at(name), array, one.magnitude);
    if (!text.empty()) return text;
  }
  for (const auto& [name, array] : strided.outputs) {
    if (plain.outputs.contains(name)) continue;  // what fills the gaps between the elements of a result
    const std::string text = difference(name, array, one.strided.inputs.at(name), -1);
    if (!text.empty()) return "written into a gap of a result: " + text;
  }
  return "";
}

}  // namespace ingot::fuzz
