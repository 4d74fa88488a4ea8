// The one exception type of the core: a stable code and a message that says what, where, why and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace ingot {

namespace code {
constexpr const char* internal = "internal";              // a fault of ours
constexpr const char* engine_file = "engine_file";        // the container is damaged or is no engine
constexpr const char* engine_version = "engine_version";  // the engine is of a format that this library does not read
constexpr const char* program = "program";                // the program breaks a rule
constexpr const char* kernel_refused = "kernel_refused";  // a call that no kernel here can do
constexpr const char* input = "input";                    // the arrays given to a run do not fit
constexpr const char* memory = "memory";                  // the machine has no memory for it
constexpr const char* busy = "busy";                      // the session is running already
constexpr const char* value = "value";                    // a fault in values, found while running
constexpr const char* io = "io";                          // the operating system refused a file
constexpr const char* argument = "argument";              // the caller asked for something that is not there
}  // namespace code

/// Its type is shown by libingot.so: the Python module catches what is thrown there.
struct __attribute__((visibility("default"))) Error : std::runtime_error {
  Error(const char* error_code, const std::string& message) : std::runtime_error(message), code(error_code) {}
  const char* code;  // one of ingot::code, which live as long as the process
};

}  // namespace ingot
