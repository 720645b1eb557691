#include <nlohmann/json.hpp>

#include "esp/plan/validate.h"

namespace esp::plan {
namespace {

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

const char* name_of(RowKind kind) {
  switch (kind) {
    case RowKind::step:
      return "step";
    case RowKind::layer_time:
      return "layer_time";
    case RowKind::memory:
      return "memory";
    case RowKind::oom:
      return "oom";
  }
  return "step";
}

Json row_json(const RowResult& r) {
  Json row = {{"row_id", r.id}, {"source", r.source}, {"kind", name_of(r.kind)}};
  row["predicted_s"] = or_null(r.predicted_s);
  row["measured_s"] = or_null(r.measured_s);
  row["error"] = or_null(r.error());
  row["predicted_mem_gb"] = or_null(r.predicted_gb);
  row["measured_mem_gb"] = or_null(r.measured_gb);
  row["fits"] = r.fits;
  row["interval_s"] = r.low_s && r.high_s ? Json::array({*r.low_s, *r.high_s}) : Json(nullptr);
  row["assumed"] = r.assumed;
  row["reasons"] = r.reasons;
  if (r.fitted_on) row["fitted_on"] = true;
  return row;
}

Json source_json(const SourceResult& s) {
  Json source = {{"source", s.source}, {"n", s.n}};
  for (const auto& [name, value] :
       {std::pair{"mean", s.mean}, {"median", s.median}, {"p90", s.p90}, {"worst", s.worst}})
    source[name] = s.n > 0 ? Json(value) : Json(nullptr);
  source["tau"] = or_null(s.tau);
  source["regret"] = or_null(s.regret);
  source["worst_regret"] = or_null(s.worst_regret);
  source["sweeps"] = s.sweeps;
  source["oom"] = s.oom;
  source["oom_right"] = or_null(s.oom_right);
  source["rejected"] = s.rejected;
  source["memory_mean"] = or_null(s.memory_mean);
  source["memory_worst"] = or_null(s.memory_worst);
  source["inside_interval"] = or_null(s.inside_interval);
  source["scale"] = s.scale;
  return source;
}

}  // namespace

Json to_json(const Validation& validation) {
  Json report = {{"rows", Json::array()}, {"sources", Json::array()}};
  for (const RowResult& row : validation.rows) report["rows"].push_back(row_json(row));
  for (const SourceResult& source : validation.sources) report["sources"].push_back(source_json(source));
  return report;
}

}  // namespace esp::plan
