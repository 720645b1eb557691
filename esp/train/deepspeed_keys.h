// Keys of a DeepSpeed configuration that are known and not carried over, and why.
#pragma once

#include <string_view>
#include <vector>

namespace esp::train {

// The reason for a dotted key or for a section it lies in; empty where the key is not known at all.
std::string_view why_left(std::string_view key);
// All that why_left and the importer know, to find the nearest by.
std::vector<std::string_view> known_deepspeed_keys();

}  // namespace esp::train
