// How the streaming decode kernel's work is laid out: all (tile, KV head, kSplitAlign tokens) of a step's spans end to end, an
// equal share to each block (the plan's kernel writes where each begins), and a share as pieces of one tile and head.
#pragma once

#include "kernels/attention/attention_split.cuh"

namespace cachalot {

inline constexpr int kRun = 16;  // tokens that are copied at a time
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

// A block's share, piece by piece; every kind of warp walks it. A tile and head that it begins and others go on with comes first,
// so that what several blocks have to fold is folded while there is still something to copy.
class Walk {
 public:
  __device__ Walk(const AttentionSchedule& s, const SeqSpan* spans) : s_(s), spans_(spans) {
    const int b = static_cast<int>(blockIdx.x);
    const int2 totals = __ldcg(reinterpret_cast<const int2*>(&s.counts->stream_units));
    units_ = totals.x;
    blocks_ = totals.y;
    at_ = Load(&s.shares[b]);
    tail_ = Load(&s.shares[min(b + 1, static_cast<int>(gridDim.x) - 1)]);
    left_ = tail_units_ = 0;
    if (b >= blocks_) return;
    unit_ = ShareBegin(b, units_, blocks_);
    left_ = ShareBegin(b + 1, units_, blocks_) - unit_;
    if (b + 1 < blocks_ && tail_.unit > 0 && tail_.unit < left_) {
      tail_units_ = tail_.unit;
      tail_.unit = 0;
      left_ -= tail_units_;
    }
  }

  __device__ bool Next(Piece* piece) {
    if (tail_units_ > 0) {
      Fill(tail_, unit_ + left_, tail_units_, piece);
      tail_units_ = 0;
      return true;
    }
    if (left_ == 0) return false;
    const int rest = Fill(at_, unit_, left_, piece);
    const int count = min(rest, left_);
    unit_ += count;
    left_ -= count;
    at_.unit += count;
    if (count < rest) return true;
    at_.unit = 0;
    if (++at_.kv_head < s_.num_kv_heads) return true;
    at_.kv_head = 0;
    if (++at_.tile < SplitTilesOf(s_, at_.seq)) return true;
    at_.tile = 0;
    while (left_ > 0) {
      const SeqSpan* seq = &spans_[++at_.span];
      at_.seq = {__ldcg(&seq->slot), __ldcg(&seq->q_begin), __ldcg(&seq->q_len), __ldcg(&seq->kv_len)};
      if (SplitTilesOf(s_, at_.seq) > 0) break;
    }
    return true;
  }

 private:
  static __device__ StreamShare Load(const StreamShare* share) {
    const int4 seq = __ldcg(reinterpret_cast<const int4*>(share)), at = __ldcg(reinterpret_cast<const int4*>(share) + 1);
    return {{seq.x, seq.y, seq.z, seq.w}, at.x, at.y, at.z, at.w};
  }

  // At most `most` units from `at` on, which is `unit` of all. Returns how many the tile and head have from there on.
  __device__ int Fill(const StreamShare& at, int unit, int most, Piece* piece) const {
    const TileRange range = RangeOfTile(at.seq, at.tile, TileRowsOf(s_, at.seq), s_.group, s_.window);
    const int units = UnitsOf(range), count = min(units - at.unit, most);
    const int begin = (range.begin / kSplitAlign + at.unit) * kSplitAlign;
    piece->seq = at.seq;
    piece->tile = at.tile;
    piece->kv_head = at.kv_head;
    piece->begin = max(max(begin, range.begin), s_.sinks);
    piece->end = min(begin + count * kSplitAlign, range.end);
    piece->first_run = piece->begin / kRun;
    piece->runs = max((piece->end + kRun - 1) / kRun - piece->first_run, 0);
    piece->whole = count == units;
    piece->continues = at.unit > 0;
    if (!piece->whole) {
      const int first = unit - at.unit;
      piece->first_block = BlockOfUnit(first, units_, blocks_);
      piece->last_block = BlockOfUnit(first + units - 1, units_, blocks_);
    }
    return units - at.unit;
  }

  const AttentionSchedule& s_;
  const SeqSpan* spans_;
  StreamShare at_;    // where it goes on
  StreamShare tail_;  // what comes first
  int units_, blocks_;
  int unit_, left_;  // the next of all units, and how many are left from there on
  int tail_units_;
};

#endif

}  // namespace cachalot
