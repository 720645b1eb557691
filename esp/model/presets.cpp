#include "esp/base/table.h"
#include "esp/model/bert/bert.h"
#include "esp/model/gpt/gpt.h"
#include "esp/model/llama/llama.h"
#include "esp/model/model.h"
#include "esp/model/t5/t5.h"

namespace esp::model {

std::span<const Preset> presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> list;
    for (const auto& rows : {gpt_presets(), llama_presets(), bert_presets(), t5_presets()})
      list.insert(list.end(), rows.begin(), rows.end());
    return list;
  }();
  return all;
}

const Preset& preset(std::string_view name) {
  return find_row("model preset", presets(), name);
}

}  // namespace esp::model
