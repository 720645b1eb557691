#include "esp/plan/compressed_bytes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "esp/base/table.h"

namespace esp::plan {
namespace {

// The number after the `index`-th colon of a compressor specification ("qsgd:16:512"); `otherwise` if there is none.
double parameter(const std::string& spec, int index, double otherwise) {
  size_t at = 0;
  for (int i = 0; i < index; ++i) {
    at = spec.find(':', at);
    if (at == std::string::npos) return otherwise;
    ++at;
  }
  char* end = nullptr;
  const double value = std::strtod(spec.c_str() + at, &end);
  if (end == spec.c_str() + at || !std::isfinite(value) || value <= 0) return otherwise;
  return *end == '%' ? value / 100 : value;
}

double share(const std::string& spec) {
  const double part = parameter(spec, 1, 0.01);
  return part < 1 ? part : 0.01;  // topk:1000 gives a count instead of a fraction; 1 % is assumed
}

struct CompressorRow {
  std::string_view name;
  double (*bytes)(const std::string& spec, const ModelShape& shape, double plain);
};
constexpr CompressorRow kCodes[] = {
    {"none", [](const std::string&, const ModelShape&, double plain) { return plain; }},
    {"identity", [](const std::string&, const ModelShape&, double) { return 4.0; }},
    {"fp16", [](const std::string&, const ModelShape&, double) { return 2.0; }},
    {"bf16", [](const std::string&, const ModelShape&, double) { return 2.0; }},
    {"int8", [](const std::string& spec, const ModelShape&, double) { return 1 + 4 / parameter(spec, 1, 256); }},
    {"int4", [](const std::string& spec, const ModelShape&, double) { return 0.5 + 4 / parameter(spec, 1, 128); }},
    {"random",
     [](const std::string& spec, const ModelShape&, double) {
       if (spec.find(':') == std::string::npos) return 1.5;  // default: 4095 levels need 12 bits
       return std::ceil(std::log2(static_cast<double>(std::count(spec.begin(), spec.end(), ',') + 1))) / 8;
     }},
    {"qsgd",
     [](const std::string& spec, const ModelShape&, double) {
       return (1 + std::ceil(std::log2(parameter(spec, 1, 16) + 1))) / 8 + 4 / parameter(spec, 2, 512);
     }},
    {"natural", [](const std::string&, const ModelShape&, double) { return 1.125; }},
    {"sign", [](const std::string&, const ModelShape&, double) { return 0.125; }},
    {"onebit", [](const std::string&, const ModelShape&, double) { return 0.125; }},
    {"topk", [](const std::string& spec, const ModelShape&, double) { return 8 * share(spec); }},
    {"randomk", [](const std::string& spec, const ModelShape&, double) { return 4 * share(spec); }},
    // The number of sent values depends on the data; assumed to be that of topk (1 %).
    {"threshold", [](const std::string&, const ModelShape&, double) { return 8 * 0.01; }},
    {"powersgd",
     [](const std::string& spec, const ModelShape& shape, double plain) {
       const double a = static_cast<double>(shape.hidden), b = static_cast<double>(shape.ffn);
       return a > 0 && b > 0 ? std::min(plain, 4 * parameter(spec, 1, 4) * (a + b) / (a * b)) : plain;
     }},
};

}  // namespace

double compressed_value_bytes(const std::string& compress, const ModelShape& shape, double plain) {
  const std::string name = compress.empty() ? "none" : compress.substr(0, compress.find(':'));
  return find_row("compress", kCodes, name).bytes(compress, shape, plain);
}

}  // namespace esp::plan
