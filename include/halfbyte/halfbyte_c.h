/* The fused MoE operation for other languages: include/halfbyte/moe.h as plain C.
 *
 *   device -> plan -> pack -> layer -> run      (letters T, E, K, L, F: moe.h)
 *
 * Errors    Functions that can fail return hb_status; hb_last_error() has the one line that says
 *           what, for the thread that called. After a failure outputs are as they were, but for
 *           packed bytes, which are then of no use. No exception and no abort crosses this border.
 * Ownership Handles are released by the function named beside them, in any order: a plan keeps its
 *           device, a layer its plan. Releasing NULL does nothing. All memory is the caller's:
 *           nothing that a pointer names is kept beyond the call, but for the packed bytes, which
 *           must outlive their layer.
 * Threads   Any thread may call anything; calls on one device take turns while they queue their
 *           work. Runs on one GPU must not overlap in time (blocks of a kernel may wait for each
 *           other): use one stream, or events between streams; and the stream must have all of the
 *           GPU's multiprocessors (no green context or MPS limit with fewer). Do not release what
 *           another thread uses.
 * Versions  A struct begins with struct_bytes, its size as the caller was compiled: it tells which
 *           fields there are. Fields are only ever added, at the end; those that a caller does not
 *           know have the values that hb_..._init gives.
 * GPU       Memory is of the device's kind: on "cuda:N" device pointers, on "cpu" host pointers.
 *           `stream` is a cudaStream_t of that GPU (NULL: the default stream) and ignored on "cpu".
 *           The CUDA runtime's current device is left as it was.
 *
 * Checked by tests/unit/c_api/c_api_test.cpp and tests/python/test_fused_moe.py. */
#ifndef HALFBYTE_C_H
#define HALFBYTE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HB_API __attribute__((visibility("default")))
#else
#define HB_API
#endif

/* Changes when a caller must be changed too. */
#define HB_ABI_VERSION 2

typedef enum hb_status {
  HB_OK = 0,
  HB_ERROR_INPUT = 1,       /* an argument is wrong */
  HB_ERROR_UNSUPPORTED = 2, /* valid, but not something this build or this device can run */
  HB_ERROR_RESOURCE = 3,    /* memory or a device is missing or full */
  HB_ERROR_INTERNAL = 4     /* a mistake of the library */
} hb_status;

typedef enum hb_dtype { HB_BF16 = 1, HB_F32 = 2 } hb_dtype;

typedef struct hb_device hb_device;
typedef struct hb_moe_plan hb_moe_plan;
typedef struct hb_moe_layer hb_moe_layer;

HB_API uint32_t hb_abi_version(void);
/* The last failure of this thread, one line; "" if there was none. Valid until the thread's next
 * call that fails. */
HB_API const char* hb_last_error(void);

/* ---- device: "cpu" ("cpu.avx512", ...), "ref", "cuda:N" */

/* `threads` of a CPU: 0 takes as many as the process may run on. Release: hb_device_close. */
HB_API hb_status hb_device_open(const char* name, int32_t threads, hb_device** device);
HB_API void hb_device_close(hb_device* device);

/* ---- plan: what is decided once */

typedef struct hb_moe_options {
  uint32_t struct_bytes;
  int32_t num_experts;       /* E: those that are here (expert parallelism: the local ones) */
  int32_t top_k;             /* K */
  int32_t hidden_size;       /* L */
  int32_t intermediate_size; /* F */
  int32_t max_num_tokens;    /* the largest T that hb_moe_run will see */
  const char* weight_format; /* "nvfp4" or "mxfp4" */
  const char* backend;       /* "auto", "hopper", "dequant", "cpu", "reference" */
  const char* activation;    /* "swiglu" ("silu"), "swiglu_clamped" ("swiglu_oai"), "geglu_tanh",
                                "relu2" (no gate), "situ" */
  float situ_beta;
  float situ_linear_beta;
  int32_t situ_has_linear_beta; /* 0: the second factor of SiTU is up itself */
  float swiglu_alpha;           /* these three: swiglu_clamped */
  float swiglu_limit;
  float swiglu_beta; /* added to up */
  /* Experts that the router chooses among, if num_experts of them are here (expert parallelism); 0:
   * all are here. Helps to choose kernels, whose results differ by rounding. */
  int32_t num_global_experts;
  int32_t reserved; /* 0 */
} hb_moe_options;

/* Sets struct_bytes, which is sizeof(hb_moe_options) where the caller was compiled, and every
 * default: sizes 0, "nvfp4", "auto", "swiglu", beta 4, linear beta 25, alpha 1.702, limit 7, swiglu
 * beta 1. */
HB_API void hb_moe_options_init(hb_moe_options* options, size_t struct_bytes);

/* Strings are copied. Release: hb_moe_plan_destroy. */
HB_API hb_status hb_moe_plan_create(hb_device* device, const hb_moe_options* options,
                                    hb_moe_plan** plan);
HB_API void hb_moe_plan_destroy(hb_moe_plan* plan);

typedef struct hb_moe_plan_info {
  uint32_t struct_bytes;    /* in: how much to fill in */
  int32_t packs_in_place;   /* 1: hb_moe_pack_in_place works, and the offsets below are meant */
  uint64_t expert_bytes;    /* one packed expert */
  uint64_t packed_bytes;    /* the layer: E times that; at a multiple of 128 bytes */
  uint64_t workspace_bytes; /* at a multiple of 256 bytes; its content does not matter */
  int32_t takes_f32_input;  /* 1: hidden states may be HB_F32; they may always be HB_BF16 */
  int32_t is_gated;
  /* Where the tensors of an expert lie, from the begin of its packed bytes, before they are packed
   * in place: rows without gaps, fp32 global scales of gate, up and down one after the other. Rows
   * of up follow those of gate. */
  uint64_t gate_codes, up_codes, gate_scales, up_scales, down_codes, down_scales, global_scales;
  const char* describe; /* kernels and tiles, one line; lives as long as the plan */
} hb_moe_plan_info;

HB_API hb_status hb_moe_plan_get_info(const hb_moe_plan* plan, hb_moe_plan_info* info);

/* ---- pack: checkpoint tensors into the layout of the kernels */

/* (experts, rows, bytes of a row), strides in bytes; bytes of a row are neighbours. */
typedef struct hb_strided {
  const void* data;
  int64_t expert_stride;
  int64_t row_stride;
} hb_strided;

typedef struct hb_moe_matrices {
  hb_strided codes;  /* uint8, two E2M1 codes a byte, even column low. On a GPU rows begin at
                        multiples of 8 bytes (MXFP4: 16) */
  hb_strided scales; /* NVFP4: E4M3, one per 16 columns; MXFP4: E8M0, one per 32. Not swizzled */
  const float* global_scales;  /* NVFP4: one an expert; MXFP4: NULL */
  int64_t global_scale_stride; /* floats between experts; 0: all share one */
} hb_moe_matrices;

typedef struct hb_moe_weights {
  uint32_t struct_bytes;
  hb_moe_matrices gate; /* (F, L); ignored if not gated */
  hb_moe_matrices up;   /* (F, L) */
  hb_moe_matrices down; /* (L, F) */
} hb_moe_weights;

/* Packs the experts [first, first + count): expert 0 of `weights` is `first`. `packed` is the whole
 * layer, info.packed_bytes, and shares no byte with `weights`. Refuses a block scale that is NaN or
 * negative and a global scale that is not finite and positive (HB_ERROR_INPUT). Queued on `stream`;
 * waits until it is done. */
HB_API hb_status hb_moe_pack(const hb_moe_plan* plan, const hb_moe_weights* weights, int32_t first,
                             int32_t count, void* packed, size_t packed_bytes, void* stream);

/* Packs the whole layer whose tensors were written into `packed` at the offsets of the info.
 * `scratch`: device memory of one packed expert at least; with more there are fewer launches.
 * HB_ERROR_UNSUPPORTED if info.packs_in_place is 0. Waits until it is done. */
HB_API hb_status hb_moe_pack_in_place(const hb_moe_plan* plan, void* packed, size_t packed_bytes,
                                      void* scratch, size_t scratch_bytes, void* stream);

/* ---- layer: what runs */

/* `packed` must outlive the layer. Release: hb_moe_layer_destroy, when all of its runs are done. */
HB_API hb_status hb_moe_layer_create(const hb_moe_plan* plan, const void* packed,
                                     size_t packed_bytes, hb_moe_layer** layer);
HB_API void hb_moe_layer_destroy(hb_moe_layer* layer);

typedef struct hb_moe_call {
  uint32_t struct_bytes;
  int32_t num_tokens;          /* T, from 0 to max_num_tokens */
  const int32_t* topk_ids;     /* (T, K); an id outside [0, E), such as -1, is skipped */
  const float* topk_weights;   /* (T, K); factors of the experts' outputs */
  const void* hidden_states;   /* (T, L) */
  void* output;                /* (T, L), shares no byte with hidden_states */
  int32_t hidden_states_dtype; /* hb_dtype */
  int32_t output_dtype;        /* hb_dtype */
  /* Elements between rows; on a GPU, rows of both begin at multiples of 16 bytes. */
  int64_t hidden_states_stride;
  int64_t output_stride;
  void* workspace; /* info.workspace_bytes at least */
  size_t workspace_bytes;
  void* stream;
} hb_moe_call;

/* Queues one call on `stream`, and on a GPU returns before it is done: no allocation, no wait, no
 * read-back, so that a CUDA graph may capture it and replay it with other content (not with backend
 * "dequant", which says so). Rows of the output without any expert become 0. */
HB_API hb_status hb_moe_run(const hb_moe_layer* layer, const hb_moe_call* call);

#ifdef __cplusplus
}
#endif

#endif /* HALFBYTE_C_H */
