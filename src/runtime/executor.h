// StepExecutor: what the engine asks of a runtime. One implementation runs models; tests put a fake in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/plan.h"
#include "sched/plan.h"
#include "spec/plan.h"

namespace cachalot {

struct ExecutorInfo {
  int32_t max_seqs = 0;            // slots
  int32_t max_step_tokens = 0;     // tokens in one step, over all rows
  int32_t max_context = 0;         // tokens of one sequence
  int32_t vocab_size = 0;
  int32_t num_experts = 0;         // routed experts of a MoE layer; 0: a dense model
  int32_t depth = 0;               // 0 or 1: steps that may be in flight beside the one being launched
  int32_t max_logit_bias = 0;      // entries of one sequence; 0: any number
  int32_t max_top_logprobs = 0;    // 0: any number
  int32_t max_logit_rows = 0;      // positions of one step that may ask for all logits or MTP logits
  std::vector<KvGroupInfo> kv_groups;
  DraftKind device_drafts = DraftKind::kNone;  // what it can draft with itself
  int32_t draft_context = 0;       // tokens in front of a sequence's first row that it needs for that, at most
  double draft_cost = 0;           // what it reads to draft a token, of what it reads in a step: an estimate
  bool accepts_by_lot = false;     // benchmarks: drafts are accepted right or wrong
  std::string kv_identity = "";    // what KV contents depend on beside the tokens: weights, KV types
  bool kv_on_device = false;       // KV blocks lie in a device's memory, so that the host's is a tier below it
};

// A whole block between where steps use it and the host's memory.
struct BlockTransfer {
  int32_t group = 0;
  int32_t block = 0;
  bool into_block = false;    // otherwise out of it
  std::byte* host = nullptr;  // the block's bytes
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual const ExecutorInfo& info() const = 0;
  // Starts the step; at most info().depth others are launched and not yet collected. Steps take effect in the order in
  // which they were launched. The plan must keep to info()'s limits (programmer error otherwise) and is not changed
  // before the step is collected.
  virtual Status Launch(const StepPlan& plan) = 0;
  // Waits for the oldest launched step. At depth 0 it is called right after Launch.
  virtual Status Collect(StepResult* result) = 0;
  // Bytes of weights and KV cache that the steps so far had to read.
  virtual int64_t moved_bytes() const { return 0; }
  // Called after each error of Launch or Collect, before anything else (and again later, if it fails): all steps in
  // flight are given up, and so is everything that slots and KV blocks hold. Makes the device usable again, or says why
  // it is not.
  virtual Status Recover() { return Status::Ok(); }
  // Blocks can be read and written from outside: between two calls, those that no step in flight writes to / touches.
  virtual bool can_move_blocks() const { return false; }
  virtual Status ReadBlock(int32_t group, int32_t block, std::span<std::byte> out) { return Unsupported("this executor gives no KV blocks away"); }
  virtual Status WriteBlock(int32_t group, int32_t block, std::span<const std::byte> bytes) { return Unsupported("this executor takes no KV blocks"); }
  // The same beside the steps: one after the other, in this order. Steps that are launched later wait for them, nobody who calls does.
  // The host's memory must not change, and is not to be read, before they are done. An error is one of the device.
  virtual Status StartTransfers(std::span<const BlockTransfer> transfers) {
    for (const BlockTransfer& transfer : transfers) RETURN_IF_ERROR(Transfer(transfer));
    num_transfers_ += static_cast<int64_t>(transfers.size());
    return Status::Ok();
  }
  // How many are done since the start; behind Recover all of them, whatever they did.
  virtual Result<int64_t> TransfersDone() { return num_transfers_; }
  // Bytes a second into blocks, as measured lately. 0: not yet.
  virtual double transfer_bytes_per_second() const { return 0; }
  // Memory of the host that transfers use: where there is a device it is page-locked, until it is let go of.
  virtual Status PinHost(std::span<std::byte> memory) { return Status::Ok(); }
  virtual void UnpinHost(std::span<std::byte> memory) {}

 protected:
  Status Transfer(const BlockTransfer& transfer) {
    const std::span bytes(transfer.host, static_cast<size_t>(info().kv_groups[static_cast<size_t>(transfer.group)].block_bytes));
    return transfer.into_block ? WriteBlock(transfer.group, transfer.block, bytes) : ReadBlock(transfer.group, transfer.block, bytes);
  }

  int64_t num_transfers_ = 0;  // started
};

}  // namespace cachalot
