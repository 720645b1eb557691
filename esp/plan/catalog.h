// Catalog: processors (types of GPU, TPU and CPU), links, clusters and models by name. It contains the built-in entries
// (catalog/*.toml, embedded in the binary) and those of a user's file, which may extend a built-in entry (`like`) or
// override it. Immutable after construction; any thread may read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/cluster.h"
#include "esp/plan/shape.h"

namespace esp::plan {

// A processor with its usual links and node size. Used if a table of results names only the processor.
struct ProcessorRow {
  std::string name;
  Processor processor;
  std::vector<std::string> aliases;
  double nominal_gb = 0;             // nominal memory size in GB, 80 for "A100 80GB"
  std::string inside, host, across;  // names of the links inside a domain, to the host, and between nodes
  int domain = 1, per_node = 1;
  double across_gbps = 0;  // network bandwidth per processor, Gb/s
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
  double tokens = 0;  // number of training tokens; 0: unknown
};

class Catalog {
 public:
  Catalog();  // contains the built-in entries
  // Adds the tables of a TOML file: processor, link, model and cluster, each written once ([cluster]) or as a list
  // ([[cluster]]). Returns the name of the file's last cluster; without a cluster, of its last processor; without both,
  // of its last model. UsageError for invalid content.
  std::string add(std::string_view text, const std::string& file);

  const std::vector<ProcessorRow>& processors() const { return processors_; }
  const std::vector<LinkRow>& links() const { return links_; }
  const std::vector<ClusterRow>& clusters() const { return clusters_; }
  const std::vector<CatalogModel>& models() const { return models_; }

  // Finds an entry by name or alias, ignoring case and punctuation. UsageError for an unknown name suggests the nearest
  // one.
  const ProcessorRow& processor(std::string_view name) const;
  // Finds the processor from its name in a publication ("NVIDIA A100 SXM4 80GB"): by name, otherwise by family, memory
  // size and form factor. Null: no match.
  const ProcessorRow* recognise(std::string_view text, double memory_gb) const;
  const LinkSpec& link(std::string_view name) const;
  const Cluster& cluster(std::string_view name) const;
  const CatalogModel* find_model(std::string_view name) const;  // null: no such model

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

const Catalog& built_in_catalog();

// Input of make_cluster(): the few figures that tables of results give. A field of 0 takes the usual value for the
// processor; make_cluster() lists the important ones in `assumed`.
struct ClusterRequest {
  int gpus = 1, per_node = 0;
  double net_gbps_per_node = 0;
  double memory_gb = 0;  // nominal memory size, GB
};
Cluster make_cluster(const Catalog& catalog, const ProcessorRow& row, const ClusterRequest& request,
                     std::vector<std::string>* assumed = nullptr);

// The cluster with its processor and links as TOML text. Catalog::add() of this text gives an equal cluster.
std::string cluster_file(const Cluster& cluster);

}  // namespace esp::plan
