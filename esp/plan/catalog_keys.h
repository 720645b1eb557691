// Tables of the keys of catalog files: key name, struct member, unit. A new member of a struct in cluster.h needs one
// line here if files can set it.
#pragma once

#include <vector>

#include "esp/plan/catalog.h"
#include "esp/plan/description.h"

namespace esp::plan {

std::vector<DescriptionKey> efficiency_keys(Efficiency& e);
std::vector<DescriptionKey> processor_keys(Processor& p);
std::vector<DescriptionKey> processor_row_keys(ProcessorRow& row);
std::vector<DescriptionKey> link_keys(LinkSpec& link);
std::vector<DescriptionKey> cluster_keys(Cluster& c);
std::vector<DescriptionKey> shape_keys(ModelShape& s);

}  // namespace esp::plan
