#include "esp/obs/counters.h"

#include <nlohmann/json.hpp>

namespace esp::obs {

Counter& Counters::counter(std::string_view name) {
  std::lock_guard lock(mutex_);
  for (Named& named : counters_)
    if (named.name == name) return named.counter;
  return counters_.emplace_back(name).counter;
}

Json Counters::snapshot() const {
  std::lock_guard lock(mutex_);
  Json all = Json::object();
  for (const Named& named : counters_) all[named.name] = named.counter.value();
  return all;
}

}  // namespace esp::obs
