#include "esp/comm/schedule_file.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/base/table.h"
#include "esp/comm/schedule_units.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

struct ActRow {
  std::string_view name;
  ActionType type;
};
constexpr ActRow kActs[] = {{"send", ActionType::send},
                            {"receive", ActionType::receive},
                            {"receive_reduce", ActionType::receive_reduce},
                            {"copy", ActionType::copy},
                            {"reduce", ActionType::reduce}};
struct BufferRow {
  std::string_view name;
  Buffer buffer;
};
constexpr BufferRow kBuffers[] = {{"input", Buffer::input}, {"output", Buffer::output}, {"scratch", Buffer::scratch}};

std::string_view name_of(ActionType type) {
  return kActs[static_cast<size_t>(type)].name;
}

// Parses one text; every error message starts with the location.
class Reader {
  [[noreturn]] void fail(const std::string& text) const { throw IoError(fmt::format("{}{} {}", what_, where_, text)); }

  // Calls `find`, a table lookup that throws UsageError for an unknown name. Throws an error with the location in the
  // text instead.
  template <typename Find>
  auto known(const std::string& name, Find&& find) const {
    try {
      return find(name);
    } catch (const UsageError& error) {
      fail(fmt::format("has an {}", error.what()));
    }
  }

 public:
  explicit Reader(std::string_view what) : what_(what) {}

  ScheduleFile read(std::string_view text) {
    Json json = parse_json(text, what_, kMaxScheduleBytes);
    where_ = "";
    keys(json, {"espalier_schedule", "name", "op", "size", "root", "split", "rounds", "ranks"});
    if (int version = integer(json, "espalier_schedule", 0, 1 << 20); version != 1)
      fail(fmt::format("has version {}; expected 1, the version that this build reads", version));
    ScheduleFile file;
    file.name = string(json, "name");
    if (file.name.empty() || file.name.size() > 64)
      fail(fmt::format("has a \"name\" of {} bytes; expected 1 to 64", file.name.size()));
    file.op = known(string(json, "op"), [](std::string_view name) { return parse_op(name); });
    if (!has_schedule_file_format(file.op))
      fail(fmt::format("has \"op\": \"{}\"; schedule files do not support this collective", comm::name_of(file.op)));
    file.size = integer(json, "size", 1, kMaxScheduleSize);
    if (is_rooted(file.op))
      file.root = integer(json, "root", 0, file.size - 1);
    else if (json.contains("root"))
      fail(fmt::format("has the key \"root\", but {} has no root. Remove the key", comm::name_of(file.op)));
    read_split(json, file);
    file.num_rounds = integer(json, "rounds", 0, kMaxScheduleRounds);
    const Json& ranks = array(json, "ranks");
    if (ranks.size() != static_cast<size_t>(file.size))
      fail(fmt::format("has {} entries in \"ranks\"; expected {}, the \"size\"", ranks.size(), file.size));
    for (size_t r = 0; r < ranks.size(); ++r) read_rank(ranks[r], static_cast<int>(r), file);
    return file;
  }

 private:
  void keys(const Json& json, const std::vector<std::string_view>& allowed) const {
    if (!json.is_object()) fail("is not a JSON object");
    for (const auto& [key, unused] : json.items()) {
      if (std::find(allowed.begin(), allowed.end(), key) != allowed.end()) continue;
      std::string_view near = nearest_name(key, allowed);
      fail(fmt::format("has an unknown key \"{}\"{}", key,
                       near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
    }
  }

  const Json& member(const Json& json, const char* key) const {
    auto at = json.find(key);
    if (at == json.end()) fail(fmt::format("does not have the required key \"{}\"", key));
    return *at;
  }

  int whole(const Json& value, std::string_view name, int64_t low, int64_t high) const {
    bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX);
    if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high)
      fail(fmt::format("needs {} to be an integer from {} to {}; got {}", name, low, high,
                       value.is_number() ? value.dump() : value.type_name()));
    return static_cast<int>(value.get<int64_t>());
  }
  int integer(const Json& json, const char* key, int64_t low, int64_t high) const {
    return whole(member(json, key), fmt::format("\"{}\"", key), low, high);
  }

  std::string string(const Json& json, const char* key) const {
    const Json& value = member(json, key);
    if (!value.is_string()) fail(fmt::format("needs \"{}\" to be a string; got {}", key, value.type_name()));
    return value.get<std::string>();
  }

  const Json& array(const Json& json, const char* key) const {
    const Json& value = member(json, key);
    if (!value.is_array()) fail(fmt::format("needs \"{}\" to be a list; got {}", key, value.type_name()));
    return value;
  }

  void read_split(const Json& json, ScheduleFile& file) const {
    int64_t units = 1;
    const Json& split = array(json, "split");
    if (split.empty()) fail("needs at least one number in \"split\"");
    for (const Json& factor : split) {
      file.split.push_back(whole(factor, "each number of \"split\"", 1, kMaxScheduleUnits));
      units *= file.split.back();
      if (units > kMaxScheduleUnits)
        fail(fmt::format("has a \"split\" into more than {} units, the maximum", kMaxScheduleUnits));
    }
    if (is_chunked(file.op) && file.split[0] != file.size)
      fail(fmt::format("has split[0] = {}; expected {}, the \"size\", because in {} rank k owns chunk k", file.split[0],
                       file.size, comm::name_of(file.op)));
  }

  void read_rank(const Json& json, int rank, ScheduleFile& file) {
    where_ = fmt::format(", rank {},", rank);
    keys(json, {"scratch", "actions"});
    UnitSchedule& schedule = file.ranks.emplace_back();
    int units = num_units(file.split);
    if (json.contains("scratch"))
      for (const Json& area : array(json, "scratch")) {
        count_work(1);
        if (!area.is_array() || area.size() != 2) fail("needs each area of scratch as [first unit, number of units]");
        int first = whole(area[0], "an area's first unit", 0, units - 1);
        schedule.scratch.push_back({first, whole(area[1], "an area's number of units", 1, units - first)});
      }
    const Json& actions = array(json, "actions");
    for (size_t i = 0; i < actions.size(); ++i) {
      where_ = fmt::format(", rank {}, action {},", rank, i);
      count_work(1);
      schedule.actions.push_back(read_action(actions[i], rank, file, schedule));
    }
  }

  UnitAction read_action(const Json& json, int rank, const ScheduleFile& file, const UnitSchedule& schedule) {
    if (!json.is_object()) fail("is not a JSON object");
    UnitAction action;
    action.type = known(string(json, "do"), [](std::string_view n) { return find_row("action", kActs, n).type; });
    action.round = integer(json, "round", 0, std::max(0, file.num_rounds - 1));
    auto region = [&](const char* key) { return read_region(member(json, key), rank, file, schedule); };
    if (action.type == ActionType::copy || action.type == ActionType::reduce) {
      const char* sources = action.type == ActionType::copy ? "from" : "of";
      keys(json, {"round", "do", "into", sources});
      action.region = region("into");
      if (action.type == ActionType::copy) {
        action.sources.push_back(region("from"));
      } else {
        for (const Json& source : array(json, "of")) {
          count_work(1);
          action.sources.push_back(read_region(source, rank, file, schedule));
        }
      }
      return action;
    }
    const char* peer = action.type == ActionType::send ? "to" : "from";
    keys(json, {"round", "do", "at", peer});
    action.peer = integer(json, peer, 0, file.size - 1);
    action.region = region("at");
    return action;
  }

  UnitRegion read_region(const Json& json, int rank, const ScheduleFile& file, const UnitSchedule& schedule) const {
    if (!json.is_array() || json.empty() || !json[0].is_string())
      fail("has a region that is not a list starting with a buffer name");
    UnitRegion region;
    region.buffer =
        known(json[0].get<std::string>(), [](std::string_view n) { return find_row("buffer", kBuffers, n).buffer; });
    bool scratch = region.buffer == Buffer::scratch;
    if (json.size() != (scratch ? 4u : 3u))
      fail(scratch ? "needs a scratch region as [\"scratch\", area, first unit, number of units]"
                   : "needs a region as [buffer, first unit, number of units]");
    UnitArea limits = area_of(file, rank, region.buffer);
    if (scratch) {
      if (schedule.scratch.empty()) fail("uses scratch memory, but this rank has no list of \"scratch\" areas");
      region.area = whole(json[1], "the area", 0, static_cast<int>(schedule.scratch.size()) - 1);
      limits = schedule.scratch[static_cast<size_t>(region.area)];
    }
    if (limits.count == 0)
      fail(fmt::format("uses the {} buffer, which this rank does not have", json[0].get<std::string>()));
    int end = limits.first + limits.count;
    region.first = whole(json[scratch ? 2 : 1], "the first unit", limits.first, end - 1);
    region.count = whole(json[scratch ? 3 : 2], "the number of units", 1, end - region.first);
    return region;
  }

  void count_work(size_t more) {
    work_ += more;
    if (work_ > kMaxScheduleActions)
      fail(fmt::format("exceeds the limit of {} actions and sources", kMaxScheduleActions));
  }

  std::string what_, where_;
  size_t work_ = 0;
};

Json json_of(const UnitRegion& region) {
  Json json = Json::array({kBuffers[static_cast<size_t>(region.buffer)].name});
  if (region.buffer == Buffer::scratch) json.push_back(region.area);
  json.push_back(region.first);
  json.push_back(region.count);
  return json;
}

Json json_of(const UnitAction& action) {
  Json json = {{"round", action.round}, {"do", name_of(action.type)}};
  if (action.type == ActionType::copy || action.type == ActionType::reduce) {
    json["into"] = json_of(action.region);
    Json sources = Json::array();
    for (const UnitRegion& source : action.sources) sources.push_back(json_of(source));
    if (action.type == ActionType::copy)
      json["from"] = sources[0];
    else
      json["of"] = sources;
    return json;
  }
  json[action.type == ActionType::send ? "to" : "from"] = action.peer;
  json["at"] = json_of(action.region);
  return json;
}

}  // namespace

ScheduleFile parse_schedule(std::string_view text, std::string_view what) {
  ScheduleFile file = Reader(what).read(text);
  try {
    validate_for_sample_counts(file);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", what, error.what()));
  }
  return file;
}

// Writes one action per line for readability.
std::string write_schedule(const ScheduleFile& file) {
  std::string text =
      fmt::format("{{\n  \"espalier_schedule\": 1,\n  \"name\": {},\n  \"op\": \"{}\",\n  \"size\": {},\n",
                  Json(file.name).dump(), name_of(file.op), file.size);
  if (is_rooted(file.op)) text += fmt::format("  \"root\": {},\n", file.root);
  text += fmt::format("  \"split\": {},\n  \"rounds\": {},\n  \"ranks\": [", Json(file.split).dump(), file.num_rounds);
  for (size_t r = 0; r < file.ranks.size(); ++r) {
    Json scratch = Json::array();
    for (const UnitArea& area : file.ranks[r].scratch) scratch.push_back({area.first, area.count});
    text += fmt::format("{}\n    {{", r > 0 ? "," : "");
    if (!scratch.empty()) text += fmt::format("\"scratch\": {},\n     ", scratch.dump());
    text += "\"actions\": [";
    const auto& actions = file.ranks[r].actions;
    for (size_t i = 0; i < actions.size(); ++i)
      text += fmt::format("{}\n      {}", i > 0 ? "," : "", json_of(actions[i]).dump());
    text += "]}";
  }
  return text + "]\n}\n";
}

}  // namespace esp::comm
