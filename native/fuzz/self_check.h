// Whether the red zones find what they are there for.
#pragma once

namespace ingot::fuzz {

/// Runs calls that read and write where they may not, each in a process of its own, and prints which were found. 0 when
/// all were, and a call that does nothing wrong was not.
int self_check();

}  // namespace ingot::fuzz
