#include "esp/sync/zero/shard_group.h"

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sync {
namespace {

int group_of(const Setup& setup) {
  const int size = setup.ranks ? setup.ranks->size() : 1;
  const auto group = static_cast<int>(setup.options.group == 0 ? size : setup.options.group);
  if (group < 1 || size % group != 0)
    throw UsageError(
        fmt::format("sync.group: got {}; expected 0 (all) or a divisor of the {} ranks.", setup.options.group, size));
  return group;
}

std::unique_ptr<comm::Communicator> split_inside(const Setup& setup) {
  const int group = group_of(setup);
  if (!setup.ranks || group == setup.ranks->size()) return nullptr;
  return setup.ranks->split(setup.ranks->rank() / group, setup.ranks->rank());
}

std::unique_ptr<comm::Communicator> split_across(const Setup& setup) {
  const int group = group_of(setup);
  if (!setup.ranks || group == setup.ranks->size()) return nullptr;
  return setup.ranks->split(setup.ranks->rank() % group, setup.ranks->rank());
}

}  // namespace

ShardGroup::ShardGroup(const Setup& setup)
    : intra_group_comm_(split_inside(setup)),
      inter_group_comm_(split_across(setup)),
      intra_group_(intra_group_comm_ ? intra_group_comm_.get() : setup.ranks,
                   {setup.options.deterministic, setup.timeout, setup.trace}),
      inter_group_(inter_group_comm_.get(), {setup.options.deterministic, setup.timeout, setup.trace}) {}

std::vector<NamedGroup> ShardGroup::groups() const {
  std::vector<NamedGroup> groups;
  if (intra_group_comm_) groups.push_back({"shards", intra_group_comm_.get()});
  if (inter_group_comm_) groups.push_back({"replicas", inter_group_comm_.get()});
  return groups;
}

void ShardGroup::reset_times() {
  intra_group_.reset_times();
  inter_group_.reset_times();
}

}  // namespace esp::sync
