// Output of estimates: the JSON of an estimate and of a policy, and text for sizes and times.
#pragma once

#include <string>

#include "esp/base/json.h"
#include "esp/plan/estimate.h"

namespace esp::plan {

// {parameters memory_bytes{…} flops_per_step step_s tflops_per_gpu mfu hfu bubble comm[…] fits reasons[] …}
Json to_json(const Estimate& estimate);
// The run file's names.
Json to_json(const Policy& policy);
Json to_json(const Memory& memory);
Json to_json(const TrainingCost& cost);

std::string gigabytes(double bytes);  // "12.34 GB", decimal
std::string seconds(double time_s);   // "1.23 s", "45.6 ms", "7.8 µs"
std::string short_count(double n);    // "12.853 B", "7.100 M", "35,072"
std::string grouped(double n);        // integer, "11,421,092"
// "tp 8, pp 4, dp 16, interleaved x2, zero 1, full recomputation, micro-batch 1 of 2048"
std::string describe(const Policy& policy);

}  // namespace esp::plan
