// `bench train --layout`: trains one model with several parallel layouts. Each layout is compared with one process that
// has as many threads as all ranks together.
#pragma once

#include "apps/espalier/bench_train.h"

namespace esp::app {

// Parses "tp=2" or "pp=2,train.micro_batch=1" into run-file settings; keys without a section belong to [parallel].
std::vector<std::string> layout_settings(const std::string& layout);

int run_bench_layouts(const TrainBenchOptions& bench, const std::string& folder);

}  // namespace esp::app
