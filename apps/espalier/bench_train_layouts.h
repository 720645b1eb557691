// `bench train --layout`: one model with several layouts, each compared with one process that has as many threads as
// all ranks together.
#pragma once

#include "apps/espalier/bench_train.h"

namespace esp::app {

// "tp=2", "pp=2,train.micro_batch=1": settings of the run file, of [parallel] without a section name.
std::vector<std::string> layout_settings(const std::string& layout);

int run_bench_layouts(const TrainBench& bench, const std::string& folder);

}  // namespace esp::app
