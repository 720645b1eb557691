#include "esp/plan/catalog.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/plan/catalog_keys.h"
#include "esp/plan/catalog_texts.h"

namespace esp::plan {
namespace {

constexpr double kMaxProcessors = 1e7;  // maximum number of processors in a cluster

// Appends a row; replaces a row of the same name.
template <typename Row>
void replace_or_append(std::vector<Row>& rows, Row row) {
  std::erase_if(rows, [&](const Row& old) { return old.name == row.name; });
  rows.push_back(std::move(row));
}

// The tables `name` of the file: written once as [name], or several times as [[name]].
std::vector<const Json*> tables_of(const Json& file, const char* name) {
  std::vector<const Json*> tables;
  if (!file.contains(name)) return tables;
  const Json& given = file.at(name);
  if (given.is_array())
    for (const Json& one : given) tables.push_back(&one);
  else
    tables.push_back(&given);
  return tables;
}

std::string name_of(const Json& table, const std::string& file, const char* kind) {
  if (!table.is_object() || !table.contains("name") || !table.at("name").is_string() || table.at("name").empty())
    throw UsageError(fmt::format("{}: [{}]: name: missing; expected a string", file, kind));
  return table.at("name").get<std::string>();
}

void require(bool holds, const std::string& where, std::string_view what) {
  if (!holds) throw UsageError(fmt::format("{}: {}", where, what));
}

}  // namespace

struct Catalog::Source {
  std::string file;
  Json tree;
};

Catalog::Catalog() {
  std::vector<Source> sources;
  for (const CatalogText& text : catalog_texts())
    sources.push_back({std::string(text.name), parse_description(text.text, text.name)});
  add_all(sources);
}

std::string Catalog::add(std::string_view text, const std::string& file) {
  const std::vector<Source> sources = {{file, parse_description(text, file)}};
  add_all(sources);
  const Json& tree = sources[0].tree;
  if (tree.contains("cluster")) return clusters_.back().name;
  if (tree.contains("processor")) return processors_.back().name;
  return tree.contains("model") ? models_.back().name : "";
}

// Links of all files are read first, because processors and clusters refer to links.
void Catalog::add_all(const std::vector<Source>& sources) {
  for (const Source& source : sources)
    for (const auto& [name, value] : source.tree.items())
      if (name != "processor" && name != "link" && name != "cluster" && name != "model")
        unknown_name(fmt::format("table in {}", source.file), name, {"processor", "link", "cluster", "model"});
  const auto each = [&](const char* kind, auto add_one) {
    for (const Source& source : sources)
      for (const Json* table : tables_of(source.tree, kind)) add_one(*table, source.file);
  };
  each("link", [&](const Json& table, const std::string& file) { add_link(table, file); });
  each("processor", [&](const Json& table, const std::string& file) { add_processor(table, file); });
  each("cluster", [&](const Json& table, const std::string& file) { add_cluster(table, file); });
  each("model", [&](const Json& table, const std::string& file) { add_model(table, file); });
}

void Catalog::add_link(const Json& table, const std::string& file) {
  LinkRow row;
  row.name = name_of(table, file, "link");
  std::vector<DescriptionKey> keys = link_keys(row.link);
  keys.push_back({"name", &row.link.name});
  keys.push_back({"source", &row.source});
  const std::string where = fmt::format("{}: link {}", file, row.name);
  read_keys(table, where, keys);
  require(row.link.bandwidth > 0, where, "bandwidth_gbs: expected a number > 0");
  replace_or_append(links_, std::move(row));
}

LinkSpec Catalog::link_of(const Json& given, const std::string& where) const {
  if (given.is_string()) return link(given.get<std::string>());
  LinkSpec result;
  if (given.is_object() && given.contains("like") && given.at("like").is_string())
    result = link(given.at("like").get<std::string>());
  std::vector<DescriptionKey> keys = link_keys(result);
  keys.push_back({"name", &result.name});
  read_keys(given, where, keys, {"like"});
  require(result.bandwidth > 0, where, "bandwidth_gbs: expected a number > 0");
  return result;
}

void Catalog::add_processor(const Json& table, const std::string& file) {
  ProcessorRow row;
  const std::string name = name_of(table, file, "processor"), where = fmt::format("{}: processor {}", file, name);
  if (table.contains("like") && table.at("like").is_string()) {
    row = processor(table.at("like").get<std::string>());
    row.aliases.clear();
  }
  row.name = name;
  read_keys(table, where, processor_row_keys(row), {"like", "efficiency", "sources"});
  row.processor.name = name;
  if (table.contains("efficiency"))
    read_keys(table.at("efficiency"), where + ".efficiency", efficiency_keys(row.processor.efficiency));
  if (table.contains("sources")) {
    require(table.at("sources").is_object(), where, "sources: expected a table of strings");
    for (const auto& [key, value] : table.at("sources").items()) {
      require(value.is_string(), where, "sources: expected a table of strings");
      row.processor.sources[key] = value.get<std::string>();
    }
  }
  const Processor& p = row.processor;
  require(p.memory_bytes > 0, where, "memory_gib: expected a number > 0");
  require(p.memory_bandwidth > 0, where, "memory_gbs: expected a number > 0");
  require(std::max({p.fp32_flops, p.tf32_flops, p.fp16_flops, p.bf16_flops}) > 0, where,
          "got no arithmetic rate; expected at least one of bf16_tflops, fp16_tflops, tf32_tflops, fp32_tflops");
  require(p.multiprocessors > 0, where, "multiprocessors: expected at least 1");
  for (const std::string* one : {&row.inside, &row.host, &row.across})
    if (!one->empty()) link(*one);
  if (row.nominal_gb <= 0) row.nominal_gb = p.memory_bytes / double{1 << 30};
  replace_or_append(processors_, std::move(row));
}

void Catalog::add_cluster(const Json& table, const std::string& file) {
  const std::string name = name_of(table, file, "cluster"), where = fmt::format("{}: cluster {}", file, name);
  require(table.contains("processor") && table.at("processor").is_string(), where,
          "processor: expected the name of a processor");
  const ProcessorRow& row = processor(table.at("processor").get<std::string>());
  ClusterRow made;
  made.name = name;
  // A cluster table starts from the processor's typical node and links; its own keys override them.
  made.cluster = make_cluster(*this, row, {row.per_node, row.per_node, 0, 0});
  double across_gbps_per_node = 0;
  std::vector<DescriptionKey> keys = cluster_keys(made.cluster);
  keys.push_back({"name", &made.cluster.name});
  keys.push_back({"help", &made.help});
  keys.push_back({"across_gbps_per_node", &across_gbps_per_node});
  read_keys(table, where, keys, {"processor", "inside", "across", "host", "measured"});
  Cluster& c = made.cluster;
  for (const auto& [key, link] : {std::pair{"inside", &c.inside}, {"across", &c.across}, {"host", &c.host}})
    if (table.contains(key)) *link = link_of(table.at(key), fmt::format("{}.{}", where, key));
  require(c.num_nodes >= 1 && c.per_node >= 1 && double(c.num_nodes) * c.per_node <= kMaxProcessors, where,
          fmt::format("nodes and per_node: expected at least 1 each, and at most {:.0f} processors in total",
                      kMaxProcessors));
  require(c.domain >= 1, where, "domain: expected at least 1");
  require(c.oversubscription >= 1, where, "oversubscription: expected at least 1 (1: none)");
  if (across_gbps_per_node > 0) c.across.bandwidth = across_gbps_per_node * 1e9 / 8 / c.per_node;
  if (table.contains("measured")) {
    require(table.at("measured").is_object(), where, "measured: expected a table of numbers");
    for (const auto& [key, value] : table.at("measured").items()) {
      require(value.is_number(), where, "measured: expected a table of numbers");
      c.measured[key] = value.get<double>();
    }
  }
  if (c.fabric != "leaf-spine" && c.fabric != "rail" && c.fabric != "torus")
    unknown_name(fmt::format("fabric in {}", where), c.fabric, {"leaf-spine", "rail", "torus"});
  replace_or_append(clusters_, std::move(made));
}

// `like` selects the defaults of a family, gpt or llama; the table's own keys override them.
void Catalog::add_model(const Json& table, const std::string& file) {
  CatalogModel row;
  row.name = name_of(table, file, "model");
  const std::string where = fmt::format("{}: model {}", file, row.name);
  const std::string family =
      table.contains("like") && table.at("like").is_string() ? table.at("like").get<std::string>() : "gpt";
  if (family != "gpt" && family != "llama") unknown_name(fmt::format("like in {}", where), family, {"gpt", "llama"});
  ModelShape& s = row.shape;
  s.name = row.name;
  s.arch = family;
  s.gated = s.rms = family == "llama";
  s.bias = s.tied = s.learned_positions = family == "gpt";
  std::vector<DescriptionKey> keys = shape_keys(s);
  keys.push_back({"name", &row.name});
  keys.push_back({"help", &row.help});
  keys.push_back({"tokens", &row.tokens});
  read_keys(table, where, keys, {"like"});
  constexpr int64_t kMost = int64_t{1} << 26;
  for (const DescriptionKey& key : shape_keys(s))
    if (const auto* size = std::get_if<int64_t*>(&key.value); size && (**size < 0 || **size > kMost))
      throw UsageError(fmt::format("{}: {}: got {}; expected 0 to {}", where, key.name, **size, kMost));
  require(s.layers >= 1 && s.layers <= 10'000 && s.hidden >= 1 && s.heads >= 1 && s.vocab >= 1 && s.seq >= 1, where,
          "layers (at most 10000), hidden, heads, vocab and seq: expected at least 1 each");
  require(s.expert_every >= 1, where, "expert_every: expected at least 1");
  if (s.ffn == 0) s.ffn = 4 * s.hidden;
  if (s.kv_heads == 0) s.kv_heads = s.heads;
  if (s.head_dim == 0) s.head_dim = std::max<int64_t>(1, s.hidden / s.heads);
  if (s.experts > 0 && s.expert_ffn == 0) s.expert_ffn = s.ffn;
  if (s.experts > 0 && s.topk == 0) s.topk = std::min<int64_t>(2, s.experts);
  replace_or_append(models_, std::move(row));
}

const LinkSpec& Catalog::link(std::string_view name) const {
  return find_row("link", links_, name).link;
}

const Cluster& Catalog::cluster(std::string_view name) const {
  return find_row("cluster", clusters_, name).cluster;
}

const CatalogModel* Catalog::find_model(std::string_view name) const {
  for (const CatalogModel& row : models_)
    if (row.name == name) return &row;
  return nullptr;
}

const Catalog& built_in_catalog() {
  static const Catalog catalog;
  return catalog;
}

Cluster make_cluster(const Catalog& catalog, const ProcessorRow& row, const ClusterRequest& request,
                     std::vector<std::string>* assumed) {
  const auto assume = [&](std::string text) {
    if (assumed) assumed->push_back(std::move(text));
  };
  Cluster c;
  c.processor = row.processor;
  if (request.memory_gb > 0 && row.nominal_gb > 0 && std::abs(request.memory_gb / row.nominal_gb - 1) > 0.05) {
    // The chip also exists with this memory size: memory is scaled by the ratio of the nominal sizes.
    c.processor.memory_bytes *= request.memory_gb / row.nominal_gb;
    assume(fmt::format("{} with {} GB", row.name, request.memory_gb));
  }
  c.per_node = request.per_node > 0 ? request.per_node : std::max(1, row.per_node);
  if (request.per_node <= 0 && request.gpus > 1) assume(fmt::format("{} processors per node", c.per_node));
  c.per_node = std::min(c.per_node, std::max(1, request.gpus));
  c.num_nodes = (std::max(1, request.gpus) + c.per_node - 1) / c.per_node;
  // A domain of fast links is at most one node, except where the fast links connect several nodes (racks of 72). It is
  // smaller than a node where bridges connect pairs of GPUs.
  c.domain = row.domain > row.per_node
                 ? std::min(row.domain, std::max(1, request.gpus))
                 : std::min(row.domain > 1 && row.domain < row.per_node ? row.domain : c.per_node, c.per_node);
  if (!row.inside.empty()) c.inside = catalog.link(row.inside);
  if (!row.host.empty()) c.host = catalog.link(row.host);
  if (!row.across.empty()) c.across = catalog.link(row.across);
  // Network cards belong to a node, so a node with fewer processors has more bandwidth per processor. A requested node
  // that is smaller than the usual one has fewer cards.
  const int sharing = request.per_node > 0 ? request.per_node : std::max(1, row.per_node);
  const double per_node_gbps = request.net_gbps_per_node > 0 ? request.net_gbps_per_node : row.across_gbps * sharing;
  if (request.net_gbps_per_node <= 0 && c.num_nodes > 1) assume(fmt::format("{} Gb/s per node", per_node_gbps));
  if (per_node_gbps > 0) c.across.bandwidth = per_node_gbps * 1e9 / 8 / sharing;
  // GPUs of one machine that have no bridge between them communicate over the host bus.
  if (c.num_nodes == 1 && c.domain < c.per_node && c.host.bandwidth > 0) c.across = c.host;
  c.name = fmt::format("{} x {}", request.gpus, row.name);
  return c;
}

}  // namespace esp::plan
