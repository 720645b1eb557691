// Output of estimates: JSON of an estimate and of a policy; texts for sizes and times.
#pragma once

#include <string>

#include "esp/base/json.h"
#include "esp/plan/estimate.h"

namespace esp::plan {

// Keys: parameters memory_bytes{…} flops_per_step step_s tflops_per_gpu mfu hfu bubble comm[…] fits reasons[] …
Json to_json(const Estimate& estimate);
// Keys are those of a run file.
Json to_json(const Policy& policy);
Json to_json(const Memory& memory);
Json to_json(const TrainingCost& cost);

std::string gigabytes(double bytes);  // "12.34 GB"; 1 GB = 1e9 bytes
std::string seconds(double time_s);   // "1.23 s", "45.6 ms", "7.8 µs"
std::string short_count(double n);    // "12.853 B", "7.100 M", "35,072"
std::string grouped(double n);        // integer with separators: "11,421,092"
// Example: "tp 8, pp 4, dp 16, interleaved x2, zero 1, full recomputation, micro-batch 1 of 2048"
std::string describe(const Policy& policy);

}  // namespace esp::plan
