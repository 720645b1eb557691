#include "esp/plan/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"

namespace esp::plan {
namespace {

using testing::HasSubstr;

std::string refusal(std::string_view text) {
  Catalog catalog;
  try {
    catalog.add(text, "mine.toml");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Catalog, BuiltInProcessorsMatchSizesAndRatesInLectures) {
  const Catalog& catalog = built_in_catalog();
  for (const auto& [name, gb] : {std::pair{"P100", 16.0},
                                 {"V100", 32.0},
                                 {"A100-40GB", 40.0},
                                 {"A100", 80.0},
                                 {"A800", 80.0},
                                 {"H100", 80.0},
                                 {"H800", 80.0}})
    EXPECT_EQ(catalog.processor(name).nominal_gb, gb) << name;
  EXPECT_EQ(catalog.processor("A100").processor.bf16_flops, 312e12);
  EXPECT_EQ(catalog.processor("H100").processor.bf16_flops, 989e12);
  for (const auto& [name, gbs] :
       {std::pair{"nvlink3", 600.0}, {"nvlink4", 900.0}, {"nvlink5", 1800.0}, {"nvlink6", 3600.0}})
    EXPECT_EQ(2 * catalog.link(name).bandwidth, gbs * 1e9) << name;
  EXPECT_EQ(catalog.link("infiniband-ndr").bandwidth, 50e9);
  EXPECT_EQ(catalog.link("pcie5-x16").bandwidth, 63e9);
}

TEST(Catalog, EveryProcessorCitesItsRatesAndBuildsACluster) {
  const Catalog& catalog = built_in_catalog();
  EXPECT_GE(catalog.processors().size(), 22u);
  for (const ProcessorRow& row : catalog.processors()) {
    EXPECT_TRUE(row.processor.sources.contains("rates")) << row.name;
    const Cluster c = make_cluster(catalog, row, {64, 0, 0, 0});
    EXPECT_EQ(c.size(), 64) << row.name;
    EXPECT_GT(c.inside.bandwidth, 0) << row.name;
    EXPECT_GT(c.across.bandwidth, 0) << row.name;
    EXPECT_LT(row.processor.memory_bytes, (row.nominal_gb + 0.01) * (1 << 30)) << row.name;
  }
  for (const ClusterRow& row : catalog.clusters()) EXPECT_GT(row.cluster.across.bandwidth, 0) << row.name;
}

TEST(Catalog, RecognisesCommonSpellings) {
  const Catalog& catalog = built_in_catalog();
  const auto name = [&](const char* text, double gb) {
    const ProcessorRow* row = catalog.recognise(text, gb);
    return row ? row->name : "none";
  };
  EXPECT_EQ(name("NVIDIA A100-SXM4-80GB", 0), "A100-80GB-SXM");
  EXPECT_EQ(name("A100", 40), "A100-40GB-SXM");
  EXPECT_EQ(name("a100 pcie", 80), "A100-80GB-PCIe");
  EXPECT_EQ(name("GH200", 0), "GH200-96GB");
  EXPECT_EQ(name("H200", 141), "H200-141GB-SXM");
  EXPECT_EQ(name("GB200 NVL72", 0), "GB200");
  EXPECT_EQ(name("H100 NVL", 94), "H100-94GB-NVL");
  EXPECT_EQ(name("V100", 16), "V100-16GB-SXM2");
  EXPECT_EQ(name("abacus", 0), "none");
}

TEST(Catalog, BuildsClusterFromProcessorNameAndCount) {
  const Catalog& catalog = built_in_catalog();
  std::vector<std::string> assumed;
  Cluster c = make_cluster(catalog, catalog.processor("A100"), {512, 8, 400, 80}, &assumed);
  EXPECT_EQ(c.num_nodes, 64);
  EXPECT_EQ(c.across.bandwidth, 400e9 / 8 / 8);
  EXPECT_TRUE(assumed.empty());
  c = make_cluster(catalog, catalog.processor("A100"), {512, 0, 0, 0}, &assumed);
  EXPECT_EQ(c.across.bandwidth, 25e9);
  EXPECT_EQ(assumed.size(), 2u);
  EXPECT_EQ(make_cluster(catalog, catalog.processor("GB200"), {144, 4, 0, 0}).domain, 72);
  const Cluster box = make_cluster(catalog, catalog.processor("A100-PCIe"), {8, 8, 0, 0});
  EXPECT_EQ(box.domain, 2);
  EXPECT_EQ(box.across.bandwidth, catalog.link("pcie4-x16").bandwidth);
  EXPECT_EQ(make_cluster(catalog, catalog.processor("A100-PCIe"), {16, 8, 200, 0}).across.bandwidth, 200e9 / 8 / 8);
  EXPECT_EQ(make_cluster(catalog, catalog.processor("H100"), {3, 8, 0, 0}).size(), 3);
}

TEST(Catalog, UserFileExtendsBuiltInEntries) {
  Catalog catalog;
  const std::string name = catalog.add(R"(
[[processor]]
name = "H100-big"
like = "H100"
memory_gib = 120
[processor.efficiency]
gemm_peak = 0.7
[[link]]
name = "lane"
bandwidth_gbs = 100
[cluster]
name = "mine"
processor = "H100-big"
nodes = 4
inside = "lane"
across = {like = "roce-400", latency_us = 30}
)",
                                       "mine.toml");
  EXPECT_EQ(name, "mine");
  const Cluster& c = catalog.cluster("mine");
  EXPECT_EQ(c.size(), 32);
  EXPECT_EQ(c.processor.bf16_flops, 989e12);
  EXPECT_EQ(c.processor.memory_bytes, 120.0 * (1 << 30));
  EXPECT_EQ(c.processor.efficiency.gemm_peak, 0.7);
  EXPECT_EQ(c.inside.bandwidth, 100e9);
  EXPECT_DOUBLE_EQ(c.across.latency, 30e-6);
  EXPECT_EQ(c.across.bandwidth, 50e9);
}

TEST(Catalog, ClusterFileRoundTrips) {
  Catalog catalog;
  Cluster c = catalog.cluster("llama3-24k");
  c.name = "copy";
  c.processor.name = "measured one";
  c.measured["alpha \"quoted\""] = 1.5e-6;
  EXPECT_EQ(catalog.add(cluster_file(c), "copy.toml"), "copy");
  EXPECT_EQ(cluster_file(catalog.cluster("copy")), cluster_file(c));
  EXPECT_EQ(catalog.cluster("copy").oversubscription, 7);
}

TEST(Catalog, BuiltInModelsHaveThePublishedParameterCounts) {
  const auto billions = [](const char* name) {
    const CatalogModel* row = built_in_catalog().find_model(name);
    return row ? row->shape.parameters() / 1e9 : 0;
  };
  for (const auto& [name, count] : {std::pair{"llama2-7b", 6.738},
                                    {"llama2-70b", 68.977},
                                    {"llama3-8b", 8.030},
                                    {"llama3-70b", 70.554},
                                    {"llama3-405b", 405.853},
                                    {"mistral-7b", 7.242},
                                    {"mixtral-8x7b", 46.703},
                                    {"mixtral-8x22b", 140.63},
                                    {"qwen2.5-72b", 72.706},
                                    {"qwen3-30b-a3b", 30.53},
                                    {"qwen3-235b-a22b", 235.09},
                                    {"deepseek-v2-lite", 15.706},
                                    {"deepseek-v2", 235.74},
                                    {"deepseek-v3", 671.03},
                                    {"palm-540b", 540.35},
                                    {"mt-nlg-530b", 529.6},
                                    {"gpt-1t", 1008.0}})
    EXPECT_NEAR(billions(name), count, 0.0005 * count) << name;
  EXPECT_NEAR(built_in_catalog().find_model("mixtral-8x7b")->shape.active_parameters() / 1e9, 12.88, 0.01);
}

TEST(Catalog, ErrorForUnknownNameSuggestsNearest) {
  EXPECT_THAT(refusal("[[processor]]\nname = \"x\"\nlike = \"H100\"\nmemory_gbi = 3\n"), HasSubstr("memory_gib"));
  EXPECT_THAT(refusal("[[procesor]]\nname = \"x\"\n"), HasSubstr("processor"));
  EXPECT_THAT(refusal("[[processor]]\nlike = \"H100\"\n"), HasSubstr("name: missing; expected a string"));
  EXPECT_THAT(refusal("[[processor]]\nname = \"x\"\n"), HasSubstr("memory_gib: expected"));
  EXPECT_THAT(refusal("[cluster]\nname = \"x\"\nprocessor = \"H1000\"\n"), HasSubstr("H100-80GB-SXM"));
  EXPECT_THAT(refusal("[cluster]\nname = \"x\"\nprocessor = \"H100\"\nnodes = 0\n"), HasSubstr("at least 1"));
  EXPECT_THAT(refusal("[cluster]\nname = \"x\"\nprocessor = \"H100\"\nnodes = 900000000\n"), HasSubstr("at most"));
  EXPECT_THAT(refusal("[cluster]\nname = \"x\"\nprocessor = \"H100\"\nnodes = \"many\"\n"), HasSubstr("an integer"));
  EXPECT_THAT(refusal("[cluster]\nname = \"x\"\nprocessor = \"H100\"\nfabric = \"rails\"\n"), HasSubstr("rail"));
  EXPECT_THAT(refusal("[cluster]\nname = \"x\"\nprocessor = \"H100\"\noversubscription = -1\n"),
              HasSubstr("a number >= 0"));
  EXPECT_THAT(refusal("[model]\nname = \"m\"\nlayers = 2\nhidden = 999999999999\nheads = 1\nvocab = 9\nseq = 9\n"),
              HasSubstr("hidden"));
  EXPECT_THAT(refusal("[model]\nname = \"m\"\nhidden = 64\n"), HasSubstr("layers"));
  EXPECT_THAT(refusal("[model]\nname = \"m\"\nlike = \"lama\"\n"), HasSubstr("llama"));
  EXPECT_THAT(refusal("[cluster\n"), HasSubstr("mine.toml:1"));
}

}  // namespace
}  // namespace esp::plan
