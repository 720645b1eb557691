#include "esp/train/rank_identity.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/json.h"
#include "esp/comm/stall.h"
#include "esp/net/crypto.h"
#include "esp/train/data_identity.h"
#include "esp/train/run_keys.h"

namespace esp::train {
namespace {

using Kinds = std::vector<std::pair<std::vector<int>, RankIdentity>>;

constexpr size_t kMaxLines = 20;
constexpr std::string_view kSame = "same", kOther = "other";

std::string text_of(const RankIdentity& identity) {
  return Json{{"version", identity.version}, {"keys", identity.keys}, {"files", identity.files}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

// Digest of an identity. The paths of files do not count.
std::string digest_of(const RankIdentity& identity) {
  std::string text = identity.version;
  for (const auto& [key, value] : identity.keys) text += fmt::format("\n{}={}", key, value);
  for (const std::string& file : identity.files) {
    const IdentityLine line = parse_identity_line(file);
    text += fmt::format("\n{} {}", line.key, line.content);
  }
  return net::to_hex(net::sha256(text));
}

RankIdentity parse_identity(const std::string& text) {
  const Json json = Json::parse(text);
  return {json.at("version"), json.at("keys"), json.at("files")};
}

// If the values differ, adds a line like «train.lr: got 0.001 on ranks 0-2, 0.002 on rank 3». values[i] belongs to the
// ranks of kinds[i].
void add_line(std::vector<std::string>& lines, const std::string& subject, const Kinds& kinds,
              const std::vector<std::string>& values) {
  std::map<std::string, std::vector<int>> ranks_of;
  std::vector<std::string> order;
  for (size_t i = 0; i < kinds.size(); ++i) {
    std::vector<int>& ranks = ranks_of[values[i]];
    if (ranks.empty()) order.push_back(values[i]);
    ranks.insert(ranks.end(), kinds[i].first.begin(), kinds[i].first.end());
  }
  if (order.size() < 2) return;
  std::string text = subject + ": got";
  for (size_t i = 0; i < order.size(); ++i) {
    std::vector<int>& ranks = ranks_of[order[i]];
    std::sort(ranks.begin(), ranks.end());
    text += fmt::format("{} {} on rank{} {}", i == 0 ? "" : ",", order[i], ranks.size() == 1 ? "" : "s",
                        comm::format_ranks(ranks));
  }
  lines.push_back(std::move(text));
}

void add_keys(std::vector<std::string>& lines, const Kinds& kinds) {
  for (const auto& [key, own] : kinds.front().second.keys) {
    std::vector<std::string> values;
    for (const auto& [ranks, identity] : kinds)
      for (const auto& [name, value] : identity.keys)
        if (name == key) values.push_back(value);
    // A key is compared only if all identities contain it.
    if (values.size() == kinds.size()) add_line(lines, key, kinds, values);
  }
}

void add_files(std::vector<std::string>& lines, const Kinds& kinds) {
  std::vector<std::map<std::string, std::vector<IdentityLine>>> files_of(kinds.size());  // files of each kind, by key
  std::map<std::string, size_t> most;  // for each key, the largest number of files that any kind has
  for (size_t kind = 0; kind < kinds.size(); ++kind)
    for (const std::string& text : kinds[kind].second.files) {
      IdentityLine line = parse_identity_line(text);
      auto& files = files_of[kind][line.key];
      most[line.key] = std::max(most[line.key], files.size() + 1);
      files.push_back(std::move(line));
    }
  for (const auto& [key, count] : most)
    for (size_t i = 0; i < count; ++i) {
      std::vector<std::string> values;
      std::string subject = key;
      for (auto& files : files_of) {
        const bool has = i < files[key].size();
        values.push_back(has ? files[key][i].content : "no file");
        if (has && !files[key][i].path.empty()) subject = files[key][i].subject();
      }
      add_line(lines, subject, kinds, values);
    }
}

std::string key_of(std::string_view what, int rank, size_t part = 0) {
  return fmt::format("same-run/{}/{}/{}", what, rank, part);
}

// Writes the text in parts, because a value of the store may have at most 64 KiB.
void write_text(net::Store& store, int rank, const std::string& text) {
  constexpr size_t kPartBytes = 60000;
  const size_t parts = (text.size() + kPartBytes - 1) / kPartBytes;
  for (size_t i = 0; i < parts; ++i) store.set(key_of("part", rank, i), text.substr(i * kPartBytes, kPartBytes));
  store.set(key_of("parts", rank), std::to_string(parts));
}

}  // namespace

RankIdentity rank_identity(const RunConfig& config, std::string_view version) {
  RunConfig one_form = normalised(config);
  one_form.run.dir = run_folder_of(config);
  RankIdentity identity{std::string(version), {}, config.data.identity};
  const std::vector<Field> all = fields(one_form);
  for (const Field& field : all)
    if (!may_differ_by_rank(field) && field.name() != "data.identity" && is_read(all, field))
      identity.keys.emplace_back(field.name(), plain_text(field));
  return identity;
}

IdentityConflict find_identity_conflict(const Kinds& kinds) {
  if (kinds.size() < 2) return {};
  std::vector<std::string> lines, files;
  std::vector<std::string> versions;
  for (const auto& [ranks, identity] : kinds) versions.push_back(identity.version);
  add_line(lines, "version of espalier", kinds, versions);
  add_keys(lines, kinds);
  const bool data_alone = lines.empty();
  add_files(files, kinds);
  lines.insert(lines.end(), files.begin(), files.end());
  IdentityConflict conflict{data_alone ? ExitCode::files : ExitCode::usage,
                            "the ranks of this job differ; expected the same run file, data and version on all ranks:"};
  for (size_t i = 0; i < std::min(lines.size(), kMaxLines); ++i) conflict.text += "\n  " + lines[i];
  if (lines.size() > kMaxLines) conflict.text += fmt::format("\n  and {} more", lines.size() - kMaxLines);
  conflict.text += data_alone ? "\nCopy the files of one host to the others, or name the same files."
                              : "\nStart every rank with the same run file, options and binary.";
  return conflict;
}

void check_same_run(const net::World& world, const RankIdentity& mine, Deadline deadline) {
  if (world.size < 2) return;
  net::Store& store = *world.store;
  const net::Group all = world.world_group();
  const auto get = [&](std::string_view what, int from, size_t part = 0) {
    return net::wait_for_key(world, all, key_of(what, from, part), from, deadline);
  };
  store.set(key_of("digest", world.rank), digest_of(mine));
  std::map<std::string, std::vector<int>> ranks_of;  // the ranks that have each digest; filled on rank 0 only
  if (world.rank == 0) {
    for (int rank = 0; rank < world.size; ++rank) ranks_of[get("digest", rank)].push_back(rank);
    store.set(key_of("found", 0), ranks_of.size() == 1 ? kSame : kOther);
  }
  if (get("found", 0) == kSame) return;
  write_text(store, world.rank, text_of(mine));
  if (world.rank == 0) {
    Kinds kinds;
    for (const auto& [digest, ranks] : ranks_of) {
      std::string whole;
      const size_t parts = std::stoul(get("parts", ranks.front()));
      for (size_t i = 0; i < parts; ++i) whole += get("part", ranks.front(), i);
      kinds.emplace_back(ranks, parse_identity(whole));
    }
    std::sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const IdentityConflict conflict = find_identity_conflict(kinds);
    store.set(key_of("conflict", 0), Json{{"code", static_cast<int>(conflict.code)}, {"text", conflict.text}}.dump(
                                         -1, ' ', false, Json::error_handler_t::replace));
  }
  const Json conflict = Json::parse(get("conflict", 0));
  throw CollectiveError(static_cast<ExitCode>(conflict.at("code").get<int>()), conflict.at("text"));
}

}  // namespace esp::train
