// Key tables of descriptions: the key in a file, its member, and its unit. A new member of a struct of cluster.h that
// files can set needs one line here.
#pragma once

#include <vector>

#include "esp/plan/catalog.h"
#include "esp/plan/description.h"

namespace esp::plan {

std::vector<Key> efficiency_keys(Efficiency& e);
std::vector<Key> processor_keys(Processor& p);
std::vector<Key> processor_row_keys(ProcessorRow& row);
std::vector<Key> link_keys(LinkSpec& link);
std::vector<Key> cluster_keys(Cluster& c);
std::vector<Key> shape_keys(ModelShape& s);

}  // namespace esp::plan
