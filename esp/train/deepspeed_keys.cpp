#include "esp/train/deepspeed_keys.h"

namespace esp::train {
namespace {

struct Row {
  std::string_view name, why;
};

constexpr std::string_view kElsewhere = "torch's own mixed precision; train.precision is what there is";
constexpr std::string_view kScale = "the loss scale is found as the run goes and has no keys";
constexpr std::string_view kCopies = "a matter of DeepSpeed's buffers; ours are laid out once and reused";
constexpr std::string_view kLive = "units are gathered whole, sync.prefetch of them ahead";
constexpr std::string_view kTools = "metrics.jsonl, events/ and trace.json are written by every run";
constexpr std::string_view kHugging = "the model's own; espalier convert --layout hf writes what transformers loads";

// A section stands for all in it that has no row of its own.
constexpr Row kLeft[] = {
    {"activation_checkpointing", "what is computed again is train.recompute: selective or full"},
    {"aio", "the file tier finds its own way: sync.offload_io"},
    {"amp", kElsewhere},
    {"autotuning", "parallel.layout = \"auto\" asks the planner"},
    {"bf16.bf16_master_weights_and_grads", "the optimizer keeps fp32 values"},
    {"bf16.bf16_optimizer_states", "the optimizer keeps fp32 states"},
    {"bf16.check_grad_overflow", "bf16 has the range of fp32"},
    {"bf16.immediate_grad_update", kCopies},
    {"checkpoint", "checkpoints here are read by any number of ranks: checkpoint.every, keep, async"},
    {"comet", kTools},
    {"comms_logger", "ranks/rank-K.json counts every collective"},
    {"compression_training", "models are trained as they are: no pruning, no quantised training"},
    {"csv_monitor", kTools},
    {"curriculum_learning", "sequences have one length: model.seq_len"},
    {"data_efficiency", "data come in the order of data.order"},
    {"data_sampling", "data come in the order of data.order"},
    {"data_types.grad_accum_dtype", "micro-batches are added up in fp32"},
    {"dataloader_drop_last", "every step has train.global_batch sequences"},
    {"disable_allgather", kCopies},
    {"dump_state", "run.toml in the run folder is the resolved configuration"},
    {"eigenvalue", "only DeepSpeed's quantised training uses it"},
    {"elasticity", "espalier launch --max-restarts starts a job again; checkpoints fit any number of ranks"},
    {"flops_profiler", kTools},
    {"fp16.auto_cast", kElsewhere},
    {"fp16.consecutive_hysteresis", kScale},
    {"fp16.fp16_master_weights_and_grads", "the optimizer keeps fp32 values"},
    {"fp16.hysteresis", kScale},
    {"fp16.initial_scale_power", kScale},
    {"fp16.loss_scale", kScale},
    {"fp16.loss_scale_window", kScale},
    {"fp16.min_loss_scale", kScale},
    {"fp32_allreduce", "sync.wire = \"fp32\" does this"},
    {"gradient_accumulation_dtype", "micro-batches are added up in fp32"},
    {"gradient_predivide_factor", "gradients are summed and divided once"},
    {"hybrid_engine", "there is no inference engine"},
    {"inference", "there is no inference engine"},
    {"memory_breakdown", "ranks/rank-K.json has memory by category"},
    {"nebula", "checkpoint.async writes while training goes on"},
    {"optimizer.params.adam_w_mode", "train.optimizer says it: adamw or adam"},
    {"optimizer.params.amsgrad", "Adam has no such variant here"},
    {"optimizer.params.bias_correction", "Adam always corrects its bias"},
    {"optimizer.params.comm_backend_name", "comm.transport says what carries"},
    {"optimizer.params.cuda_aware", "comm.transport says what carries"},
    {"optimizer.params.foreach", "kernels are fused already"},
    {"optimizer.params.fused", "kernels are fused already"},
    {"optimizer.params.maximize", "losses are made small here"},
    {"optimizer.params.set_grad_none", kCopies},
    {"optimizer.params.torch_adam", "there is one Adam"},
    {"pipeline", "stages are parallel.pp, their order parallel.schedule"},
    {"prescale_gradients", "gradients are summed and divided once"},
    {"progressive_layer_drop", "all layers are trained in every step"},
    {"quantize_training", "models are trained as they are: no pruning, no quantised training"},
    {"scheduler.params.warmup_min_lr", "a warm-up begins at one step's part of the peak"},
    {"scheduler.params.warmup_min_ratio", "a warm-up begins at one step's part of the peak"},
    {"scheduler.params.warmup_type", "a warm-up climbs in a straight line"},
    {"scheduler.params.last_batch_iteration", "a resumed run knows its step"},
    {"sparse_attention", "attention is dense"},
    {"sparse_gradients", "gradients are dense"},
    {"tensorboard.job_name", "the run's name is run.name"},
    {"tensorboard.output_path", "events/ is in the run folder: run.dir"},
    {"tensor_parallel", "a model is cut by parallel.tp"},
    {"train_step_per_print", kTools},
    {"use_data_before_expert_parallel_", "ranks are laid out by parallel.ep"},
    {"wall_clock_breakdown", "log.trace = true writes where the time goes"},
    {"wandb", kTools},
    {"weight_quantization", "models are trained as they are: no pruning, no quantised training"},
    {"zero_allow_untested_optimizer", "every optimizer here works with every stage"},
    {"zero_force_ds_cpu_optimizer", "with sync.offload the host updates by the same optimizer"},
    {"zero_optimization.allgather_bucket_size", "values are gathered unit by unit"},
    {"zero_optimization.allgather_partitions", "values are always gathered by collectives"},
    {"zero_optimization.contiguous_gradients", kCopies},
    {"zero_optimization.cpu_offload_use_pin_memory", kCopies},
    {"zero_optimization.elastic_checkpoint", "checkpoints here are read by any number of ranks"},
    {"zero_optimization.grad_hooks", kCopies},
    {"zero_optimization.ignore_unused_parameters", "every parameter of our models is used"},
    {"zero_optimization.legacy_stage1", kCopies},
    {"zero_optimization.load_from_fp32_weights", "checkpoints hold the optimizer's fp32 values"},
    {"zero_optimization.memory_efficient_linear", "linear layers keep their input only"},
    {"zero_optimization.mics_hierarchical_params_gather", "comm.all_reduce and comm.nodes choose by tiers"},
    {"zero_optimization.model_persistence_threshold", kLive},
    {"zero_optimization.offload_optimizer", "a matter of DeepSpeed's buffers; tiles are sync.offload_tile"},
    {"zero_optimization.offload_param", "a matter of DeepSpeed's buffers; tiles are sync.offload_tile"},
    {"zero_optimization.override_module_apply", kCopies},
    {"zero_optimization.param_persistence_threshold", kLive},
    {"zero_optimization.pipeline_loading_checkpoint", "every rank reads its part of a checkpoint"},
    {"zero_optimization.reduce_scatter", "stages 2 and 3 always reduce-scatter"},
    {"zero_optimization.round_robin_gradients", kCopies},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kHugging},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", kHugging},
    {"zero_optimization.stage3_max_live_parameters", kLive},
    {"zero_optimization.stage3_max_reuse_distance", "sync.keep_gathered = true keeps units for backward"},
    {"zero_optimization.stage3_model_persistence_threshold", kLive},
    {"zero_optimization.stage3_module_granularity_threshold", kLive},
    {"zero_optimization.stage3_param_persistence_threshold", kLive},
    {"zero_optimization.stage3_prefetch_bucket_size", "sync.prefetch counts units, not elements"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", "values are always gathered"},
    {"zero_optimization.sub_group_size", "the host updates tiles: sync.offload_tile"},
    {"zero_optimization.use_all_reduce_for_fetch_params", "values are always gathered"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", kCopies},
    {"zero_optimization.zero_quantized_nontrainable_weights", "all weights are trained"},
    {"zero_optimization.zeropp_loco_param", "sync.quantise = \"qgz\" keeps no error"},
};

// What deepspeed.cpp reads, for suggestions only.
constexpr std::string_view kRead[] = {"train_batch_size",
                                      "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps",
                                      "optimizer",
                                      "optimizer.type",
                                      "optimizer.params",
                                      "optimizer.params.lr",
                                      "optimizer.params.betas",
                                      "optimizer.params.eps",
                                      "optimizer.params.weight_decay",
                                      "optimizer.params.momentum",
                                      "optimizer.params.nesterov",
                                      "optimizer.params.freeze_step",
                                      "scheduler",
                                      "scheduler.type",
                                      "scheduler.params",
                                      "scheduler.params.warmup_max_lr",
                                      "scheduler.params.warmup_num_steps",
                                      "scheduler.params.total_num_steps",
                                      "scheduler.params.cos_min_ratio",
                                      "fp16",
                                      "fp16.enabled",
                                      "bf16",
                                      "bf16.enabled",
                                      "bfloat16",
                                      "gradient_clipping",
                                      "zero_optimization",
                                      "zero_optimization.stage",
                                      "zero_optimization.overlap_comm",
                                      "zero_optimization.reduce_bucket_size",
                                      "zero_optimization.offload_optimizer.device",
                                      "zero_optimization.offload_optimizer.nvme_path",
                                      "zero_optimization.offload_param.device",
                                      "zero_optimization.offload_param.nvme_path",
                                      "zero_optimization.cpu_offload",
                                      "zero_optimization.cpu_offload_params",
                                      "zero_optimization.mics_shard_size",
                                      "zero_optimization.zero_hpz_partition_size",
                                      "zero_optimization.zero_quantized_weights",
                                      "zero_optimization.zero_quantized_gradients",
                                      "steps_per_print",
                                      "communication_data_type",
                                      "seed",
                                      "tensorboard",
                                      "tensorboard.enabled",
                                      "sequence_parallel_size",
                                      "tensor_parallel.autotp_size"};

}  // namespace

std::string_view why_left(std::string_view key) {
  for (std::string_view at = key;; at = at.substr(0, at.rfind('.'))) {
    for (const Row& row : kLeft)
      if (row.name == at) return row.why;
    if (at.find('.') == std::string_view::npos) return {};
  }
}

std::vector<std::string_view> known_deepspeed_keys() {
  std::vector<std::string_view> names(std::begin(kRead), std::end(kRead));
  for (const Row& row : kLeft) names.push_back(row.name);
  return names;
}

}  // namespace esp::train
