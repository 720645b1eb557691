// Processors, links, clusters and models by name: the shipped ones (catalog/*.toml, in the binary) and those of a
// user's file, which may stand on shipped ones ("like") and hide them. Immutable once made; any thread may read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/cluster.h"
#include "esp/plan/shape.h"

namespace esp::plan {

// A processor with what usually surrounds it, for clusters of which only the processors are known.
struct ProcessorRow {
  std::string name;
  Processor processor;
  std::vector<std::string> aliases;
  double nominal_gb = 0;             // as sold: "80"
  std::string inside, host, across;  // links, by name
  int domain = 1, per_node = 1;
  double across_gbps = 0;  // per processor
};

struct LinkRow {
  std::string name;
  Link link;
  std::string source;
};

struct ClusterRow {
  std::string name, help;
  Cluster cluster;
};

struct ModelRow {
  std::string name, help;
  Shape shape;
  double tokens = 0;  // it was trained on; 0: not said
};

class Catalog {
 public:
  Catalog();  // the shipped one
  // With what a file describes: [[processor]], [[link]], [[model]] and [[cluster]] tables, or one each without the
  // list. UsageError says what is wrong with it. Returns the name of its last cluster, processor or model, of the first
  // of these kinds that it has.
  std::string add(std::string_view text, const std::string& file);

  const std::vector<ProcessorRow>& processors() const { return processors_; }
  const std::vector<LinkRow>& links() const { return links_; }
  const std::vector<ClusterRow>& clusters() const { return clusters_; }
  const std::vector<ModelRow>& models() const { return models_; }

  // By name or alias, in any case and punctuation; UsageError names the nearest.
  const ProcessorRow& processor(std::string_view name) const;
  // As a publication writes it ("NVIDIA A100 SXM4 80GB"): the name, else family, size and form; null when none is
  // meant.
  const ProcessorRow* recognise(std::string_view text, double memory_gb) const;
  const Link& link(std::string_view name) const;
  const Cluster& cluster(std::string_view name) const;
  const ModelRow* find_model(std::string_view name) const;  // null: none of that name

 private:
  struct Source;
  void add_all(const std::vector<Source>& sources);
  void add_processor(const Json& table, const std::string& file);
  void add_link(const Json& table, const std::string& file);
  void add_cluster(const Json& table, const std::string& file);
  void add_model(const Json& table, const std::string& file);
  Link link_of(const Json& given, const std::string& where) const;

  std::vector<ProcessorRow> processors_;
  std::vector<LinkRow> links_;
  std::vector<ClusterRow> clusters_;
  std::vector<ModelRow> models_;
};

const Catalog& shipped_catalog();

// A cluster of which a table of results gives a few figures. What is 0 is taken from the processor's usual
// surroundings, and said in `assumed` where it matters.
struct ClusterRequest {
  int gpus = 1, per_node = 0;
  double net_gbps_per_node = 0;
  double memory_gb = 0;  // as sold
};
Cluster make_cluster(const Catalog& catalog, const ProcessorRow& row, const ClusterRequest& request,
                     std::vector<std::string>* assumed = nullptr);

// The cluster as a file that Catalog::add reads back equal: processor, links and all.
std::string cluster_file(const Cluster& cluster);

}  // namespace esp::plan
