// Aliases of methods after other libraries: ddp is allreduce, fsdp is zero3.
#pragma once

#include <string>

namespace esp::sync {

// Any other name is returned unchanged.
std::string strategy_name(const std::string& word);

}  // namespace esp::sync
