// How the streaming decode kernel's work is laid out: all (tile, KV head, kSplitAlign tokens) of a step's spans end to end, an
// equal share to each block (the plan's kernel writes where each begins), and a share as pieces of one tile and head.
#pragma once

#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_tma.cuh"

namespace cachalot {

inline constexpr int kRun = kTmaRun;  // tokens of a copy
static_assert(kSplitAlign % kRun == 0);

#ifdef __CUDACC__

// A part of one tile and KV head that a block attends: positions [begin, end) in runs from first_run on.
struct Piece {
  SeqSpan seq;
  int tile;
  int kv_head;
  int begin, end;  // visible to some row
  int first_run;
  int runs;
  bool whole;       // else:
  bool continues;   // the tile and head begin in an earlier block
  int first_block;  // of those that share the tile and head
  int last_block;
};

// A block's share, piece by piece; both kinds of warps walk it.
class Walk {
 public:
  __device__ Walk(const AttentionSchedule& s, const SeqSpan* spans) : s_(s), spans_(spans) {
    const int2 totals = __ldcg(reinterpret_cast<const int2*>(&s.counts->stream_units));
    units_ = totals.x;
    blocks_ = totals.y;
    const int b = static_cast<int>(blockIdx.x);
    left_ = 0;
    if (b >= blocks_) return;
    at_ = ShareBegin(b, units_, blocks_);
    left_ = ShareBegin(b + 1, units_, blocks_) - at_;
    const auto* share = reinterpret_cast<const int4*>(&s.shares[b]);
    const int4 seq = __ldcg(share), where = __ldcg(share + 1);
    seq_ = {seq.x, seq.y, seq.z, seq.w};
    span_ = where.x;
    tile_ = where.y;
    kv_head_ = where.z;
    unit_ = where.w;
  }

  __device__ bool Next(Piece* piece) {
    if (left_ == 0) return false;
    const int tile_rows = TileRowsOf(s_, seq_);
    const TileRange range = RangeOfTile(seq_, tile_, tile_rows, s_.group, s_.window);
    const int units = UnitsOf(range), count = min(units - unit_, left_);
    const int begin = (range.begin / kSplitAlign + unit_) * kSplitAlign;
    piece->seq = seq_;
    piece->tile = tile_;
    piece->kv_head = kv_head_;
    piece->begin = max(begin, range.begin);
    piece->end = min(begin + count * kSplitAlign, range.end);
    piece->first_run = piece->begin / kRun;
    piece->runs = (piece->end + kRun - 1) / kRun - piece->first_run;
    piece->whole = count == units;
    piece->continues = unit_ > 0;
    if (!piece->whole) {
      const int first = at_ - unit_;
      piece->first_block = BlockOfUnit(first, units_, blocks_);
      piece->last_block = BlockOfUnit(first + units - 1, units_, blocks_);
    }
    at_ += count;
    left_ -= count;
    unit_ += count;
    if (unit_ < units) return true;
    unit_ = 0;
    if (++kv_head_ < s_.num_kv_heads) return true;
    kv_head_ = 0;
    if (++tile_ < SplitTilesOf(s_, seq_)) return true;
    tile_ = 0;
    while (left_ > 0) {
      const int4 seq = __ldcg(reinterpret_cast<const int4*>(&spans_[++span_]));
      seq_ = {seq.x, seq.y, seq.z, seq.w};
      if (SplitTilesOf(s_, seq_) > 0) break;
    }
    return true;
  }

 private:
  const AttentionSchedule& s_;
  const SeqSpan* spans_;
  SeqSpan seq_;
  int units_, blocks_, at_, left_, span_, tile_, kv_head_, unit_;
};

#endif

}  // namespace cachalot
