// `bench train --layout`: one model divided among ranks in several ways, each held against one process that has as many
// threads as all ranks together.
#pragma once

#include "apps/espalier/bench_train.h"

namespace esp::app {

// "tp=2", "pp=2,train.micro_batch=1": settings of the run file, of [parallel] where no section is named.
std::vector<std::string> layout_settings(const std::string& layout);

int run_bench_layouts(const TrainBench& bench, const std::string& folder);

}  // namespace esp::app
