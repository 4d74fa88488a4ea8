// The rules of a program that concern its parts together: what is bound, written and read, and in which order.
#pragma once

#include "program.h"

namespace ingot {

/// Assigns stages and checks the rules listed in verify.cpp. Throws Error("program").
void verify(Program& program);

}  // namespace ingot
