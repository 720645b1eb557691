#include "esp/plan/catalog_keys.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace esp::plan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMiB = 1024.0 * 1024, kGiB = 1024.0 * kMiB, kMicro = 1e-6;

}  // namespace

std::vector<DescriptionKey> efficiency_keys(Efficiency& e) {
  return {
      {"gemm_peak", &e.gemm_peak},
      {"gemm_fp8_peak", &e.gemm_fp8_peak},
      {"tile_m", &e.tile_m},
      {"tile_n", &e.tile_n},
      {"gemm_depth", &e.gemm_depth},
      {"memory", &e.memory},
      {"attention_forward", &e.attention_forward},
      {"attention_backward", &e.attention_backward},
      {"launch_us", &e.launch_us},
      {"sustained", &e.sustained},
      {"collective_sms", &e.collective_sms},
  };
}

std::vector<DescriptionKey> processor_keys(Processor& p) {
  return {
      {"name", &p.name},
      {"kind", &p.kind},
      {"year", &p.year},
      {"fp32_tflops", &p.fp32_flops, kTera},
      {"tf32_tflops", &p.tf32_flops, kTera},
      {"fp16_tflops", &p.fp16_flops, kTera},
      {"bf16_tflops", &p.bf16_flops, kTera},
      {"fp8_tflops", &p.fp8_flops, kTera},
      {"fp4_tflops", &p.fp4_flops, kTera},
      {"memory_gib", &p.memory_bytes, kGiB},
      {"memory_gbs", &p.memory_bandwidth, kGiga},
      {"l2_mib", &p.l2_bytes, kMiB},
      {"multiprocessors", &p.multiprocessors},
      {"watts", &p.watts},
      {"price_per_hour", &p.price_per_hour},
  };
}

std::vector<DescriptionKey> processor_row_keys(ProcessorRow& row) {
  std::vector<DescriptionKey> keys = processor_keys(row.processor);
  const std::vector<DescriptionKey> more = {
      {"aliases", &row.aliases},   {"nominal_gb", &row.nominal_gb},   {"inside", &row.inside},
      {"host", &row.host},         {"across", &row.across},           {"domain", &row.domain},
      {"per_node", &row.per_node}, {"across_gbps", &row.across_gbps},
  };
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

std::vector<DescriptionKey> link_keys(LinkSpec& link) {
  return {
      {"bandwidth_gbs", &link.bandwidth, kGiga},
      {"latency_us", &link.latency, kMicro},
      {"efficiency", &link.efficiency},
      {"half_bytes", &link.half_bytes},
      {"bulk_us", &link.bulk, kMicro},
      {"setup_us", &link.setup, kMicro},
      {"sum_gain", &link.sum_gain},
      {"in_network_sum", &link.in_network_sum},
  };
}

std::vector<DescriptionKey> cluster_keys(Cluster& c) {
  return {
      {"nodes", &c.num_nodes},
      {"per_node", &c.per_node},
      {"domain", &c.domain},
      {"disk_gbs", &c.disk_bandwidth, kGiga},
      {"host_memory_gib", &c.host_memory_bytes, kGiB},
      {"oversubscription", &c.oversubscription},
      {"leaf_nodes", &c.leaf_nodes},
      {"fabric", &c.fabric},
      {"torus", &c.torus},
      {"reserved_gib", &c.reserved_bytes, kGiB},
      {"mtbf_hours", &c.mtbf_hours},
  };
}

std::vector<DescriptionKey> shape_keys(ModelShape& s) {
  return {
      {"layers", &s.layers},
      {"hidden", &s.hidden},
      {"ffn", &s.ffn},
      {"heads", &s.heads},
      {"kv_heads", &s.kv_heads},
      {"head_dim", &s.head_dim},
      {"vocab", &s.vocab},
      {"seq", &s.seq},
      {"gated", &s.gated},
      {"rms", &s.rms},
      {"bias", &s.bias},
      {"qkv_bias", &s.qkv_bias},
      {"tied", &s.tied},
      {"learned_positions", &s.learned_positions},
      {"causal", &s.causal},
      {"experts", &s.experts},
      {"topk", &s.topk},
      {"expert_ffn", &s.expert_ffn},
      {"shared_experts", &s.shared_experts},
      {"shared_ffn", &s.shared_ffn},
      {"dense_layers", &s.dense_layers},
      {"expert_every", &s.expert_every},
      {"q_lora", &s.q_lora},
      {"kv_lora", &s.kv_lora},
      {"rope_dim", &s.rope_dim},
      {"v_dim", &s.v_dim},
  };
}

std::string cluster_file(const Cluster& cluster) {
  Cluster c = cluster;
  Processor& p = c.processor;
  std::string text = "[[processor]]\n" + write_keys(processor_keys(p));
  text += "[processor.efficiency]\n" + write_keys(efficiency_keys(p.efficiency));
  if (!p.sources.empty()) {
    text += "[processor.sources]\n";
    for (const auto& [field, source] : p.sources)
      text += fmt::format("{} = {}\n", Json(field).dump(), Json(source).dump());
  }
  text += fmt::format("\n[cluster]\nname = {}\nprocessor = {}\n", Json(c.name).dump(), Json(p.name).dump());
  text += write_keys(cluster_keys(c));
  for (const auto& [key, link] : {std::pair{"inside", &c.inside}, {"across", &c.across}, {"host", &c.host}})
    if (link->bandwidth > 0)
      text += fmt::format("[cluster.{}]\nname = {}\n{}", key, Json(link->name).dump(), write_keys(link_keys(*link)));
  if (!c.measured.empty()) {
    text += "[cluster.measured]\n";
    for (const auto& [key, value] : c.measured) text += fmt::format("{} = {}\n", Json(key).dump(), Json(value).dump());
  }
  return text;
}

}  // namespace esp::plan
