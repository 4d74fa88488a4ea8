// What an engine says of its age: the formats that this library reads, and which ingot reads the others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "error.h"
#include "json.h"

namespace ingot {

/// The formats of engine files, and the versions of programs, that are read here. A new format is written at once, and
/// the old ones stay: Python and the tests take these numbers from here.
constexpr std::int64_t kOldestFormat = 1, kNewestFormat = 1;
constexpr std::int64_t kOldestProgram = 1, kNewestProgram = 1;

/// This library's version, "0.1.0".
const char* library_version() noexcept;

/// Whether a producer, "ingot 0.2.0", is a newer ingot than this one. False for what is no ingot's name.
bool is_newer(std::string_view producer);

/// Who reads an engine that this library does not: "written by ingot 0.2.0, this is ingot 0.1.0: use …".
std::string who_reads(std::string_view producer);

/// A number from 1 on at `key`, outside of oldest … newest, is an Error("engine_version"): "it is of version 7; this ingot
/// reads version 1". Whatever else stands there, or nothing, is for the caller to judge.
void check_version(const Json& json, const char* key, std::int64_t oldest, std::int64_t newest);

/// The producer that an engine's description names; empty when it names none.
std::string_view producer_of(const Json& ours);

/// Throws Error("engine_version") for a format that is not read here, Error("engine_file") for what is no format.
void check_format(const Json& ours);

/// An error met while an engine was read, as its user should see it. What a newer ingot wrote is of another version, not
/// malformed: such an Error is an "engine_version", and those say which ingot reads the file.
Error explained(const Error& error, std::string_view producer);

}  // namespace ingot
