// DeepSpeed keys that are known but not imported, with the reason.
#pragma once

#include <string_view>
#include <vector>

namespace esp::train {

// The reason why a key (or its section) is not imported. `key` is dotted. Empty if the key is unknown.
std::string_view ignore_reason(std::string_view key);
// All keys that ignore_reason or the importer knows, to suggest the correct spelling.
std::vector<std::string_view> known_deepspeed_keys();

}  // namespace esp::train
