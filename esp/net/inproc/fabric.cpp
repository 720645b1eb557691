#include "esp/net/inproc/fabric.h"

namespace esp::net {

std::shared_ptr<void> ThreadFabric::join(const std::string& kind, const Group& group,
                                         const std::function<std::shared_ptr<void>()>& make) {
  std::lock_guard lock(mutex_);
  uint64_t opening = opened_[{kind, group.id, group.rank}]++;
  auto [found, first] = entries_.try_emplace({kind, group.id, opening});
  if (first) found->second.state = make();
  std::shared_ptr<void> state = found->second.state;
  if (++found->second.num_joined == group.size()) entries_.erase(found);
  return state;
}

}  // namespace esp::net
