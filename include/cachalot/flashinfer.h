/* Cachalot's KV caches as FlashInfer reads them: a stable C interface, C99 (libcachalot_flashinfer.so).
 *
 * FlashInfer's page: F16 or BF16 values [page_size, kv_heads, head_dim] (NHD) or [kv_heads, page_size, head_dim] (HND), keys
 * and values apart; which pages hold a sequence is a CSR table of int32: indptr [batch + 1], indices, last_page_len [batch].
 *
 * Every function returns a cachalot_kv_status. Nothing is allocated for the caller and nothing is kept. Memory of a GPU is
 * neither read nor written by the host: work is put on the caller's stream. No input makes a function read or write beyond
 * the sizes that it is given.
 */
#ifndef CACHALOT_FLASHINFER_H_
#define CACHALOT_FLASHINFER_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header. A library serves the versions that cachalot_kv_check_version accepts. */
#define CACHALOT_KV_ABI_VERSION 1u

typedef enum cachalot_kv_status {
  CACHALOT_KV_OK = 0,
  CACHALOT_KV_NULL_POINTER = 1,
  CACHALOT_KV_BAD_VERSION = 2,    /* abi_version or struct_size of a struct, or version of a header */
  CACHALOT_KV_BAD_HEADER = 3,     /* magic, checksum or a field of a self-describing header */
  CACHALOT_KV_BAD_SHAPE = 4,      /* sizes outside of their limits, or not those of the other side */
  CACHALOT_KV_BAD_TYPE = 5,       /* a qtype, type, layout or dtype that there is not */
  CACHALOT_KV_OUT_OF_BOUNDS = 6,  /* offsets, strides and sizes lead out of the memory */
  CACHALOT_KV_MISALIGNED = 7,
  CACHALOT_KV_BAD_TABLE = 8,      /* indptr, indices or last_page_len */
  CACHALOT_KV_NOT_VIEWABLE = 9,   /* these bits are not what FlashInfer reads: materialize */
  CACHALOT_KV_NO_DEVICE = 10,     /* no libcachalot_cuda.so, or no card */
  CACHALOT_KV_DEVICE_ERROR = 11,
  CACHALOT_KV_INTERNAL = 12       /* such as: no memory for a message */
} cachalot_kv_status;

uint32_t cachalot_kv_abi_version(void);
/* Give it CACHALOT_KV_ABI_VERSION: CACHALOT_KV_OK, or CACHALOT_KV_BAD_VERSION. */
int cachalot_kv_check_version(uint32_t header_version);
/* What a status means; never null. */
const char* cachalot_kv_error_text(int status);
/* What exactly failed last in this thread: the value, its limit and its place. "" before that. Valid until the next failure. */
const char* cachalot_kv_last_error(void);

/* --- the self-describing form ------------------------------------------------------------------------------------------ */

/* How values are stored. */
#define CACHALOT_KV_INT4 1 /* (code - zero_point) * scale, codes 0 to 15 */
#define CACHALOT_KV_INT6 2 /* the same, 0 to 63 */
#define CACHALOT_KV_INT8 3 /* signed code * scale */
#define CACHALOT_KV_FP8 4  /* E4M3 * scale */
#define CACHALOT_KV_F16 5
#define CACHALOT_KV_BF16 6
/* A qtype argument is one of these, plus what it becomes; alone, INT4, INT6, FP8 and F16 become F16, INT8 and BF16 BF16. */
#define CACHALOT_KV_TO_F16 0x100
#define CACHALOT_KV_TO_BF16 0x200

/* The order of the codes in a row (a token of a head); INT8 and wider: one after the other, in either. */
#define CACHALOT_KV_PACK_LINEAR 0 /* a stream of bits that starts at the lowest: of two INT4 the first in the low half */
#define CACHALOT_KV_PACK_UNITS 1  /* Cachalot's: units of 32, src/quant/kv_code.h; rows are filled up to whole units */

/* Scales of a row: one for each `group` values. */
#define CACHALOT_KV_SCALE_ONE 0 /* header.scale, for the whole tensor */
#define CACHALOT_KV_SCALE_F32 1
#define CACHALOT_KV_SCALE_F16 2
#define CACHALOT_KV_SCALE_BF16 3
#define CACHALOT_KV_SCALE_F32_ZERO 4 /* F32 whose four lowest bits are the zero point (vLLM's int4_per_token_head) */

/* Bytes from the start of the header; strides in bytes. */
typedef struct cachalot_kv_plane {
  uint64_t offset;
  uint64_t batch_stride;
  uint64_t head_stride;
  uint64_t token_stride;
} cachalot_kv_plane;

/* 256 bytes, little-endian; the memory that it describes starts with it. Fill it by cachalot_kv_header_init, change what you
 * like, then cachalot_kv_header_seal. Values decode to x = code as above, then, where rotation > 1, H x / rotation in blocks
 * of so many values (H: the Hadamard matrix of Sylvester's construction, entries 1 and -1), then + mean[head]. */
typedef struct cachalot_kv_header {
  uint8_t magic[8]; /* CACHALOT_KV_MAGIC, without its zero */
  uint32_t version; /* CACHALOT_KV_ABI_VERSION */
  uint32_t header_bytes;
  uint32_t qtype;      /* CACHALOT_KV_INT4 ... */
  uint32_t packing;    /* CACHALOT_KV_PACK_* */
  uint32_t scale_type; /* CACHALOT_KV_SCALE_* */
  uint32_t group;      /* values that share a scale: a multiple of 8 (units: of 32); 0: all of a row */
  uint32_t batch;
  uint32_t kv_heads;
  uint32_t seq_len;
  uint32_t head_dim;
  uint32_t rotation; /* 1, or a power of two up to 128 that divides head_dim */
  uint32_t reserved0;
  float scale;      /* finite; of CACHALOT_KV_SCALE_ONE */
  float zero_point; /* finite; INT4 and INT6 without CACHALOT_KV_SCALE_F32_ZERO, else 0 */
  uint64_t total_bytes; /* header included: nothing beyond is read */
  cachalot_kv_plane codes;
  cachalot_kv_plane high;   /* INT6 in units: the two upper bits */
  cachalot_kv_plane scales;
  uint64_t mean_offset;      /* F32; 0: none */
  uint64_t mean_head_stride; /* bytes */
  uint64_t reserved[8];      /* zeros */
  uint64_t checksum;         /* FNV-1a, 64 bits, of the bytes before */
} cachalot_kv_header;

#define CACHALOT_KV_MAGIC "CACHAKV1"

/* A dense layout: the header, then for each plane [batch, kv_heads, seq_len, row], each plane at a multiple of 16 bytes. Sealed;
 * scale 1, zero point 8 (INT4) or 32 (INT6). total_bytes says how much memory it takes. */
int cachalot_kv_header_init(cachalot_kv_header* header, int qtype, int packing, int scale_type, uint32_t group, uint32_t batch,
                            uint32_t kv_heads, uint32_t seq_len, uint32_t head_dim);
int cachalot_kv_header_seal(cachalot_kv_header* header);
/* Whether everything that the header says lies within bytes and is possible. */
int cachalot_kv_header_check(const cachalot_kv_header* header, uint64_t bytes);

/* src starts with a header for just these sizes; dst: [batch, kv_heads, seq_len, head_dim], dense, F16 or BF16 as qtype says. Host
 * memory. src must be as large as its header says: the header's checksum guards against what is none, not against a lie. */
int deepseek_kv_remap(const void* src, void* dst, int32_t batch, int32_t kv_heads, int32_t seq_len, int32_t head_dim, int32_t qtype);

#define CACHALOT_KV_CPU 0u
#define CACHALOT_KV_CUDA 1u

/* The same with the sizes of both memories, and for a GPU. header null: src starts with it (CPU only). Else it is read from there, in
 * host memory, and offsets may begin at 0: what others wrote can be described where it lies. CACHALOT_KV_CPU: stream is ignored.
 * CACHALOT_KV_CUDA: src and dst are device memory of the current device, stream is a cudaStream_t; returns before the work is done. */
int cachalot_kv_remap(const void* src, uint64_t src_bytes, const cachalot_kv_header* header, void* dst, uint64_t dst_bytes,
                      int32_t batch, int32_t kv_heads, int32_t seq_len, int32_t head_dim, int32_t qtype, uint32_t device, void* stream);

/* --- pages ------------------------------------------------------------------------------------------------------------- */

#define CACHALOT_KV_NHD 0u
#define CACHALOT_KV_HND 1u
/* A token's key and value side by side, values = keys + head_dim: vLLM's [..., 2 * head_size]. */
#define CACHALOT_KV_VLLM_NHD 2u
#define CACHALOT_KV_VLLM_HND 3u

/* The types of serve --kv-type. */
#define CACHALOT_KV_TYPE_F16 1u
#define CACHALOT_KV_TYPE_BF16 2u
#define CACHALOT_KV_TYPE_K8V8 3u
#define CACHALOT_KV_TYPE_FP8 4u
#define CACHALOT_KV_TYPE_K6V8 5u
#define CACHALOT_KV_TYPE_K6V4 6u
#define CACHALOT_KV_TYPE_K4V4 7u

#define CACHALOT_KV_DEFAULT (-1) /* key_group, rotate: as the type has it */

/* Which pages hold a sequence; on the source's device. */
typedef struct cachalot_kv_table {
  const int32_t* indptr;        /* [batch + 1] */
  const int32_t* indices;       /* [num_indices] */
  const int32_t* last_page_len; /* [batch], 1 to page_size; of a sequence without pages not looked at */
  uint32_t batch;
  uint32_t num_indices; /* at least indptr[batch] */
} cachalot_kv_table;

#define CACHALOT_KV_BLOCKS 0u  /* one layer of a paged cache of Cachalot's */
#define CACHALOT_KV_TENSORS 1u /* two tensors that headers describe: sequence b is batch entry b */

typedef struct cachalot_kv_source {
  uint32_t struct_size; /* sizeof(cachalot_kv_source) */
  uint32_t abi_version; /* CACHALOT_KV_ABI_VERSION */
  uint32_t kind;        /* CACHALOT_KV_BLOCKS, CACHALOT_KV_TENSORS */
  uint32_t device;      /* where all pointers lead, headers apart */
  /* CACHALOT_KV_BLOCKS: block i begins at blocks + i * block_stride. */
  const void* blocks;
  uint64_t blocks_bytes;
  uint64_t block_stride; /* 0: cachalot_kv_block_bytes */
  uint32_t type;         /* CACHALOT_KV_TYPE_* */
  uint32_t num_blocks;
  uint32_t block_tokens;
  uint32_t kv_heads;
  uint32_t head_dim;  /* of keys and values; MLA: of the latent */
  uint32_t rope_dim;  /* MLA: of the rotary part, beside one latent (kv_heads 1); else 0 */
  int32_t key_group;  /* serve --kv-group: CACHALOT_KV_DEFAULT, 0 (a head), 32, 64, 128 */
  int32_t rotate;     /* serve --kv-rotate: CACHALOT_KV_DEFAULT, 0, 1 */
  const float* key_mean; /* [kv_heads, head_dim], or null */
  cachalot_kv_table table; /* of blocks */
  /* CACHALOT_KV_TENSORS. Headers: as cachalot_kv_remap's. */
  const void* keys;
  uint64_t keys_bytes;
  const cachalot_kv_header* keys_header;
  const void* values;
  uint64_t values_bytes;
  const cachalot_kv_header* values_header;
  uint64_t reserved[4]; /* zeros */
} cachalot_kv_source;

#define CACHALOT_KV_DTYPE_F16 1u
#define CACHALOT_KV_DTYPE_BF16 2u
#define CACHALOT_KV_DTYPE_E4M3 3u /* views only, with k_scale and v_scale */

/* Pages: what _materialize writes, and what _view says of a source. MLA: keys are the latents (FlashInfer's ckv), values the rotary
 * parts (kpe), of value_dim values. */
typedef struct cachalot_kv_pages {
  uint32_t struct_size; /* sizeof(cachalot_kv_pages) */
  uint32_t abi_version;
  uint32_t layout; /* CACHALOT_KV_NHD ... */
  uint32_t dtype;  /* CACHALOT_KV_DTYPE_* */
  uint32_t num_pages;
  uint32_t page_size; /* tokens */
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t value_dim;
  uint32_t equal_strides; /* _view: 1 when keys and values have the same strides, which FlashInfer's decode kernels want */
  void* keys;
  void* values; /* the vLLM layouts: null, or keys + head_dim */
  uint64_t keys_bytes; /* from the pointer on */
  uint64_t values_bytes;
  /* In values. All zero for _materialize: dense, as the layout says. */
  uint64_t page_stride, token_stride, head_stride;
  uint64_t value_page_stride, value_token_stride, value_head_stride;
  float k_scale; /* _view of E4M3, else 1 */
  float v_scale;
  /* Of these pages. indptr null: blocks: the source's table, page_size being block_tokens; tensors: sequence b is page b, page_size
   * being seq_len (so _view has it). */
  cachalot_kv_table table;
  int32_t* fault; /* CUDA, or null: device memory that becomes 1 when a table is not as it must be; such pages are not written */
  uint64_t reserved[4]; /* zeros */
} cachalot_kv_pages;

/* Fills *pages, whose struct_size and abi_version are set, so that FlashInfer reads the source where it lies: F16 and BF16, and
 * tensors of E4M3 with one scale. CACHALOT_KV_NOT_VIEWABLE where that cannot be. Reads no memory but headers. */
int cachalot_kv_page_view(const cachalot_kv_source* source, cachalot_kv_pages* pages);

/* Writes every token that pages->table names as F16 or BF16. The table's lengths must be those of the source's table (blocks), or at
 * most seq_len (tensors). CPU: tables are checked first, and nothing is written where one is wrong. CUDA: puts the work on the
 * stream; tables are looked at there. */
int cachalot_kv_page_materialize(const cachalot_kv_source* source, const cachalot_kv_pages* pages, void* stream);

/* Bytes of a block that the source (type, block_tokens, kv_heads, head_dim, rope_dim, key_group) describes. */
int cachalot_kv_block_bytes(const cachalot_kv_source* source, uint64_t* bytes);

/* The table of sequences of so many tokens (host memory): indptr [batch + 1] and last_page_len [batch]. */
int cachalot_kv_page_counts(const int32_t* lengths, uint32_t batch, uint32_t page_size, int32_t* indptr, int32_t* last_page_len);

#ifdef __cplusplus
}
#endif

#endif /* CACHALOT_FLASHINFER_H_ */
