// Aliases of methods, named as in PyTorch: ddp is allreduce, fsdp is zero3.
#pragma once

#include <string>

namespace esp::sync {

// Returns the method that `word` is an alias of; any other `word` is returned unchanged.
std::string strategy_name(const std::string& word);

}  // namespace esp::sync
