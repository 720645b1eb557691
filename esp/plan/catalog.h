// Catalog: processors, links, clusters and models by name: the built-in ones (catalog/*.toml, embedded in the binary)
// and those of a user's file, which may extend built-in ones ("like") and override them. Immutable after construction;
// any thread may read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/cluster.h"
#include "esp/plan/shape.h"

namespace esp::plan {

// A processor with its typical surroundings, for clusters of which only the processors are known.
struct ProcessorRow {
  std::string name;
  Processor processor;
  std::vector<std::string> aliases;
  double nominal_gb = 0;             // nominal size: "80"
  std::string inside, host, across;  // links, by name
  int domain = 1, per_node = 1;
  double across_gbps = 0;  // per processor
};

struct LinkRow {
  std::string name;
  LinkSpec link;
  std::string source;
};

struct ClusterRow {
  std::string name, help;
  Cluster cluster;
};

struct CatalogModel {
  std::string name, help;
  ModelShape shape;
  double tokens = 0;  // training tokens; 0: unknown
};

class Catalog {
 public:
  Catalog();  // the built-in catalog
  // Adds the tables of a file: [[processor]], [[link]], [[model]] and [[cluster]], or single tables without the list.
  // UsageError for invalid content. Returns the name of its last cluster, else of its last processor, else of its last
  // model.
  std::string add(std::string_view text, const std::string& file);

  const std::vector<ProcessorRow>& processors() const { return processors_; }
  const std::vector<LinkRow>& links() const { return links_; }
  const std::vector<ClusterRow>& clusters() const { return clusters_; }
  const std::vector<CatalogModel>& models() const { return models_; }

  // By name or alias, ignoring case and punctuation; UsageError suggests the nearest.
  const ProcessorRow& processor(std::string_view name) const;
  // Matches the spelling of a publication ("NVIDIA A100 SXM4 80GB"): the name, else family, size and form; null without
  // a match.
  const ProcessorRow* recognise(std::string_view text, double memory_gb) const;
  const LinkSpec& link(std::string_view name) const;
  const Cluster& cluster(std::string_view name) const;
  const CatalogModel* find_model(std::string_view name) const;  // null: unknown name

 private:
  struct Source;
  void add_all(const std::vector<Source>& sources);
  void add_processor(const Json& table, const std::string& file);
  void add_link(const Json& table, const std::string& file);
  void add_cluster(const Json& table, const std::string& file);
  void add_model(const Json& table, const std::string& file);
  LinkSpec link_of(const Json& given, const std::string& where) const;

  std::vector<ProcessorRow> processors_;
  std::vector<LinkRow> links_;
  std::vector<ClusterRow> clusters_;
  std::vector<CatalogModel> models_;
};

const Catalog& shipped_catalog();

// Builds a cluster from the few figures of a table of results. Zero fields are taken from the processor's typical
// surroundings and listed in `assumed` where they matter.
struct ClusterRequest {
  int gpus = 1, per_node = 0;
  double net_gbps_per_node = 0;
  double memory_gb = 0;  // nominal
};
Cluster make_cluster(const Catalog& catalog, const ProcessorRow& row, const ClusterRequest& request,
                     std::vector<std::string>* assumed = nullptr);

// The cluster as a file that Catalog::add reads back equal, with processor and links.
std::string cluster_file(const Cluster& cluster);

}  // namespace esp::plan
